// SPDX-License-Identifier: Apache-2.0

package natgateway

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// running is a fixture whose gateway runs one filled pod and carries the ready EIP "e" at 203.0.113.11.
func running(t *testing.T) *fixture {
	t.Helper()
	f := newFixture(t, gateway(), eip("e"))
	f.createPod(gatewayPod(0, "c1"))
	f.start()
	f.until("EIP is ready", f.eipReady("e"))
	f.until("gateway is ready", func() bool { return f.gateway().Status.Ready })
	f.settled()
	f.script.takeCalls()
	f.ovn.ClearActions()
	return f
}

const eipAddress = "203.0.113.11" // .10 is the gateway pod's own

func TestGatewayFromNothing(t *testing.T) {
	f := newFixture(t, gateway(), eip("e", withV4(eipAddress)))
	f.start()
	var set string
	f.until("StatefulSet is there", func() bool {
		s, err := f.kube.AppsV1().StatefulSets(testNamespace).Get(context.Background(), "vpc-nat-gw-gw", metav1.GetOptions{})
		if err == nil {
			set = s.Spec.Template.Spec.Containers[0].Image
		}
		return err == nil
	})
	if set != testImage {
		t.Errorf("image %q", set)
	}
	f.createPod(gatewayPod(0, "c1"))
	f.until("EIP is ready", f.eipReady("e"))
	f.until("gateway is ready", func() bool { return f.gateway().Status.Ready })
	f.until("init is noted on the pod", func() bool {
		pod, err := f.kube.CoreV1().Pods(testNamespace).Get(context.Background(), podKey(0).Name, metav1.GetOptions{})
		f.must(err)
		return pod.Annotations[sharenat.GatewayInitAnnotation] == "true"
	})
	f.settled()

	lists, changes := f.script.takeCalls()
	if diff := cmp.Diff([]string{"init", "subnet-route-add", "eip-add"}, verbs(changes)); diff != "" || len(lists) != 1 {
		t.Errorf("%d listings; changing calls (-want +got):\n%s", len(lists), diff)
	}
	gw := f.gateway()
	want := kubeovnv1.VpcNatGatewayStatus{
		Ready: true, LanIP: "10.1.0.254", Replicas: 1, ExternalSubnets: []string{sharenat.DefaultExternalSubnet},
		Workload: kubeovnv1.VpcNatWorkload{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "vpc-nat-gw-gw", Nodes: []string{"node-0"}},
	}
	if diff := cmp.Diff(want, gw.Status); diff != "" {
		t.Errorf("gateway status (-want +got):\n%s", diff)
	}
	if !slices.Contains(gw.Finalizers, finalizer) {
		t.Error("gateway has no finalizer")
	}
	e := f.eip("e")
	if e.Status.IP != eipAddress || !slices.Contains(e.Finalizers, finalizer) {
		t.Errorf("EIP address %q, finalizers %v", e.Status.IP, e.Finalizers)
	}
	wantLabels := map[string]string{subnetLabel: sharenat.DefaultExternalSubnet, sharenat.EIPAddressLabel: eipAddress, sharenat.GatewayLabel: testGateway}
	if diff := cmp.Diff(wantLabels, e.Labels); diff != "" {
		t.Errorf("EIP labels (-want +got):\n%s", diff)
	}
	if n := len(f.patches("iptables-eips", "e")); n != 2 {
		t.Errorf("%d writes to the EIP, want 2", n)
	}
}

func TestHundredRulesAtOnce(t *testing.T) {
	f := running(t)
	f.script.intercept = func(context.Context, Call) error { // a call takes its time, as a real one does
		time.Sleep(20 * time.Millisecond)
		return nil
	}
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			f.createRule(rule(fmt.Sprintf("r%02d", i), "e", fmt.Sprintf("10.1.0.%d:8080", i+1), managedBy("web", eipAddress)))
		})
	}
	wg.Wait()
	f.until("all rules are ready", f.rulesReady(100))
	f.settled()
	lists, changes := f.script.takeCalls()
	if len(lists) != 0 || len(changes) == 0 || len(changes) > 5 {
		t.Errorf("%d listings and %d changing calls, want none and at most 5", len(lists), len(changes))
	}
	if n := f.script.backends(podKey(0)); n != 100 {
		t.Errorf("%d backends in the gateway", n)
	}
	// The rules are complete from birth: one write each, the status.
	if n := len(f.patches("iptables-dnat-rules", "")); n != 100 {
		t.Errorf("%d writes to 100 rules", n)
	}
	r := f.rule("r07")
	r.Status.Conditions = nil
	want := kubeovnv1.IptablesDnatRuleStatus{
		Ready: true, V4ip: eipAddress, NatGwDp: testGateway, Protocol: "tcp", InternalIP: "10.1.0.8", InternalPort: "8080", ExternalPort: "80",
	}
	if diff := cmp.Diff(want, r.Status); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
}

func TestHandMadeRuleTakesTwoWrites(t *testing.T) {
	f := running(t)
	f.createRule(rule("web", "e", "10.1.0.4:8080"))
	f.until("rule is ready", f.rulesReady(1))
	f.settled()
	patches := f.patches("iptables-dnat-rules", "web")
	if len(patches) != 2 || patches[0].Subresource != "" || patches[1].Subresource != "status" {
		t.Errorf("writes: %v, want metadata, then status", patches)
	}
	r := f.rule("web")
	wantLabels := map[string]string{sharenat.GatewayLabel: testGateway, sharenat.ExternalPortLabel: "80", sharenat.EIPAddressLabel: eipAddress}
	if diff := cmp.Diff(wantLabels, r.Labels); diff != "" || r.Annotations[sharenat.RuleEIPAnnotation] != "e" || !slices.Contains(r.Finalizers, finalizer) {
		t.Errorf("annotations %v, finalizers %v, labels (-want +got):\n%s", r.Annotations, r.Finalizers, diff)
	}
	f.until("EIP tells its use", func() bool { return f.eip("e").Status.Nat == "dnat" })
}

func TestRestartWithAllInPlaceChangesNothing(t *testing.T) {
	f := running(t)
	for i := range 20 {
		f.createRule(rule(fmt.Sprintf("r%02d", i), "e", fmt.Sprintf("10.1.0.%d:8080", i+1), managedBy("web", eipAddress)))
	}
	f.createRule(rule("ssh", "e", "10.1.0.9:22", exclusive, port("22")))
	f.until("all rules are ready", f.rulesReady(21))
	f.until("EIP tells its use", func() bool { return f.eip("e").Status.Nat == "dnat" })
	f.settled()
	f.script.takeCalls()
	f.ovn.ClearActions()
	f.kube.ClearActions()

	f.start()
	f.until("the pod was listed", func() bool {
		f.script.mu.Lock()
		defer f.script.mu.Unlock()
		return len(f.script.calls) > 0
	})
	f.settled()
	lists, changes := f.script.takeCalls()
	if len(lists) != 1 || len(changes) != 0 {
		t.Errorf("%d listings, changing calls %v; want one and none", len(lists), verbs(changes))
	}
	if writes := f.writes(); len(writes) != 0 {
		t.Errorf("writes after a restart: %v", writes)
	}
	for _, a := range f.kube.Actions() {
		if !slices.Contains([]string{"get", "list", "watch"}, a.GetVerb()) {
			t.Errorf("write after a restart: %v", a)
		}
	}
}

func TestContainerRestartIsOneSync(t *testing.T) {
	f := running(t)
	for i := range 20 {
		f.createRule(rule(fmt.Sprintf("r%02d", i), "e", "10.1.0.4:8080", managedBy(fmt.Sprintf("s%d", i), eipAddress), port(strconv.Itoa(8000+i))))
	}
	f.until("all rules are ready", f.rulesReady(20))
	f.settled()
	f.script.takeCalls()
	f.ovn.ClearActions()

	f.script.with(func() { delete(f.script.pods, podKey(0)) })
	_, err := f.kube.CoreV1().Pods(testNamespace).Update(context.Background(), gatewayPod(0, "c2"), metav1.UpdateOptions{})
	f.must(err)
	f.until("all backends are back", func() bool { return f.script.backends(podKey(0)) == 20 })
	f.settled()
	_, changes := f.script.takeCalls()
	if diff := cmp.Diff([]string{"init", "subnet-route-add", sharenat.SyncVerb, "eip-add"}, verbs(changes)); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	if n := len(f.patches("iptables-dnat-rules", "")); n != 0 {
		t.Errorf("%d writes to rules, want none", n)
	}
}

func TestSlowPodDelaysOnlyItself(t *testing.T) {
	f := newFixture(t, gateway(func(gw *kubeovnv1.VpcNatGateway) { gw.Spec.Replicas = 3 }), eip("e", withV4("203.0.113.50")))
	for i := range 3 {
		f.createPod(gatewayPod(i, "c1"))
	}
	f.start()
	f.until("EIP is ready", f.eipReady("e"))
	f.settled()
	blocked := make(chan struct{})
	f.script.with(func() {
		f.script.intercept = func(ctx context.Context, call Call) error {
			if call.Pod != podKey(1) {
				return nil
			}
			select {
			case <-blocked:
				return nil
			case <-ctx.Done():
				return &CallError{Pod: call.Pod, Verb: call.Verb, ExitCode: -1, Err: ctx.Err()}
			}
		}
	})
	for i := range 5 {
		f.createRule(rule(fmt.Sprintf("r%d", i), "e", fmt.Sprintf("10.1.0.%d:80", i+1)))
		f.until("the other pods have it", func() bool {
			return f.script.backends(podKey(0)) == i+1 && f.script.backends(podKey(2)) == i+1
		})
	}
	if !f.rulesReady(0)() {
		t.Error("a rule is ready that one pod does not hold")
	}
	close(blocked)
	f.until("all rules are ready", f.rulesReady(5))
	if n := f.script.backends(podKey(1)); n != 5 {
		t.Errorf("%d backends in the slow pod", n)
	}
}

func TestUnreadyPodIsNotWaitedFor(t *testing.T) {
	f := newFixture(t, gateway(func(gw *kubeovnv1.VpcNatGateway) { gw.Spec.Replicas = 2 }), eip("e", withV4("203.0.113.50")))
	f.createPod(gatewayPod(0, "c1"))
	lost := gatewayPod(1, "c1")
	lost.Status.Conditions[0].Status = corev1.ConditionFalse
	f.createPod(lost)
	f.script.intercept = func(_ context.Context, call Call) error {
		if call.Pod == podKey(1) {
			return &CallError{Pod: call.Pod, Verb: call.Verb, ExitCode: -1, Err: errors.New("no route to host")}
		}
		return nil
	}
	f.start()
	f.createRule(rule("a", "e", "10.1.0.1:80"))
	f.until("rule is ready", f.rulesReady(1))
	f.must(f.ovn.KubeovnV1().IptablesDnatRules().Delete(context.Background(), "a", metav1.DeleteOptions{}))
	f.until("rule is gone", func() bool { return f.rule("a") == nil })
}

func TestFailedCallIsForgottenAndHealed(t *testing.T) {
	f := running(t)
	var once sync.Once
	f.script.with(func() {
		f.script.intercept = func(_ context.Context, call Call) (err error) {
			if call.Verb == sharenat.SyncVerb {
				once.Do(func() {
					err = &CallError{Pod: call.Pod, Verb: call.Verb, ExitCode: -1, Err: errors.New("connection reset")}
				})
			}
			return err
		}
	})
	f.createRule(rule("a", "e", "10.1.0.1:80", managedBy("s", eipAddress)))
	f.until("rule is ready", f.rulesReady(1))
	lists, changes := f.script.takeCalls()
	if len(lists) != 1 || len(changes) != 2 {
		t.Errorf("%d listings and %v; want the call, a listing, and the call again", len(lists), verbs(changes))
	}
	f.until("an event tells", f.event(ReasonProgramFailed, "connection reset"))
}

// event looks for an event among those not yet read.
func (f *fixture) event(reason, text string) func() bool {
	return func() bool {
		for {
			select {
			case e := <-f.recorder.Events:
				if strings.Contains(e, reason) && strings.Contains(e, text) {
					return true
				}
			default:
				return false
			}
		}
	}
}

func TestFlushByHandHealsAtTheNextCheck(t *testing.T) {
	f := newFixture(t, gateway(), eip("e"))
	f.createPod(gatewayPod(0, "c1"))
	f.tweak = func(c *Controller) { c.CheckInterval = 50 * time.Millisecond }
	f.start()
	f.createRule(rule("a", "e", "10.1.0.1:80"))
	f.until("rule is ready", f.rulesReady(1))
	f.script.with(func() {
		k := f.script.kernel(podKey(0))
		clear(k.shares)
		clear(k.eips)
		k.stale = 2
	})
	f.until("all is back", func() bool {
		f.script.mu.Lock()
		defer f.script.mu.Unlock()
		k := f.script.kernel(podKey(0))
		return len(k.shares) == 1 && len(k.eips) == 1 && k.stale == 0
	})
}

func TestDeletedRule(t *testing.T) {
	f := running(t)
	f.createRule(rule("a", "e", "10.1.0.1:80", managedBy("s", eipAddress)))
	f.createRule(rule("b", "e", "10.1.0.2:80", managedBy("s", eipAddress)))
	f.createRule(rule("x", "e", "10.1.0.3:22", exclusive, port("22")))
	f.until("rules are ready", f.rulesReady(3))
	gate := make(chan struct{})
	f.script.with(func() {
		f.script.intercept = func(context.Context, Call) error { <-gate; return nil }
	})
	for _, name := range []string{"a", "x"} {
		f.must(f.ovn.KubeovnV1().IptablesDnatRules().Delete(context.Background(), name, metav1.DeleteOptions{}))
	}
	f.settled()
	for _, name := range []string{"a", "x"} {
		if f.rule(name) == nil {
			t.Errorf("rule %s is gone while the gateway still holds it", name)
		}
	}
	close(gate)
	f.until("rules are gone", func() bool { return f.rule("a") == nil && f.rule("x") == nil })
	if n := f.script.backends(podKey(0)); n != 1 {
		t.Errorf("%d backends left, want 1", n)
	}
	if !f.rule("b").Status.Ready {
		t.Error("the other rule was touched")
	}
}

func TestRuleGoesAtOnceWithoutGateway(t *testing.T) {
	f := running(t)
	f.createRule(rule("a", "e", "10.1.0.1:80"))
	f.until("rule is ready", f.rulesReady(1))
	f.must(f.ovn.KubeovnV1().VpcNatGateways().Delete(context.Background(), testGateway, metav1.DeleteOptions{}))
	f.until("gateway is gone, and its workload", func() bool {
		_, err := f.kube.AppsV1().StatefulSets(testNamespace).Get(context.Background(), "vpc-nat-gw-gw", metav1.GetOptions{})
		return f.gateway() == nil && err != nil
	})
	f.until("rule is not ready", f.rulesReady(0))
	f.script.with(func() { f.script.intercept = func(context.Context, Call) error { return errors.New("gone") } })
	f.must(f.ovn.KubeovnV1().IptablesDnatRules().Delete(context.Background(), "a", metav1.DeleteOptions{}))
	f.must(f.ovn.KubeovnV1().IptablesEIPs().Delete(context.Background(), "e", metav1.DeleteOptions{}))
	f.until("all is gone", func() bool { return f.rule("a") == nil && f.eip("e") == nil })
}

func TestEIPStaysWhileUsed(t *testing.T) {
	f := running(t)
	f.createRule(rule("a", "e", "10.1.0.1:80"))
	_, err := f.ovn.KubeovnV1().IptablesFIPRules().Create(context.Background(),
		&kubeovnv1.IptablesFIPRule{ObjectMeta: metav1.ObjectMeta{Name: "fip"}, Spec: kubeovnv1.IptablesFIPRuleSpec{EIP: "other"}}, metav1.CreateOptions{})
	f.must(err)
	f.until("rule is ready", f.rulesReady(1))
	f.must(f.ovn.KubeovnV1().IptablesEIPs().Delete(context.Background(), "e", metav1.DeleteOptions{}))
	f.settled()
	if f.eip("e") == nil || !f.rule("a").Status.Ready {
		t.Fatal("an EIP in use is gone, or its rule was given up")
	}
	f.must(f.ovn.KubeovnV1().IptablesDnatRules().Delete(context.Background(), "a", metav1.DeleteOptions{}))
	f.until("both are gone", func() bool { return f.rule("a") == nil && f.eip("e") == nil })
	f.script.with(func() {
		if k := f.script.kernel(podKey(0)); len(k.eips) != 0 {
			t.Errorf("left in the gateway: %v", k.eips)
		}
	})
}

// The status repeats the spec as it is spelled, so that Kube-OVN's own handler, which may have written it, sees no difference.
func TestStatusRepeatsTheSpec(t *testing.T) {
	f := running(t)
	f.createRule(rule("a", "e", "10.1.0.1:80", func(r *kubeovnv1.IptablesDnatRule) { r.Spec.Protocol = "TCP" }))
	f.until("rule is ready", f.rulesReady(1))
	got := f.rule("a").Status
	got.Conditions = nil
	want := kubeovnv1.IptablesDnatRuleStatus{
		Ready: true, V4ip: f.eip("e").Status.IP, NatGwDp: "gw", Protocol: "TCP", ExternalPort: "80", InternalIP: "10.1.0.1", InternalPort: "80",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
}

// A FIP rule that is being deleted claims the EIP no more, and has state at it until it is gone.
func TestFIPThatLeaves(t *testing.T) {
	f := running(t)
	fips := f.ovn.KubeovnV1().IptablesFIPRules()
	_, err := fips.Create(context.Background(), &kubeovnv1.IptablesFIPRule{
		ObjectMeta: metav1.ObjectMeta{Name: "fip", Finalizers: []string{finalizer}}, Spec: kubeovnv1.IptablesFIPRuleSpec{EIP: "e"},
	}, metav1.CreateOptions{})
	f.must(err)
	f.createRule(rule("a", "e", "10.1.0.1:80"))
	f.until("the rule is told of the FIP", func() bool {
		conditions := f.rule("a").Status.Conditions
		return len(conditions) == 1 && conditions[0].Reason == ReasonEIPUsedByFIP
	})
	f.must(fips.Delete(context.Background(), "fip", metav1.DeleteOptions{}))
	f.until("the rule is ready", f.rulesReady(1))

	f.must(f.ovn.KubeovnV1().IptablesDnatRules().Delete(context.Background(), "a", metav1.DeleteOptions{}))
	f.must(f.ovn.KubeovnV1().IptablesEIPs().Delete(context.Background(), "e", metav1.DeleteOptions{}))
	f.until("the rule is gone", func() bool { return f.rule("a") == nil })
	f.settled()
	if f.eip("e") == nil {
		t.Fatal("the EIP is gone before the FIP")
	}
	_, err = fips.Patch(context.Background(), "fip", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	f.must(err)
	f.until("the EIP is gone", func() bool { return f.eip("e") == nil })
}

func TestEIPAddresses(t *testing.T) {
	pod := gatewayPod(7, "c")
	pod.Name, pod.Annotations = "other", map[string]string{
		"x.y" + switchSuffix: sharenat.DefaultExternalSubnet, "x.y" + addressSuffix: "203.0.113.12", // and .10 is the gateway's
	}
	f := newFixture(t, gateway())
	f.createPod(gatewayPod(0, "c1"))
	f.createPod(pod)
	f.createEIP(eip("asks", withV4("203.0.113.13")))
	f.createEIP(eip("excluded", withV4("203.0.113.5")))
	f.createEIP(eip("bad", withV4("203.0.113.1")))
	f.createEIP(eip("has", func(e *kubeovnv1.IptablesEIP) { e.Status.IP, e.Finalizers = "203.0.113.14", []string{finalizer} }))
	f.start()
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() { f.createEIP(eip(fmt.Sprintf("auto-%02d", i))) })
	}
	wg.Wait()
	f.until("all EIPs have addresses", func() bool {
		list, err := f.ovn.KubeovnV1().IptablesEIPs().List(context.Background(), metav1.ListOptions{})
		f.must(err)
		ready := 0
		for i := range list.Items {
			if list.Items[i].Status.Ready {
				ready++
			}
		}
		return ready == 23
	})
	list, err := f.ovn.KubeovnV1().IptablesEIPs().List(context.Background(), metav1.ListOptions{})
	f.must(err)
	seen := map[string]string{"203.0.113.10": "the gateway pod", "203.0.113.12": "the other pod", "203.0.113.1": "the subnet's gateway"}
	for i := range list.Items {
		e := &list.Items[i]
		if e.Name == "bad" {
			if e.Status.Ready || len(e.Status.Conditions) != 1 || e.Status.Conditions[0].Reason != ReasonAddressUnusable {
				t.Errorf("bad EIP: %+v", e.Status)
			}
			continue
		}
		if by, twice := seen[e.Status.IP]; twice {
			t.Errorf("%s has %s, which is also of %s", e.Name, e.Status.IP, by)
		}
		seen[e.Status.IP] = e.Name
	}
	if seen["203.0.113.13"] != "asks" || seen["203.0.113.5"] != "excluded" || seen["203.0.113.14"] != "has" || seen["203.0.113.33"] == "" {
		t.Errorf("addresses: %v", seen)
	}
}

func TestBadRulesHarmNobody(t *testing.T) {
	f := running(t)
	f.createRule(rule("a", "e", "10.1.0.1:80"))
	f.createRule(rule("bad", "e", "10.1.0.2:80", port("0")))
	f.createRule(rule("worse", "e", "not-an-address:80"))
	f.createRule(rule("late", "e", "10.1.0.3:80", func(r *kubeovnv1.IptablesDnatRule) {
		r.Annotations = map[string]string{sharenat.SourceRangesAnnotation: "10.0.0.0/8"}
	}))
	f.createRule(rule("more", "e", "10.1.0.5:80", clientIP(60)))
	f.createRule(rule("managed", "e", "10.1.0.4:80", managedBy("s", eipAddress)))
	f.until("the good one is ready", func() bool { return f.rule("a").Status.Ready })
	reason := func(name string) string {
		if r := f.rule(name); len(r.Status.Conditions) == 1 && !r.Status.Ready {
			return r.Status.Conditions[0].Reason
		}
		return ""
	}
	for name, want := range map[string]string{"bad": ReasonInvalidRule, "worse": ReasonInvalidRule, "late": ReasonIdentityConflict, "managed": ReasonIdentityConflict} {
		f.until(name+" says "+want, func() bool { return reason(name) == want })
	}
	f.until("the one that asks for another affinity is ready", func() bool { return f.rule("more").Status.Ready })
	told := f.eip("e").Status.IP + `:80/tcp has session affinity "none 0" by rule a, this rule asks for "clientip 60"`
	if got := f.rule("more").Status.Conditions[0]; got.Reason != ReasonProgrammed || got.Message != told {
		t.Errorf("it says %s, %q; want %q", got.Reason, got.Message, told)
	}
	f.settled()
	if n := f.script.backends(podKey(0)); n != 2 {
		t.Errorf("%d backends in the gateway", n)
	}
	// The winner goes: the next one takes over, by an event.
	f.must(f.ovn.KubeovnV1().IptablesDnatRules().Delete(context.Background(), "a", metav1.DeleteOptions{}))
	f.until("the next one takes over", func() bool { return f.rule("late").Status.Ready })
}

func TestRejectedIdentityIsLeftOut(t *testing.T) {
	f := running(t)
	stoppable := &stoppableClock{}
	f.tweak = func(c *Controller) { c.Clock = stoppable }
	f.start()
	f.script.with(func() {
		f.script.refuse = func(s sharenat.Share) string {
			if s.Port == 8013 {
				return "port 8013: unlucky"
			}
			return ""
		}
	})
	for i := range 30 {
		f.createRule(rule(fmt.Sprintf("r%02d", i), "e", "10.1.0.4:8080", managedBy(fmt.Sprintf("s%d", i), eipAddress), port(strconv.Itoa(8000+i))))
	}
	f.until("all others are ready", f.rulesReady(29))
	f.until("the one says why", func() bool {
		r := f.rule("r13")
		return len(r.Status.Conditions) == 1 && r.Status.Conditions[0].Reason == ReasonRejectedByGateway && strings.Contains(r.Status.Conditions[0].Message, "unlucky")
	})
	f.must(f.ovn.KubeovnV1().IptablesDnatRules().Delete(context.Background(), "r02", metav1.DeleteOptions{}))
	f.until("others can still go", func() bool { return f.rule("r02") == nil })
	f.settled()
	// It is due again after a while, which a busy machine may take for the rest of this.
	stoppable.stop()
	f.settled()
	f.script.takeCalls()
	f.settled()
	if _, changes := f.script.takeCalls(); len(changes) != 0 {
		t.Errorf("it is tried again and again: %v", verbs(changes))
	}
	f.must(f.ovn.KubeovnV1().IptablesDnatRules().Delete(context.Background(), "r13", metav1.DeleteOptions{}))
	f.until("it can go", func() bool { return f.rule("r13") == nil })
}

// stoppableClock is the real clock until it is stopped.
type stoppableClock struct {
	clock.RealClock
	stopped atomic.Pointer[time.Time]
}

func (c *stoppableClock) stop() { now := time.Now(); c.stopped.Store(&now) }

// Now implements clock.Clock.
func (c *stoppableClock) Now() time.Time {
	if at := c.stopped.Load(); at != nil {
		return *at
	}
	return time.Now()
}

// Since implements clock.Clock.
func (c *stoppableClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

func TestRejectedForAMomentIsTriedAgainSoon(t *testing.T) {
	f := running(t)
	f.script.with(func() {
		f.script.refuse = func(sharenat.Share) string { return "nft refused: Device or resource busy" }
	})
	f.createRule(rule("a", "e", "10.1.0.4:8080", managedBy("s", eipAddress)))
	f.until("the rule says why", func() bool {
		r := f.rule("a")
		return len(r.Status.Conditions) == 1 && r.Status.Conditions[0].Reason == ReasonRejectedByGateway
	})
	f.script.with(func() { f.script.refuse = nil })
	f.until("it is ready, long before the next check", f.rulesReady(1)) // which is in an hour
}

func TestOlderScript(t *testing.T) {
	f := newFixture(t, gateway(), eip("e"))
	f.script.legacy = true
	f.createPod(gatewayPod(0, "c1"))
	f.start()
	f.createRule(rule("a", "e", "10.1.0.1:80", clientIP(60)))
	f.createRule(rule("b", "e", "10.1.0.2:80", clientIP(60)))
	f.until("rules are ready", f.rulesReady(2))
	f.until("the user is told", f.event(ReasonScriptOutdated, "older nat-gateway.sh"))
	f.must(f.ovn.KubeovnV1().IptablesDnatRules().Delete(context.Background(), "a", metav1.DeleteOptions{}))
	f.must(f.ovn.KubeovnV1().IptablesDnatRules().Delete(context.Background(), "b", metav1.DeleteOptions{}))
	f.until("all is gone", func() bool { return f.rule("a") == nil && f.rule("b") == nil && f.script.backends(podKey(0)) == 0 })
}

func TestStaleIdentitiesGoBeforeAnythingIsReady(t *testing.T) {
	f := newFixture(t, gateway(), eip("e"), rule("a", "e", "10.1.0.1:80", managedBy("s", eipAddress)))
	stale := sharenat.Share{Identity: mustIdentity(eipAddress, "81", "tcp")}
	f.script.kernel(podKey(0)).shares[stale.Identity] = stale
	f.createPod(gatewayPod(0, "c1"))
	f.start()
	f.until("rule is ready", func() bool {
		f.script.mu.Lock()
		_, there := f.script.kernel(podKey(0)).shares[stale.Identity]
		f.script.mu.Unlock()
		ready := f.rule("a").Status.Ready
		if ready && there {
			t.Error("a rule is ready while a stale identity is there")
		}
		return ready
	})
}

func TestConfigMapsAreWatched(t *testing.T) {
	f := running(t)
	image := func() string {
		s, err := f.kube.AppsV1().StatefulSets(testNamespace).Get(context.Background(), "vpc-nat-gw-gw", metav1.GetOptions{})
		if err != nil {
			return ""
		}
		return s.Spec.Template.Spec.Containers[0].Image
	}
	update := func(name, key, value string) {
		_, err := f.kube.CoreV1().ConfigMaps(testNamespace).Update(context.Background(), configMap(name, key, value), metav1.UpdateOptions{})
		f.must(err)
	}
	update(imageConfigMap, imageKey, "gateway:2")
	f.until("the workload has the new image", func() bool { return image() == "gateway:2" })
	update(switchConfigMap, switchKey, "false")
	f.until("the workload is gone", func() bool { return image() == "" })
	f.until("gateway is not ready", func() bool { return !f.gateway().Status.Ready })
	update(switchConfigMap, switchKey, "true")
	f.until("the workload is back", func() bool { return image() == "gateway:2" })
	update(switchConfigMap, switchKey, "True")
	f.until("the other word is told", f.event(ReasonInvalidSwitch, `"True" is neither true nor false`))
	f.settled()
	if got := image(); got != "gateway:2" {
		t.Errorf("the workload has image %q", got)
	}
}

func TestMoreReplicasIsADeployment(t *testing.T) {
	f := running(t)
	_, err := f.ovn.KubeovnV1().VpcNatGateways().Patch(context.Background(), testGateway, types.MergePatchType, []byte(`{"spec":{"replicas":3}}`), metav1.PatchOptions{})
	f.must(err)
	f.until("StatefulSet gives way to Deployment", func() bool {
		_, setErr := f.kube.AppsV1().StatefulSets(testNamespace).Get(context.Background(), "vpc-nat-gw-gw", metav1.GetOptions{})
		d, err := f.kube.AppsV1().Deployments(testNamespace).Get(context.Background(), "vpc-nat-gw-gw", metav1.GetOptions{})
		return setErr != nil && err == nil && *d.Spec.Replicas == 3
	})
	f.settled()
	n := len(f.kube.Actions())
	f.settled()
	if more := len(f.kube.Actions()) - n; more != 0 {
		t.Errorf("%d requests although nothing changes", more)
	}
}

func TestWorkloadChangedByHandHeals(t *testing.T) {
	f := running(t)
	_, err := f.kube.AppsV1().StatefulSets(testNamespace).Patch(context.Background(), "vpc-nat-gw-gw", types.MergePatchType, []byte(`{"spec":{"replicas":5}}`), metav1.PatchOptions{})
	f.must(err)
	f.until("it is as described", func() bool {
		s, err := f.kube.AppsV1().StatefulSets(testNamespace).Get(context.Background(), "vpc-nat-gw-gw", metav1.GetOptions{})
		f.must(err)
		return *s.Spec.Replicas == 1
	})
}

func TestGatewayComesLast(t *testing.T) {
	f := newFixture(t, eip("e"), rule("a", "e", "10.1.0.1:80"))
	f.start()
	f.settled()
	_, err := f.ovn.KubeovnV1().VpcNatGateways().Create(context.Background(), gateway(), metav1.CreateOptions{})
	f.must(err)
	f.createPod(gatewayPod(0, "c1"))
	f.until("rule is ready", f.rulesReady(1))
}

// TestWritesNameWhatTheyChange runs through a life with every kind of write, then applies each patch that was sent to an
// object with fields that our types do not have.
func TestWritesNameWhatTheyChange(t *testing.T) {
	f := newFixture(t, gateway(), eip("e"))
	f.createPod(gatewayPod(0, "c1"))
	f.start()
	f.createRule(rule("a", "e", "10.1.0.1:80"))
	f.createRule(rule("bad", "e", "10.1.0.1:80", port("x")))
	f.until("rule is ready", f.rulesReady(1))
	f.until("the bad one says so", func() bool { return len(f.rule("bad").Status.Conditions) > 0 })
	_, err := f.ovn.KubeovnV1().IptablesDnatRules().Patch(context.Background(), "bad", types.MergePatchType, []byte(`{"spec":{"externalPort":"81"}}`), metav1.PatchOptions{FieldManager: "user"})
	f.must(err)
	f.until("the bad one is good", f.rulesReady(2))
	f.until("EIP tells its use", func() bool { return f.eip("e").Status.Nat == "dnat" })
	for _, name := range []string{"a", "bad"} {
		f.must(f.ovn.KubeovnV1().IptablesDnatRules().Delete(context.Background(), name, metav1.DeleteOptions{}))
	}
	f.must(f.ovn.KubeovnV1().IptablesEIPs().Delete(context.Background(), "e", metav1.DeleteOptions{}))
	f.until("all are gone", func() bool { return f.rule("a") == nil && f.rule("bad") == nil && f.eip("e") == nil })
	f.must(f.ovn.KubeovnV1().VpcNatGateways().Delete(context.Background(), testGateway, metav1.DeleteOptions{}))
	f.until("the gateway too", func() bool { return f.gateway() == nil })

	docs := map[string][]byte{}
	kinds := map[string]bool{}
	for _, a := range f.writes() {
		if !slices.Contains([]string{"create", "patch", "delete"}, a.GetVerb()) {
			t.Errorf("verb %s on %s", a.GetVerb(), a.GetResource().Resource)
		}
	}
	for _, p := range f.patches("iptables-dnat-rules", "") {
		applyRaw(t, docs, "rule/"+p.Name, p.GetPatchType(), p.GetPatch())
		kinds["rule"+p.GetSubresource()+string(p.GetPatchType())] = true
	}
	for _, p := range f.patches("iptables-eips", "") {
		applyRaw(t, docs, "eip/"+p.Name, p.GetPatchType(), p.GetPatch())
		kinds["eip"+p.GetSubresource()+string(p.GetPatchType())] = true
	}
	for _, p := range f.patches("vpc-nat-gateways", "") {
		applyRaw(t, docs, "gateway/"+p.Name, p.GetPatchType(), p.GetPatch())
		kinds["gateway"+p.GetSubresource()+string(p.GetPatchType())] = true
	}
	if len(kinds) < 9 {
		t.Errorf("only these kinds of writes were seen: %v", kinds)
	}
}

const rawObject = `{"metadata":{"future":1,"annotations":{"a":"b"},"finalizers":[]},"spec":{"future":1},"status":{"future":1,"workload":{"future":1}}}`

func applyRaw(t *testing.T, docs map[string][]byte, name string, kind types.PatchType, patch []byte) {
	t.Helper()
	doc := docs[name]
	if doc == nil {
		doc = []byte(rawObject)
	}
	var err error
	if kind == types.JSONPatchType {
		var p jsonpatch.Patch
		if p, err = jsonpatch.DecodePatch(patch); err == nil {
			doc, err = p.Apply(doc)
		}
	} else {
		doc, err = jsonpatch.MergePatch(doc, patch)
	}
	if err != nil {
		t.Fatalf("%s of %s: %v", kind, name, err)
	}
	want := 4
	if strings.Contains(string(docs[name]), `"conditions":[{"future"`) {
		want = 5
	}
	if n := strings.Count(string(doc), `"future":1`); n < want {
		t.Errorf("patch %s of %s loses a field that our types do not have: %s", patch, name, doc)
	}
	// Once there is a condition, it has a field of somebody else's, too.
	docs[name] = []byte(strings.Replace(string(doc), `"conditions":[{"lastTransitionTime"`, `"conditions":[{"future":1,"lastTransitionTime"`, 1))
}

// An address is of no use in a gateway that has no interface in its Subnet.
func TestEIPOfASubnetThatTheGatewayDoesNotHave(t *testing.T) {
	other := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "other"}, Spec: kubeovnv1.SubnetSpec{
		CIDRBlock: "198.51.100.0/24", Gateway: "198.51.100.1", Provider: "other.kube-system",
	}}
	f := newFixture(t, gateway(), other,
		eip("new", func(e *kubeovnv1.IptablesEIP) { e.Spec.ExternalSubnet = "other" }),
		eip("old", func(e *kubeovnv1.IptablesEIP) { // as an earlier handler left it
			e.Spec.ExternalSubnet = "other"
			e.Finalizers = []string{finalizer}
			e.Labels = map[string]string{sharenat.EIPAddressLabel: "198.51.100.20"}
			e.Status = kubeovnv1.IptablesEIPStatus{Ready: true, IP: "198.51.100.20"}
		}))
	f.createPod(gatewayPod(0, "c1"))
	f.start()
	for _, name := range []string{"new", "old"} {
		f.until("EIP "+name+" says so", func() bool {
			s := f.eip(name).Status
			return !s.Ready && notReady(ReasonAddressUnusable, s.Conditions) &&
				strings.Contains(s.Conditions[0].Message, "gateway gw has no interface in external subnet other")
		})
	}
	f.until("gateway is ready", func() bool { return f.gateway().Status.Ready })
	f.settled()
	if _, changes := f.script.takeCalls(); slices.Contains(verbs(changes), verbEIPAdd) {
		t.Errorf("something is added: %v", verbs(changes))
	}

	gw := f.gateway()
	gw.Spec.ExternalSubnets = []string{sharenat.DefaultExternalSubnet, "other"}
	_, err := f.ovn.KubeovnV1().VpcNatGateways().Update(context.Background(), gw, metav1.UpdateOptions{})
	f.must(err)
	f.until("one is ready", f.eipReady("new"))
	f.until("the other is ready", f.eipReady("old"))
	f.settled()
}

// An external Subnet that names no VPC is in none: a gateway of the default VPC that was told to reach it by way of the VPC
// would send answers the wrong way.
func TestDefaultVPCHasNoExternalSubnets(t *testing.T) {
	for _, vpc := range []string{sharenat.DefaultVPC, ""} {
		t.Run("spec.vpc "+strconv.Quote(vpc), func(t *testing.T) {
			gw := gateway()
			gw.Spec.Vpc, gw.Spec.Subnet = vpc, "home"
			subnet := func(name, cidr, gateway, provider string) *kubeovnv1.Subnet {
				return &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.SubnetSpec{
					CIDRBlock: cidr, Gateway: gateway, Provider: provider,
				}}
			}
			f := newFixture(t, gw,
				subnet("home", "10.16.0.0/16", "10.16.0.1", "ovn"),
				subnet("pods", "10.17.0.0/16", "10.17.0.1", ""),
				subnet("other", "198.51.100.0/24", "198.51.100.1", "other.kube-system"))
			var controller *Controller
			f.tweak = func(c *Controller) { controller = c }
			f.start()
			want := []sharenat.Route{{CIDR: netip.MustParsePrefix("10.17.0.0/16"), NextHop: netip.MustParseAddr("10.16.0.1")}}
			f.until("the other Subnet of the VPC, and nothing else, is reached by way of it", func() bool {
				return slices.Equal(controller.snapshot("gw").Routes, want)
			})
		})
	}
}

// Kube-OVN writes an address that it has given into the spec, where its BGP speaker reads it.
func TestAllocatedAddressStandsInTheSpec(t *testing.T) {
	f := newFixture(t, gateway(), eip("e"), eip("earlier", func(e *kubeovnv1.IptablesEIP) {
		e.Finalizers = []string{finalizer}
		e.Labels = map[string]string{
			subnetLabel: sharenat.DefaultExternalSubnet, sharenat.EIPAddressLabel: "203.0.113.60", sharenat.GatewayLabel: testGateway,
		}
		e.Status = kubeovnv1.IptablesEIPStatus{Ready: true, IP: "203.0.113.60"}
	}))
	f.createPod(gatewayPod(0, "c1"))
	f.start()
	f.until("EIP is ready", f.eipReady("e"))
	f.until("an EIP of before has it too", func() bool { return f.eip("earlier").Spec.V4ip == "203.0.113.60" })
	f.settled()
	e := f.eip("e")
	if e.Spec.V4ip != eipAddress || e.Status.IP != eipAddress {
		t.Errorf("spec.v4ip %q, status.ip %q, want %s", e.Spec.V4ip, e.Status.IP, eipAddress)
	}
	if n := len(f.patches("iptables-eips", "e")); n != 2 {
		t.Errorf("%d writes to the EIP, want 2", n)
	}
	if got := string(f.patches("iptables-eips", "earlier")[0].Patch); got != `{"spec":{"v4ip":"203.0.113.60"}}` {
		t.Errorf("the patch names more than the field: %s", got)
	}
}

func TestWhatIsNotServedIsTold(t *testing.T) {
	f := newFixture(t, gateway(func(gw *kubeovnv1.VpcNatGateway) {
		gw.Spec.BFD.Enabled, gw.Spec.BgpSpeaker.Enabled = true, true
	}))
	f.createPod(gatewayPod(0, "c1"))
	f.start()
	f.until("gateway is ready", func() bool { return f.gateway().Status.Ready })
	f.settled()
	told := 0
	for len(f.recorder.Events) > 0 {
		if strings.Contains(<-f.recorder.Events, ReasonNotServed+" spec.bfd, spec.bgpSpeaker: not served in this mode") {
			told++
		}
	}
	if told != 1 {
		t.Errorf("told %d times", told)
	}
}
