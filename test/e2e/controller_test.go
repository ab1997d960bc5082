// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
	"github.com/kubeovn/kube-ovn/test/lab"
	"github.com/kubeovn/kube-ovn/test/lab/supervise"

	. "github.com/kubeovn/kube-ovn/test/e2e/framework"
)

// listed waits until the controller has looked into a gateway since it started.
func (b *balancer) listed(ctx context.Context) {
	GinkgoHelper()
	Wait(ctx, func(ctx context.Context) Calls { return b.Calls(ctx, b.Net.Name) }).Should(HaveKey(sharenat.ListVerb))
}

var _ = Describe("The controller", Serial, Lab, func() {
	It("changes nothing when it is restarted, and loses no connection", func(ctx SpecContext) {
		b := newBalancer(ctx, 3, TCP(80), UDP(53))
		b.Rule(ctx, "ssh", exclusiveRule(b.EIP, 22, b.Backends()[0]))
		b.Rule(ctx, "share", shareRule(b.EIP, 23, b.Backends()[1]))
		b.WaitRule(ctx, b.Name+"-ssh")
		b.WaitRule(ctx, b.Name+"-share")
		versions, ruleset := ruleVersions(ctx, b.EIP), b.Ruleset(ctx, b.Gateway)
		service := b.GetService(ctx, "web").ResourceVersion

		b.StopController(ctx)
		AskAll(ctx, b.Outside(ctx), At(b.Addr, TCP(80)), 20)
		b.StartController(ctx)
		b.listed(ctx)
		AskAll(ctx, b.Outside(ctx), At(b.Addr, TCP(80)), 20)

		// A Service made now is handled after all that was found at the start.
		b.Service(ctx, "later", b.EIP, []corev1.ServicePort{TCP(81)}, Selectorless)
		b.WaitReason(ctx, "later", "NoBackend")
		Expect(b.Calls(ctx, b.Net.Name)).To(Equal(Calls{sharenat.ListVerb: 1}))
		Expect(ruleVersions(ctx, b.EIP)).To(Equal(versions), "rules")
		Expect(b.GetService(ctx, "web").ResourceVersion).To(Equal(service), "Service")
		Expect(b.Ruleset(ctx, b.Gateway)).To(Equal(ruleset), "ruleset")
	})

	It("makes up at its start for what happened while it was down", func(ctx SpecContext) {
		b := newBalancer(ctx, 2, TCP(80))
		b.Service(ctx, "orphan", b.EIP, []corev1.ServicePort{TCP(81)}, Selecting("web"))
		b.Service(ctx, "leaving", b.EIP, []corev1.ServicePort{TCP(82)}, Selecting("web"))
		b.WaitRules(ctx, "orphan", b.Backends(), TCP(81))
		b.WaitRules(ctx, "leaving", b.Backends(), TCP(82))

		b.StopController(ctx)
		Expect(b.Kube.CoreV1().Services(b.Namespace).Delete(ctx, "orphan", metav1.DeleteOptions{})).To(Succeed())
		b.ChangeService(ctx, "leaving", func(service *corev1.Service) { delete(service.Annotations, sharenat.EIPAnnotation) })
		b.Scale(ctx, "web", 3)
		pods := b.Scene.Pods(ctx, "web", 3)
		rules, err := b.Rules(ctx, "orphan")
		Expect(err).NotTo(HaveOccurred())
		Expect(rules).To(HaveLen(2), "nobody should have removed them")

		b.StartController(ctx)
		b.WaitRules(ctx, "orphan", nil)
		b.WaitRules(ctx, "leaving", nil)
		b.WaitNoExternalIP(ctx, "leaving")
		b.WaitRules(ctx, "web", Addresses(pods, ovn), TCP(80))
		b.Settle(ctx, 3)
	})

	It("heals a gateway whose table was flushed by hand, at its next look", func(ctx SpecContext) {
		b := newBalancer(ctx, 2, TCP(80), UDP(53))
		b.RestartController(ctx, "--nat-gw-check-interval=2s")
		b.listed(ctx)
		versions := ruleVersions(ctx, b.EIP)
		calls := b.Calls(ctx, b.Net.Name)
		_, err := b.Exec(ctx, b.Gateway, nil, "nft", "flush", "table", "ip", "kube-ovn")
		Expect(err).NotTo(HaveOccurred())
		b.Settle(ctx, 2)
		Expect(b.Calls(ctx, b.Net.Name).Since(calls)[sharenat.SyncVerb]).To(Equal(1), "calls")
		Expect(ruleVersions(ctx, b.EIP)).To(Equal(versions), "rules should not have been touched")
	})

	It("killed in the middle of a rollout, goes on where it was", func(ctx SpecContext) {
		b := newBalancer(ctx, 4, TCP(80))
		before := b.Pods
		_, err := b.Kube.AppsV1().Deployments(b.Namespace).Patch(ctx, "web", types.StrategicMergePatchType,
			[]byte(`{"spec":{"template":{"metadata":{"labels":{"rollout":"2"}}}}}`), metav1.PatchOptions{})
		Expect(err).NotTo(HaveOccurred())
		Wait(ctx, func(g Gomega, ctx context.Context) {
			list, err := b.Kube.CoreV1().Pods(b.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=web,rollout=2"})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(list.Items).NotTo(BeEmpty(), "Pods of the new kind")
		}).Should(Succeed())
		b.KillController(ctx)
		Wait(ctx, func(g Gomega, ctx context.Context) {
			deployment, err := b.Kube.AppsV1().Deployments(b.Namespace).Get(ctx, "web", metav1.GetOptions{})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(deployment.Status.ObservedGeneration).To(Equal(deployment.Generation))
			g.Expect(deployment.Status.UpdatedReplicas).To(BeEquivalentTo(4))
			g.Expect(deployment.Status.AvailableReplicas).To(BeEquivalentTo(4))
			g.Expect(deployment.Status.Replicas).To(BeEquivalentTo(4))
		}).Should(Succeed())
		b.StartController(ctx)
		b.Settle(ctx, 4)
		Expect(Names(b.Pods)).NotTo(ContainElement(BeElementOf(Names(before))))
	})

	It("hands over to another when it dies, and there is only one at a time", func(ctx SpecContext) {
		const second = "kube-ovn-controller-2"
		b := newBalancer(ctx, 1, TCP(80))
		DeferCleanup(func(ctx context.Context) {
			err := b.Lab.Processes().Stop(ctx, second, 10*time.Second)
			if !errors.Is(err, supervise.ErrNotRunning) {
				Expect(err).NotTo(HaveOccurred())
			}
			b.EnsureController(ctx)
			b.WaitLeader(ctx, lab.Controller)
		})
		Expect(b.Lab.StartController(ctx, lab.ControllerOptions{Name: second, Port: lab.ControllerPort + 1})).To(Succeed())
		Expect(b.Leader(ctx)).To(Equal(lab.Controller))
		b.Scale(ctx, "web", 2)
		b.Settle(ctx, 2)

		Expect(b.Lab.KillController(ctx)).To(Succeed())
		killed := time.Now()
		b.WaitLeader(ctx, second)
		Measured{What: "another controller leads after a kill -9 (lease of 5s)", Result: time.Since(killed).Round(100 * time.Millisecond).String()}.Report()
		b.Scale(ctx, "web", 3)
		b.Settle(ctx, 3)

		By("a graceful stop, which gives the lease back")
		Expect(b.Lab.StartController(ctx, lab.ControllerOptions{})).To(Succeed())
		Expect(b.Lab.Processes().Stop(ctx, second, 10*time.Second)).To(Succeed())
		stopped := time.Now()
		b.WaitLeader(ctx, lab.Controller)
		Measured{What: "another controller leads after a graceful stop", Result: time.Since(stopped).Round(100 * time.Millisecond).String()}.Report()
		b.Scale(ctx, "web", 1)
		b.Settle(ctx, 1)
	})

	It("does not watch Services without its flag, and handles gateways all the same", func(ctx SpecContext) {
		b := newBalancer(ctx, 1, TCP(80))
		watches := func(ctx context.Context) (int, error) { return b.Watches(ctx, "", "services") }
		b.StopController(ctx)
		others, err := watches(ctx)
		Expect(err).NotTo(HaveOccurred())
		b.StartController(ctx)
		Wait(ctx, watches).Should(Equal(others+1), "watches of Services with the flag")
		for _, args := range [][]string{{"--enable-nftable-lb-svc=false"}, {"--enable-lb=false"}} {
			b.RestartController(ctx, args...)
			b.listed(ctx)
			Wait(ctx, watches).Should(Equal(others), "watches of Services with %s", args)
		}

		b.Service(ctx, "ignored", b.EIP, []corev1.ServicePort{TCP(81)}, Selecting("web"))
		rule := b.Rule(ctx, "byhand", shareRule(b.EIP, 82, b.Backends()[0]))
		b.WaitRule(ctx, rule.Name)
		WaitAnswers(ctx, b.Outside(ctx), At(b.Addr, TCP(82)), b.Pods[0].Name)
		Expect(b.GetService(ctx, "ignored").Status).To(Equal(corev1.ServiceStatus{}))
		Expect(b.Rules(ctx, "ignored")).To(BeEmpty())
		AskAll(ctx, b.Outside(ctx), At(b.Addr, TCP(80)), 20)
	})

	It("leaves the gateways to another controller where it is told so, and makes the rules all the same", func(ctx SpecContext) {
		b := newBalancer(ctx, 1, TCP(80))
		b.RestartController(ctx, "--enable-nat-gw-handler=false")
		b.Service(ctx, "later", b.EIP, []corev1.ServicePort{TCP(81)}, Selecting("web"))
		b.WaitReason(ctx, "later", "Programming")
		rules, err := b.Rules(ctx, "later")
		Expect(err).NotTo(HaveOccurred())
		Expect(rules).To(HaveLen(1))
		Expect(rules[0].Status.Ready).To(BeFalse())
		Expect(b.Calls(ctx, b.Net.Name)).To(BeEmpty())

		b.RestartController(ctx)
		b.WaitRules(ctx, "later", b.Backends(), TCP(81))
		WaitAnswers(ctx, b.Outside(ctx), At(b.Addr, TCP(81)), b.Pods[0].Name)
	})

	It("ends with one clear line on a bad flag", func(ctx SpecContext) {
		for args, complaint := range map[string]string{
			"--no-such-flag":       "no-such-flag",
			"--enable-lb=perhaps":  "enable-lb",
			"--pprof-port=banana":  "pprof-port",
			"--kubeconfig=/nobody": "/nobody",
		} {
			cmd := cluster.Lab.Command(ctx, []string{cluster.ControllerPath(), args})
			output, err := cmd.CombinedOutput()
			Expect(err).To(HaveOccurred(), args)
			Expect(strings.TrimSpace(string(output))).To(ContainSubstring(complaint))
			Expect(strings.Split(strings.TrimSpace(string(output)), "\n")).To(HaveLen(1), fmt.Sprintf("%s: %s", args, output))
		}
	})

	It("survives some seconds without an API server", func(ctx SpecContext) {
		b := newBalancer(ctx, 2, TCP(80))
		// With the lab's short lease it would end and leave the work to another, as the last but one spec shows.
		b.RestartController(ctx, "--leader-elect-lease-duration=90s", "--leader-elect-renew-deadline=80s")
		b.listed(ctx)
		started := b.StartTime(ctx)
		versions := ruleVersions(ctx, b.EIP)

		apiServer := b.APIServer()
		apiServer.Stop(ctx)
		outage := time.NewTimer(3 * time.Second)
		for waiting := true; waiting; {
			select {
			case <-outage.C:
				waiting = false
			default:
				AskAll(ctx, b.Outside(ctx), At(b.Addr, TCP(80)), 50)
			}
		}
		apiServer.Start(ctx)

		Expect(ruleVersions(ctx, b.EIP)).To(Equal(versions))
		b.Scale(ctx, "web", 3)
		b.Settle(ctx, 3)
		Expect(b.StartTime(ctx)).To(Equal(started), "the controller should be the same process")
		Expect(b.Leader(ctx)).To(Equal(lab.Controller))
	})
})
