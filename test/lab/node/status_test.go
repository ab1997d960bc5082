// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func view(tweaks ...func(*containerView)) containerView {
	v := containerView{spec: &corev1.Container{Name: "main"}, state: waitingState("ContainerCreating", "")}
	for _, tweak := range tweaks {
		tweak(&v)
	}
	return v
}

func runs(ready bool) func(*containerView) {
	return func(v *containerView) {
		v.state = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
		v.started, v.ready = true, ready
	}
}

func ended(code int32, done bool) func(*containerView) {
	return func(v *containerView) {
		v.state = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code}}
		v.started, v.ready, v.done = false, false, done
	}
}

func sidecar(v *containerView) {
	v.spec = &corev1.Container{Name: "side", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways)}
}

// TestPodStatus holds phase and conditions: initialized, containers ready, ready.
func TestPodStatus(t *testing.T) {
	backedOff := func(v *containerView) {
		v.state, v.last = waitingState("CrashLoopBackOff", ""), corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}}
		v.restarts = 1
	}
	tests := []struct {
		name                        string
		init, main                  []containerView
		over                        bool
		gates                       []corev1.PodReadinessGate
		wantPhase                   corev1.PodPhase
		wantInit, wantCR, wantReady bool
	}{
		{name: "new", main: []containerView{view()}, wantPhase: corev1.PodPending, wantInit: true},
		{name: "init runs", init: []containerView{view(runs(false))}, main: []containerView{view()}, wantPhase: corev1.PodPending},
		{name: "init failed for good", init: []containerView{view(ended(1, true))}, main: []containerView{view()}, wantPhase: corev1.PodFailed},
		{name: "init is tried again", init: []containerView{view(ended(1, false))}, main: []containerView{view()}, wantPhase: corev1.PodPending},
		{name: "running, not ready", init: []containerView{view(ended(0, true))}, main: []containerView{view(runs(false))}, wantPhase: corev1.PodRunning, wantInit: true},
		{name: "ready", main: []containerView{view(runs(true))}, wantPhase: corev1.PodRunning, wantInit: true, wantCR: true, wantReady: true},
		{name: "one of two ready", main: []containerView{view(runs(true)), view(runs(false))}, wantPhase: corev1.PodRunning, wantInit: true},
		{name: "one of two has no image", main: []containerView{view(runs(true)), view()}, wantPhase: corev1.PodPending, wantInit: true},
		{name: "crashed, to be started again", main: []containerView{view(ended(1, false))}, wantPhase: corev1.PodRunning, wantInit: true},
		{name: "backed off", main: []containerView{view(backedOff)}, wantPhase: corev1.PodRunning, wantInit: true},
		{name: "completed", main: []containerView{view(ended(0, true))}, wantPhase: corev1.PodSucceeded, wantInit: true},
		{name: "failed", main: []containerView{view(ended(0, true)), view(ended(2, true))}, wantPhase: corev1.PodFailed, wantInit: true},
		{name: "half completed", main: []containerView{view(ended(0, true)), view(runs(true))}, wantPhase: corev1.PodRunning, wantInit: true},
		{name: "told to end, ended well", main: []containerView{view(ended(0, true))}, over: true, wantPhase: corev1.PodSucceeded, wantInit: true},
		{name: "told to end, killed", main: []containerView{view(ended(137, true))}, over: true, wantPhase: corev1.PodFailed, wantInit: true},
		{name: "told to end before it ran", main: []containerView{view()}, over: true, wantPhase: corev1.PodFailed, wantInit: true},
		{
			name: "sidecar not ready", init: []containerView{view(sidecar, runs(false))}, main: []containerView{view(runs(true))},
			wantPhase: corev1.PodRunning, wantInit: true,
		},
		{
			name: "sidecar ready", init: []containerView{view(sidecar, runs(true))}, main: []containerView{view(runs(true))},
			wantPhase: corev1.PodRunning, wantInit: true, wantCR: true, wantReady: true,
		},
		{
			name: "readiness gate", main: []containerView{view(runs(true))}, gates: []corev1.PodReadinessGate{{ConditionType: "example.com/gate"}},
			wantPhase: corev1.PodRunning, wantInit: true, wantCR: true,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			pod := &corev1.Pod{Spec: corev1.PodSpec{ReadinessGates: test.gates}}
			status := podStatus(observation{pod: pod, hostIP: "192.0.2.1", ips: []string{"10.0.0.2"}, sandbox: true, init: test.init, main: test.main, over: test.over}, time.Now())
			got := *pod
			got.Status = status
			is := func(kind corev1.PodConditionType) bool { return conditionOf(&got, kind) == corev1.ConditionTrue }
			want := []any{test.wantPhase, test.wantInit, test.wantCR, test.wantReady}
			have := []any{status.Phase, is(corev1.PodInitialized), is(corev1.ContainersReady), is(corev1.PodReady)}
			if diff := cmp.Diff(want, have); diff != "" {
				t.Errorf("phase, initialized, containers ready, ready (-want +got):\n%s", diff)
			}
		})
	}
}

func TestConditionsOfOthersStay(t *testing.T) {
	before := metav1.NewTime(time.Unix(1000, 0))
	pod := &corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{
		{Type: "example.com/gate", Status: corev1.ConditionTrue, LastTransitionTime: before},
		{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: before},
		{Type: corev1.ContainersReady, Status: corev1.ConditionFalse, LastTransitionTime: before},
	}}}
	now := time.Unix(2000, 0)
	status := podStatus(observation{pod: pod, sandbox: true, main: []containerView{view(runs(true))}}, now)
	got := map[corev1.PodConditionType]int64{}
	for _, condition := range status.Conditions {
		got[condition.Type] = condition.LastTransitionTime.Unix()
	}
	want := map[corev1.PodConditionType]int64{
		"example.com/gate": 1000, corev1.PodReady: 1000, corev1.ContainersReady: 2000, corev1.PodInitialized: 2000,
		corev1.PodScheduled: 2000, corev1.PodReadyToStartContainers: 2000,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("transition times (-want +got):\n%s", diff)
	}
}
