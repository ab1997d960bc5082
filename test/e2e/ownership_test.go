// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"net/netip"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/lbservice"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"

	. "github.com/kubeovn/kube-ovn/test/e2e/framework"
)

const conflict = string(lbservice.PortConflict)

// contest is a balancer, whose Pod is "web-…", and a second Pod "other" for Services that want the same ports.
type contest struct {
	*balancer

	Web, Other string
}

func newContest(ctx context.Context) *contest {
	GinkgoHelper()
	b := newBalancer(ctx, 1, TCP(80))
	b.Pod(ctx, Workload{Name: "other", Annotations: Primary(b.Net.Subnet)})
	return &contest{balancer: b, Web: b.Pods[0].Name, Other: "other"}
}

// other makes a Service that leads to Pod other.
func (c *contest) other(ctx context.Context, name, eip string, ports ...corev1.ServicePort) {
	GinkgoHelper()
	c.Service(ctx, name, eip, ports, Selecting("other"))
}

// silent waits until nobody answers at a port any more.
func silent(ctx context.Context, client Client, to Target) {
	GinkgoHelper()
	Wait(ctx, func(ctx context.Context) error {
		_, err := client.Ask(ctx, to, AskHostname, 1)
		return err
	}).ShouldNot(Succeed(), "nobody should answer at %s", to)
}

var _ = Describe("An EIP's port", func() {
	It("is a hand-made rule's before any Service's, which has nothing of it, is told so once, and takes over when the rule goes", func(ctx SpecContext) {
		c := newContest(ctx)
		outside := c.Outside(ctx)
		share := c.Rule(ctx, "share", shareRule(c.EIP, 81, c.Backends()[0]))
		exclusive := c.Rule(ctx, "exclusive", exclusiveRule(c.EIP, 82, c.Backends()[0]))
		c.WaitRule(ctx, share.Name)
		c.WaitRule(ctx, exclusive.Name)

		watched := c.WatchRules(ctx)
		c.other(ctx, "late", c.EIP, TCP(81), TCP(82), TCP(83))
		WaitAnswers(ctx, outside, At(c.Addr, TCP(83)), c.Other)
		c.WaitPortErrors(ctx, "late", map[int32]string{81: conflict, 82: conflict, 83: ""})
		c.WaitReason(ctx, "late", lbservice.ReasonPortConflict)
		condition := Condition(c.GetService(ctx, "late"), corev1.LoadBalancerPortsError)
		Expect(condition.Status).To(Equal(metav1.ConditionTrue))
		Expect(condition.Message).To(And(ContainSubstring(share.Name), ContainSubstring(exclusive.Name)))
		for _, port := range []int32{81, 82} {
			WaitAnswers(ctx, outside, At(c.Addr, TCP(port)), c.Web)
		}

		By("passes that change nothing tell nothing")
		c.ChangeService(ctx, "late", func(service *corev1.Service) { service.Labels = map[string]string{"touched": "true"} })
		c.ChangeService(ctx, "late", func(service *corev1.Service) { service.Spec.Ports[2] = TCP(84) })
		WaitAnswers(ctx, outside, At(c.Addr, TCP(84)), c.Other)
		c.WaitEvents(ctx, "late", lbservice.EventConflict, share.Name, exclusive.Name)
		Expect(watched.Of("late")).To(Equal([]string{"83/tcp", "84/tcp"}), "ports that the loser ever had rules for")

		By("the hand-made rules go")
		rules := c.KubeOvn.KubeovnV1().IptablesDnatRules()
		Expect(rules.Delete(ctx, share.Name, metav1.DeleteOptions{})).To(Succeed())
		Expect(rules.Delete(ctx, exclusive.Name, metav1.DeleteOptions{})).To(Succeed())
		for _, port := range []int32{81, 82} {
			WaitAnswers(ctx, outside, At(c.Addr, TCP(port)), c.Other)
		}
		c.WaitReason(ctx, "late", lbservice.ReasonProgrammed)
		Expect(Condition(c.GetService(ctx, "late"), corev1.LoadBalancerPortsError)).To(BeZero())
	})

	It("is the Service's that is first by name, whoever came first, until it lets go, in whatever way", func(ctx SpecContext) {
		c := newContest(ctx)
		outside, port := c.Outside(ctx), At(c.Addr, TCP(80))
		// "web" has the port. "aaa" comes later and is first by name, "zzz" is last.
		watched := c.WatchRules(ctx)
		c.other(ctx, "zzz", c.EIP, TCP(80))
		c.WaitReason(ctx, "zzz", lbservice.ReasonPortConflict)
		c.WaitEvents(ctx, "zzz", lbservice.EventConflict, "Service "+c.Namespace+"/web")
		Expect(ExternalIP(c.GetService(ctx, "zzz"))).To(BeEmpty())
		Expect(watched.Of("zzz")).To(BeEmpty())

		for _, owner := range []struct {
			name, way string
			letGo     func()
		}{
			{"aaa", "deleted, with a finalizer that stays", func() {
				c.ChangeService(ctx, "aaa", func(service *corev1.Service) { service.Finalizers = append(service.Finalizers, "example.com/hold") })
				DeferCleanup(func(ctx context.Context) {
					_, err := c.Kube.CoreV1().Services(c.Namespace).Patch(ctx, "aaa", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
					Expect(err).NotTo(HaveOccurred())
				})
				Expect(c.Kube.CoreV1().Services(c.Namespace).Delete(ctx, "aaa", metav1.DeleteOptions{})).To(Succeed())
			}},
			{"aab", "without its annotation", func() {
				c.ChangeService(ctx, "aab", func(service *corev1.Service) { service.Annotations = nil })
			}},
			{"aac", "on another port", func() {
				c.ChangeService(ctx, "aac", func(service *corev1.Service) { service.Spec.Ports = []corev1.ServicePort{TCP(81)} })
			}},
			{"aad", "of another type", func() {
				c.ChangeService(ctx, "aad", func(service *corev1.Service) {
					service.Spec.Type, service.Spec.AllocateLoadBalancerNodePorts = corev1.ServiceTypeClusterIP, nil
				})
			}},
		} {
			By("the owner is " + owner.way)
			c.other(ctx, owner.name, c.EIP, TCP(80))
			WaitAnswers(ctx, outside, port, c.Other)
			c.WaitReason(ctx, "web", lbservice.ReasonPortConflict)
			c.WaitNoExternalIP(ctx, "web")
			owner.letGo()
			Within(ctx, Soon, func(g Gomega, ctx context.Context) {
				answers, err := outside.Ask(ctx, port, AskHostname, 1)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(answers).To(Equal([]string{c.Web}))
			}).Should(Succeed())
			c.WaitExternalIP(ctx, "web")
		}
		Expect(watched.Of("zzz")).To(BeEmpty(), "a Service that never was the owner never has rules")
	})

	It("is nobody's while a FIP has the EIP, nor one's whose namespace may not use it", func(ctx SpecContext) {
		c := newContest(ctx)
		outside, port := c.Outside(ctx), At(c.Addr, TCP(80))
		rule := c.Rule(ctx, "share", shareRule(c.EIP, 81, c.Backends()[0]))
		c.WaitRule(ctx, rule.Name)
		fips := c.KubeOvn.KubeovnV1().IptablesFIPRules()
		_, err := fips.Create(ctx, &kubeovnv1.IptablesFIPRule{
			ObjectMeta: metav1.ObjectMeta{Name: c.Name}, Spec: kubeovnv1.IptablesFIPRuleSpec{EIP: c.EIP, InternalIP: c.Backends()[0].String()},
		}, metav1.CreateOptions{})
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func(ctx context.Context) { _ = fips.Delete(ctx, c.Name, metav1.DeleteOptions{}) })
		c.WaitReason(ctx, "web", lbservice.ReasonPortConflict)
		c.WaitNoExternalIP(ctx, "web")
		c.WaitEvents(ctx, "web", lbservice.EventConflict, "IptablesFIPRule "+c.Name)
		c.WaitHolds(ctx, c.Gateway, c.Addr)
		Expect(fips.Delete(ctx, c.Name, metav1.DeleteOptions{})).To(Succeed())
		WaitAnswers(ctx, outside, port, c.Web)
		WaitAnswers(ctx, outside, At(c.Addr, TCP(81)), c.Web)
		c.WaitExternalIP(ctx, "web")

		By("a grant withdrawn and given")
		grant := func(value string) {
			GinkgoHelper()
			_, err := c.KubeOvn.KubeovnV1().IptablesEIPs().Patch(ctx, c.EIP, types.MergePatchType,
				[]byte(`{"metadata":{"annotations":{"`+sharenat.GrantAnnotation+`":`+value+`}}}`), metav1.PatchOptions{})
			Expect(err).NotTo(HaveOccurred())
		}
		grant(`"somebody-else"`)
		c.WaitReason(ctx, "web", lbservice.ReasonNotGranted)
		c.WaitNoExternalIP(ctx, "web")
		c.WaitRules(ctx, "web", nil)
		silent(ctx, outside, port)
		c.WaitTold(ctx, "web", lbservice.EventNotServed, "namespace "+c.Namespace+" may not use IptablesEIP "+c.EIP)
		WaitAnswers(ctx, outside, At(c.Addr, TCP(81)), c.Web) // The rule was made by who may make rules.
		grant(`"somebody-else, ` + c.Namespace + `"`)
		WaitAnswers(ctx, outside, port, c.Web)
		c.WaitExternalIP(ctx, "web")
	})

	It("never leads to a Service that does not own it while ports are swapped, Services moved and EIPs handed on", func(ctx SpecContext) {
		c := newContest(ctx)
		outside := c.OutsideClients(ctx, 2)
		c.other(ctx, "b", c.EIP, TCP(81))
		WaitAnswers(ctx, outside[1], At(c.Addr, TCP(81)), c.Other)
		second := c.Net.EIP(ctx, "second")
		secondAddr := c.EIPAddress(ctx, second)
		type watch struct {
			at   Target
			want []string
		}
		// during does something, under constant traffic, and looks who answered, in order.
		during := func(what string, do func(), watches ...watch) {
			GinkgoHelper()
			By(what)
			var transcripts []*Transcript
			for _, w := range watches {
				transcripts = append(transcripts, AskConstantly(ctx, outside[0], w.at))
			}
			for _, transcript := range transcripts {
				Wait(ctx, transcript.Attempts).Should(BeNumerically(">", 3))
			}
			do()
			for i, w := range watches {
				if last := w.want[len(w.want)-1]; last != "" {
					WaitAnswers(ctx, outside[1], w.at, last)
					Wait(ctx, transcripts[i].Answerers).Should(ContainElement(last))
				} else {
					silent(ctx, outside[1], w.at)
				}
			}
			for i, w := range watches {
				transcripts[i].Stop()
				want := slices.DeleteFunc(slices.Clone(w.want), func(who string) bool { return who == "" })
				Expect(transcripts[i].Answerers()).To(Equal(want), "who answered at %s, in order", w.at)
			}
		}
		at := func(addr netip.Addr, port int32) Target { return At(addr, TCP(port)) }
		port := func(name string, port int32) {
			c.ChangeService(ctx, name, func(service *corev1.Service) { service.Spec.Ports = []corev1.ServicePort{TCP(port)} })
		}
		eip := func(name, eip string) {
			c.ChangeService(ctx, name, func(service *corev1.Service) { service.Annotations = map[string]string{sharenat.EIPAnnotation: eip} })
		}
		during("ports swapped", func() { port("b", 80); port("web", 81) },
			watch{at(c.Addr, 80), []string{c.Web, c.Other}}, watch{at(c.Addr, 81), []string{c.Other, c.Web}})
		during("ports swapped back, the other one first", func() { port("web", 80); port("b", 81) },
			watch{at(c.Addr, 80), []string{c.Other, c.Web}}, watch{at(c.Addr, 81), []string{c.Web, c.Other}})
		during("a Service moved to another EIP", func() { eip("b", second) },
			watch{at(c.Addr, 81), []string{c.Other, ""}}, watch{at(secondAddr, 81), []string{"", c.Other}})
		Expect(c.WaitExternalIP(ctx, "b")).To(Equal(secondAddr))
		port("b", 80)
		WaitAnswers(ctx, outside[1], at(secondAddr, 80), c.Other)
		during("EIPs exchanged", func() { eip("b", c.EIP); eip("web", second) },
			watch{at(c.Addr, 80), []string{c.Web, c.Other}}, watch{at(secondAddr, 80), []string{c.Other, c.Web}})
		during("an EIP handed on", func() { eip("web", ""); eip("b", second) },
			watch{at(secondAddr, 80), []string{c.Web, c.Other}}, watch{at(c.Addr, 80), []string{c.Other, ""}})
	})

	It("is taken over by the event that its owner lets go: 20 times, measured", Measurement, func(ctx SpecContext) {
		const handovers = 20
		c := newContest(ctx)
		outside, port := c.Outside(ctx), At(c.Addr, TCP(80))
		c.other(ctx, "aaa", c.EIP, TCP(80))
		answered := func(by string) time.Time {
			GinkgoHelper()
			// A closed port refuses at once: asked without a pause, it would cost the time that is measured.
			pause := time.NewTicker(2 * time.Millisecond)
			defer pause.Stop()
			for range pause.C {
				answers, err := outside.Ask(ctx, port, AskHostname, 1)
				if err == nil && answers[0] == by || ctx.Err() != nil {
					break
				}
			}
			Expect(ctx.Err()).NotTo(HaveOccurred(), "%s should answer", by)
			return time.Now()
		}
		answered(c.Other)
		c.WaitReason(ctx, "aaa", lbservice.ReasonProgrammed)
		var took Durations
		for range handovers {
			began := time.Now()
			c.ChangeService(ctx, "aaa", func(service *corev1.Service) { service.Spec.Ports = []corev1.ServicePort{TCP(81)} })
			took = append(took, answered(c.Web).Sub(began))
			c.ChangeService(ctx, "aaa", func(service *corev1.Service) { service.Spec.Ports = []corev1.ServicePort{TCP(80)} })
			answered(c.Other)
		}
		Measured{What: "takeover of a port, from the change of its owner to the first answer", Result: took.String()}.Report()
	})
})
