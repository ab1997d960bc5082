// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
	"github.com/kubeovn/kube-ovn/test/lab"
	"github.com/kubeovn/kube-ovn/test/traffic"

	. "github.com/kubeovn/kube-ovn/test/e2e/framework"
)

const (
	// defaultAffinity is Kubernetes' default timeout, briefAffinity the experiment's, in seconds.
	defaultAffinity = 10800
	briefAffinity   = 3
)

// sticky gives a Service ClientIP affinity; without seconds, with the API server's default timeout.
func sticky(seconds ...int32) func(*corev1.Service) {
	return func(service *corev1.Service) {
		service.Spec.SessionAffinity, service.Spec.SessionAffinityConfig = corev1.ServiceAffinityClientIP, nil
		if len(seconds) > 0 {
			service.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr.To(seconds[0])}}
		}
	}
}

// loose takes the affinity away.
func loose(service *corev1.Service) {
	service.Spec.SessionAffinity, service.Spec.SessionAffinityConfig = corev1.ServiceAffinityNone, nil
}

// stickyShare is what the gateway should hold.
func stickyShare(share sharenat.Share, seconds int32) sharenat.Share {
	share.Affinity = sharenat.Affinity{ClientIP: seconds > 0, TimeoutSeconds: seconds}
	return share
}

// affinityScene has three Services for web's Pods: one without affinity at port 80, one with the default timeout at 81, one with 3 s at 82.
type affinityScene struct {
	*balancer
	rows [][2]string
}

func (a *affinityScene) plain() Target  { return At(a.Addr, TCP(80)) }
func (a *affinityScene) pinned() Target { return At(a.Addr, TCP(81)) }
func (a *affinityScene) brief() Target  { return At(a.Addr, TCP(82)) }

func newAffinityScene(ctx context.Context) *affinityScene {
	GinkgoHelper()
	a := &affinityScene{balancer: newBalancer(ctx, 3, TCP(80))}
	a.Service(ctx, "pinned", a.EIP, []corev1.ServicePort{TCP(81)}, Selecting("web"), sticky())
	a.Service(ctx, "brief", a.EIP, []corev1.ServicePort{TCP(82)}, Selecting("web"), sticky(briefAffinity))
	a.settleAll(ctx)
	return a
}

// settleAll waits until the gateway holds all three Services for web's present Pods.
func (a *affinityScene) settleAll(ctx context.Context) {
	GinkgoHelper()
	a.WaitHolds(ctx, a.Gateway, a.Addr, append(a.Shares(),
		stickyShare(ShareOf(a.Addr, TCP(81), a.Backends()), defaultAffinity),
		stickyShare(ShareOf(a.Addr, TCP(82), a.Backends()), briefAffinity))...)
	a.WaitRules(ctx, "pinned", a.Backends(), TCP(81))
	a.WaitRules(ctx, "brief", a.Backends(), TCP(82))
}

// rescale changes the number of web's Pods and waits until the gateway holds them.
func (a *affinityScene) rescale(ctx context.Context, replicas int) {
	GinkgoHelper()
	a.Scale(ctx, "web", int32(replicas))
	a.Pods = a.Scene.Pods(ctx, "web", replicas)
	a.settleAll(ctx)
}

// row adds a line to the experiment's table.
func (a *affinityScene) row(what, format string, args ...any) {
	result := fmt.Sprintf(format, args...)
	a.rows = append(a.rows, [2]string{what, result})
	Measured{What: "affinity: " + what, Result: result}.Report()
}

func (a *affinityScene) report() {
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, row := range a.rows {
		fmt.Fprintf(table, "%s\t%s\n", row[0], row[1])
	}
	_ = table.Flush() // A strings.Builder takes everything.
	AddReportEntry("The affinity experiment", ReportEntryVisibilityAlways, "\n"+text.String())
}

// pinsOf are the backends that visitors get, each of whose connections must all be answered by one and the same.
func pinsOf(ctx context.Context, visitors []*Visitor, to Target, visits int) []string {
	GinkgoHelper()
	return EachVisitor(visitors, func(v *Visitor) string {
		answers := v.Visit(ctx, to, visits)
		Expect(Count(answers)).To(HaveLen(1), "%s was answered by %v", v.Name(), answers)
		return answers[0]
	})
}

// apart has each visitor come so many times at an interval, and returns who answered.
func apart(ctx context.Context, visitors []*Visitor, to Target, visits int, interval time.Duration) [][]string {
	GinkgoHelper()
	return EachVisitor(visitors, func(v *Visitor) []string {
		var answers []string
		for i := range visits {
			if i > 0 {
				Eventually(ctx, time.After(interval)).WithTimeout(interval + 10*time.Second).WithPolling(10 * time.Millisecond).Should(Receive())
			}
			answers = append(answers, v.Visit(ctx, to, 1)...)
		}
		return answers
	})
}

// stayed counts those that were answered by one backend only.
func stayed(histories [][]string) int {
	n := 0
	for _, answers := range histories {
		if len(Count(answers)) == 1 {
			n++
		}
	}
	return n
}

var _ = Describe("ClientIP affinity", Lab, func() {
	It("measures as kube-proxy's does: pins, time-outs, a pinned backend that goes", func(ctx SpecContext) {
		a := newAffinityScene(ctx)
		DeferCleanup(a.report)

		By("30 connections of a client, with and without")
		visitors := a.Visitors(ctx, 120)
		pins := pinsOf(ctx, visitors[:10], a.pinned(), 30)
		a.row("30 new connections of one client", "30 of 30 on one backend, for each of 10 clients")
		Expect(len(Count(pins))).To(BeNumerically(">", 1), "10 clients should not all be pinned to the same backend: %v", pins)
		a.row("clients are pinned on their own", "10 clients on %d of 3 backends", len(Count(pins)))
		spread := Count(visitors[0].Visit(ctx, a.plain(), 30))
		x := ExpectEven(spread, Names(a.Pods))
		a.row("30 new connections of one client, no affinity", "%v (chi-square %.2f, 2 degrees of freedom)", counts(spread), x)
		spread = Count(visitors[0].Visit(ctx, a.plain(), 300))
		x = ExpectEven(spread, Names(a.Pods))
		a.row("300 new connections of one client, no affinity", "%v (chi-square %.2f)", counts(spread), x)

		By("a time-out of 3 s: pairs 1 s and 4 s apart, 7 visits 2 s apart, all at the same time")
		var near, far, row [][]string
		at := func(result *[][]string, visitors []*Visitor, visits int, interval time.Duration) func() {
			return func() { *result = apart(ctx, visitors, a.brief(), visits, interval) }
		}
		together(
			at(&near, visitors[20:32], 2, time.Second),
			at(&far, visitors[32:92], 2, 4*time.Second),
			at(&row, visitors[92:97], 7, 2*time.Second),
		)
		Expect(stayed(near)).To(Equal(12), "pairs 1 s apart: %v", near)
		a.row("time-out 3 s, pairs 1 s apart", "12 of 12 stay")
		moved := len(far) - stayed(far)
		// Each is drawn anew with 2 chances of 3 to move; outside of these bounds it ends less than once in a million times.
		Expect(moved).To(And(BeNumerically(">=", 22), BeNumerically("<=", 56)), "of 60 pairs 4 s apart 40 should move: %v", far)
		a.row("time-out 3 s, pairs 4 s apart", "%d of %d move (drawn anew: 2 of 3)", moved, len(far))
		Expect(stayed(row)).To(Equal(5), "7 visits 2 s apart: %v", row)
		a.row("time-out 3 s, 7 visits 2 s apart", "7 of 7 on one backend, for each of 5 clients")

		By("clients behind one address")
		behind := a.VisitorsBehindOne(ctx, 12)
		Expect(Count(pinsOf(ctx, behind, a.pinned(), 1))).To(HaveLen(1))
		a.row("12 clients behind one address", "12 of 12 on one backend")

		By("the pinned backend goes")
		pins = pinsOf(ctx, visitors[:20], a.pinned(), 1)
		victim := pins[0]
		a.Condemn(ctx, victim)
		a.rescale(ctx, 2)
		after := pinsOf(ctx, visitors[:20], a.pinned(), 5)
		moved = 0
		for i := range pins {
			if pins[i] == victim {
				moved++
				Expect(after[i]).NotTo(Equal(victim))
			} else {
				Expect(after[i]).To(Equal(pins[i]), "pin of %s, whose backend stays", visitors[i].Name())
			}
		}
		a.row("the pinned backend goes", "next 5 of 5 on one survivor, for each of %d clients; %d clients of the others stay", moved, len(pins)-moved)
		Expect(pinsOf(ctx, visitors[:20], a.pinned(), 5)).To(Equal(after), "they should stay there")

		By("more backends come")
		a.rescale(ctx, 5)
		Expect(pinsOf(ctx, visitors[:20], a.pinned(), 5)).To(Equal(after), "nobody should be moved by a scale-up")
		a.row("scale-up from 2 to 5", "20 of 20 clients stay")
	})

	It("is switched and its timeout changed on a live Service without losing a connection, nor a pin where it stays on", func(ctx SpecContext) {
		a := newAffinityScene(ctx)
		visitors := a.Visitors(ctx, 20)
		to := a.pinned()
		stream := StartTraffic[traffic.Stream](ctx, a.Cluster, lab.Clients[1], traffic.StreamOptions{Endpoint: traffic.Endpoint{Target: to.AddrPort.String()}, Rate: 50})
		hold := StartTraffic[traffic.Hold](ctx, a.Cluster, lab.Clients[2], traffic.HoldOptions{Endpoint: traffic.Endpoint{Target: to.AddrPort.String()}, Connections: 10})
		change := func(seconds int32, how func(*corev1.Service)) {
			GinkgoHelper()
			a.ChangeService(ctx, "pinned", how)
			a.WaitHolds(ctx, a.Gateway, a.Addr, append(a.Shares(),
				stickyShare(ShareOf(a.Addr, TCP(81), a.Backends()), seconds),
				stickyShare(ShareOf(a.Addr, TCP(82), a.Backends()), briefAffinity))...)
			for _, rule := range a.WaitRules(ctx, "pinned", a.Backends(), TCP(81)) {
				Expect(rule.Spec.SessionAffinityTimeoutSeconds).To(Equal(seconds))
			}
		}
		pins := pinsOf(ctx, visitors, to, 3)
		for _, seconds := range []int32{60, 7200, 86400, 600} {
			change(seconds, sticky(seconds))
			Expect(pinsOf(ctx, visitors, to, 3)).To(Equal(pins), "pins with a timeout of %d s", seconds)
		}
		change(0, loose)
		ExpectEven(Count(visitors[0].Visit(ctx, to, 60)), Names(a.Pods))
		change(defaultAffinity, sticky(defaultAffinity))
		pins = pinsOf(ctx, visitors, to, 5)
		change(300, sticky(300))
		Expect(pinsOf(ctx, visitors, to, 3)).To(Equal(pins))

		streamed, err := stream.Stop(ctx)
		Expect(err).NotTo(HaveOccurred())
		held, err := hold.Stop(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(streamed.Failed).To(BeZero(), "new connections lost: %+v", streamed.Failures)
		Expect(held.Cut).To(BeZero(), "long-lived connections cut: %+v", held.Cuts)
		Expect(held.Opened).To(Equal(10))
		Measured{
			What:   "affinity: 7 changes of affinity and timeout on a live Service",
			Result: fmt.Sprintf("%d new connections, lost: %d; 10 long-lived, cut: %d", streamed.Attempts, streamed.Failed, held.Cut),
		}.Report()
	})
})

// counts are a spread's numbers, largest first.
func counts(spread Spread) []int {
	var numbers []int
	for _, n := range spread {
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	slices.Reverse(numbers)
	return numbers
}

// together does several things at the same time.
func together(all ...func()) {
	GinkgoHelper()
	done := make(chan struct{}, len(all))
	for _, do := range all {
		go func() {
			defer func() { done <- struct{}{} }()
			defer GinkgoRecover()
			do()
		}()
	}
	for range all {
		<-done
	}
}
