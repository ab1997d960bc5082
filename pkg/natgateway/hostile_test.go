// SPDX-License-Identifier: Apache-2.0

package natgateway

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// Anybody who may create Pods somewhere can write a gateway's annotation on one. It must neither be told what the gateway holds nor keep
// its rules from being ready.
func TestForeignPodIsNoGatewayPod(t *testing.T) {
	f := running(t)
	forged := gatewayPod(7, "c")
	forged.Namespace, forged.Name = "tenant", "forged"
	f.script.with(func() {
		f.script.intercept = func(_ context.Context, call Call) error {
			if call.Pod.Namespace == "tenant" {
				return &CallError{Pod: call.Pod, Verb: call.Verb, ExitCode: 1, Stderr: "no"}
			}
			return nil
		}
	})
	f.createPod(forged)
	f.createRule(rule("a", "e", "10.1.0.1:80", managedBy("s", eipAddress)))
	f.until("rule is ready", f.rulesReady(1))
	f.settled()
	lists, changes := f.script.takeCalls()
	for _, call := range append(lists, changes...) {
		if call.Pod == (types.NamespacedName{Namespace: "tenant", Name: "forged"}) {
			t.Errorf("%s was run in a Pod of another namespace", call.Verb)
		}
	}
	f.deleteRules("a")
}

// Between the end of one container and the start of the next, the pod runs none. Its network namespace, and the connections in it, stay.
func TestConnectionsAreForgottenAfterAContainerRestart(t *testing.T) {
	f := running(t)
	f.createPod(backendPod("p", "10.1.0.1", "inner", corev1.ConditionFalse))
	f.createRule(rule("a", "e", "10.1.0.1:80", managedBy("s", eipAddress)))
	f.createRule(rule("b", "e", "10.1.0.2:80", managedBy("s", eipAddress)))
	f.until("rules are ready", f.rulesReady(2))
	f.settled()
	f.deleteRules("a")
	f.settled()
	f.lines()

	pod := gatewayPod(0, "second")
	down := pod.DeepCopy()
	down.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}
	down.Status.Conditions[0].Status = corev1.ConditionFalse
	for _, next := range []*corev1.Pod{down, pod} {
		_, err := f.kube.CoreV1().Pods(next.Namespace).Update(context.Background(), next, metav1.UpdateOptions{})
		f.must(err)
		f.settled()
	}
	f.lines()
	f.deletePod("p")
	f.settled()
	if got := f.lines(); len(got) != 1 || got[0] != "forget 203.0.113.11 80 tcp 10.1.0.1 80" {
		t.Errorf("after the Pod has ended: %q", got)
	}
}

// A finalizer and labels can come with an EIP from whoever made it: they must not give it an address that it would not get by asking.
func TestForgedEIPGetsNobodysAddress(t *testing.T) {
	f := running(t)
	f.createRule(rule("a", "e", "10.1.0.1:80", managedBy("s", eipAddress)))
	f.until("rule is ready", f.rulesReady(1))
	forged := func(address string) func(*kubeovnv1.IptablesEIP) {
		return func(e *kubeovnv1.IptablesEIP) {
			e.Finalizers, e.Labels = []string{finalizer}, map[string]string{sharenat.EIPAddressLabel: address}
		}
	}
	f.createEIP(eip("a-thief", forged(eipAddress)))
	f.createEIP(eip("a-spoof", forged("203.0.113.1")))
	f.createEIP(eip("a-stranger", forged("198.51.100.7")))
	f.createRule(rule("b", "a-thief", "10.1.0.66:80", managedBy("t", eipAddress)))
	refused := func(name string) func() bool {
		return func() bool {
			c := f.eip(name).Status.Conditions
			return len(c) == 1 && c[0].Reason == ReasonAddressUnusable
		}
	}
	for _, name := range []string{"a-thief", "a-spoof", "a-stranger"} {
		f.until(name+" is refused", refused(name))
	}
	f.settled()
	f.script.with(func() {
		k := f.script.kernel(podKey(0))
		if len(k.eips) != 1 || !k.eips[eipAddress+"/24"] {
			t.Errorf("EIPs: %v", k.eips)
		}
		for _, share := range k.shares {
			if len(share.Backends) != 1 || share.Backends[0].Addr.Addr().String() != "10.1.0.1" {
				t.Errorf("backends: %v", share.Backends)
			}
		}
	})

	// It goes without waiting for the address to be free, and has it when its owner lets go.
	f.must(f.ovn.KubeovnV1().IptablesEIPs().Delete(context.Background(), "a-spoof", metav1.DeleteOptions{}))
	f.until("a-spoof is gone", func() bool { return f.eip("a-spoof") == nil })
	f.createEIP(eip("b-thief", forged(eipAddress)))
	f.until("b-thief is refused", refused("b-thief"))
	f.must(f.ovn.KubeovnV1().IptablesEIPs().Delete(context.Background(), "b-thief", metav1.DeleteOptions{}))
	f.until("b-thief is gone", func() bool { return f.eip("b-thief") == nil })
	f.deleteRules("a")
	f.must(f.ovn.KubeovnV1().IptablesEIPs().Delete(context.Background(), "e", metav1.DeleteOptions{}))
	f.until("the address is free, and given", f.eipReady("a-thief"))
}

// The EIP of a Service moves to a gateway in another VPC, where the addresses of the Service's Pods are somebody else's. What its rules
// say counts there once the Service controller says so.
func TestMovedEIPTakesNoBackendsAlong(t *testing.T) {
	f := running(t)
	second := gateway()
	second.Name = "gw2"
	_, err := f.ovn.KubeovnV1().VpcNatGateways().Create(context.Background(), second, metav1.CreateOptions{})
	f.must(err)
	pod := gatewayPod(3, "c")
	pod.Annotations[sharenat.GatewayPodAnnotation] = "gw2"
	f.createPod(pod)
	f.createRule(rule("a", "e", "10.1.0.1:80", managedBy("s", eipAddress)))
	f.until("rule is ready", f.rulesReady(1))
	f.settled()

	moved := f.eip("e")
	moved.Spec.NatGwDp = "gw2"
	_, err = f.ovn.KubeovnV1().IptablesEIPs().Update(context.Background(), moved, metav1.UpdateOptions{})
	f.must(err)
	f.until("the EIP is in the second gateway", func() (has bool) {
		f.script.with(func() { has = f.script.kernel(podKey(3)).eips[eipAddress+"/24"] })
		return has
	})
	f.settled()
	if n := f.script.backends(podKey(0)) + f.script.backends(podKey(3)); n != 0 {
		t.Errorf("%d backends are programmed", n)
	}
	if r := f.rule("a"); r.Status.Ready || r.Labels[sharenat.GatewayLabel] != testGateway {
		t.Errorf("ready %v, labels %v", r.Status.Ready, r.Labels)
	}

	approved := f.rule("a")
	approved.Labels[sharenat.GatewayLabel] = "gw2"
	_, err = f.ovn.KubeovnV1().IptablesDnatRules().Update(context.Background(), approved, metav1.UpdateOptions{})
	f.must(err)
	f.until("rule is ready", f.rulesReady(1))
	if n := f.script.backends(podKey(3)); n != 1 {
		t.Errorf("%d backends are programmed", n)
	}
}

// A gateway pod that cannot be reached is told of once, though each try fails in other words.
func TestUnreachablePodIsOneEvent(t *testing.T) {
	f := newFixture(t, gateway(), eip("e"))
	f.createPod(gatewayPod(0, "c1"))
	tries := 0
	f.script.intercept = func(_ context.Context, call Call) error {
		f.script.with(func() { tries++ })
		return &CallError{Pod: call.Pod, Verb: call.Verb, ExitCode: -1, Err: fmt.Errorf("read tcp 10.0.0.1:%d->10.0.0.2:6443: %w", 40000+tries, errors.ErrUnsupported)}
	}
	f.start()
	f.until("some tries", func() (enough bool) {
		f.script.with(func() { enough = tries >= 4 })
		return enough
	})
	f.stop()
	told := 0
	for len(f.recorder.Events) > 0 {
		if strings.Contains(<-f.recorder.Events, ReasonProgramFailed) {
			told++
		}
	}
	if told != 1 {
		t.Errorf("%d events", told)
	}
}

// An EIP that was ready in one gateway is not ready in another one before that has it.
func TestMovedEIPIsReadyWhereItAnswers(t *testing.T) {
	f := newFixture(t, gateway(), eip("e", func(e *kubeovnv1.IptablesEIP) { e.Generation = 1 }))
	f.tweak = func(c *Controller) { c.grace = 100 * time.Millisecond }
	f.createPod(gatewayPod(0, "c1"))
	f.start()
	f.until("EIP is ready", f.eipReady("e"))
	second := gateway()
	second.Name = "gw2"
	_, err := f.ovn.KubeovnV1().VpcNatGateways().Create(context.Background(), second, metav1.CreateOptions{})
	f.must(err)
	moved := f.eip("e")
	moved.Spec.NatGwDp, moved.Generation = "gw2", 2
	_, err = f.ovn.KubeovnV1().IptablesEIPs().Update(context.Background(), moved, metav1.UpdateOptions{})
	f.must(err)
	f.until("EIP is not ready", func() bool { return !f.eip("e").Status.Ready })
	pod := gatewayPod(3, "c")
	pod.Annotations[sharenat.GatewayPodAnnotation] = "gw2"
	f.createPod(pod)
	f.until("EIP is ready again", f.eipReady("e"))
}
