// SPDX-License-Identifier: Apache-2.0

package natgateway

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Anybody who may create Pods somewhere can write a gateway's annotation on one. It must neither be told what the gateway holds nor keep
// its rules from being ready.
func TestForeignPodIsNoGatewayPod(t *testing.T) {
	f := running(t)
	forged := gatewayPod(7, "c")
	forged.Namespace, forged.Name = "tenant", "forged"
	f.script.with(func() {
		f.script.intercept = func(ctx context.Context, call Call) error {
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
