// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"net/netip"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	. "github.com/kubeovn/kube-ovn/test/e2e/framework"
)

var (
	// movingPrefix is of a second Subnet in a VPC.
	movingPrefix = netip.MustParsePrefix("10.1.7.0/24")
	// made up addresses in the VPC's Subnet, where no Pod is.
	nobody = []netip.Addr{netip.MustParseAddr("10.1.0.201"), netip.MustParseAddr("10.1.0.202"), netip.MustParseAddr("10.1.0.203")}
)

var _ = Describe("EndpointSlices", func() {
	It("count all together, also when made by hand, and their deletion is followed", func(ctx SpecContext) {
		b := newBalancer(ctx, 2, TCP(80))
		ports := []corev1.ServicePort{TCP(81)}
		b.Service(ctx, "byhand", b.EIP, ports, Selectorless)
		b.Slice(ctx, "one", "byhand", b.Backends()[:1], ports...)
		b.Slice(ctx, "two", "byhand", b.Backends(), ports...)
		b.WaitRules(ctx, "byhand", b.Backends(), ports...)
		WaitAnswers(ctx, b.Outside(ctx), At(b.Addr, TCP(81)), Names(b.Pods)...)

		slices := b.Kube.DiscoveryV1().EndpointSlices(b.Namespace)
		Expect(slices.Delete(ctx, "two", metav1.DeleteOptions{})).To(Succeed())
		b.WaitRules(ctx, "byhand", b.Backends()[:1], ports...)
		WaitAnswers(ctx, b.Outside(ctx), At(b.Addr, TCP(81)), Names(b.Pods)[:1]...)

		Expect(slices.Delete(ctx, "one", metav1.DeleteOptions{})).To(Succeed())
		b.WaitRules(ctx, "byhand", nil)
		b.WaitHolds(ctx, b.Gateway, b.Addr, b.Shares()...)
	})

	It("take their endpoints along when they are relabeled to another Service", func(ctx SpecContext) {
		b := newBalancer(ctx, 1, TCP(80))
		b.Service(ctx, "one", b.EIP, []corev1.ServicePort{TCP(81)}, Selectorless)
		b.Service(ctx, "two", b.EIP, []corev1.ServicePort{TCP(82)}, Selectorless)
		// One slice with the port names of both.
		b.Slice(ctx, "moving", "one", b.Backends(), TCP(81), TCP(82))
		b.WaitRules(ctx, "one", b.Backends(), TCP(81))
		b.WaitRules(ctx, "two", nil)

		b.ChangeSlice(ctx, "moving", func(slice *discoveryv1.EndpointSlice) { slice.Labels[discoveryv1.LabelServiceName] = "two" })
		b.WaitRules(ctx, "one", nil)
		b.WaitRules(ctx, "two", b.Backends(), TCP(82))
		b.WaitHolds(ctx, b.Gateway, b.Addr, append(b.Shares(), ShareOf(b.Addr, TCP(82), b.Backends()))...)

		b.ChangeSlice(ctx, "moving", func(slice *discoveryv1.EndpointSlice) { delete(slice.Labels, discoveryv1.LabelServiceName) })
		b.WaitRules(ctx, "two", nil)
		b.WaitHolds(ctx, b.Gateway, b.Addr, b.Shares()...)
	})

	It("may name a Pod that is not there yet: it is no backend before it has an address", func(ctx SpecContext) {
		b := newBalancer(ctx, 1, TCP(80))
		ports := []corev1.ServicePort{TCP(81)}
		b.Service(ctx, "early", b.EIP, ports, Selectorless)
		b.Slice(ctx, "early", "early", append(nobody[:1:1], b.Backends()...), ports...)
		b.ChangeSlice(ctx, "early", func(slice *discoveryv1.EndpointSlice) {
			slice.Endpoints[0].TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: b.Namespace, Name: "early"}
		})
		b.WaitRules(ctx, "early", b.Backends(), ports...)

		pod := b.Pod(ctx, Workload{Name: "early", Annotations: Primary(b.Net.Subnet)})
		b.WaitRules(ctx, "early", append(b.Backends(), Address(pod, ovn)), ports...)
		WaitAnswers(ctx, b.Outside(ctx), At(b.Addr, TCP(81)), "early", b.Pods[0].Name)
	})
})

var _ = Describe("A rule", func() {
	It("that is deleted by hand comes back at once", func(ctx SpecContext) {
		b := newBalancer(ctx, 2, TCP(80))
		rules, err := b.Rules(ctx, "web")
		Expect(err).NotTo(HaveOccurred())
		client := b.KubeOvn.KubeovnV1().IptablesDnatRules()
		Expect(client.Delete(ctx, rules[0].Name, metav1.DeleteOptions{})).To(Succeed())

		Within(ctx, Soon, func(g Gomega, ctx context.Context) {
			rule, err := client.Get(ctx, rules[0].Name, metav1.GetOptions{})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(rule.UID).NotTo(Equal(rules[0].UID))
			g.Expect(rule.Status.Ready).To(BeTrue())
		}).Should(Succeed())
		b.Settle(ctx, 2)
	})

	It("that is changed by hand is made right again", func(ctx SpecContext) {
		b := newBalancer(ctx, 2, TCP(80))
		rules, err := b.Rules(ctx, "web")
		Expect(err).NotTo(HaveOccurred())
		b.PatchRule(ctx, rules[0].Name, `{"spec":{"internalPort":"9","sessionAffinity":"ClientIP"}}`)
		b.PatchRule(ctx, rules[1].Name, `{"metadata":{"labels":{"ovn.kubernetes.io/eip_v4_ip":"192.0.2.1"}}}`)
		Within(ctx, Soon, func(g Gomega, ctx context.Context) {
			now, err := b.Rules(ctx, "web")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(now).To(HaveLen(2))
			for i := range now {
				g.Expect(now[i].Spec).To(Equal(rules[i].Spec))
				g.Expect(now[i].Labels).To(Equal(rules[i].Labels))
			}
		}).Should(Succeed())
		b.Settle(ctx, 2)
	})
})
