// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/test/lab/stock"

	. "github.com/kubeovn/kube-ovn/test/e2e/framework"
)

// stockRule is a rule as Kube-OVN's own controller makes it for one backend of a Service's port, once it is programmed.
func (b *balancer) stockRule(service *corev1.Service, port corev1.ServicePort, backend netip.Addr) *kubeovnv1.IptablesDnatRule {
	protocol := strings.ToLower(string(port.Protocol))
	external, internal := strconv.Itoa(int(port.Port)), port.TargetPort.String()
	sum := sha256.Sum256([]byte(strings.Join([]string{service.Namespace, service.Name, protocol, external, backend.String(), internal}, "/")))
	rule := &kubeovnv1.IptablesDnatRule{
		ObjectMeta: metav1.ObjectMeta{
			Name: "lb-" + service.Name[:min(len(service.Name), 47)] + "-" + hex.EncodeToString(sum[:])[:12],
			Labels: map[string]string{
				"ovn.kubernetes.io/nftable-lb-svc-ns":   service.Namespace,
				"ovn.kubernetes.io/nftable-lb-svc-name": service.Name,
				"ovn.kubernetes.io/vpc-nat-gw-name":     b.Net.Name,
				"ovn.kubernetes.io/vpc_dnat_eport":      external,
				"ovn.kubernetes.io/eip_v4_ip":           b.Addr.String(),
			},
			Annotations: map[string]string{"ovn.kubernetes.io/vpc_eip": b.EIP},
			Finalizers:  []string{"kubeovn.io/kube-ovn-controller"},
		},
		Spec: kubeovnv1.IptablesDnatRuleSpec{
			EIP: b.EIP, ExternalPort: external, Protocol: protocol, InternalIP: backend.String(), InternalPort: internal, Type: "share",
		},
		Status: kubeovnv1.IptablesDnatRuleStatus{
			Ready: true, V4ip: b.Addr.String(), NatGwDp: b.Net.Name,
			Protocol: protocol, ExternalPort: external, InternalIP: backend.String(), InternalPort: internal,
		},
	}
	if service.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		rule.Spec.SessionAffinity = "ClientIP"
		rule.Spec.SessionAffinityTimeoutSeconds = *service.Spec.SessionAffinityConfig.ClientIP.TimeoutSeconds
	}
	return rule
}

// stockRules are those of several Services, by name.
func (b *balancer) stockRules(ctx context.Context, services ...string) map[string]*kubeovnv1.IptablesDnatRule {
	GinkgoHelper()
	rules := map[string]*kubeovnv1.IptablesDnatRule{}
	for _, name := range services {
		service := b.GetService(ctx, name)
		for _, port := range service.Spec.Ports {
			for _, backend := range b.Backends() {
				rule := b.stockRule(service, port, backend)
				rules[rule.Name] = rule
			}
		}
	}
	return rules
}

// stockScript has the gateway's table be as the script of Kube-OVN's own controller leaves it for these ports: with a ClientIP timeout, or 0.
func (b *balancer) stockScript(ctx context.Context, timeouts map[corev1.ServicePort]int32) {
	GinkgoHelper()
	_, err := b.Exec(ctx, b.Gateway, nil, "bash", "-c", "! nft list table ip kube-ovn >/dev/null 2>&1 || nft delete table ip kube-ovn")
	Expect(err).NotTo(HaveOccurred())
	args := []string{"bash", "-s", "nft-dnat-map-add"}
	for port, timeout := range timeouts {
		affinity := "none"
		if timeout > 0 {
			affinity = "clientip"
		}
		var backends []string
		for _, backend := range b.Backends() {
			backends = append(backends, backend.String()+":"+port.TargetPort.String())
		}
		args = append(args, fmt.Sprintf("%s,%d,%s,%s,%d,%s", b.Addr, port.Port, strings.ToLower(string(port.Protocol)), affinity, timeout, strings.Join(backends, "@")))
	}
	_, err = b.Exec(ctx, b.Gateway, strings.NewReader(stock.Script), args...)
	Expect(err).NotTo(HaveOccurred())
}

// externalIPs are all that a Service's EXTERNAL-IP has been since a version of it.
func externalIPs(ctx context.Context, service *corev1.Service) func(context.Context) []string {
	GinkgoHelper()
	changes, err := cluster.Kube.CoreV1().Services(service.Namespace).Watch(ctx, metav1.ListOptions{
		FieldSelector: "metadata.name=" + service.Name, ResourceVersion: service.ResourceVersion,
	})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(changes.Stop)
	return func(ctx context.Context) []string {
		GinkgoHelper()
		now, err := cluster.Kube.CoreV1().Services(service.Namespace).Get(ctx, service.Name, metav1.GetOptions{})
		Expect(err).NotTo(HaveOccurred())
		seen := []string{ExternalIP(service)}
		for at := service.ResourceVersion; at != now.ResourceVersion; {
			event := <-changes.ResultChan()
			change, ok := event.Object.(*corev1.Service)
			Expect(ok).To(BeTrue(), "the watch of Service %s ended: %v", service.Name, event.Object)
			seen, at = append(seen, ExternalIP(change)), change.ResourceVersion
		}
		return slices.Compact(seen)
	}
}

func uids(rules map[string]*kubeovnv1.IptablesDnatRule) map[string]types.UID {
	out := map[string]types.UID{}
	for name, rule := range rules {
		out[name] = rule.UID
	}
	return out
}

// rulesOf are all rules of the scene's Services, by name.
func (b *balancer) rulesOf(ctx context.Context, services ...string) map[string]*kubeovnv1.IptablesDnatRule {
	GinkgoHelper()
	out := map[string]*kubeovnv1.IptablesDnatRule{}
	for _, service := range services {
		rules, err := b.Rules(ctx, service)
		Expect(err).NotTo(HaveOccurred())
		for i := range rules {
			out[rules[i].Name] = &rules[i]
		}
	}
	return out
}

// asStockExpects compares rules with those that Kube-OVN's own controller would make, in all that it writes. What else they have are
// annotations of this project's, and conditions.
func asStockExpects(got, want map[string]*kubeovnv1.IptablesDnatRule) {
	GinkgoHelper()
	reduced := map[string]*kubeovnv1.IptablesDnatRule{}
	for name, rule := range got {
		r := &kubeovnv1.IptablesDnatRule{
			ObjectMeta: metav1.ObjectMeta{Name: rule.Name, Labels: rule.Labels, Annotations: map[string]string{}, Finalizers: rule.Finalizers},
			Spec:       rule.Spec, Status: rule.Status,
		}
		for key, value := range rule.Annotations {
			if !strings.HasPrefix(key, "ovn.kubernetes.io/nftable-lb-svc-") {
				r.Annotations[key] = value
			}
		}
		r.Status.Conditions = nil
		reduced[name] = r
	}
	Expect(reduced).To(Equal(want))
}

var _ = Describe("Taking over", Serial, Lab, func() {
	It("from Kube-OVN's own controller, and handing back to it, recreates no rule and loses no connection", func(ctx SpecContext) {
		By("Services that nobody serves")
		s := cluster.NewScene(ctx)
		b := &balancer{Scene: s, Net: s.Network(ctx, "a"), Ports: []corev1.ServicePort{TCP(80), UDP(53)}}
		b.EIP = b.Net.EIP(ctx, "web")
		s.Deployment(ctx, Workload{Name: "web", Replicas: 2, Annotations: Primary(b.Net.Subnet), Probe: true})
		b.Pods = s.Pods(ctx, "web", 2)
		b.Net.WaitGateway(ctx)
		b.Addr, b.Gateway = s.EIPAddress(ctx, b.EIP), b.GatewayPod(ctx, b.Net.Name)
		b.StopController(ctx)
		pinned := TCP(81)
		s.Service(ctx, "web", b.EIP, b.Ports)
		s.Service(ctx, "sticky", b.EIP, []corev1.ServicePort{pinned}, Selecting("web"), sticky(600))

		By("Kube-OVN's own controller has served them")
		want := b.stockRules(ctx, "web", "sticky")
		for _, rule := range want {
			made, err := b.KubeOvn.KubeovnV1().IptablesDnatRules().Create(ctx, rule, metav1.CreateOptions{})
			Expect(err).NotTo(HaveOccurred())
			made.Status = rule.Status
			_, err = b.KubeOvn.KubeovnV1().IptablesDnatRules().UpdateStatus(ctx, made, metav1.UpdateOptions{})
			Expect(err).NotTo(HaveOccurred())
		}
		watched := map[string]func(context.Context) []string{}
		for _, name := range []string{"web", "sticky"} {
			service := b.GetService(ctx, name)
			service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: b.Addr.String()}}
			service, err := b.Kube.CoreV1().Services(b.Namespace).UpdateStatus(ctx, service, metav1.UpdateOptions{})
			Expect(err).NotTo(HaveOccurred())
			watched[name] = externalIPs(ctx, service)
		}
		b.stockScript(ctx, map[corev1.ServicePort]int32{b.Ports[0]: 0, b.Ports[1]: 0, pinned: 600})
		before := uids(b.rulesOf(ctx, "web", "sticky"))
		Expect(before).To(HaveLen(len(want)))
		AskAll(ctx, b.Outside(ctx), At(b.Addr, pinned), 20)
		l := startLoad(ctx, b)

		By("this project's takes over")
		b.StartController(ctx)
		b.WaitReason(ctx, "web", "Programmed")
		b.WaitReason(ctx, "sticky", "Programmed")
		b.WaitHolds(ctx, b.Gateway, b.Addr, append(b.Shares(), stickyShare(ShareOf(b.Addr, pinned, b.Backends()), 600))...)
		Expect(uids(b.rulesOf(ctx, "web", "sticky"))).To(Equal(before))
		l.more(ctx, 50)
		AskAll(ctx, b.Outside(ctx), At(b.Addr, b.Ports[1]), 20)
		AskAll(ctx, b.Outside(ctx), At(b.Addr, pinned), 20)

		By("it changes with the Pods")
		b.Scale(ctx, "web", 3)
		b.Pods = b.Scene.Pods(ctx, "web", 3)
		b.WaitRules(ctx, "web", b.Backends(), b.Ports...)
		b.WaitRules(ctx, "sticky", b.Backends(), pinned)

		By("and leaves what the other one would have written: nothing to create, to change or to delete")
		b.StopController(ctx)
		asStockExpects(b.rulesOf(ctx, "web", "sticky"), b.stockRules(ctx, "web", "sticky"))
		for name, seen := range watched {
			Expect(seen(ctx)).To(Equal([]string{b.Addr.String()}), "EXTERNAL-IP of Service %s", name)
			ingress := b.GetService(ctx, name).Status.LoadBalancer.Ingress
			Expect(ingress).To(HaveLen(1))
		}
		l.lostNothing(ctx, "taken over from Kube-OVN's own controller, and back")
	})
})
