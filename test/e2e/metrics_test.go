// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	. "github.com/kubeovn/kube-ovn/test/e2e/framework"
)

// scrape reads the metrics of the controller that leads.
func (b *balancer) scrape(ctx context.Context, g Gomega) Metrics {
	all, err := b.ControllerMetrics(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	for _, metrics := range all {
		if metrics["kube_ovn_nftable_lb_last_success_timestamp_seconds"] != nil {
			return metrics
		}
	}
	g.Expect(all).To(BeNil(), "none of the controllers leads")
	return nil
}

var _ = Describe("The controller's metrics", Lab, func() {
	It("tell how long a change of endpoints took to the gateway, and what it holds, until it is gone", func(ctx SpecContext) {
		created := time.Now()
		b := newBalancer(ctx, 2, TCP(80), UDP(53))
		gateway := map[string]string{"gateway": b.Net.Name}
		const programming = "kube_ovn_nftable_lb_programming_duration_seconds"
		before, _ := b.scrape(ctx, Default).Histogram(programming, gateway)

		By("a change of endpoints")
		start := time.Now()
		b.Scale(ctx, "web", 4)
		b.Settle(ctx, 4)
		Wait(ctx, func(g Gomega, ctx context.Context) {
			metrics := b.scrape(ctx, g)
			count, sum := metrics.Histogram(programming, gateway)
			g.Expect(count).To(BeNumerically(">", before), "changes that were measured")
			// The time of the Service's creation is that of the second before.
			g.Expect(sum/float64(count)).To(And(BeNumerically(">", 0), BeNumerically("<", time.Since(created).Seconds()+1)), "seconds that a change took")
			g.Expect(metrics.Series("kube_ovn_nftable_lb_programming_pending_seconds", gateway)).To(BeZero(), "changes that have not arrived")
			GinkgoWriter.Printf("%d changes of endpoints, %.0f ms each on average\n", count, 1000*sum/float64(count))
		}).Should(Succeed())

		By("what the gateway is like")
		Wait(ctx, func(g Gomega, ctx context.Context) {
			metrics := b.scrape(ctx, g)
			with := func(label, value string) map[string]string {
				return map[string]string{"gateway": b.Net.Name, label: value}
			}
			for _, want := range []struct {
				name   string
				labels map[string]string
				value  float64
			}{
				{"kube_ovn_nat_gateway_ready", gateway, 1},
				{"kube_ovn_nat_gateway_pods", with("state", "filled"), 1},
				{"kube_ovn_nat_gateway_identities", gateway, 2},
				{"kube_ovn_nat_gateway_backends", gateway, 8},
				{"kube_ovn_nat_gateway_rules_not_ready", gateway, 0},
				{"kube_ovn_nftable_lb_rules", with("state", "ready"), 8},
				{"kube_ovn_nftable_lb_rules", gateway, 8},
			} {
				g.Expect(metrics.Sum(want.name, want.labels)).To(Equal(want.value), "%s%v", want.name, want.labels)
			}
			calls, _ := metrics.Histogram("kube_ovn_nat_gateway_call_duration_seconds", gateway)
			g.Expect(float64(calls)).To(Equal(metrics.Sum("kube_ovn_nat_gateway_calls_total", gateway)), "calls that were timed")
			g.Expect(metrics.Sum("kube_ovn_nat_gateway_last_success_timestamp_seconds", gateway)).To(BeNumerically(">", start.Unix()))
			g.Expect(metrics.Series("workqueue_depth", map[string]string{"name": "nat_gateway_pod"})).To(Equal(1))
		}).Should(Succeed())

		By("no gateway any more")
		Expect(b.Kube.CoreV1().Services(b.Namespace).Delete(ctx, "web", metav1.DeleteOptions{})).To(Succeed())
		b.WaitRules(ctx, "web", nil)
		Expect(b.KubeOvn.KubeovnV1().IptablesEIPs().Delete(ctx, b.EIP, metav1.DeleteOptions{})).To(Succeed())
		Expect(b.KubeOvn.KubeovnV1().VpcNatGateways().Delete(ctx, b.Net.Name, metav1.DeleteOptions{})).To(Succeed())
		Wait(ctx, func(g Gomega, ctx context.Context) {
			metrics := b.scrape(ctx, g)
			for name := range metrics {
				g.Expect(metrics.Series(name, gateway)).To(BeZero(), "series of %s", name)
			}
		}).Should(Succeed())
	})
})
