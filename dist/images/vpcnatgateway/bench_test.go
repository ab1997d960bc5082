// SPDX-License-Identifier: Apache-2.0

package vpcnatgateway_test

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// BenchmarkThousandBackends programs one identity of 1000 backends with nft-dnat-map-add, each time beside nft reading the same rules. Machines
// differ and are shared: what counts is the ratio of the two medians of one run.
func BenchmarkThousandBackends(b *testing.B) {
	for _, tc := range []struct {
		name, affinity string
		share          sharenat.Share
	}{
		{"none", "none,0", many("tcp:80", 1000)},
		{"ClientIP", "clientip,60", sticky(60, many("tcp:80", 1000))},
	} {
		b.Run(tc.name, func(b *testing.B) {
			g := newGateway(b)
			backends := make([]string, len(tc.share.Backends))
			for i := range tc.share.Backends {
				tc.share.Backends[i].Masquerade = false // this verb's form has no room for it
				backends[i] = tc.share.Backends[i].Addr.String()
			}
			rule := fmt.Sprintf("%s,%d,%s,%s,%s", tc.share.EIP, tc.share.Port, tc.share.Protocol, tc.affinity, strings.Join(backends, "@"))
			g.run("", "nft-dnat-map-add", rule)
			g.holds(tc.share)
			rules := "delete table ip kube-ovn\n" + g.must("nft", "list", "table", "ip", "kube-ovn")
			var ours, floor rounds
			for b.Loop() {
				ours.add(g.measure("", "bash", g.script, "nft-dnat-map-add", rule))
				floor.add(g.measure(rules, "nft", "-f", "-"))
			}
			g.holds(tc.share)
			b.ReportMetric(ours.median()/floor.median(), "times-nft")
			b.ReportMetric(ours.median()*1e3, "ms/call")
			b.ReportMetric(floor.median()*1e3, "ms/nft")
			b.ReportMetric(0, "ns/op") // the sum of both says nothing
		})
	}
}

// rounds are durations in seconds.
type rounds []float64

func (r *rounds) add(d time.Duration) { *r = append(*r, d.Seconds()) }

func (r *rounds) median() float64 {
	sorted := slices.Sorted(slices.Values(*r))
	return sorted[len(sorted)/2]
}

// measure is the time that a command takes in the gateway's namespace, entering it not included.
func (g *gateway) measure(stdin string, args ...string) (took time.Duration) {
	g.t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin = strings.NewReader(stdin)
	err := in(g.ns, func() error {
		start := time.Now()
		out, err := cmd.CombinedOutput()
		took = time.Since(start)
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	if err != nil {
		g.t.Fatalf("%s: %v", args[0], err)
	}
	return took
}
