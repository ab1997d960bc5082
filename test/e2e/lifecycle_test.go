// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/kubeovn/kube-ovn/pkg/lbservice"

	. "github.com/kubeovn/kube-ovn/test/e2e/framework"
)

var _ = Describe("Lifecycle of a Service", func() {
	It("is followed by rules, gateway and EXTERNAL-IP from its first port to its deletion", func(ctx SpecContext) {
		b := newBalancer(ctx, 2, TCP(80))
		outside := b.Outside(ctx)
		Expect(b.Addr).To(Equal(b.EIPAddress(ctx, b.EIP)))
		b.WaitReason(ctx, "web", lbservice.ReasonProgrammed)

		By("other ports")
		b.ChangeService(ctx, "web", func(service *corev1.Service) {
			service.Spec.Ports = []corev1.ServicePort{TCP(443), UDP(53)}
		})
		b.Ports = []corev1.ServicePort{TCP(443), UDP(53)}
		b.Settle(ctx, 2)
		_, err := outside.Ask(ctx, At(b.Addr, TCP(80)), AskHostname, 1)
		Expect(err).To(HaveOccurred(), "port 80 should not be answered any more")

		By("more Pods, then fewer")
		for _, replicas := range []int{4, 1} {
			b.Scale(ctx, "web", int32(replicas))
			b.Settle(ctx, replicas)
		}

		By("no Pods at all")
		b.Scale(ctx, "web", 0)
		b.Settle(ctx, 0)
		b.WaitReason(ctx, "web", lbservice.ReasonNoBackend)
		b.Scale(ctx, "web", 2)
		b.Settle(ctx, 2)

		By("the Service deleted")
		Expect(b.Kube.CoreV1().Services(b.Namespace).Delete(ctx, "web", metav1.DeleteOptions{})).To(Succeed())
		b.WaitRules(ctx, "web", nil)
		b.WaitHolds(ctx, b.Gateway, b.Addr)
		for _, port := range b.Ports {
			_, err := outside.Ask(ctx, At(b.Addr, port), AskHostname, 1)
			Expect(err).To(HaveOccurred(), "%s should not be answered any more", port.Name)
		}
	})

	It("ends when it stops being a load balancer, and begins again", func(ctx SpecContext) {
		b := newBalancer(ctx, 1, TCP(80))

		b.ChangeService(ctx, "web", func(service *corev1.Service) {
			service.Spec.Type = corev1.ServiceTypeClusterIP
			service.Spec.AllocateLoadBalancerNodePorts = nil
		})
		b.WaitNoExternalIP(ctx, "web")
		b.WaitRules(ctx, "web", nil)
		b.WaitHolds(ctx, b.Gateway, b.Addr)
		Expect(b.GetService(ctx, "web").Status.Conditions).To(BeEmpty())

		b.ChangeService(ctx, "web", func(service *corev1.Service) { service.Spec.Type = corev1.ServiceTypeLoadBalancer })
		b.Settle(ctx, 1)
	})

	It("leaves Services of other load balancers alone", func(ctx SpecContext) {
		b := newBalancer(ctx, 1, TCP(80))
		class := "example.com/other"
		b.Service(ctx, "foreign", b.EIP, []corev1.ServicePort{TCP(81)}, Selecting("web"),
			func(service *corev1.Service) { service.Spec.LoadBalancerClass = &class })
		b.Service(ctx, "unannotated", "", []corev1.ServicePort{TCP(82)}, Selecting("web"),
			func(service *corev1.Service) { service.Annotations = nil })
		b.Service(ctx, "ours", b.EIP, []corev1.ServicePort{TCP(83)}, Selecting("web"))

		// What came later has been handled, so what came before has been looked at.
		b.WaitRules(ctx, "ours", b.Backends(), TCP(83))
		for _, name := range []string{"foreign", "unannotated"} {
			Expect(b.Rules(ctx, name)).To(BeEmpty())
			Expect(b.GetService(ctx, name).Status).To(Equal(corev1.ServiceStatus{}), "status of Service %s", name)
		}
		b.WaitHolds(ctx, b.Gateway, b.Addr, append(b.Shares(), ShareOf(b.Addr, TCP(83), b.Backends()))...)
	})

	It("finds target ports by name and by number, also where they differ between Pods", func(ctx SpecContext) {
		s := cluster.NewScene(ctx)
		net := s.Network(ctx, "a")
		eip := net.EIP(ctx, "web")
		s.StartPod(ctx, Workload{Name: "old", App: "web", Port: 8080, Annotations: Primary(net.Subnet)})
		s.StartPod(ctx, Workload{Name: "new", App: "web", Port: 9090, Annotations: Primary(net.Subnet)})
		byName, byNumber := TCP(80), TCP(81)
		byName.TargetPort = intstr.FromString("http")
		s.Service(ctx, "web", eip, []corev1.ServicePort{byName, byNumber})
		addr := s.WaitExternalIP(ctx, "web")
		older, newer := s.WaitPod(ctx, "old"), s.WaitPod(ctx, "new")

		named := ShareOf(addr, TCP(80), Addresses([]corev1.Pod{*older}, ovn))
		onNew := TCP(80)
		onNew.TargetPort = intstr.FromInt32(9090)
		named.Backends = append(named.Backends, ShareOf(addr, onNew, Addresses([]corev1.Pod{*newer}, ovn)).Backends...)
		named.Normalize()
		numbered := ShareOf(addr, TCP(81), Addresses([]corev1.Pod{*older, *newer}, ovn))
		s.WaitHolds(ctx, s.GatewayPod(ctx, net.Name), addr, named, numbered)
		WaitAnswers(ctx, s.Outside(ctx), At(addr, byName), "old", "new")
	})
})
