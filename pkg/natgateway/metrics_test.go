// SPDX-License-Identifier: Apache-2.0

package natgateway

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeovn/kube-ovn/pkg/latency"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// figures are the metrics of the gateway's state.
var figures = []string{
	"kube_ovn_nat_gateway_backends", "kube_ovn_nat_gateway_identities", "kube_ovn_nat_gateway_pods",
	"kube_ovn_nat_gateway_ready", "kube_ovn_nat_gateway_rules_not_ready",
}

func (f *fixture) untilFigures(want string) {
	f.Helper()
	var err error
	defer func() {
		if f.Failed() {
			f.Log(err)
		}
	}()
	f.until("the metrics are as wanted", func() bool {
		err = testutil.GatherAndCompare(f.registry, strings.NewReader(headers.Replace(want)), figures...)
		return err == nil
	})
}

// headers puts HELP and TYPE before the first series of each metric.
var headers = strings.NewReplacer(
	"# backends\n", "# HELP kube_ovn_nat_gateway_backends Backends of all identities that a gateway should hold.\n# TYPE kube_ovn_nat_gateway_backends gauge\n",
	"# identities\n", "# HELP kube_ovn_nat_gateway_identities Identities (EIP, port, protocol) that a gateway should hold.\n# TYPE kube_ovn_nat_gateway_identities gauge\n",
	"# pods\n", "# HELP kube_ovn_nat_gateway_pods Pods of the gateway, by state: filled (holds all that it should), filling, not_ready (no traffic is expected from it).\n# TYPE kube_ovn_nat_gateway_pods gauge\n",
	"# ready\n", "# HELP kube_ovn_nat_gateway_ready 1 while as many pods as wanted run the gateway and hold all that they should, else 0.\n# TYPE kube_ovn_nat_gateway_ready gauge\n",
	"# not ready\n", "# HELP kube_ovn_nat_gateway_rules_not_ready Rules of a gateway that are not, or still, programmed, by reason class: pending (an address or the gateway is missing), programming (on the way), lost (the port is another's), invalid, deleting (on the way out).\n# TYPE kube_ovn_nat_gateway_rules_not_ready gauge\n",
)

const allWell = `# backends
kube_ovn_nat_gateway_backends{gateway="gw"} 3
# identities
kube_ovn_nat_gateway_identities{gateway="gw"} 2
# pods
kube_ovn_nat_gateway_pods{gateway="gw",state="filled"} 1
kube_ovn_nat_gateway_pods{gateway="gw",state="filling"} 0
kube_ovn_nat_gateway_pods{gateway="gw",state="not_ready"} 0
# ready
kube_ovn_nat_gateway_ready{gateway="gw"} 1
# not ready
kube_ovn_nat_gateway_rules_not_ready{class="deleting",gateway="gw"} 0
kube_ovn_nat_gateway_rules_not_ready{class="invalid",gateway="gw"} 1
kube_ovn_nat_gateway_rules_not_ready{class="lost",gateway="gw"} 1
kube_ovn_nat_gateway_rules_not_ready{class="pending",gateway="gw"} 0
kube_ovn_nat_gateway_rules_not_ready{class="programming",gateway="gw"} 0
`

func TestFigures(t *testing.T) {
	f := running(t)
	f.createRule(rule("a", "e", "10.1.0.4:8080", claimed))
	f.createRule(rule("b", "e", "10.1.0.5:8080", claimed))
	f.createRule(rule("c", "e", "10.1.0.6:53", claimed, exclusive, port("53")))
	f.createRule(rule("d", "e", "10.1.0.7:53", claimed, exclusive, port("53")))
	f.createRule(rule("wrong", "e", "10.1.0.4:0", claimed, port("81")))
	f.until("rules are ready", f.rulesReady(3))
	f.untilFigures(allWell)

	// What the gateway cannot be told waits, and what is to go stays.
	var deaf atomic.Bool
	deaf.Store(true)
	f.script.with(func() {
		f.script.intercept = func(_ context.Context, call Call) error {
			if deaf.Load() {
				return &CallError{Pod: call.Pod, Verb: call.Verb, ExitCode: -1, Err: errors.New("no way there")}
			}
			return nil
		}
	})
	f.createRule(rule("e", "e", "10.1.0.8:8080", claimed, port("8080")))
	f.createRule(rule("f", "nowhere", "10.1.0.8:8080", claimed, port("8080")))
	f.must(f.ovn.KubeovnV1().IptablesDnatRules().Delete(context.Background(), "b", metav1.DeleteOptions{}))
	f.untilFigures(strings.NewReplacer(
		`class="deleting",gateway="gw"} 0`, `class="deleting",gateway="gw"} 1`,
		`class="programming",gateway="gw"} 0`, `class="programming",gateway="gw"} 1`,
		`identities{gateway="gw"} 2`, `identities{gateway="gw"} 3`,
	).Replace(allWell))
	deaf.Store(false)
	f.untilFigures(strings.NewReplacer(`identities{gateway="gw"} 2`, `identities{gateway="gw"} 3`).Replace(allWell))
}

func TestCallsAreCounted(t *testing.T) {
	f := running(t)
	f.createRule(rule("a", "e", "10.1.0.4:8080", claimed))
	f.until("rule is ready", f.rulesReady(1))
	f.script.with(func() {
		f.script.refuse = func(s sharenat.Share) string {
			if s.Port == 81 {
				return "I do not like it"
			}
			return ""
		}
	})
	f.createRule(rule("b", "e", "10.1.0.4:8080", claimed, port("81")))
	f.until("the rule is refused", func() bool { r := f.rule("b"); return len(r.Status.Conditions) > 0 })
	problems, err := testutil.GatherAndLint(f.registry)
	if err != nil || len(problems) > 0 {
		t.Error(problems, err)
	}
	want := []string{
		"init success", "eip-add success", "subnet-route-add success", sharenat.ListVerb + " success", sharenat.SyncVerb + " success", sharenat.SyncVerb + " refused",
		"time of " + verbInit, "time of " + sharenat.SyncVerb,
	}
	got := map[string]float64{}
	families, err := f.registry.Gather()
	f.must(err)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			labels := map[string]string{}
			for _, pair := range m.GetLabel() {
				labels[pair.GetName()] = pair.GetValue()
			}
			switch family.GetName() {
			case "kube_ovn_nat_gateway_calls_total":
				got[labels["verb"]+" "+labels["result"]] = m.GetCounter().GetValue()
			case "kube_ovn_nat_gateway_call_duration_seconds":
				got["time of "+labels["verb"]] = float64(m.GetHistogram().GetSampleCount())
			case "kube_ovn_nat_gateway_last_success_timestamp_seconds":
				if age := time.Since(time.UnixMilli(int64(m.GetGauge().GetValue() * 1000))); age < 0 || age > time.Minute {
					t.Errorf("last success %v ago", age)
				}
			}
		}
	}
	for _, series := range want {
		if got[series] < 1 {
			t.Errorf("no %q in %v", series, got)
		}
	}
}

// A gateway that is gone takes its series along, also those of a call that ends after it.
func TestSeriesGoWithTheGateway(t *testing.T) {
	f := running(t)
	registered := testutil.CollectAndCount // every series names a gateway here
	metrics, err := NewMetrics(nil)
	f.must(err)
	f.must(f.ovn.KubeovnV1().IptablesEIPs().Delete(context.Background(), "e", metav1.DeleteOptions{}))
	f.until("the EIP is gone", func() bool { return f.eip("e") == nil })
	f.must(f.ovn.KubeovnV1().VpcNatGateways().Delete(context.Background(), testGateway, metav1.DeleteOptions{}))
	f.until("the gateway is gone", func() bool { return f.gateway() == nil })
	f.until("its series are gone", func() bool {
		families, err := f.registry.Gather()
		f.must(err)
		return len(families) == 0
	})

	metrics.exists = func(gateway string) bool { return gateway != testGateway }
	metrics.observeCall(testGateway, verbInit, nil, time.Second)
	metrics.observeSuccess(testGateway, time.Now())
	if n := registered(metrics); n != 0 {
		t.Errorf("%d series of a gateway that is gone", n)
	}
	metrics.observeCall("other", verbInit, nil, time.Second)
	if n := registered(metrics); n != 2 {
		t.Errorf("%d series of one call, want its count and its time", n)
	}
}

// A change has arrived when every pod that counts holds it, before anything is said about it in a status.
func TestLatencyByPods(t *testing.T) {
	f := running(t)
	f.createPod(gatewayPod(1, "c1"))
	f.settled()
	id := mustIdentity(eipAddress, "80", "tcp")
	share := sharenat.Share{Identity: id, Backends: []sharenat.Backend{{Addr: netip.MustParseAddrPort("10.1.0.4:8080")}}}
	expect := func(digest string) {
		owner := sharenat.Owner{Namespace: "default", Name: "web"}
		f.tracker.Changed(owner, time.Now())
		f.tracker.Pass(owner)(func() latency.Decision {
			return latency.Decision{Gateway: testGateway, Digests: map[sharenat.Identity]string{id: digest}}
		})
	}
	measured := func() uint64 {
		families, err := f.registry.Gather()
		f.must(err)
		for _, family := range families {
			if family.GetName() == "kube_ovn_nftable_lb_programming_duration_seconds" {
				return family.GetMetric()[0].GetHistogram().GetSampleCount()
			}
		}
		return 0
	}
	var deaf atomic.Bool
	deaf.Store(true)
	f.script.with(func() {
		f.script.intercept = func(_ context.Context, call Call) error {
			if deaf.Load() && call.Pod == podKey(1) {
				return &CallError{Pod: call.Pod, Verb: call.Verb, ExitCode: -1, Err: errors.New("no way there")}
			}
			return nil
		}
	})
	expect(share.Digest())
	f.createRule(rule("a", "e", "10.1.0.4:8080", managedBy("web", eipAddress)))
	f.until("one pod holds it", func() bool { return f.script.backends(podKey(0)) == 1 })
	f.settled()
	if n := measured(); n != 0 {
		t.Errorf("%d changes have arrived, though not at every pod", n)
	}
	deaf.Store(false)
	f.until("it has arrived", func() bool { return measured() == 1 })

	expect("")
	f.must(f.ovn.KubeovnV1().IptablesDnatRules().Delete(context.Background(), "a", metav1.DeleteOptions{}))
	f.until("its going has arrived", func() bool { return measured() == 2 })
}
