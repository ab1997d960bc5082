// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/natgateway"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"

	. "github.com/kubeovn/kube-ovn/test/e2e/framework"
)

var _ = Describe("Bad input", func() {
	It("is refused by the API server where the schema can tell", func(ctx SpecContext) {
		for name, change := range map[string]func(*kubeovnv1.IptablesDnatRuleSpec){
			"type":             func(spec *kubeovnv1.IptablesDnatRuleSpec) { spec.Type = "both" },
			"affinity":         func(spec *kubeovnv1.IptablesDnatRuleSpec) { spec.SessionAffinity = "Cookie" },
			"negative timeout": func(spec *kubeovnv1.IptablesDnatRuleSpec) { spec.SessionAffinityTimeoutSeconds = -1 },
			"endless timeout":  func(spec *kubeovnv1.IptablesDnatRuleSpec) { spec.SessionAffinityTimeoutSeconds = 86401 },
		} {
			spec := shareRule("none", 80, nobody[0])
			change(&spec)
			_, err := cluster.KubeOvn.KubeovnV1().IptablesDnatRules().Create(ctx, &kubeovnv1.IptablesDnatRule{
				ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-bad-"}, Spec: spec,
			}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			Expect(apierrors.IsInvalid(err)).To(BeTrue(), "%s: %v", name, err)
		}
	})

	It("in a rule is told on the rule, and breaks nothing else", func(ctx SpecContext) {
		b := newBalancer(ctx, 1, TCP(80))
		before := b.Calls(ctx, b.Net.Name)
		bad := map[string]func(*kubeovnv1.IptablesDnatRuleSpec){
			"port-zero":       func(spec *kubeovnv1.IptablesDnatRuleSpec) { spec.ExternalPort = "0" },
			"port-octal":      func(spec *kubeovnv1.IptablesDnatRuleSpec) { spec.ExternalPort = "0101" },
			"port-large":      func(spec *kubeovnv1.IptablesDnatRuleSpec) { spec.ExternalPort = "65536" },
			"port-none":       func(spec *kubeovnv1.IptablesDnatRuleSpec) { spec.ExternalPort = "" },
			"port-shell":      func(spec *kubeovnv1.IptablesDnatRuleSpec) { spec.ExternalPort = "80;reboot" },
			"internal-port":   func(spec *kubeovnv1.IptablesDnatRuleSpec) { spec.InternalPort = "80@10.1.0.9:80" },
			"address-ipv6":    func(spec *kubeovnv1.IptablesDnatRuleSpec) { spec.InternalIP = "fd00::1" },
			"address-octet":   func(spec *kubeovnv1.IptablesDnatRuleSpec) { spec.InternalIP = "10.1.0.256" },
			"address-newline": func(spec *kubeovnv1.IptablesDnatRuleSpec) { spec.InternalIP = "10.1.0.9\nend" },
			"protocol":        func(spec *kubeovnv1.IptablesDnatRuleSpec) { spec.Protocol = "sctp" },
			"protocol-none":   func(spec *kubeovnv1.IptablesDnatRuleSpec) { spec.Protocol = "" },
			"affinity":        func(spec *kubeovnv1.IptablesDnatRuleSpec) { spec.Type, spec.SessionAffinity = "exclusive", "ClientIP" },
		}
		for name, change := range bad {
			spec := shareRule(b.EIP, 81, nobody[0])
			change(&spec)
			b.Rule(ctx, name, spec)
		}
		for name := range bad {
			b.waitNotReady(ctx, b.Name+"-"+name, natgateway.ReasonInvalidRule)
		}

		By("a good rule after them")
		good := b.Rule(ctx, "good", shareRule(b.EIP, 82, b.Backends()[0]))
		b.WaitRule(ctx, good.Name)
		b.WaitHolds(ctx, b.Gateway, b.Addr, append(b.Shares(), ShareOf(b.Addr, TCP(82), b.Backends()))...)
		AskAll(ctx, b.Outside(ctx), At(b.Addr, TCP(80)), 20)
		since := b.Calls(ctx, b.Net.Name).Since(before)
		Expect(since[sharenat.SyncVerb]).To(Equal(1), "only the good rule should have reached the gateway: %s", since)

		By("a bad rule made good")
		b.PatchRule(ctx, b.Name+"-port-zero", `{"spec":{"externalPort":"83","internalIp":"`+b.Backends()[0].String()+`"}}`)
		b.WaitRule(ctx, b.Name+"-port-zero")
		WaitAnswers(ctx, b.Outside(ctx), At(b.Addr, TCP(83)), b.Pods[0].Name)
	})

	It("to the script changes nothing, not even the good part of a call, and is named on stderr", func(ctx SpecContext) {
		b := newBalancer(ctx, 1, TCP(80))
		before := b.Ruleset(ctx, b.Gateway)
		eip, backend := b.Addr.String(), b.Backends()[0].String()
		good := fmt.Sprintf("%s,81,tcp,%s:8080", eip, backend)
		sync := func(lines ...string) string {
			return strings.Join(append([]string{"share-state v1 delta"}, lines...), "\n") + "\n"
		}
		identity := "identity " + eip + " 81 tcp none 0"
		for _, tc := range []struct{ verb, stdin, args, names string }{
			{verb: "nft-dnat-map-add", args: good + " " + eip + ",080,tcp," + backend + ":80", names: "080"},
			{verb: "nft-dnat-map-add", args: good + " " + eip + ",82,sctp," + backend + ":80", names: "sctp"},
			{verb: "nft-dnat-map-add", args: good + " " + eip + ",82,tcp,10.1.0.256:80", names: "10.1.0.256"},
			{verb: "nft-dnat-map-add", args: good + " " + eip + ",82,tcp,clientip,0," + backend + ":80", names: "0"},
			{verb: "nft-dnat-map-add", args: eip + ",82,tcp,$(reboot):80", names: "reboot"},
			{verb: "nft-dnat-map-del", args: eip + ",80,tcp " + eip + ",99999,tcp", names: "99999"},
			{verb: "dnat-add", args: eip + ",82,tcp," + backend + ",0", names: "0"},
			{verb: "eip-add", args: "300.0.2.1/24", names: "300.0.2.1"},
			{verb: sharenat.SyncVerb, stdin: sync(identity, "backend "+backend+" 8080"), names: "end"},
			{verb: sharenat.SyncVerb, stdin: sync("remove "+eip+" 80 tcp", identity, "backend "+backend+" 0", "end"), names: "0"},
			{verb: sharenat.SyncVerb, stdin: sync("remove "+eip+" 80 tcp", "flush ruleset", "end"), names: "flush"},
		} {
			_, err := b.Script(ctx, b.Gateway, tc.stdin, tc.verb, strings.Fields(tc.args)...)
			var failed *ExecError
			Expect(errors.As(err, &failed)).To(BeTrue(), "%s %s should fail: %v", tc.verb, tc.args, err)
			Expect(failed.Stderr).To(ContainSubstring(tc.names), "%s %s", tc.verb, tc.args)
		}
		Expect(b.Ruleset(ctx, b.Gateway)).To(Equal(before), "ruleset")
		AskAll(ctx, b.Outside(ctx), At(b.Addr, TCP(80)), 20)
	})

	It("in a Service is told on the Service, and its good ports are served", func(ctx SpecContext) {
		b := newBalancer(ctx, 1, TCP(80))
		sctp := TCP(132)
		sctp.Protocol, sctp.Name = corev1.ProtocolSCTP, "sctp"
		b.ChangeService(ctx, "web", func(service *corev1.Service) {
			service.Spec.Ports = []corev1.ServicePort{TCP(81), sctp}
		})
		b.Ports = []corev1.ServicePort{TCP(81)}
		b.Settle(ctx, 1)
		b.WaitReason(ctx, "web", "ProtocolNotSupported")
		Wait(ctx, func(ctx context.Context) []corev1.PortStatus {
			return b.GetService(ctx, "web").Status.LoadBalancer.Ingress[0].Ports
		}).Should(ContainElement(And(
			HaveField("Protocol", corev1.ProtocolSCTP), HaveField("Error", HaveValue(ContainSubstring("ProtocolNotSupported"))),
		)))
	})
})

// waitNotReady waits until a rule says that it is not ready, and why.
func (b *balancer) waitNotReady(ctx context.Context, name, reason string) {
	GinkgoHelper()
	Wait(ctx, func(g Gomega, ctx context.Context) {
		rule, err := b.KubeOvn.KubeovnV1().IptablesDnatRules().Get(ctx, name, metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(rule.Status.Ready).To(BeFalse(), "rule %s", name)
		g.Expect(rule.Status.Conditions).To(ContainElement(And(
			HaveField("Type", kubeovnv1.Ready), HaveField("Status", corev1.ConditionFalse), HaveField("Reason", reason),
		)), "conditions of rule %s", name)
	}).Should(Succeed())
}
