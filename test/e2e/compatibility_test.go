// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"

	. "github.com/kubeovn/kube-ovn/test/e2e/framework"
)

var _ = Describe("Fields that a newer Kube-OVN has", Serial, Lab, func() {
	resources := []string{"iptables-dnat-rules", "iptables-eips", "vpc-nat-gateways"}

	// allow has the API server take a field "fromTheFuture" in spec and status of our kinds.
	allow := func(ctx context.Context) {
		crds := cluster.Dynamic.Resource(schema.GroupVersionResource{
			Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions",
		})
		for _, resource := range resources {
			const at = "/spec/versions/0/schema/openAPIV3Schema/properties/"
			add := []byte(`[{"op":"add","path":"` + at + `spec/properties/fromTheFuture","value":{"type":"string"}},` +
				`{"op":"add","path":"` + at + `status/properties/fromTheFuture","value":{"type":"string"}}]`)
			remove := []byte(`[{"op":"remove","path":"` + at + `spec/properties/fromTheFuture"},` +
				`{"op":"remove","path":"` + at + `status/properties/fromTheFuture"}]`)
			DeferCleanup(func(ctx context.Context) {
				_, err := crds.Patch(ctx, resource+".kubeovn.io", types.JSONPatchType, remove, metav1.PatchOptions{})
				Expect(err).NotTo(HaveOccurred())
			})
			_, err := crds.Patch(ctx, resource+".kubeovn.io", types.JSONPatchType, add, metav1.PatchOptions{})
			Expect(err).NotTo(HaveOccurred())
		}
	}
	client := func(resource string) interface {
		Get(ctx context.Context, name string, opts metav1.GetOptions, subresources ...string) (*unstructured.Unstructured, error)
		Patch(ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (*unstructured.Unstructured, error)
	} {
		return cluster.Dynamic.Resource(schema.GroupVersionResource{Group: "kubeovn.io", Version: "v1", Resource: resource})
	}
	// set gives an object the field, as soon as the API server takes it.
	set := func(ctx context.Context, resource, name string) {
		GinkgoHelper()
		for _, part := range []string{"spec", "status"} {
			var subresources []string
			if part == "status" {
				subresources = []string{"status"}
			}
			Wait(ctx, func(g Gomega, ctx context.Context) {
				object, err := client(resource).Patch(ctx, name, types.MergePatchType,
					[]byte(`{"`+part+`":{"fromTheFuture":"kept"}}`), metav1.PatchOptions{}, subresources...)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(field(object, part)).To(Equal("kept"))
			}).Should(Succeed())
		}
	}

	It("survive every write", func(ctx SpecContext) {
		b := newBalancer(ctx, 1, TCP(80))
		rule := b.Rule(ctx, "byhand", shareRule(b.EIP, 82, b.Backends()[0]))
		b.WaitRule(ctx, rule.Name)
		rules, err := b.Rules(ctx, "web")
		Expect(err).NotTo(HaveOccurred())
		objects := map[string]string{rules[0].Name: resources[0], rule.Name: resources[0], b.EIP: resources[1], b.Net.Name: resources[2]}
		allow(ctx)
		for name, resource := range objects {
			set(ctx, resource, name)
		}

		By("writes of every kind: spec, labels, finalizers, status")
		b.ChangeService(ctx, "web", func(service *corev1.Service) { service.Spec.SessionAffinity = corev1.ServiceAffinityClientIP })
		b.PatchRule(ctx, rule.Name, `{"metadata":{"labels":null,"annotations":null,"finalizers":null},"spec":{"externalPort":"83"}}`)
		_, err = client(resources[1]).Patch(ctx, b.EIP, types.MergePatchType, []byte(`{"metadata":{"finalizers":null,"labels":null}}`), metav1.PatchOptions{})
		Expect(err).NotTo(HaveOccurred())
		Expect(b.Kube.CoreV1().Pods(b.Gateway.Namespace).Delete(ctx, b.Gateway.Name, metav1.DeleteOptions{})).To(Succeed())
		Wait(ctx, func(g Gomega, ctx context.Context) {
			changed, err := b.KubeOvn.KubeovnV1().IptablesDnatRules().Get(ctx, rule.Name, metav1.GetOptions{})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(changed.Status.ExternalPort).To(Equal("83"))
			g.Expect(changed.Finalizers).NotTo(BeEmpty())
			affine, err := b.KubeOvn.KubeovnV1().IptablesDnatRules().Get(ctx, rules[0].Name, metav1.GetOptions{})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(affine.Spec.SessionAffinity).To(Equal("ClientIP"))
			g.Expect(affine.Status.Ready).To(BeTrue())
			var eip *kubeovnv1.IptablesEIP
			eip, err = b.KubeOvn.KubeovnV1().IptablesEIPs().Get(ctx, b.EIP, metav1.GetOptions{})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(eip.Finalizers).NotTo(BeEmpty())
			g.Expect(eip.Status.Ready).To(BeTrue())
		}).Should(Succeed())
		b.Net.WaitGateway(ctx)
		WaitAnswers(ctx, b.Outside(ctx), At(b.Addr, TCP(83)), b.Pods[0].Name)
		for name, resource := range objects {
			object, err := client(resource).Get(ctx, name, metav1.GetOptions{})
			Expect(err).NotTo(HaveOccurred())
			Expect(field(object, "spec")).To(Equal("kept"), "%s %s", resource, name)
			Expect(field(object, "status")).To(Equal("kept"), "%s %s", resource, name)
		}
	})
})

func field(object *unstructured.Unstructured, part string) string {
	value, _, _ := unstructured.NestedString(object.Object, part, "fromTheFuture") // a field of another type is not ours
	return value
}
