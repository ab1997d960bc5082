// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/kubeovn/kube-ovn/pkg/lbservice"
	"github.com/kubeovn/kube-ovn/test/lab/fabric"
	"github.com/kubeovn/kube-ovn/test/lab/node"

	. "github.com/kubeovn/kube-ovn/test/e2e/framework"
)

// setImage gives a gateway another image, as one has to where its controller does not compare it, and waits until the new pod is filled.
func (b *balancer) setImage(ctx context.Context, name string) {
	GinkgoHelper()
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"template": map[string]any{"spec": map[string]any{
		"containers": []map[string]any{{"name": "vpc-nat-gw", "image": gatewayImage(name)}},
	}}}})
	Expect(err).NotTo(HaveOccurred())
	_, err = b.Kube.AppsV1().StatefulSets(SystemNamespace).Patch(ctx, "vpc-nat-gw-"+b.Net.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	Expect(err).NotTo(HaveOccurred())
	b.waitRedone(ctx, b.Gateway)
}

// configureImage has Kube-OVN make its gateways of another image until the spec has ended.
func configureImage(ctx context.Context, name string) {
	GinkgoHelper()
	maps := cluster.Kube.CoreV1().ConfigMaps(SystemNamespace)
	set := func(ctx context.Context, image string) {
		GinkgoHelper()
		_, err := maps.Patch(ctx, "ovn-vpc-nat-config", types.MergePatchType, fmt.Appendf(nil, `{"data":{"image":%q}}`, image), metav1.PatchOptions{})
		Expect(err).NotTo(HaveOccurred())
	}
	before, err := maps.Get(ctx, "ovn-vpc-nat-config", metav1.GetOptions{})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx context.Context) { set(ctx, before.Data["image"]) })
	set(ctx, gatewayImage(name))
}

// gatewayImage is the image of gateways with a name.
func gatewayImage(name string) string { return "docker.io/kubeovn/" + name + ":v1.17.0" }

// waitRedone waits until a gateway's pod was replaced, and all that was in it is in the new one.
func (b *balancer) waitRedone(ctx context.Context, old *corev1.Pod) {
	GinkgoHelper()
	Wait(ctx, func(g Gomega, ctx context.Context) {
		pod, err := b.Kube.CoreV1().Pods(old.Namespace).Get(ctx, old.Name, metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(pod.UID).NotTo(Equal(old.UID))
		g.Expect(pod.Annotations).To(HaveKeyWithValue("ovn.kubernetes.io/vpc_nat_gw_init", "true"))
		rules, err := b.Rules(ctx, "web")
		g.Expect(err).NotTo(HaveOccurred())
		for i := range rules {
			g.Expect(rules[i].Status.Redo).NotTo(BeEmpty(), "rule %s", rules[i].Name)
			g.Expect(rules[i].Status.Ready).To(BeTrue(), "rule %s", rules[i].Name)
		}
	}).Should(Succeed())
	b.Gateway = b.GatewayPod(ctx, b.Net.Name)
}

// counted ends the load and says what was lost of it, whatever that is.
func (l *load) counted(ctx context.Context, scenario string) {
	GinkgoHelper()
	stream, hold := l.stop(ctx)
	Measured{What: "beside Kube-OVN " + cluster.Lab.StockRelease() + ": " + scenario, Result: fmt.Sprintf(
		"%d new connections, lost: %d; %d long-lived, cut: %d", stream.Attempts, stream.Failed, hold.Opened, hold.Cut)}.Report()
	Expect(stream.Failed).To(BeNumerically("<", stream.Attempts), "all were lost")
}

// unanswered wants an address to be closed.
func unanswered(ctx context.Context, from Client, to Target) {
	GinkgoHelper()
	_, err := from.Ask(ctx, to, AskHostname, 1)
	Expect(err).To(HaveOccurred(), "%s should not be answered any more", to)
}

// natRule makes a rule of a kind that only Kube-OVN's own handler runs, and waits until it is ready.
func (b *balancer) natRule(ctx context.Context, resource, kind, eip, field, value string) (client dynamic.ResourceInterface, name string) {
	GinkgoHelper()
	client, name = b.Dynamic.Resource(schema.GroupVersionResource{Group: "kubeovn.io", Version: "v1", Resource: resource}), eip
	_, err := client.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "kubeovn.io/v1", "kind": kind, "metadata": map[string]any{"name": name}, "spec": map[string]any{"eip": eip, field: value},
	}}, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx context.Context) {
		if err := client.Delete(ctx, name, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
			Expect(err).NotTo(HaveOccurred())
		}
	})
	Wait(ctx, func(g Gomega, ctx context.Context) {
		rule, err := client.Get(ctx, name, metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		ready, _, _ := unstructured.NestedBool(rule.Object, "status", "ready")
		g.Expect(ready).To(BeTrue(), "%s %s", kind, name)
	}).Should(Succeed())
	return client, name
}

// gone deletes a rule and waits until its finalizer is off.
func gone(ctx context.Context, client dynamic.ResourceInterface, name string) {
	GinkgoHelper()
	Expect(client.Delete(ctx, name, metav1.DeleteOptions{})).To(Succeed())
	Wait(ctx, func(ctx context.Context) error {
		_, err := client.Get(ctx, name, metav1.GetOptions{})
		return err
	}).Should(MatchError(apierrors.IsNotFound, "NotFound"))
}

var _ = Describe("Beside Kube-OVN's own controller", Lab, Stock, func() {
	It("serves a Service from its first port to its deletion", func(ctx SpecContext) {
		b := newBalancer(ctx, 2, TCP(80), UDP(53))
		b.WaitReason(ctx, "web", lbservice.ReasonProgrammed)
		asStockExpects(b.rulesOf(ctx, "web"), b.stockRules(ctx, "web"))
		for _, replicas := range []int{3, 1} {
			b.Scale(ctx, "web", int32(replicas))
			b.Settle(ctx, replicas)
		}
		By("other ports")
		b.ChangeService(ctx, "web", func(service *corev1.Service) { service.Spec.Ports = []corev1.ServicePort{TCP(443)} })
		b.Ports = []corev1.ServicePort{TCP(443)}
		b.Settle(ctx, 1)
		unanswered(ctx, b.Outside(ctx), At(b.Addr, TCP(80)))
		By("the Service deleted")
		Expect(b.Kube.CoreV1().Services(b.Namespace).Delete(ctx, "web", metav1.DeleteOptions{})).To(Succeed())
		b.WaitRules(ctx, "web", nil)
		b.WaitHolds(ctx, b.Gateway, b.Addr)
		unanswered(ctx, b.Outside(ctx), At(b.Addr, TCP(443)))
	})

	It("goes on in a rolling update; what it costs is counted", func(ctx SpecContext) {
		const drain = 3 // as long as many a preStop hook sleeps, in seconds
		s := cluster.NewScene(ctx)
		b := &balancer{Scene: s, Net: s.Network(ctx, "a"), Ports: []corev1.ServicePort{TCP(80)}}
		b.EIP = b.Net.EIP(ctx, "web")
		w := drainingWorkload("web", 4, b.Net)
		w.Args, w.Grace = []string{fmt.Sprintf("--delay-shutdown=%d", drain)}, 2*drain
		s.Deployment(ctx, w)
		s.Service(ctx, "web", b.EIP, b.Ports)
		b.Settle(ctx, 4)
		l := startLoad(ctx, b)
		b.Rollout(ctx, "web")
		b.Settle(ctx, 4)
		l.counted(ctx, fmt.Sprintf("a rolling update of 4 Pods that drain for %d s", drain))
	})

	It("is served again when the gateway's pod was replaced", func(ctx SpecContext) {
		b := newBalancer(ctx, 2, TCP(80), UDP(53))
		b.Rule(ctx, "ssh", exclusiveRule(b.EIP, 22, b.Backends()[0]))
		b.WaitRule(ctx, b.Name+"-ssh")
		Expect(b.Kube.CoreV1().Pods(b.Gateway.Namespace).Delete(ctx, b.Gateway.Name, metav1.DeleteOptions{})).To(Succeed())
		b.waitRedone(ctx, b.Gateway)
		b.Settle(ctx, 2)
		b.WaitRule(ctx, b.Name+"-ssh")
		WaitAnswers(ctx, b.Outside(ctx), At(b.Addr, TCP(22)), b.Pods[0].Name)
	})

	DescribeTable("leaves to Kube-OVN what is Kube-OVN's in a gateway with this project's script over its own", func(ctx SpecContext, image string) {
		b := newBalancer(ctx, 2, TCP(80))
		ssh := At(b.Addr, TCP(22))
		b.setImage(ctx, image)
		b.Settle(ctx, 2)

		By("exclusive rules")
		rule := b.Rule(ctx, "ssh", exclusiveRule(b.EIP, 22, b.Backends()[0]))
		b.WaitRule(ctx, rule.Name)
		WaitAnswers(ctx, b.Outside(ctx), ssh, b.Pods[0].Name)
		b.PatchRule(ctx, rule.Name, fmt.Sprintf(`{"spec":{"internalIp":%q}}`, b.Backends()[1]))
		WaitAnswers(ctx, b.Outside(ctx), ssh, b.Pods[1].Name)
		gone(ctx, b.Dynamic.Resource(schema.GroupVersionResource{Group: "kubeovn.io", Version: "v1", Resource: "iptables-dnat-rules"}), rule.Name)
		unanswered(ctx, b.Outside(ctx), ssh)

		By("a floating IP")
		floating := b.Net.EIP(ctx, "floating")
		to := Target{AddrPort: netip.AddrPortFrom(b.EIPAddress(ctx, floating), HTTPPort)}
		fips, name := b.natRule(ctx, "iptables-fip-rules", "IptablesFIPRule", floating, "internalIp", b.Backends()[1].String())
		WaitAnswers(ctx, b.Outside(ctx), to, b.Pods[1].Name)
		gone(ctx, fips, name)
		unanswered(ctx, b.Outside(ctx), to)

		By("SNAT")
		out := b.Net.EIP(ctx, "out")
		b.EIPAddress(ctx, out)
		// A host far away, whose answers find the way back to an EIP only. It refuses what it gets.
		dial := func() error {
			_, err := b.ClientOf(ctx, &b.Pods[0]).(*SpaceClient).Dial(ctx, Target{AddrPort: netip.AddrPortFrom(fabric.UpstreamHost, 9)}, netip.AddrPort{})
			return err
		}
		refused := MatchError(syscall.ECONNREFUSED)
		Expect(dial()).NotTo(refused, "nobody translates what the VPC sends")
		snats, name := b.natRule(ctx, "iptables-snat-rules", "IptablesSnatRule", out, "internalCIDR", b.Net.Prefix.String())
		Expect(dial()).To(refused)
		gone(ctx, snats, name)
		Expect(dial()).NotTo(refused)
		b.Settle(ctx, 2)
	},
		Entry("with legacy iptables", node.BesideImage),
		Entry("without", node.BesideWithoutLegacyImage),
	)
})

var _ = Describe("Kube-OVN's own controller", Serial, Lab, StockV117, func() {
	It("hands its gateways over to this project's, and gets them back, and nobody notices", func(ctx SpecContext) {
		// As its users are told: who makes gateways of another image than they have restarts them.
		configureImage(ctx, node.BesideImage)
		b := churnBalancer(ctx, 2, false, TCP(80))
		b.Rule(ctx, "ssh", exclusiveRule(b.EIP, 22, b.Backends()[0]))
		b.WaitRule(ctx, b.Name+"-ssh")
		behind := b.Pods[0].Name
		before := uids(b.rulesOf(ctx, "web"))
		DeferCleanup(func(ctx context.Context) {
			Expect(b.Lab.StopStock(ctx)).To(Succeed())
			Expect(b.Lab.StartStock(ctx)).To(Succeed())
		})
		l := startLoad(ctx, b)

		By("this project's takes over")
		Expect(b.Lab.StopStock(ctx)).To(Succeed())
		b.RestartController(ctx, "--enable-nat-gw-handler=true")
		b.Settle(ctx, 2)
		Expect(uids(b.rulesOf(ctx, "web"))).To(Equal(before), "rules")
		b.Scale(ctx, "web", 3)
		b.Settle(ctx, 3)
		before = uids(b.rulesOf(ctx, "web"))
		WaitAnswers(ctx, b.Outside(ctx), At(b.Addr, TCP(22)), behind)
		Expect(b.GatewayPod(ctx, b.Net.Name).UID).To(Equal(b.Gateway.UID), "the gateway's pod")

		By("and gives them back")
		b.RestartController(ctx)
		Expect(b.Lab.StartStock(ctx)).To(Succeed())
		b.Settle(ctx, 3)
		Expect(uids(b.rulesOf(ctx, "web"))).To(Equal(before), "rules")
		b.Scale(ctx, "web", 4)
		b.Settle(ctx, 4)
		WaitAnswers(ctx, b.Outside(ctx), At(b.Addr, TCP(22)), behind)
		l.lostNothing(ctx, "handed over by a stand-in for Kube-OVN's own controller, and back")
	})
})
