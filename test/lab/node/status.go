// SPDX-License-Identifier: Apache-2.0

package node

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// observation is what the node knows of a Pod at one moment.
type observation struct {
	pod        *corev1.Pod
	hostIP     string
	ips        []string
	sandbox    bool
	init, main []containerView
	// failed, when set, says why the Pod as a whole has failed.
	failed *podFailure
	// over says that the Pod was told to end and all its containers have.
	over    bool
	started time.Time
}

type podFailure struct{ Reason, Message string }

// containerView is a container's state.
type containerView struct {
	spec     *corev1.Container
	state    corev1.ContainerState
	last     corev1.ContainerState
	restarts int32
	id       string
	started  bool
	ready    bool
	// done says that it will not be started again.
	done bool
}

func (v containerView) sidecar() bool {
	return v.spec.RestartPolicy != nil && *v.spec.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

func (v containerView) succeeded() bool {
	return v.state.Terminated != nil && v.state.Terminated.ExitCode == 0
}

// podStatus says what the Pod's status is. Pure, but for now, which dates changed conditions.
func podStatus(o observation, now time.Time) corev1.PodStatus {
	status := *o.pod.Status.DeepCopy()
	status.HostIP, status.HostIPs = o.hostIP, []corev1.HostIP{{IP: o.hostIP}}
	status.PodIP, status.PodIPs = "", nil
	for _, ip := range o.ips {
		status.PodIPs = append(status.PodIPs, corev1.PodIP{IP: ip})
	}
	if len(o.ips) > 0 {
		status.PodIP = o.ips[0]
	}
	if status.StartTime == nil {
		status.StartTime = &metav1.Time{Time: o.started.Truncate(time.Second)}
	}
	status.Phase = podPhase(o)
	status.Reason, status.Message = "", ""
	if o.failed != nil {
		status.Reason, status.Message = o.failed.Reason, o.failed.Message
	}
	status.InitContainerStatuses = containerStatuses(o.init)
	status.ContainerStatuses = containerStatuses(o.main)
	finished := status.Phase == corev1.PodSucceeded || status.Phase == corev1.PodFailed

	set := func(kind corev1.PodConditionType, problem, message string) {
		setCondition(&status, kind, problem, message, now, o.pod.Generation)
	}
	set(corev1.PodScheduled, "", "")
	sandboxProblem := ""
	if !o.sandbox {
		sandboxProblem = "SandboxNotReady"
	}
	set(corev1.PodReadyToStartContainers, sandboxProblem, "")
	initProblem, initMessage := unfinishedInit(o.init, status.Phase)
	set(corev1.PodInitialized, initProblem, initMessage)
	problem, message := unready(o, finished)
	set(corev1.ContainersReady, problem, message)
	if problem == "" {
		problem, message = unmetGates(o.pod)
	}
	set(corev1.PodReady, problem, message)
	return status
}

func podPhase(o observation) corev1.PodPhase {
	if o.failed != nil {
		return corev1.PodFailed
	}
	stopped, succeeded, waiting := 0, 0, 0
	for _, c := range o.main {
		switch {
		case c.state.Terminated != nil && (c.done || o.over):
			stopped++
			if c.succeeded() {
				succeeded++
			}
		case c.state.Running == nil && c.restarts == 0 && c.last.Terminated == nil && c.state.Terminated == nil:
			waiting++
		}
	}
	for _, c := range o.init {
		if c.done && !c.sidecar() && !c.succeeded() {
			return corev1.PodFailed
		}
	}
	switch {
	case stopped == len(o.main) && succeeded == stopped, o.over && waiting == 0 && succeeded == len(o.main):
		return corev1.PodSucceeded
	case stopped == len(o.main), o.over:
		return corev1.PodFailed
	case waiting > 0:
		return corev1.PodPending
	default:
		return corev1.PodRunning
	}
}

func containerStatuses(views []containerView) []corev1.ContainerStatus {
	var statuses []corev1.ContainerStatus
	for _, v := range views {
		started := v.started
		statuses = append(statuses, corev1.ContainerStatus{
			Name: v.spec.Name, State: v.state, LastTerminationState: v.last, Ready: v.ready, RestartCount: v.restarts,
			Image: v.spec.Image, ImageID: imageID(v), ContainerID: v.id, Started: &started,
		})
	}
	return statuses
}

func imageID(v containerView) string {
	if v.id == "" {
		return ""
	}
	return "lab://" + v.spec.Image
}

func unfinishedInit(views []containerView, phase corev1.PodPhase) (problem, message string) {
	var names []string
	for _, v := range views {
		if v.sidecar() {
			if !v.started {
				names = append(names, v.spec.Name)
			}
		} else if !v.succeeded() {
			names = append(names, v.spec.Name)
		}
	}
	if len(names) == 0 || phase == corev1.PodSucceeded {
		return "", ""
	}
	return "ContainersNotInitialized", "containers with incomplete status: [" + strings.Join(names, " ") + "]"
}

func unready(o observation, finished bool) (problem, message string) {
	switch {
	case finished && podPhase(o) == corev1.PodSucceeded:
		return "PodCompleted", ""
	case finished:
		return "PodFailed", ""
	}
	var names []string
	for _, v := range slices.Concat(o.init, o.main) {
		isInit := slices.ContainsFunc(o.init, func(i containerView) bool { return i.spec == v.spec })
		if !v.ready && (!isInit || v.sidecar()) {
			names = append(names, v.spec.Name)
		}
	}
	if len(names) == 0 {
		return "", ""
	}
	return "ContainersNotReady", "containers with unready status: [" + strings.Join(names, " ") + "]"
}

func unmetGates(pod *corev1.Pod) (problem, message string) {
	var unmet []string
	for _, gate := range pod.Spec.ReadinessGates {
		met := slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == gate.ConditionType && c.Status == corev1.ConditionTrue
		})
		if !met {
			unmet = append(unmet, string(gate.ConditionType))
		}
	}
	if len(unmet) == 0 {
		return "", ""
	}
	return "ReadinessGatesNotReady", "corresponding conditions of pod readiness gates do not exist or are not True: " + strings.Join(unmet, ", ")
}

// setCondition sets one of the node's own conditions: true without a problem. Those of others stay.
func setCondition(status *corev1.PodStatus, kind corev1.PodConditionType, problem, message string, now time.Time, generation int64) {
	condition := corev1.PodCondition{
		Type: kind, Status: corev1.ConditionTrue, Reason: problem, Message: message,
		LastTransitionTime: metav1.Time{Time: now.Truncate(time.Second)}, ObservedGeneration: generation,
	}
	if problem != "" {
		condition.Status = corev1.ConditionFalse
	}
	at := slices.IndexFunc(status.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind })
	if at < 0 {
		status.Conditions = append(status.Conditions, condition)
		return
	}
	if status.Conditions[at].Status == condition.Status {
		condition.LastTransitionTime = status.Conditions[at].LastTransitionTime
	}
	if kind == corev1.PodScheduled {
		return // the scheduler's word
	}
	status.Conditions[at] = condition
}
