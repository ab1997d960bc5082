// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"net/netip"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/lbservice"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"

	. "github.com/kubeovn/kube-ovn/test/e2e/framework"
)

// tells waits until a Service's condition says why it is not served, and an event does.
func tells(ctx context.Context, s *Scene, service, reason, text string) {
	GinkgoHelper()
	Wait(ctx, func(g Gomega, ctx context.Context) {
		condition := Condition(s.GetService(ctx, service), lbservice.ConditionReady)
		g.Expect(condition.Reason).To(Equal(reason), "condition of Service %s: %s", service, condition.Message)
		g.Expect(condition.Status).To(Equal(metav1.ConditionFalse))
		g.Expect(condition.Message).To(ContainSubstring(text))
		events, err := s.Events(ctx, service, lbservice.EventNotServed)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(events).To(ContainElement(ContainSubstring(text)), "events of Service %s", service)
	}).Should(Succeed())
}

var _ = Describe("A Service that is not served", func() {
	It("says what is missing, in its condition and in one event, at each step on the way", func(ctx SpecContext) {
		s := cluster.NewScene(ctx)
		net := s.NetworkWithoutGateway(ctx, "a")
		far := s.NetworkWithoutGateway(ctx, "b")
		eip := net.Name + "-web"
		sctp := TCP(132)
		sctp.Protocol, sctp.Name = corev1.ProtocolSCTP, "sctp"
		s.StartPod(ctx, Workload{Name: "far", App: "web", Annotations: Primary(far.Subnet)})
		s.Service(ctx, "web", eip, []corev1.ServicePort{TCP(80), sctp})

		By("no EIP")
		tells(ctx, s, "web", lbservice.ReasonEIPNotFound, "IptablesEIP "+eip+" does not exist")
		By("an EIP without a gateway")
		Expect(net.EIP(ctx, "web")).To(Equal(eip))
		Wait(ctx, func(ctx context.Context) string { return ReadyReason(s.GetService(ctx, "web")) }).
			Should(Equal(lbservice.ReasonGatewayNotFound))
		Expect(ExternalIP(s.GetService(ctx, "web"))).To(BeEmpty())
		By("a gateway, but a protocol that is not balanced")
		net.MakeGateway(ctx, 1)
		tells(ctx, s, "web", lbservice.ReasonProtocolNotSupported, "port 132/SCTP: only TCP and UDP are supported")
		s.WaitExternalIP(ctx, "web")
		s.WaitPortErrors(ctx, "web", map[int32]string{80: "", 132: string(lbservice.PortProtocolUnsupported)})
		By("no backend in the VPC")
		s.ChangeService(ctx, "web", func(service *corev1.Service) { service.Spec.Ports = []corev1.ServicePort{TCP(80)} })
		s.WaitPod(ctx, "far")
		tells(ctx, s, "web", lbservice.ReasonNoBackend, "no backend for 80/TCP")
		Wait(ctx, func(ctx context.Context) string {
			return Condition(s.GetService(ctx, "web"), lbservice.ConditionReady).Message
		}).Should(ContainSubstring(`"far"`))
		s.WaitEvents(ctx, "web", lbservice.EventBackendSkipped, "Pod far is no backend")
		By("a backend")
		s.StartPod(ctx, Workload{Name: "near", App: "web", Annotations: Primary(net.Subnet)})
		s.WaitReason(ctx, "web", lbservice.ReasonProgrammed)
		condition := Condition(s.GetService(ctx, "web"), lbservice.ConditionReady)
		Expect(condition.Status).To(Equal(metav1.ConditionTrue))
		Expect(condition.ObservedGeneration).To(Equal(s.GetService(ctx, "web").Generation))
		s.WaitEvents(ctx, "web", lbservice.EventServed, "served at ")
		s.WaitEvents(ctx, "web", lbservice.EventBackendSkipped, "Pod far is no backend")
		WaitAnswers(ctx, s.Outside(ctx), At(s.WaitExternalIP(ctx, "web"), TCP(80)), "near")
	})
})

var _ = Describe("What another provider wrote in a Service's status", func() {
	foreign := corev1.LoadBalancerIngress{IP: "198.51.100.77", IPMode: ptr.To(corev1.LoadBalancerIPModeVIP)}
	theirs := metav1.Condition{Type: "example.com/Ready", Status: metav1.ConditionTrue, Reason: "Fine", Message: "theirs"}

	It("is never touched, and a Service that leaves gives back what it had been given, with and without a backend", func(ctx SpecContext) {
		b := newBalancer(ctx, 1, TCP(80))
		b.Service(ctx, "empty", b.EIP, []corev1.ServicePort{TCP(81)}, Selectorless)
		b.WaitReason(ctx, "empty", lbservice.ReasonNoBackend)
		b.WaitExternalIP(ctx, "empty")
		services := b.Kube.CoreV1().Services(b.Namespace)
		before := map[string]*corev1.Service{}
		for _, name := range []string{"web", "empty"} {
			Wait(ctx, func(ctx context.Context) error {
				service := b.GetService(ctx, name)
				service.Status.LoadBalancer.Ingress = append([]corev1.LoadBalancerIngress{foreign}, service.Status.LoadBalancer.Ingress...)
				condition := theirs
				condition.LastTransitionTime = metav1.Now().Rfc3339Copy()
				service.Status.Conditions = append(service.Status.Conditions, condition)
				var err error
				before[name], err = services.UpdateStatus(ctx, service, metav1.UpdateOptions{})
				return err
			}).Should(Succeed())
		}
		check := func(name string, more int) {
			GinkgoHelper()
			Wait(ctx, func(g Gomega, ctx context.Context) {
				service := b.GetService(ctx, name)
				g.Expect(service.Status.LoadBalancer.Ingress).To(HaveLen(1+more), "ingress of Service %s", name)
				g.Expect(service.Status.LoadBalancer.Ingress[0]).To(Equal(foreign))
				g.Expect(Condition(service, theirs.Type)).To(Equal(Condition(before[name], theirs.Type)))
				if more == 0 {
					g.Expect(service.Status.Conditions).To(HaveLen(1), "conditions of Service %s", name)
				}
			}).Should(Succeed())
		}

		By("a port lost and won back, backends come and gone")
		rule := b.Rule(ctx, "byhand", shareRule(b.EIP, 80, b.Backends()[0]))
		b.WaitReason(ctx, "web", lbservice.ReasonPortConflict)
		Wait(ctx, func(ctx context.Context) []corev1.LoadBalancerIngress {
			return b.GetService(ctx, "web").Status.LoadBalancer.Ingress
		}).Should(Equal([]corev1.LoadBalancerIngress{foreign}))
		Expect(b.KubeOvn.KubeovnV1().IptablesDnatRules().Delete(ctx, rule.Name, metav1.DeleteOptions{})).To(Succeed())
		b.Scale(ctx, "web", 2)
		b.WaitReason(ctx, "web", lbservice.ReasonProgrammed)
		check("web", 1)
		check("empty", 1)

		By("the annotation taken off")
		for _, name := range []string{"web", "empty"} {
			metadata, spec := b.GetService(ctx, name).ObjectMeta, b.GetService(ctx, name).Spec
			b.ChangeService(ctx, name, func(service *corev1.Service) { service.Annotations = nil })
			check(name, 0)
			after := b.GetService(ctx, name)
			Expect(after.Spec).To(Equal(spec), "spec of Service %s", name)
			Expect(after.Labels).To(Equal(metadata.Labels))
			Expect(after.Finalizers).To(Equal(metadata.Finalizers))
			Expect(after.Annotations).To(BeEmpty())
		}
		b.WaitRules(ctx, "web", nil)
		b.WaitHolds(ctx, b.Gateway, b.Addr)

		By("back again, and away to another class by way of another type")
		for _, name := range []string{"web", "empty"} {
			b.ChangeService(ctx, name, func(service *corev1.Service) {
				service.Annotations = map[string]string{sharenat.EIPAnnotation: b.EIP}
			})
			check(name, 1)
			b.ChangeService(ctx, name, func(service *corev1.Service) {
				service.Spec.Type, service.Spec.AllocateLoadBalancerNodePorts = corev1.ServiceTypeClusterIP, nil
			})
			b.WaitNoExternalIP(ctx, name) // The API server takes all addresses away from a Service that is no load balancer.
			b.ChangeService(ctx, name, func(service *corev1.Service) {
				service.Spec.Type, service.Spec.LoadBalancerClass = corev1.ServiceTypeLoadBalancer, ptr.To("example.com/other")
			})
			Wait(ctx, func(ctx context.Context) []metav1.Condition { return b.GetService(ctx, name).Status.Conditions }).
				Should(ConsistOf(HaveField("Type", theirs.Type)))
			Expect(ExternalIP(b.GetService(ctx, name))).To(BeEmpty())
		}
	})
})

var _ = Describe("A backend without a way back to the gateway", func() {
	It("is told of, and answers once it has a route", Lab, func(ctx SpecContext) {
		s := cluster.NewScene(ctx)
		net := s.Network(ctx, "a")
		eip := net.EIP(ctx, "web")
		other := net.Name + "-other"
		s.MakeSubnet(ctx, other, net.Name, movingPrefix, movingPrefix.Addr().Next())
		s.MakeAttachment(ctx, attached)
		s.StartPod(ctx, Workload{Name: "lost", Annotations: s.Attached(attached, other)})
		routed := s.Attached(attached, other)
		routed[s.Provider(attached)+".kubernetes.io/routes"] = `[{"dst":"` + net.Prefix.String() + `","gw":"` + movingPrefix.Addr().Next().String() + `"}]`
		s.StartPod(ctx, Workload{Name: "routed", Annotations: routed})
		s.Service(ctx, "lost", eip, []corev1.ServicePort{TCP(80)})
		s.Service(ctx, "routed", eip, []corev1.ServicePort{TCP(81)})
		addr := s.WaitExternalIP(ctx, "lost")
		outside := s.Outside(ctx)
		WaitAnswers(ctx, outside, At(addr, TCP(81)), "routed")
		s.WaitReason(ctx, "lost", lbservice.ReasonProgrammed)
		s.WaitEvents(ctx, "lost", lbservice.EventNote, "a NIC in Subnet "+other+" may have no way back to VpcNatGateway "+net.Name)
		Expect(s.Events(ctx, "routed", lbservice.EventNote)).To(BeEmpty())
		_, err := outside.Ask(ctx, At(addr, TCP(80)), AskHostname, 1)
		Expect(err).To(HaveOccurred(), "the answer should have left by the other NIC")
	})
})

// refuseRules has the API server refuse to create rules of the scene's Services, and gives a function that ends it.
func refuseRules(ctx context.Context, s *Scene) (end func(context.Context)) {
	GinkgoHelper()
	policies, bindings := s.Kube.AdmissionregistrationV1().ValidatingAdmissionPolicies(), s.Kube.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings()
	rule := admissionv1.Rule{APIGroups: []string{"kubeovn.io"}, APIVersions: []string{"v1"}, Resources: []string{"iptables-dnat-rules"}}
	_, err := policies.Create(ctx, &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: s.Name},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionv1.MatchResources{
				ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{sharenat.OwnerNamespaceLabel: s.Namespace}},
				ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
					Operations: []admissionv1.OperationType{admissionv1.Create}, Rule: rule,
				}}},
			},
			Validations: []admissionv1.Validation{{Expression: "false", Message: "the quota of rules is used up"}},
		},
	}, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	_, err = bindings.Create(ctx, &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: s.Name},
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: s.Name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
		},
	}, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	end = func(ctx context.Context) {
		for _, err := range []error{bindings.Delete(ctx, s.Name, metav1.DeleteOptions{}), policies.Delete(ctx, s.Name, metav1.DeleteOptions{})} {
			if !apierrors.IsNotFound(err) {
				Expect(err).NotTo(HaveOccurred())
			}
		}
	}
	DeferCleanup(end)
	// The API server takes a moment to know of it.
	Wait(ctx, func(ctx context.Context) error {
		_, err := s.KubeOvn.KubeovnV1().IptablesDnatRules().Create(ctx, &kubeovnv1.IptablesDnatRule{
			ObjectMeta: metav1.ObjectMeta{Name: s.Name + "-probe", Labels: s.Owner("probe").Labels()},
			Spec:       shareRule(s.Name, 1, netip.MustParseAddr("192.0.2.1")),
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}).Should(MatchError(ContainSubstring("the quota of rules is used up")))
	return end
}

var _ = Describe("A write that the API server refuses", func() {
	It("shows in the condition and in one event within seconds, in its own words, and is made good when it is let pass", func(ctx SpecContext) {
		b := newBalancer(ctx, 1, TCP(80))
		end := refuseRules(ctx, b.Scene)
		b.Scale(ctx, "web", 2)
		b.Scene.Pods(ctx, "web", 2)
		Within(ctx, Soon, func(g Gomega, ctx context.Context) {
			condition := Condition(b.GetService(ctx, "web"), lbservice.ConditionReady)
			g.Expect(condition.Reason).To(Equal(lbservice.ReasonWriteRefused), condition.Message)
			g.Expect(condition.Message).To(ContainSubstring("the quota of rules is used up"))
		}).Should(Succeed())
		b.WaitEvents(ctx, "web", lbservice.EventWriteFailed, "the quota of rules is used up")
		AskAll(ctx, b.Outside(ctx), At(b.Addr, b.Ports[0]), 5)
		end(ctx)
		b.WaitReason(ctx, "web", lbservice.ReasonProgrammed)
		b.Settle(ctx, 2)
	})
})
