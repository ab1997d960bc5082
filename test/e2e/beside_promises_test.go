// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/kubeovn/kube-ovn/pkg/lbservice"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
	"github.com/kubeovn/kube-ovn/test/lab"
	"github.com/kubeovn/kube-ovn/test/traffic"

	. "github.com/kubeovn/kube-ovn/test/e2e/framework"
)

// promised waits until a Service's condition and an event say what it does not get.
func promised(ctx context.Context, s *Scene, service, reason, event, text string) {
	GinkgoHelper()
	Within(ctx, Soon, func(g Gomega, ctx context.Context) {
		condition := Condition(s.GetService(ctx, service), lbservice.ConditionReady)
		g.Expect(condition.Reason).To(Equal(reason), "condition of Service %s: %s", service, condition.Message)
		g.Expect(condition.Message).To(ContainSubstring(text))
		events, err := s.Events(ctx, service, event)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(events).To(ContainElement(ContainSubstring(text)), "events of Service %s", service)
	}).Should(Succeed())
}

var _ = Describe("Beside Kube-OVN's own handler", Lab, Stock, func() {
	It("nobody is let in where source ranges are not enforced", func(ctx SpecContext) {
		b := newBalancer(ctx, 2, TCP(80))
		ranges := func(prefixes ...string) {
			GinkgoHelper()
			b.ChangeService(ctx, "web", func(service *corev1.Service) { service.Spec.LoadBalancerSourceRanges = prefixes })
		}
		ranges(clientAddress.String() + "/32")
		promised(ctx, b.Scene, "web", lbservice.ReasonSourceRangesNotEnforceable, lbservice.EventNotServed, "keeps nobody out")
		b.WaitNoExternalIP(ctx, "web")
		b.WaitRules(ctx, "web", nil, b.Ports...)
		for _, client := range b.OutsideClients(ctx, 2) {
			Wait(ctx, func(ctx context.Context) error {
				_, err := client.Ask(ctx, At(b.Addr, b.Ports[0]), AskHostname, 1)
				return err
			}).ShouldNot(Succeed(), "answers to %s", client.Name())
		}
		By("a Service that has them from the start")
		b.Service(ctx, "closed", b.EIP, []corev1.ServicePort{TCP(81)}, Selecting("web"),
			func(service *corev1.Service) { service.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24"} })
		b.WaitReason(ctx, "closed", lbservice.ReasonSourceRangesNotEnforceable)
		Expect(b.Rules(ctx, "closed")).To(BeEmpty())
		unanswered(ctx, b.Outside(ctx), At(b.Addr, TCP(81)))
		By("ranges that let everybody in")
		ranges("0.0.0.0/0")
		b.WaitReason(ctx, "web", lbservice.ReasonProgrammed)
		WaitAnswers(ctx, b.Outside(ctx), At(b.Addr, b.Ports[0]), Names(b.Pods)...)
	})

	It("backends that need masquerading are skipped and told, and with none left there is no backend", func(ctx SpecContext) {
		b := newBalancer(ctx, 1, TCP(80))
		b.MakeAttachment(ctx, "net")
		b.Deployment(ctx, Workload{Name: "dual", App: "web", Replicas: 1, Annotations: b.Attached("net", b.Net.Subnet)})
		dual := b.Scene.Pods(ctx, "dual", 1)[0].Name
		b.WaitEvents(ctx, "web", lbservice.EventBackendSkipped, "Pod "+dual+" is no backend: its answers would not come back")
		AskAll(ctx, b.Outside(ctx), At(b.Addr, b.Ports[0]), 20)
		WaitAnswers(ctx, b.Outside(ctx), At(b.Addr, b.Ports[0]), Names(b.Pods)...)
		b.WaitReason(ctx, "web", lbservice.ReasonProgrammed)

		By("asked for")
		b.ChangeService(ctx, "web", func(service *corev1.Service) {
			service.Annotations[sharenat.SourceIPAnnotation] = sharenat.SourceIPMasquerade
		})
		promised(ctx, b.Scene, "web", lbservice.ReasonNoBackend, lbservice.EventNotServed, "does not masquerade")
		b.WaitRules(ctx, "web", nil, b.Ports...)
		By("the user's own word that there is a way back")
		b.ChangeService(ctx, "web", func(service *corev1.Service) {
			service.Annotations[sharenat.SourceIPAnnotation] = sharenat.SourceIPPreserve
		})
		Wait(ctx, func(ctx context.Context) ([]string, error) {
			rules, err := b.Rules(ctx, "web")
			var backends []string
			for i := range rules {
				backends = append(backends, rules[i].Spec.InternalIP)
			}
			return backends, err
		}).Should(HaveLen(2))
	})

	It("a Service is Programmed when its rules are, not when they are wished", Serial, func(ctx SpecContext) {
		b := newBalancer(ctx, 1, TCP(80))
		Expect(cluster.Lab.StopStock(ctx)).To(Succeed())
		DeferCleanup(cluster.EnsureStock)
		b.Scale(ctx, "web", 2)
		b.Scene.Pods(ctx, "web", 2)
		Wait(ctx, func(g Gomega, ctx context.Context) {
			condition := Condition(b.GetService(ctx, "web"), lbservice.ConditionReady)
			g.Expect(condition.Reason).To(Equal(lbservice.ReasonProgramming))
			g.Expect(condition.Message).To(ContainSubstring("does not hold all of the Service's rules yet"))
		}).Should(Succeed())
		AskAll(ctx, b.Outside(ctx), At(b.Addr, b.Ports[0]), 5)
		cluster.EnsureStock(ctx)
		b.WaitReason(ctx, "web", lbservice.ReasonProgrammed)
	})
})

var _ = Describe("Beside Kube-OVN's own handler, that of v1.17,", Lab, StockV117, func() {
	It("affinity is not served, which the condition and an event say, and traffic goes on", func(ctx SpecContext) {
		b := newBalancer(ctx, 3, TCP(80))
		b.ChangeService(ctx, "web", sticky(600))
		promised(ctx, b.Scene, "web", lbservice.ReasonAffinityNotServed, lbservice.EventNote, "sessionAffinity ClientIP")
		WaitAnswers(ctx, b.Outside(ctx), At(b.Addr, b.Ports[0]), Names(b.Pods)...)
		b.ChangeService(ctx, "web", loose)
		b.WaitReason(ctx, "web", lbservice.ReasonProgrammed)
	})
})

var _ = Describe("Beside Kube-OVN's own handler, a newer one,", Lab, StockNewer, func() {
	It("affinity changes on a live Service: its rules are recreated, port by port, as the webhook lets pass", func(ctx SpecContext) {
		b := newBalancer(ctx, 3, TCP(80), TCP(81))
		before := uids(b.rulesOf(ctx, "web"))
		stream := StartTraffic[traffic.Stream](ctx, b.Cluster, lab.Clients[0], traffic.StreamOptions{
			Endpoint: traffic.Endpoint{Target: At(b.Addr, b.Ports[0]).AddrPort.String(), Timeout: traffic.DefaultTimeout}, Rate: 50,
		})
		b.ChangeService(ctx, "web", sticky(600))
		Wait(ctx, func(g Gomega, ctx context.Context) {
			rules := b.rulesOf(ctx, "web")
			g.Expect(rules).To(HaveLen(len(before)))
			for name, rule := range rules {
				g.Expect(rule.UID).NotTo(Equal(before[name]), "rule %s should have been made anew", name)
				g.Expect(rule.Spec.SessionAffinity).To(Equal("ClientIP"))
				g.Expect(rule.Status.Ready).To(BeTrue())
			}
			g.Expect(ReadyReason(b.GetService(ctx, "web"))).To(Equal(lbservice.ReasonProgrammed))
		}).Should(Succeed())
		for _, port := range b.Ports {
			Expect(AskAll(ctx, b.Outside(ctx), At(b.Addr, port), 12).Who()).To(HaveLen(1), "who answers one client at port %d", port.Port)
		}
		s, err := stream.Stop(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(s.Outages.Longest).NotTo(BeNil(), "the port should not have answered for a moment")
		Measured{What: "beside Kube-OVN's own handler: affinity of 2 ports × 3 Pods changed", Result: fmt.Sprintf(
			"%d new connections to the first port, lost: %d, longest without an answer: %s", s.Attempts, s.Failed, s.Outages.Longest.Length.Duration)}.Report()
		By("a Pod that comes then")
		b.Scale(ctx, "web", 4)
		b.Pods = b.Scene.Pods(ctx, "web", 4)
		b.WaitRules(ctx, "web", b.Backends(), b.Ports...)
		b.WaitReason(ctx, "web", lbservice.ReasonProgrammed)
		By("and back")
		b.ChangeService(ctx, "web", loose)
		b.WaitHolds(ctx, b.Gateway, b.Addr, b.Shares()...)
		b.WaitReason(ctx, "web", lbservice.ReasonProgrammed)
		WaitAnswers(ctx, b.Outside(ctx), At(b.Addr, b.Ports[0]), Names(b.Pods)...)
		b.WaitEvents(ctx, "web", lbservice.EventWriteFailed)
	})
})
