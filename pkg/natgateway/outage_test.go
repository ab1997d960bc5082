// SPDX-License-Identifier: Apache-2.0

package natgateway

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// serving is a fixture whose gateway serves a rule, with this grace time.
func serving(t *testing.T, grace time.Duration) *fixture {
	t.Helper()
	f := running(t)
	f.tweak = func(c *Controller) { c.grace = grace }
	f.start()
	f.createRule(rule("a", "e", "10.1.0.1:80", managedBy("s", eipAddress)))
	f.until("rule is ready", f.rulesReady(1))
	f.until("gateway is ready", func() bool { return f.gateway().Status.Ready })
	f.settled()
	f.ovn.ClearActions()
	return f
}

// replacePod deletes the gateway's pod and makes another one of the same name.
func (f *fixture) replacePod(uid types.UID, tweaks ...func(*corev1.Pod)) {
	f.Helper()
	f.must(f.kube.CoreV1().Pods(testNamespace).Delete(context.Background(), podKey(0).Name, metav1.DeleteOptions{}))
	f.script.with(func() { delete(f.script.pods, podKey(0)) })
	pod := gatewayPod(0, string(uid))
	pod.UID = uid
	for _, tweak := range tweaks {
		tweak(pod)
	}
	f.createPod(pod)
}

func notReady(reason string, conditions kubeovnv1.Conditions) bool {
	return len(conditions) == 1 && conditions[0].Reason == reason && conditions[0].Status == corev1.ConditionFalse
}

func TestLossOfTheLastPodIsTold(t *testing.T) {
	f := serving(t, 200*time.Millisecond)
	f.replacePod("second", imagePullBackOff)
	f.until("rule and EIP say so", func() bool {
		r, e := f.rule("a"), f.eip("e")
		return !r.Status.Ready && notReady(ReasonGatewayNotReady, r.Status.Conditions) &&
			!e.Status.Ready && notReady(ReasonGatewayNotReady, e.Status.Conditions)
	})
	if got := f.eip("e").Status.IP; got != eipAddress {
		t.Errorf("the EIP's address is %q", got)
	}
	f.settled()
	told := 0
	const text = ReasonGatewayNotReady + " no pod of the gateway is ready: pod kube-system/vpc-nat-gw-gw-0: ImagePullBackOff"
	for len(f.recorder.Events) > 0 {
		if strings.Contains(<-f.recorder.Events, text) {
			told++
		}
	}
	if told != 1 {
		t.Errorf("%d events of the gateway", told)
	}

	f.replacePod("third")
	f.until("rule is ready again", f.rulesReady(1))
	f.until("EIP is ready again", f.eipReady("e"))

	// A second loss is told too.
	f.replacePod("fourth", imagePullBackOff)
	f.until("it is told again", f.event(ReasonGatewayNotReady, "no pod of the gateway is ready"))
}

func TestReplacementInTimeChangesNothing(t *testing.T) {
	f := serving(t, time.Hour)
	f.replacePod("second", imagePullBackOff)
	f.until("gateway is not ready", func() bool { return !f.gateway().Status.Ready })
	f.replacePod("third")
	f.until("gateway is ready", func() bool { return f.gateway().Status.Ready })
	f.settled()
	if n := len(f.patches("iptables-dnat-rules", "")) + len(f.patches("iptables-eips", "")); n != 0 {
		t.Errorf("%d writes to rules and EIPs", n)
	}
}

// A handler that begins and cannot reach a pod does not take it for dead.
func TestUnreachedPodServes(t *testing.T) {
	f := serving(t, 100*time.Millisecond)
	f.until("init is noted", func() bool {
		pod, err := f.kube.CoreV1().Pods(testNamespace).Get(context.Background(), podKey(0).Name, metav1.GetOptions{})
		f.must(err)
		return pod.Annotations[sharenat.GatewayInitAnnotation] == "true"
	})
	f.script.with(func() {
		f.script.intercept = func(_ context.Context, call Call) error {
			return &CallError{Pod: call.Pod, Verb: call.Verb, ExitCode: -1, Err: context.DeadlineExceeded}
		}
	})
	f.start()
	f.until("it is told", f.event(ReasonProgramFailed, "deadline"))
	f.settled() // for longer than the grace time
	if !f.rule("a").Status.Ready || !f.eip("e").Status.Ready {
		t.Error("rule or EIP are not ready any more")
	}
}
