// SPDX-License-Identifier: Apache-2.0

package natgateway

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// edition is what ConfigMap ovn-vpc-nat-config decides about the workloads of all gateways. A change of it replaces
// the pods of each, so the gateways take it one after the other.
type edition struct {
	image, namePrefix string
}

// rolloutMember is a gateway that has a workload, as the rollout of an edition sees it.
type rolloutMember struct {
	name string
	has  edition
	// filled says that all pods are of the workload as it stands, and hold what they should.
	filled bool
	// invalid says that no workload can be made for it as things are, whatever the edition.
	invalid bool
}

// rollout is where an edition has got to.
type rollout struct {
	target edition
	// has is the edition of each gateway that is in the rollout.
	has map[string]edition
	// held are the gateways that keep the edition that they have.
	held []string
	// filling are those that have the target and are not filled yet: the others wait for them.
	filling []string
	// next is the gateway that may take the target; empty when none may.
	next string
}

// planRollout decides who is next. It looks at nothing but what is there, so a restart in the middle goes on the same
// way. Gateways that do not run go first: they have nothing to lose, and one of them may be where the last edition
// failed.
func planRollout(target edition, members []rolloutMember) rollout {
	r := rollout{target: target, has: make(map[string]edition, len(members))}
	order := slices.SortedFunc(slices.Values(members), func(a, b rolloutMember) int {
		switch {
		case a.filled == b.filled:
			return cmp.Compare(a.name, b.name)
		case b.filled:
			return -1
		}
		return 1
	})
	for _, m := range order {
		r.has[m.name] = m.has
		switch {
		case m.invalid:
		case m.has != target:
			r.held = append(r.held, m.name)
		case !m.filled:
			r.filling = append(r.filling, m.name)
		}
	}
	if len(r.held) > 0 && len(r.filling) == 0 {
		r.next, r.held = r.held[0], r.held[1:]
	}
	return r
}

// editionFor gives the edition of a gateway's workload. One that has none gets the target at once, any other one keeps
// what it has until it is its turn.
func (r *rollout) editionFor(gateway string) edition {
	if has, ok := r.has[gateway]; ok && gateway != r.next {
		return has
	}
	return r.target
}

// rollout looks where the rollout of the ConfigMap's edition has got to. A gateway of which no workload can be made is
// passed over: it would keep the others waiting, and has events of its own.
func (c *Controller) rollout() rollout {
	config := c.config()
	target := edition{config.Image, config.NamePrefix}
	live := map[string][]*Workload{}
	c.eachWorkload(func(w *Workload) {
		if w.meta().DeletionTimestamp == nil {
			live[w.gateway()] = append(live[w.gateway()], w)
		}
	})
	gateways, err := c.gatewayLister.List(labels.Everything())
	if err != nil {
		return rollout{target: target} // a lister's List has no error
	}
	var members []rolloutMember
	for _, gw := range gateways {
		if gw.DeletionTimestamp != nil {
			continue
		}
		own := slices.DeleteFunc(live[gw.Name], func(w *Workload) bool { return !w.belongsTo(gw) })
		if len(own) == 0 {
			continue
		}
		// Of several, one is on its way out.
		w := slices.MaxFunc(own, func(a, b *Workload) int {
			return a.meta().CreationTimestamp.Compare(b.meta().CreationTimestamp.Time)
		})
		members = append(members, rolloutMember{
			name: gw.Name, has: w.edition(), filled: c.isFilledAnew(gw, w),
			invalid: c.problems.is(gw.Name, ReasonInvalidGateway),
		})
	}
	return planRollout(target, members)
}

// isFilledAnew says that a gateway's pods are of its workload as it stands, as many as wanted, and hold what they
// should.
func (c *Controller) isFilledAnew(gw *kubeovnv1.VpcNatGateway, w *Workload) bool {
	if !w.rolledOut(replicasOf(gw)) {
		return false
	}
	filled := int32(0)
	for _, pod := range c.podsOf(gw.Name) {
		if pod.DeletionTimestamp == nil && w.hasRevision(pod) && counts(pod) &&
			c.programs.get(keyOf(pod)).isFilled(runningContainer(pod)) {
			filled++
		}
	}
	return filled >= replicasOf(gw)
}

// continueRollout hands the turn on, and tells once where the rollout has stopped.
func (c *Controller) continueRollout(ctx context.Context, gateway string) {
	r := c.rollout()
	if r.next != "" && r.next != gateway {
		c.gatewayQueue.Add(r.next)
	}
	if !slices.Contains(r.filling, gateway) {
		c.stopped.solved(gateway)
		return
	}
	gw, err := c.gatewayLister.Get(gateway)
	why := c.obstacle(gateway)
	if err != nil || why == "" || len(r.held) == 0 ||
		!c.stopped.isNew(gateway, r.target.image+" "+r.target.namePrefix) {
		return
	}
	message := fmt.Sprintf("the rollout of image %s stops here, %d gateways keep the former one: %s",
		r.target.image, len(r.held), why)
	klog.FromContext(ctx).Info("Rollout stops", "image", r.target.image, "held", len(r.held), "why", why)
	c.Recorder.Eventf(gw, nil, corev1.EventTypeWarning, ReasonRolloutStopped,
		sharenat.EventAction(actionReconcile, message), "%s", message)
}

// replaceStuckPods deletes what keeps a StatefulSet from going on: a pod of a former revision that is not ready. Its
// own controller waits for it to become so before it replaces it, and one with a wrong image never does.
func (c *Controller) replaceStuckPods(ctx context.Context, w *Workload) error {
	live, _, err := c.liveWorkload(w)
	if err != nil || live == nil || live.StatefulSet == nil || !live.rolledOut(0) {
		return err
	}
	for _, pod := range c.podsOf(live.gateway()) {
		if !metav1.IsControlledBy(pod, live.StatefulSet) || live.hasRevision(pod) ||
			pod.DeletionTimestamp != nil || isReady(pod) {
			continue
		}
		err := c.KubeClient.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
			// The version too: it may have become ready.
			Preconditions: &metav1.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion},
		})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("delete pod %s of a former revision: %w", keyOf(pod), err)
		}
		klog.FromContext(ctx).Info("Deleted gateway pod of a former revision that is not ready", "pod", klog.KObj(pod))
	}
	return nil
}

func isReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// obstacle says what keeps a gateway's pods from running or from being filled; empty where nothing but time is known
// to.
func (c *Controller) obstacle(gateway string) string {
	pods := c.podsOf(gateway)
	slices.SortFunc(pods, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	for _, pod := range pods {
		why := obstacleOf(pod)
		if why == "" {
			c.programs.get(keyOf(pod)).update(func(p *program) { why = p.failure })
		}
		if why != "" {
			return "pod " + keyOf(pod).String() + ": " + why
		}
	}
	return ""
}

// obstacleOf says why a pod does not run, in the words of kubelet and scheduler.
func obstacleOf(pod *corev1.Pod) string {
	for i := range pod.Status.ContainerStatuses {
		w := pod.Status.ContainerStatuses[i].State.Waiting
		if w != nil && w.Reason != "" && w.Reason != "ContainerCreating" && w.Reason != "PodInitializing" {
			return strings.TrimSuffix(w.Reason+": "+w.Message, ": ")
		}
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse {
			return strings.TrimSuffix(condition.Reason+": "+condition.Message, ": ")
		}
	}
	return ""
}

// Values of the label "state" of where a gateway stands in a rollout.
const (
	rolloutHeld    = "held"
	rolloutFilling = "filling"
	rolloutFailed  = "failed"
)

// rolloutStates gives each gateway's place in the rollout; one that has nothing to do with it has none.
func (c *Controller) rolloutStates() map[string]string {
	r := c.rollout()
	states := map[string]string{}
	if r.next == "" && len(r.held) == 0 {
		return states
	}
	for _, name := range r.held {
		states[name] = rolloutHeld
	}
	if r.next != "" {
		states[r.next] = rolloutHeld
	}
	for _, name := range r.filling {
		states[name] = rolloutFilling
		if c.obstacle(name) != "" {
			states[name] = rolloutFailed
		}
	}
	return states
}

// gateway names the gateway of a workload: its owner, or, where an older controller made it, the one in the
// annotation.
func (w *Workload) gateway() string {
	if owner := metav1.GetControllerOf(w.meta()); owner != nil {
		return ownerGateway(w.meta())
	}
	return w.template().Annotations[sharenat.GatewayPodAnnotation]
}

func (w *Workload) belongsTo(gw *kubeovnv1.VpcNatGateway) bool {
	if owner := metav1.GetControllerOf(w.meta()); owner != nil {
		return owner.UID == gw.UID
	}
	return w.gateway() == gw.Name
}

// edition tells from which edition a workload was made. The image in the template may be another's, who rewrites
// images.
func (w *Workload) edition() edition {
	e := edition{w.meta().Annotations[workloadImageAnnotation], strings.TrimSuffix(w.meta().Name, w.gateway())}
	for _, container := range w.template().Spec.Containers {
		if e.image == "" && container.Name == containerName {
			e.image = container.Image
		}
	}
	return e
}

// rolledOut says that the workload's own controller has seen it as it stands and, of a Deployment, that no other pods
// are left.
func (w *Workload) rolledOut(replicas int32) bool {
	if w.StatefulSet != nil {
		return w.StatefulSet.Status.ObservedGeneration >= w.StatefulSet.Generation
	}
	s := &w.Deployment.Status
	return s.ObservedGeneration >= w.Deployment.Generation && s.UpdatedReplicas >= replicas &&
		s.Replicas == s.UpdatedReplicas && s.AvailableReplicas >= replicas
}

// hasRevision says that a pod is of the workload as its controller has last seen it; of a Deployment that is told by
// its status alone.
func (w *Workload) hasRevision(pod *corev1.Pod) bool {
	return w.StatefulSet == nil || pod.Labels[revisionLabel] == w.StatefulSet.Status.UpdateRevision
}
