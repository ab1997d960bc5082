// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeovn/kube-ovn/pkg/natgateway"
	"github.com/kubeovn/kube-ovn/test/lab"
	"github.com/kubeovn/kube-ovn/test/traffic"

	. "github.com/kubeovn/kube-ovn/test/e2e/framework"
)

var _ = Describe("Rules made by hand", func() {
	It("change the affinity of their identity one after the other, and none is left out meanwhile", Lab, func(ctx SpecContext) {
		b := newBalancer(ctx, 3, TCP(80))
		port, names := TCP(82), []string{}
		for i, backend := range b.Backends() {
			names = append(names, b.Rule(ctx, fmt.Sprintf("hand-%d", i), shareRule(b.EIP, port.Port, backend)).Name)
			b.WaitRule(ctx, names[i])
		}
		share := ShareOf(b.Addr, port, b.Backends())
		stream := StartTraffic[traffic.Stream](ctx, b.Cluster, lab.Clients[1], traffic.StreamOptions{
			Endpoint: traffic.Endpoint{Target: At(b.Addr, port).AddrPort.String()}, Rate: 50,
		})
		// says waits until a rule is ready, and says so.
		says := func(name, text string) {
			GinkgoHelper()
			Wait(ctx, func(g Gomega, ctx context.Context) {
				rule, err := b.KubeOvn.KubeovnV1().IptablesDnatRules().Get(ctx, name, metav1.GetOptions{})
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(rule.Status.Ready).To(BeTrue())
				g.Expect(rule.Status.Conditions[0].Message).To(Equal(text))
			}).Should(Succeed())
		}
		const change = `{"spec":{"sessionAffinity":"ClientIP","sessionAffinityTimeoutSeconds":600}}`
		for _, name := range names[1:] {
			b.PatchRule(ctx, name, change)
			says(name, fmt.Sprintf("%s has session affinity %q by rule %s, this rule asks for %q", share.Identity, "none 0", names[0], "clientip 600"))
			b.WaitHolds(ctx, b.Gateway, b.Addr, append(b.Shares(), share)...)
		}
		b.PatchRule(ctx, names[0], change)
		b.WaitHolds(ctx, b.Gateway, b.Addr, append(b.Shares(), stickyShare(share, 600))...)
		for _, name := range names {
			says(name, "")
		}
		now, err := stream.Now(ctx)
		Expect(err).NotTo(HaveOccurred())
		_, err = stream.Until(ctx, func(s traffic.Stream) bool { return s.Attempts >= now.Attempts+25 })
		Expect(err).NotTo(HaveOccurred())
		all, err := stream.Stop(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(all.Failed).To(BeZero(), "new connections lost: %+v", all.Failures)
	})

	It("take no port from a Service as long as they contradict themselves", func(ctx SpecContext) {
		b := newBalancer(ctx, 1, TCP(80))
		spec := shareRule(b.EIP, 80, b.Backends()[0])
		spec.InternalIP = "10.1.0"
		rule := b.Rule(ctx, "slip", spec)
		Wait(ctx, func(g Gomega, ctx context.Context) {
			broken, err := b.KubeOvn.KubeovnV1().IptablesDnatRules().Get(ctx, rule.Name, metav1.GetOptions{})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(broken.Status.Conditions).NotTo(BeEmpty())
			g.Expect(broken.Status.Conditions[0].Reason).To(Equal(natgateway.ReasonInvalidRule))
		}).Should(Succeed())
		b.Settle(ctx, 1)
		Expect(ReadyReason(b.GetService(ctx, "web"))).To(Equal("Programmed"))

		By("put right, it takes it")
		b.PatchRule(ctx, rule.Name, fmt.Sprintf(`{"spec":{"internalIp":%q}}`, b.Backends()[0]))
		b.WaitReason(ctx, "web", "PortConflict")
		b.WaitRule(ctx, rule.Name)
	})
})
