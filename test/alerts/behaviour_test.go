// SPDX-License-Identifier: Apache-2.0

package alerts

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"text/template"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/storage"
)

// TestAlertsFire plays series to each alert, a sample a minute, and asks minute by minute: before a minute it is silent, and then it
// says this.
func TestAlertsFire(t *testing.T) {
	all := alerts(t)
	engine := promqltest.NewTestEngine(t, false, 0, 100000)
	tested := map[string]bool{}
	for _, tc := range []struct {
		alert, name string
		series      []string
		from        int
		want        []string // nil: silent to the end
	}{
		{
			alert: "KubeOvnNftableLBControllerDown", name: "its series end", series: []string{`kube_ovn_nftable_lb_last_success_timestamp_seconds 1x10 _x30`},
			from: 20, want: []string{"No controller is at work on LoadBalancer Services of custom VPCs."},
		},
		{alert: "KubeOvnNftableLBControllerDown", name: "one of two leads", series: []string{`kube_ovn_nftable_lb_last_success_timestamp_seconds{pod="a"} 1x40`}},
		{
			alert: "KubeOvnNftableLBProgrammingStuck", name: "a change that does not arrive",
			series: []string{`kube_ovn_nftable_lb_programming_pending_seconds{gateway="a"} 0+60x20`, `kube_ovn_nftable_lb_programming_pending_seconds{gateway="b"} 1x20`},
			from:   4, want: []string{"Gateway a does not follow the Pods behind its Services."},
		},
		{alert: "KubeOvnNftableLBProgrammingStuck", name: "changes that take their time", series: []string{`kube_ovn_nftable_lb_programming_pending_seconds{gateway="a"} 30x20`}},
		{
			alert: "KubeOvnNftableLBProgrammingSlow", name: "half of them take 12 s",
			series: []string{
				`kube_ovn_nftable_lb_programming_duration_seconds_bucket{gateway="a",le="6.4"} 0+5x40`, `kube_ovn_nftable_lb_programming_duration_seconds_bucket{gateway="a",le="12.8"} 0+10x40`,
				`kube_ovn_nftable_lb_programming_duration_seconds_bucket{gateway="a",le="+Inf"} 0+10x40`,
			},
			from: 11, want: []string{"Gateway a follows the Pods behind its Services late."},
		},
		{
			alert: "KubeOvnNftableLBProgrammingSlow", name: "all take 0.2 s, and then none comes",
			series: []string{
				`kube_ovn_nftable_lb_programming_duration_seconds_bucket{gateway="a",le="0.2"} 0+10x20 200x20`, `kube_ovn_nftable_lb_programming_duration_seconds_bucket{gateway="a",le="+Inf"} 0+10x20 200x20`,
			},
		},
		{
			alert: "KubeOvnNftableLBServicesNotServed", name: "by reason",
			series: []string{
				`kube_ovn_nftable_lb_services{reason="GatewayNotReady"} 2x30`, `kube_ovn_nftable_lb_services{reason="Programming"} 0 1 0 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0`, `kube_ovn_nftable_lb_services{reason="NoBackend"} 3x30`,
			},
			from: 10, want: []string{"2 Services are not served as they should be: GatewayNotReady."},
		},
		{
			alert: "KubeOvnNftableLBPortConflict", name: "one", series: []string{`kube_ovn_nftable_lb_services{reason="PortConflict"} 0x5 1x30`},
			from: 21, want: []string{"1 Services ask for a port of an EIP that is another one's."},
		},
		{
			alert: "KubeOvnNftableLBServicesMisconfigured", name: "by reason", series: []string{`kube_ovn_nftable_lb_services{reason="NoBackend"} 1x90`, `kube_ovn_nftable_lb_services{reason="Programmed"} 9x90`},
			from: 60, want: []string{"1 Services are not served as they are written: NoBackend."},
		},
		{
			alert: "KubeOvnNftableLBSyncFailing", name: "again and again",
			series: []string{`kube_ovn_nftable_lb_sync_duration_seconds_count{result="error"} 0+2x40`, `kube_ovn_nftable_lb_sync_duration_seconds_count{result="success"} 0+9x40`},
			from:   16, want: []string{"Passes over Services have been failing for a quarter of an hour."},
		},
		{
			alert: "KubeOvnNftableLBSyncFailing", name: "now and then, and caches that are behind",
			series: []string{`kube_ovn_nftable_lb_sync_duration_seconds_count{result="error"} 0x5 1x40`, `kube_ovn_nftable_lb_sync_duration_seconds_count{result="stale"} 0+9x40`},
		},
		{
			alert: "KubeOvnNftableLBWritesFailing", name: "creates", series: []string{`kube_ovn_nftable_lb_writes_total{operation="create",result="error"} 0+2x40`, `kube_ovn_nftable_lb_writes_total{operation="delete",result="success"} 0+2x40`},
			from: 11, want: []string{"The API server refuses to create what Services need."},
		},
		{
			alert: "KubeOvnNftableLBQueueStuck", name: "ours, not another's",
			series: []string{`workqueue_longest_running_processor_seconds{name="nat_gateway_eip"} 0+60x20`, `workqueue_longest_running_processor_seconds{name="deployment"} 0+60x20`},
			from:   11, want: []string{"A worker of queue nat_gateway_eip does not come to an end."},
		},
		{
			alert: "KubeOvnNftableLBQueueSlow", name: "ten seconds each",
			series: []string{
				`workqueue_queue_duration_seconds_bucket{name="lbservice",le="1"} 0x40`, `workqueue_queue_duration_seconds_bucket{name="lbservice",le="10"} 0+9x40`, `workqueue_queue_duration_seconds_bucket{name="lbservice",le="+Inf"} 0+9x40`,
			},
			from: 16, want: []string{"Queue lbservice is longer than its workers can handle."},
		},
		{
			alert: "KubeOvnNatGatewayNotReady", name: "one of two", series: []string{`kube_ovn_nat_gateway_ready{gateway="a"} 1x3 0x20`, `kube_ovn_nat_gateway_ready{gateway="b"} 1x30`},
			from: 9, want: []string{"NAT gateway a is not ready."},
		},
		{alert: "KubeOvnNatGatewayNotReady", name: "replaced in time", series: []string{`kube_ovn_nat_gateway_ready{gateway="a"} 1 1 0 0 0 1 1 1 0 0 1 1 1 1 1`}},
		{
			alert: "KubeOvnNatGatewayRolloutStopped", name: "one failed, one waits",
			series: []string{`kube_ovn_nat_gateway_rollout{gateway="a",state="failed"} 0x3 1x20`, `kube_ovn_nat_gateway_rollout{gateway="b",state="held"} 1x20`},
			from:   6, want: []string{"The rollout of a gateway image has stopped at NAT gateway a."},
		},
		{
			alert: "KubeOvnNatGatewayCallsFailing", name: "no answer",
			series: []string{`kube_ovn_nat_gateway_calls_total{gateway="a",verb="nft-dnat-map-list",result="error"} 0+2x40`, `kube_ovn_nat_gateway_calls_total{gateway="b",verb="nft-dnat-map-list",result="success"} 0+2x40`},
			from:   11, want: []string{"Calls do not get through to NAT gateway a."},
		},
		{
			alert: "KubeOvnNatGatewayCallsRefused", name: "a sync", series: []string{`kube_ovn_nat_gateway_calls_total{gateway="a",verb="nft-dnat-map-sync",result="refused"} 0+2x40`},
			from: 11, want: []string{"The script in NAT gateway a refuses nft-dnat-map-sync."},
		},
		{
			alert: "KubeOvnNatGatewayNotChecked", name: "not since the start", series: []string{`kube_ovn_nat_gateway_last_success_timestamp_seconds{gateway="a"} 0x40`, `kube_ovn_nat_gateway_last_success_timestamp_seconds{gateway="b"} 0+60x40`},
			from: 16, want: []string{"Nobody knows what NAT gateway a holds."},
		},
		{
			alert: "KubeOvnNatGatewayRulesPending", name: "some", series: []string{`kube_ovn_nat_gateway_rules_not_ready{gateway="a",class="pending"} 3x30`, `kube_ovn_nat_gateway_rules_not_ready{gateway="a",class="programming"} 5x30`},
			from: 15, want: []string{"3 DNAT rules of NAT gateway a wait for an address or for the gateway."},
		},
		{
			alert: "KubeOvnNatGatewayRulesUnusable", name: "both classes", series: []string{`kube_ovn_nat_gateway_rules_not_ready{gateway="a",class="lost"} 1x30`, `kube_ovn_nat_gateway_rules_not_ready{gateway="a",class="invalid"} 2x30`},
			from: 15, want: []string{"1 DNAT rules of NAT gateway a are not programmed: lost.", "2 DNAT rules of NAT gateway a are not programmed: invalid."},
		},
		{
			alert: "KubeOvnWebhookErrors", name: "one kind", series: []string{`kube_ovn_webhook_reviews_total{kind="Service",operation="CREATE",result="error"} 0+3x30`, `kube_ovn_webhook_reviews_total{kind="IptablesEIP",operation="CREATE",result="refused"} 0+3x30`},
			from: 11, want: []string{"The webhook cannot judge some Service objects."},
		},
		{
			alert: "KubeOvnWebhookCertificateExpires", name: "four days", series: []string{`kube_ovn_webhook_certificate_expiration_timestamp_seconds{certificate="serving"} 345600x90`, `kube_ovn_webhook_certificate_expiration_timestamp_seconds{certificate="authority"} 60000000x90`},
			from: 60, want: []string{"The webhook's serving certificate is not renewed."},
		},
	} {
		t.Run(tc.alert+"/"+tc.name, func(t *testing.T) {
			rule, ok := all[tc.alert]
			if !ok {
				t.Fatal("there is no such alert")
			}
			tested[tc.alert] = tested[tc.alert] || tc.want != nil
			store := promqltest.LoadedStorage(t, "load 1m\n  "+strings.Join(tc.series, "\n  ")+"\n")
			p := player{T: t, engine: engine, store: store, rule: rule, active: map[string]int{}}
			if tc.want == nil {
				tc.from = 40
			}
			for minute := range tc.from {
				if got := p.at(minute); got != nil {
					t.Fatalf("minute %d: %q", minute, got)
				}
			}
			if diff := cmp.Diff(tc.want, p.at(tc.from)); diff != "" {
				t.Fatalf("minute %d (-want +got):\n%s", tc.from, diff)
			}
		})
	}
	for name := range all {
		if !tested[name] {
			t.Errorf("%s: no test shows it firing", name)
		}
	}
}

// player asks an alert minute by minute, as Prometheus does.
type player struct {
	*testing.T
	engine *promql.Engine
	store  storage.Queryable
	rule   rulefmt.Rule
	// active is for how many minutes each element has been there.
	active map[string]int
}

// at gives the summaries of what fires at a minute.
func (p *player) at(minute int) []string {
	p.Helper()
	query, err := p.engine.NewInstantQuery(p.Context(), p.store, nil, p.rule.Expr, time.Unix(int64(minute)*60, 0))
	if err != nil {
		p.Fatal(err)
	}
	defer query.Close()
	vector, err := query.Exec(context.Background()).Vector()
	if err != nil {
		p.Fatal(err)
	}
	var firing []string
	next := map[string]int{}
	for _, sample := range vector {
		key := sample.Metric.String()
		since, ok := p.active[key]
		if !ok {
			since = minute
		}
		next[key] = since
		if time.Duration(minute-since)*time.Minute >= time.Duration(p.rule.For) {
			firing = append(firing, p.expand("summary", sample))
			p.expand("description", sample)
		}
	}
	p.active = next
	slices.Sort(firing)
	return firing
}

// expand fills in an annotation; a label that the alert does not have is an error.
func (p *player) expand(annotation string, sample promql.Sample) string {
	p.Helper()
	show := func(v float64) string { return fmt.Sprintf("%.4g", v) }
	t, err := template.New(annotation).Option("missingkey=error").Funcs(template.FuncMap{"humanize": show, "humanizeDuration": show}).
		Parse("{{$labels := .Labels}}{{$value := .Value}}" + p.rule.Annotations[annotation])
	if err != nil {
		p.Fatal(err)
	}
	var out strings.Builder
	if err := t.Execute(&out, map[string]any{"Labels": sample.Metric.Map(), "Value": sample.F}); err != nil {
		p.Fatal(err)
	}
	return out.String()
}
