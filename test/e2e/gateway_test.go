// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"

	. "github.com/kubeovn/kube-ovn/test/e2e/framework"
)

// shareRule is a rule of type share to agnhost's HTTP port.
func shareRule(eip string, port int32, backend netip.Addr) kubeovnv1.IptablesDnatRuleSpec {
	return kubeovnv1.IptablesDnatRuleSpec{
		EIP: eip, Protocol: "tcp", ExternalPort: strconv.Itoa(int(port)), Type: sharenat.TypeShare,
		InternalIP: backend.String(), InternalPort: strconv.Itoa(HTTPPort),
	}
}

// exclusiveRule is the same of type exclusive.
func exclusiveRule(eip string, port int32, backend netip.Addr) kubeovnv1.IptablesDnatRuleSpec {
	spec := shareRule(eip, port, backend)
	spec.Type = sharenat.TypeExclusive
	return spec
}

// ruleVersions are the resourceVersions of the rules on an EIP, by name.
func ruleVersions(ctx context.Context, eip string) map[string]string {
	GinkgoHelper()
	list, err := cluster.KubeOvn.KubeovnV1().IptablesDnatRules().List(ctx, metav1.ListOptions{})
	Expect(err).NotTo(HaveOccurred())
	versions := map[string]string{}
	for i := range list.Items {
		if list.Items[i].Spec.EIP == eip {
			versions[list.Items[i].Name] = list.Items[i].ResourceVersion
		}
	}
	return versions
}

var _ = Describe("A gateway that lost its state", func() {
	// whole makes a gateway with two Services of two identities, breaks it, and wants it whole by one call and the rules untouched.
	whole := func(ctx context.Context, damage func(*balancer)) {
		GinkgoHelper()
		b := newBalancer(ctx, 2, TCP(80), UDP(53))
		b.Rule(ctx, "ssh", exclusiveRule(b.EIP, 22, b.Backends()[0]))
		b.WaitRule(ctx, b.Name+"-ssh")
		calls, versions := b.Calls(ctx, b.Net.Name), ruleVersions(ctx, b.EIP)

		damage(b)
		for _, port := range append(b.Ports, TCP(22)) {
			pods := Names(b.Pods)
			if port.Port == 22 {
				pods = pods[:1]
			}
			WaitAnswers(ctx, b.Outside(ctx), At(b.Addr, port), pods...)
		}
		since := b.Calls(ctx, b.Net.Name).Since(calls)
		GinkgoWriter.Println("calls:", since)
		Expect(since[sharenat.SyncVerb]).To(Equal(1), "identities should be back by one call: %s", since)
		Expect(ruleVersions(ctx, b.EIP)).To(Equal(versions), "rules should not have been touched")
		b.WaitHolds(ctx, b.GatewayPod(ctx, b.Net.Name), b.Addr, b.Shares()...)
	}

	It("is whole again after its pod was deleted", func(ctx SpecContext) {
		whole(ctx, func(b *balancer) {
			Expect(b.Kube.CoreV1().Pods(b.Gateway.Namespace).Delete(ctx, b.Gateway.Name, metav1.DeleteOptions{})).To(Succeed())
			Wait(ctx, func(g Gomega, ctx context.Context) {
				g.Expect(b.GatewayPod(ctx, b.Net.Name).UID).NotTo(Equal(b.Gateway.UID))
			}).Should(Succeed())
		})
	})

	It("is whole again after its pod's sandbox died, which leaves the Pod object as it was", Lab, func(ctx SpecContext) {
		whole(ctx, func(b *balancer) { b.CrashSandbox(ctx, b.Gateway) })
	})

	It("serves on while its container restarts, and nothing is written where nothing was lost", Lab, func(ctx SpecContext) {
		b := newBalancer(ctx, 2, TCP(80))
		calls, versions := b.Calls(ctx, b.Net.Name), ruleVersions(ctx, b.EIP)
		b.KillContainer(ctx, b.Gateway)
		Wait(ctx, func(ctx context.Context) Calls { return b.Calls(ctx, b.Net.Name).Since(calls) }).Should(HaveKey(sharenat.ListVerb))
		AskAll(ctx, b.Outside(ctx), At(b.Addr, TCP(80)), 20)
		b.WaitHolds(ctx, b.Gateway, b.Addr, b.Shares()...)
		Expect(b.Calls(ctx, b.Net.Name).Since(calls)).NotTo(HaveKey(sharenat.SyncVerb), "the network namespace was not lost")
		Expect(ruleVersions(ctx, b.EIP)).To(Equal(versions))
	})
})

var _ = Describe("Rules made by hand", func() {
	It("of type share put several backends behind one port", func(ctx SpecContext) {
		b := newBalancer(ctx, 3, TCP(80))
		for i, backend := range b.Backends() {
			spec := shareRule(b.EIP, 8443, backend)
			// In any case.
			spec.Protocol = []string{"tcp", "TCP", "Tcp"}[i]
			b.Rule(ctx, fmt.Sprintf("share-%d", i), spec)
		}
		for i := range b.Pods {
			rule := b.WaitRule(ctx, fmt.Sprintf("%s-share-%d", b.Name, i))
			Expect(rule.Finalizers).To(ContainElement(sharenat.Finalizer))
			Expect(rule.Labels).To(HaveKeyWithValue(sharenat.GatewayLabel, b.Net.Name))
			Expect(rule.Labels).To(HaveKeyWithValue(sharenat.ExternalPortLabel, "8443"))
			Expect(rule.Labels).To(HaveKeyWithValue(sharenat.EIPAddressLabel, b.Addr.String()))
			Expect(rule.Annotations).To(HaveKeyWithValue(sharenat.RuleEIPAnnotation, b.EIP))
			Expect(rule.Status.NatGwDp).To(Equal(b.Net.Name))
			Expect(rule.Status.V4ip).To(Equal(b.Addr.String()))
		}
		b.WaitHolds(ctx, b.Gateway, b.Addr, append(b.Shares(), ShareOf(b.Addr, TCP(8443), b.Backends()))...)
		WaitAnswers(ctx, b.Outside(ctx), At(b.Addr, TCP(8443)), Names(b.Pods)...)
	})

	It("exclusive and share stand side by side, and go one by one", func(ctx SpecContext) {
		b := newBalancer(ctx, 2, TCP(80))
		pods, outside := Names(b.Pods), b.Outside(ctx)
		exclusive := b.Rule(ctx, "exclusive", exclusiveRule(b.EIP, 8022, b.Backends()[0]))
		share := b.Rule(ctx, "share", shareRule(b.EIP, 8023, b.Backends()[1]))
		b.WaitRule(ctx, exclusive.Name)
		b.WaitRule(ctx, share.Name)
		WaitAnswers(ctx, outside, At(b.Addr, TCP(8022)), pods[0])
		WaitAnswers(ctx, outside, At(b.Addr, TCP(8023)), pods[1])
		WaitAnswers(ctx, outside, At(b.Addr, TCP(80)), pods...)

		rules := b.KubeOvn.KubeovnV1().IptablesDnatRules()
		Expect(rules.Delete(ctx, exclusive.Name, metav1.DeleteOptions{})).To(Succeed())
		Wait(ctx, func(ctx context.Context) error {
			_, err := outside.Ask(ctx, At(b.Addr, TCP(8022)), AskHostname, 1)
			return err
		}).ShouldNot(Succeed(), "the exclusive port should be closed")
		WaitAnswers(ctx, outside, At(b.Addr, TCP(8023)), pods[1])
		Expect(rules.Delete(ctx, share.Name, metav1.DeleteOptions{})).To(Succeed())
		b.WaitHolds(ctx, b.Gateway, b.Addr, b.Shares()...)
		WaitAnswers(ctx, outside, At(b.Addr, TCP(80)), pods...)
	})
})

var _ = Describe("Many rules at once", func() {
	It("made by hand, a hundred, reach a gateway in at most five calls, with two writes each", func(ctx SpecContext) {
		const count = 100
		b := newBalancer(ctx, 1, TCP(80))
		before, writes := b.Calls(ctx, b.Net.Name), b.RuleWrites(ctx, b.Name+"-rule-")

		var making sync.WaitGroup
		for i := range count {
			making.Go(func() {
				defer GinkgoRecover()
				b.Rule(ctx, fmt.Sprintf("rule-%d", i), shareRule(b.EIP, int32(10000+i), b.Backends()[0]))
			})
		}
		making.Wait()
		shares := b.Shares()
		for i := range count {
			b.WaitRule(ctx, fmt.Sprintf("%s-rule-%d", b.Name, i))
			shares = append(shares, ShareOf(b.Addr, TCP(int32(10000+i)), b.Backends()))
		}
		since := b.Calls(ctx, b.Net.Name).Since(before)
		Measured{What: "calls for 100 rules at once", Result: since.String()}.Report()
		total := 0
		for _, n := range since {
			total += n
		}
		Expect(total).To(BeNumerically("<=", 5), "calls: %s", since)
		b.WaitHolds(ctx, b.Gateway, b.Addr, shares...)
		// Finalizer, labels and annotation, then status.
		Wait(ctx, writes.ByRule).Should(And(HaveLen(count), HaveEach(2)), "writes by rule")
	})

	It("of a Service become ready with one write each after their creation", func(ctx SpecContext) {
		b := newBalancer(ctx, 1, TCP(80))
		ports := []corev1.ServicePort{TCP(81), UDP(81)}
		writes := b.RuleWrites(ctx, "lb-"+b.Name)
		b.Service(ctx, b.Name, b.EIP, ports, Selectorless)
		var backends []netip.Addr
		for i := range 20 {
			backends = append(backends, netip.AddrFrom4([4]byte{10, 1, 0, byte(200 + i)}))
		}
		b.Slice(ctx, "many", b.Name, backends, ports...)
		b.WaitRules(ctx, b.Name, backends, ports...)
		Wait(ctx, writes.ByRule).Should(And(HaveLen(len(ports)*len(backends)), HaveEach(1)), "writes by rule")
	})
})

var _ = Describe("The gateway's EIPs", func() {
	It("get the lowest free address, keep it, and stay while rules use them", func(ctx SpecContext) {
		b := newBalancer(ctx, 1, TCP(80))
		eips := b.KubeOvn.KubeovnV1().IptablesEIPs()
		Expect(eips.Delete(ctx, b.EIP, metav1.DeleteOptions{})).To(Succeed())
		AskAll(ctx, b.Outside(ctx), At(b.Addr, TCP(80)), 20)
		eip, err := eips.Get(ctx, b.EIP, metav1.GetOptions{})
		Expect(err).NotTo(HaveOccurred())
		Expect(eip.DeletionTimestamp).NotTo(BeNil())

		Expect(b.Kube.CoreV1().Services(b.Namespace).Delete(ctx, "web", metav1.DeleteOptions{})).To(Succeed())
		Wait(ctx, func(ctx context.Context) error {
			_, err := eips.Get(ctx, b.EIP, metav1.GetOptions{})
			return err
		}).Should(MatchError(ContainSubstring("not found")))
		Wait(ctx, func(g Gomega, ctx context.Context) {
			listing, err := b.Listing(ctx, b.Gateway)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(listing.EIPs).To(BeEmpty())
		}).WithPolling(4 * Poll).Should(Succeed())
	})
})
