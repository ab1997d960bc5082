// SPDX-License-Identifier: Apache-2.0

package natgateway

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// appliedStore remembers what came of the last apply of each gateway's workload, so that an admission plugin that changes what we
// wrote does not make us write it again and again.
type appliedStore struct {
	mu    sync.Mutex
	items map[string]string // gateway → hash of the description, and of the spec that came of it
}

func (s *appliedStore) is(gateway, mark string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return mark != "" && s.items[gateway] == mark
}

func (s *appliedStore) set(gateway, mark string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if mark == "" {
		delete(s.items, gateway)
		return
	}
	if s.items == nil {
		s.items = map[string]string{}
	}
	s.items[gateway] = mark
}

// problemStore remembers what was last reported of each gateway, so that it is reported once.
type problemStore struct {
	mu    sync.Mutex
	items map[string]string
}

func (s *problemStore) isNew(gateway, problem string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.items[gateway] == problem {
		return false
	}
	if s.items == nil {
		s.items = map[string]string{}
	}
	s.items[gateway] = problem
	return true
}

// is says that what was last reported of the gateway has this reason.
func (s *problemStore) is(gateway, reason string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.HasPrefix(s.items[gateway], reason)
}

func (s *problemStore) solved(gateway string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.items, gateway)
}

// report tells the user once why a gateway cannot be run.
func (c *Controller) report(ctx context.Context, gw *kubeovnv1.VpcNatGateway, reason string, err error) {
	if !c.problems.isNew(gw.Name, reason+err.Error()) {
		return
	}
	klog.FromContext(ctx).Info("Gateway cannot be run", "reason", reason, "why", err.Error())
	c.Recorder.Eventf(gw, nil, corev1.EventTypeWarning, reason, sharenat.EventAction(actionReconcile, err.Error()), "%s", err.Error())
}

// syncGateway keeps the workload of one gateway, its finalizer and its status.
func (c *Controller) syncGateway(ctx context.Context, name string) error {
	if name == "" {
		return nil
	}
	gw, err := c.gatewayLister.Get(name)
	if err != nil {
		if len(listIndex[*kubeovnv1.IptablesEIP](c.eipIndexer, byGateway, name)) == 0 {
			c.states.drop(name)
		} else {
			c.state(name)
		}
		c.Metrics.forget(name)
		c.applied.set(name, "")
		c.problems.solved(name)
		c.outages.end(name)
		c.notServed.solved(name)
		c.written.forget("gateway/" + name)
		c.wake(name)
		c.continueRollout(ctx, name)
		return ignoreNotFound(err)
	}
	if lag := c.written.behind("gateway/"+name, gw, c.Clock.Now()); lag > 0 {
		c.gatewayQueue.AddAfter(name, lag)
		return nil
	}
	c.state(name)
	if gw.DeletionTimestamp != nil || !c.config().Enabled {
		c.outages.end(name)
		return c.stopGateway(ctx, gw)
	}
	p, err := claimPatch(&gw.ObjectMeta, nil, nil, nil)
	if err != nil {
		return err
	}
	if p != nil {
		return c.patchGateway(ctx, gw, p)
	}
	return c.runGateway(ctx, gw)
}

// runGateway keeps the workload of a gateway that is to run, and its status.
func (c *Controller) runGateway(ctx context.Context, gw *kubeovnv1.VpcNatGateway) error {
	c.watchOutage(ctx, gw)
	c.sayNotServed(ctx, gw)
	r := c.rollout()
	invalid := c.problems.is(gw.Name, ReasonInvalidGateway)
	workload, err := c.workloadOf(gw, r.editionFor(gw.Name))
	if r.target.image == "" {
		err = fmt.Errorf("ConfigMap %s names no %s", imageConfigMap, imageKey)
	}
	if err != nil {
		// What is missing is watched: its coming is an event.
		c.report(ctx, gw, ReasonInvalidGateway, err)
		c.continueRollout(ctx, gw.Name)
		return nil
	}
	if err := c.deleteWorkloads(ctx, gw, workload); err != nil {
		return err
	}
	if err := c.applyWorkload(ctx, gw, workload); err != nil {
		c.report(ctx, gw, ReasonWorkloadFailed, err)
		return err
	}
	if err := c.replaceStuckPods(ctx, workload); err != nil {
		return err
	}
	c.problems.solved(gw.Name)
	if invalid {
		c.gatewayQueue.Add(gw.Name) // it may be its turn, now that it takes part again
	}
	c.continueRollout(ctx, gw.Name)
	return c.publishGateway(ctx, gw, c.gatewayStatus(gw, workload))
}

// sayNotServed tells once of what the spec asks for and this handler does nothing about.
func (c *Controller) sayNotServed(ctx context.Context, gw *kubeovnv1.VpcNatGateway) {
	fields := notServed(gw)
	if fields == "" {
		c.notServed.solved(gw.Name)
		return
	}
	if !c.notServed.isNew(gw.Name, fields) {
		return
	}
	message := fields + ": not served in this mode, only by Kube-OVN's own handler; the rest of the gateway is"
	klog.FromContext(ctx).Info("Gateway asks for what is not served", "fields", fields)
	c.Recorder.Eventf(gw, nil, corev1.EventTypeWarning, ReasonNotServed,
		sharenat.EventAction(actionReconcile, message), "%s", message)
}

// notServed names the fields of a gateway that ask for what this handler does not do.
func notServed(gw *kubeovnv1.VpcNatGateway) string {
	var fields []string
	if gw.Spec.BFD.Enabled {
		fields = append(fields, "spec.bfd")
	}
	if gw.Spec.BgpSpeaker.Enabled {
		fields = append(fields, "spec.bgpSpeaker")
	}
	return strings.Join(fields, ", ")
}

// workloadOf describes the workload of a gateway.
func (c *Controller) workloadOf(gw *kubeovnv1.VpcNatGateway, of edition) (*Workload, error) {
	in := workloadInput{gateway: gw, edition: of, namespace: c.Namespace}
	for _, name := range externalSubnetsOf(gw) {
		subnet, err := c.subnetLister.Get(name)
		if err != nil {
			return nil, fmt.Errorf("external subnet %s: %w", name, err)
		}
		in.externals = append(in.externals, subnet)
	}
	if _, err := c.subnetLister.Get(gw.Spec.Subnet); err != nil {
		return nil, fmt.Errorf("VPC subnet %q: %w", gw.Spec.Subnet, err)
	}
	return buildWorkload(in)
}

// applyWorkload writes the workload when it is not there, was made from another description, or was changed by hand.
func (c *Controller) applyWorkload(ctx context.Context, gw *kubeovnv1.VpcNatGateway, want *Workload) error {
	meta := want.meta()
	live, same, err := c.liveWorkload(want)
	if err != nil {
		return err
	}
	if live != nil {
		if live.meta().DeletionTimestamp != nil {
			return nil // its going is an event
		}
		if live.hash() == want.hash() && (same || c.applied.is(gw.Name, want.hash()+"/"+live.specHash())) {
			return nil
		}
	}
	written, err := c.serverSideApply(ctx, want)
	if err != nil {
		return fmt.Errorf("apply %s %s/%s: %w", want.kind(), meta.Namespace, meta.Name, err)
	}
	c.applied.set(gw.Name, want.hash()+"/"+written.specHash())
	klog.FromContext(ctx).Info("Applied gateway workload", "kind", want.kind(), "workload", klog.KRef(meta.Namespace, meta.Name))
	return nil
}

// liveWorkload gives the workload as it is, nil when it is not there, and whether all that is wanted of it is so.
func (c *Controller) liveWorkload(want *Workload) (live *Workload, same bool, err error) {
	meta := want.meta()
	if want.StatefulSet != nil {
		set, err := c.setLister.StatefulSets(meta.Namespace).Get(meta.Name)
		if err != nil {
			return nil, false, ignoreNotFound(err)
		}
		return &Workload{StatefulSet: set}, equality.Semantic.DeepDerivative(want.StatefulSet.Spec, set.Spec), nil
	}
	deployment, err := c.deployLister.Deployments(meta.Namespace).Get(meta.Name)
	if err != nil {
		return nil, false, ignoreNotFound(err)
	}
	return &Workload{Deployment: deployment}, equality.Semantic.DeepDerivative(want.Deployment.Spec, deployment.Spec), nil
}

func (c *Controller) serverSideApply(ctx context.Context, w *Workload) (*Workload, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(w.object())
	if err != nil {
		return nil, err
	}
	delete(content, "status")
	data, err := json.Marshal(content)
	if err != nil {
		return nil, err
	}
	opts := metav1.PatchOptions{FieldManager: fieldManager, Force: ptr.To(true)}
	meta := w.meta()
	if w.StatefulSet != nil {
		set, err := c.KubeClient.AppsV1().StatefulSets(meta.Namespace).Patch(ctx, meta.Name, types.ApplyPatchType, data, opts)
		return &Workload{StatefulSet: set}, err
	}
	deployment, err := c.KubeClient.AppsV1().Deployments(meta.Namespace).Patch(ctx, meta.Name, types.ApplyPatchType, data, opts)
	return &Workload{Deployment: deployment}, err
}

// deleteWorkloads deletes a gateway's workloads except the one to keep: those of another kind, name or namespace.
func (c *Controller) deleteWorkloads(ctx context.Context, gw *kubeovnv1.VpcNatGateway, keep *Workload) error {
	for _, w := range c.workloads(gw) {
		meta := w.meta()
		if keep != nil && keep.kind() == w.kind() && keep.meta().Name == meta.Name && keep.meta().Namespace == meta.Namespace || meta.DeletionTimestamp != nil {
			continue
		}
		opts := metav1.DeleteOptions{
			PropagationPolicy: ptr.To(metav1.DeletePropagationBackground),
			Preconditions:     &metav1.Preconditions{UID: &meta.UID},
		}
		var err error
		if w.StatefulSet != nil {
			err = c.KubeClient.AppsV1().StatefulSets(meta.Namespace).Delete(ctx, meta.Name, opts)
		} else {
			err = c.KubeClient.AppsV1().Deployments(meta.Namespace).Delete(ctx, meta.Name, opts)
		}
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("delete %s %s/%s: %w", w.kind(), meta.Namespace, meta.Name, err)
		}
		klog.FromContext(ctx).Info("Deleted gateway workload", "kind", w.kind(), "workload", klog.KRef(meta.Namespace, meta.Name))
	}
	return nil
}

// workloads lists what belongs to a gateway: what it owns, and what an older controller made for it, which names it in the pods' annotation.
func (c *Controller) workloads(gw *kubeovnv1.VpcNatGateway) []*Workload {
	var out []*Workload
	c.eachWorkload(func(w *Workload) {
		if w.belongsTo(gw) {
			out = append(out, w)
		}
	})
	return out
}

// eachWorkload visits the workloads of all gateways.
func (c *Controller) eachWorkload(visit func(*Workload)) {
	selector := labels.SelectorFromSet(labels.Set{gatewayPodLabel: "true"})
	sets, _ := c.setLister.List(selector)
	for _, set := range sets {
		visit(&Workload{StatefulSet: set})
	}
	deployments, _ := c.deployLister.List(selector)
	for _, deployment := range deployments {
		visit(&Workload{Deployment: deployment})
	}
}

// stopGateway deletes the workload of a gateway that is being deleted or turned off, and takes the finalizer off once it is gone.
func (c *Controller) stopGateway(ctx context.Context, gw *kubeovnv1.VpcNatGateway) error {
	if err := c.deleteWorkloads(ctx, gw, nil); err != nil {
		return err
	}
	c.wake(gw.Name)
	if gw.DeletionTimestamp == nil {
		status := gw.Status
		status.Ready = false
		return c.publishGateway(ctx, gw, status)
	}
	if len(c.workloads(gw)) > 0 {
		return nil // their going is an event
	}
	p, err := releasePatch(&gw.ObjectMeta)
	if err != nil || p == nil {
		return err
	}
	return c.patchGateway(ctx, gw, p)
}

// gatewayStatus says how a gateway is run. It is ready while as many pods as wanted run and have been filled.
func (c *Controller) gatewayStatus(gw *kubeovnv1.VpcNatGateway, w *Workload) kubeovnv1.VpcNatGatewayStatus {
	status := gw.Status
	var addresses, nodes []string
	filled, presumed := int32(0), int32(0)
	for _, pod := range c.podsOf(gw.Name) {
		if pod.DeletionTimestamp != nil || pod.Namespace != w.meta().Namespace {
			continue
		}
		addresses = append(addresses, addrStrings(ipv4s(pod.Annotations[addressAnnotation]))...)
		if pod.Spec.NodeName != "" {
			nodes = append(nodes, pod.Spec.NodeName)
		}
		switch p := c.programs.get(keyOf(pod)); {
		case !counts(pod):
		case p.isFilled(runningContainer(pod)):
			filled++
		case gw.Status.Ready && pod.Annotations[sharenat.GatewayInitAnnotation] == "true" && p.isPresumedFilled():
			presumed++
		}
	}
	if len(addresses) == 0 && gw.Spec.LanIP != "" && replicasOf(gw) == 1 {
		addresses = []string{gw.Spec.LanIP}
	}
	slices.Sort(addresses)
	slices.Sort(nodes)
	status.Ready = filled+presumed >= replicasOf(gw)
	status.LanIP = strings.Join(slices.Compact(addresses), ",")
	status.Replicas = replicasOf(gw)
	status.QoSPolicy = gw.Spec.QoSPolicy
	status.ExternalSubnets = externalSubnetsOf(gw)
	status.InternalSubnets, status.InternalCIDRs = gw.Spec.InternalSubnets, gw.Spec.InternalCIDRs
	status.Selector, status.Tolerations, status.Affinity = gw.Spec.Selector, gw.Spec.Tolerations, gw.Spec.Affinity
	status.Workload = kubeovnv1.VpcNatWorkload{
		APIVersion: appsv1.SchemeGroupVersion.String(), Kind: w.kind(), Name: w.meta().Name, Nodes: slices.Compact(nodes),
	}
	return status
}

func (p *program) isFilled(container string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.container == container && p.filled
}

// isPresumedFilled says that a pod that another run of the handler has filled was not looked at yet.
func (p *program) isPresumedFilled() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.containers < 2 && !p.filled && p.failure == ""
}

func (c *Controller) publishGateway(ctx context.Context, gw *kubeovnv1.VpcNatGateway, status kubeovnv1.VpcNatGatewayStatus) error {
	p, err := statusPatch(gw.Status, status)
	if err != nil || p == nil {
		return err
	}
	return c.patchGateway(ctx, gw, p, "status")
}

func (c *Controller) patchGateway(ctx context.Context, gw *kubeovnv1.VpcNatGateway, p *patch, subresources ...string) error {
	c.written.note("gateway/"+gw.Name, gw, c.Clock.Now())
	_, err := c.KubeOvnClient.KubeovnV1().VpcNatGateways().Patch(ctx, gw.Name, p.kind, p.data,
		metav1.PatchOptions{FieldManager: fieldManager}, subresources...)
	if err != nil {
		c.written.forget("gateway/" + gw.Name)
		return ignoreNotFound(fmt.Errorf("patch gateway %s: %w", gw.Name, err))
	}
	return nil
}
