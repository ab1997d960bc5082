// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeovn/kube-ovn/pkg/lbservice"
	"github.com/kubeovn/kube-ovn/test/lab/fabric"

	. "github.com/kubeovn/kube-ovn/test/e2e/framework"
)

var _ = Describe("What comes late", func() {
	It("is the EIP: the Service waits for it and is served as soon as it is ready", func(ctx SpecContext) {
		s := cluster.NewScene(ctx)
		net := s.Network(ctx, "a")
		s.Deployment(ctx, Workload{Name: "web", Replicas: 2, Annotations: Primary(net.Subnet)})
		s.Service(ctx, "web", net.Name+"-web", []corev1.ServicePort{TCP(80)})
		pods := s.Pods(ctx, "web", 2)
		net.WaitGateway(ctx)
		s.WaitReason(ctx, "web", lbservice.ReasonEIPNotFound)
		Expect(ExternalIP(s.GetService(ctx, "web"))).To(BeEmpty())

		addr := s.EIPAddress(ctx, net.EIP(ctx, "web"))
		Expect(s.WaitExternalIP(ctx, "web")).To(Equal(addr))
		WaitAnswers(ctx, s.Outside(ctx), At(addr, TCP(80)), Names(pods)...)
	})

	It("is the gateway: EIP and Service wait for it", func(ctx SpecContext) {
		s := cluster.NewScene(ctx)
		net := s.NetworkWithoutGateway(ctx, "a")
		eip := net.EIP(ctx, "web")
		s.Deployment(ctx, Workload{Name: "web", Replicas: 2, Annotations: Primary(net.Subnet)})
		s.Service(ctx, "web", eip, []corev1.ServicePort{TCP(80)})
		pods := s.Pods(ctx, "web", 2)
		Wait(ctx, func(ctx context.Context) string { return ReadyReason(s.GetService(ctx, "web")) }).
			Should(Equal(lbservice.ReasonGatewayNotFound))
		Expect(ExternalIP(s.GetService(ctx, "web"))).To(BeEmpty())

		net.MakeGateway(ctx, 1)
		addr := s.WaitExternalIP(ctx, "web")
		WaitAnswers(ctx, s.Outside(ctx), At(addr, TCP(80)), Names(pods)...)
		s.WaitReason(ctx, "web", lbservice.ReasonProgrammed)
	})

	It("is the annotation of a Pod's NIC: the Pod is no backend before, and its primary address never is", Lab, func(ctx SpecContext) {
		s := cluster.NewScene(ctx)
		net := s.Network(ctx, "a")
		eip := net.EIP(ctx, "web")
		s.MakeAttachment(ctx, "attached")
		annotations := s.Attached("attached", net.Subnet)
		annotations[fabric.AnnotationHoldNIC] = s.Provider("attached")
		s.StartPod(ctx, Workload{Name: "web", Annotations: annotations})
		s.Service(ctx, "web", eip, []corev1.ServicePort{TCP(80)})
		pod := s.WaitPod(ctx, "web")
		addr := s.WaitExternalIP(ctx, "web")
		s.WaitReason(ctx, "web", lbservice.ReasonNoBackend)
		Expect(Address(pod, ovn).IsValid()).To(BeTrue(), "the Pod should have a primary address")
		Expect(s.Rules(ctx, "web")).To(BeEmpty())

		_, err := s.Kube.CoreV1().Pods(s.Namespace).Patch(ctx, "web", types.MergePatchType,
			[]byte(`{"metadata":{"annotations":{"`+fabric.AnnotationHoldNIC+`":null}}}`), metav1.PatchOptions{})
		Expect(err).NotTo(HaveOccurred())
		WaitAnswers(ctx, s.Outside(ctx), At(addr, TCP(80)), "web")
		pod = s.WaitPod(ctx, "web")
		s.WaitRules(ctx, "web", Addresses([]corev1.Pod{*pod}, s.Provider("attached")), TCP(80))
	})

	It("is the Subnet's VPC: a Subnet that moves takes its Pods along", Lab, func(ctx SpecContext) {
		b := newBalancer(ctx, 2, TCP(80))
		other := b.NetworkWithoutGateway(ctx, "b")
		moving := b.Name + "-moving"
		b.MakeSubnet(ctx, moving, other.Name, movingPrefix, movingPrefix.Addr().Next())
		b.Deployment(ctx, Workload{Name: "moving", Replicas: 2, Annotations: Primary(moving)})
		b.Service(ctx, "moving", b.EIP, []corev1.ServicePort{TCP(81)})
		pods := b.Scene.Pods(ctx, "moving", 2)
		b.WaitReason(ctx, "moving", lbservice.ReasonNoBackend)
		Expect(b.Rules(ctx, "moving")).To(BeEmpty())

		b.PatchSubnet(ctx, moving, `{"spec":{"vpc":"`+b.Net.Name+`"}}`)
		b.WaitRules(ctx, "moving", Addresses(pods, ovn), TCP(81))
		WaitAnswers(ctx, b.Outside(ctx), At(b.Addr, TCP(81)), Names(pods)...)

		b.PatchSubnet(ctx, moving, `{"spec":{"vpc":"`+other.Name+`"}}`)
		b.WaitRules(ctx, "moving", nil)
		b.WaitHolds(ctx, b.Gateway, b.Addr, b.Shares()...)
	})
})
