// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/klog/v2"

	"github.com/kubeovn/kube-ovn/test/lab/fabric"
)

// worker runs one Pod, from the moment it is bound to the node until it is gone from the API server.
type worker struct {
	node    *Node
	key     string
	uid     types.UID
	dir     string
	created time.Time
	// updates and dirty have room for one: something changed in the API server, in the Pod's state here.
	updates, dirty chan struct{}
	terminating    chan struct{}
	begin          sync.Once

	mu         sync.Mutex
	pod        *corev1.Pod // as last seen
	sandbox    *sandbox
	volumes    map[string]string
	ips        []string
	init, main []*container
	failed     *podFailure
	over       bool
	gone       bool      // from the API server
	deadline   time.Time // of a Pod that is being deleted
	written    *corev1.PodStatus
}

func newWorker(n *Node, pod *corev1.Pod) *worker {
	w := &worker{
		node: n, key: pod.Namespace + "/" + pod.Name, uid: pod.UID, pod: pod, created: time.Now(),
		dir:     filepath.Join(n.scratch, "pods", string(pod.UID)),
		updates: make(chan struct{}, 1), dirty: make(chan struct{}, 1), terminating: make(chan struct{}),
	}
	waiting := waitingState("ContainerCreating", "")
	if len(pod.Spec.InitContainers) > 0 {
		waiting.Waiting.Reason = "PodInitializing"
	}
	add := func(list *[]*container, specs []corev1.Container) {
		for i := range specs {
			*list = append(*list, &container{containerView: containerView{spec: &specs[i], state: waiting}})
		}
	}
	add(&w.init, pod.Spec.InitContainers)
	add(&w.main, pod.Spec.Containers)
	return w
}

// update takes a newer version of the Pod object.
func (w *worker) update(pod *corev1.Pod) {
	w.mu.Lock()
	w.pod = pod
	deleted := pod.DeletionTimestamp != nil
	if deleted {
		deadline := time.Now()
		if pod.DeletionGracePeriodSeconds != nil {
			deadline = deadline.Add(seconds(*pod.DeletionGracePeriodSeconds))
		}
		w.hurry(deadline)
	}
	w.mu.Unlock()
	if deleted {
		w.begin.Do(func() { close(w.terminating) })
	}
	poke(w.updates)
	if len(pod.Spec.ReadinessGates) > 0 {
		w.touch() // Somebody may have opened or closed one.
	}
}

// vanish says that the Pod object is gone: whatever still runs ends now.
func (w *worker) vanish() {
	w.mu.Lock()
	w.gone = true
	w.hurry(time.Now())
	w.mu.Unlock()
	w.begin.Do(func() { close(w.terminating) })
}

// hurry sets the time by which the Pod's containers must have ended; an earlier one than before makes the kill come
// earlier too. The lock is held.
func (w *worker) hurry(deadline time.Time) {
	if !w.deadline.IsZero() && !deadline.Before(w.deadline.Add(-time.Second/2)) {
		return
	}
	again := !w.deadline.IsZero()
	w.deadline = deadline
	if again {
		time.AfterFunc(time.Until(deadline), func() { w.killAll(unix.SIGKILL) })
	}
}

func (w *worker) killAll(signal unix.Signal) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range slices.Concat(w.init, w.main) {
		if c.process != nil {
			c.process.kill(signal)
		}
	}
}

func (w *worker) remainingGrace() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return max(time.Until(w.deadline), 0)
}

// facts gives what the containers are told. The lock is held.
func (w *worker) facts() podFacts {
	return podFacts{
		pod: w.pod, ips: w.ips, hostIP: w.node.config.NodeIP.String(), apiHost: w.node.apiHost, apiPort: w.node.apiPort,
	}
}

func poke(channel chan struct{}) {
	select {
	case channel <- struct{}{}:
	default:
	}
}

// touch says that the Pod's state has changed.
func (w *worker) touch() { poke(w.dirty) }

func (w *worker) event(kind, reason, message string) {
	w.mu.Lock()
	pod := w.pod
	w.mu.Unlock()
	w.node.recorder.Event(pod, kind, reason, message)
}

// run lives as long as the Pod does.
func (w *worker) run(ctx context.Context) {
	logger := klog.FromContext(ctx).WithValues("pod", w.key)
	ctx = klog.NewContext(ctx, logger)
	writing, stopWriting := context.WithCancel(ctx)
	written := make(chan struct{})
	go func() {
		defer close(written)
		w.writeStatuses(writing)
	}()
	for w.runSandbox(ctx) {
	}
	stopWriting()
	<-written
	if ctx.Err() == nil {
		w.conclude(ctx)
	}
	w.node.fabric.Release(string(w.uid))
	if err := os.RemoveAll(w.dir); err != nil {
		logger.Error(err, "Remove the pod's directory")
	}
}

// runSandbox brings the Pod up and runs it. It tells whether it must be brought up again, since its sandbox died.
func (w *worker) runSandbox(ctx context.Context) bool {
	logger := klog.FromContext(ctx)
	select {
	case <-w.terminating:
		w.markOver()
		return false
	default:
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	box := w.bringUp(ctx)
	if box == nil {
		w.markOver()
		return false
	}
	w.touch()
	var running sync.WaitGroup
	running.Go(func() { w.followNICs(ctx, box) })
	finished := make(chan struct{})
	running.Go(func() {
		if w.runContainers(ctx) {
			close(finished)
		}
	})
	again, done := false, false
	select {
	case <-ctx.Done():
	case <-box.pause.done:
		w.event(corev1.EventTypeNormal, "SandboxChanged", "Pod sandbox changed, it will be killed and re-created.")
		again = true
	case <-w.terminating:
		w.stopAll(ctx)
		w.markOver()
	case <-finished:
		done = true
	}
	cancel()
	running.Wait()
	w.mu.Lock()
	w.sandbox = nil
	w.mu.Unlock()
	if err := errors.Join(w.node.fabric.Detach(string(w.uid)), box.remove()); err != nil {
		logger.Error(err, "Remove sandbox")
	}
	w.touch()
	if done {
		w.node.fabric.Release(string(w.uid))
	}
	if !again {
		select {
		case <-w.node.ctx.Done():
		case <-w.terminating:
		}
		w.markOver()
	}
	return again
}

func (w *worker) markOver() {
	w.mu.Lock()
	w.over = true
	w.mu.Unlock()
}

// bringUp makes the sandbox, its NICs and the volumes. It tries until it is done; nil means that the Pod is to end.
func (w *worker) bringUp(ctx context.Context) *sandbox {
	for {
		changed := w.node.fabric.Changed()
		box, err := w.tryBringUp(ctx)
		if err == nil {
			return box
		}
		if ctx.Err() != nil {
			return nil
		}
		klog.FromContext(ctx).V(2).Info("Pod cannot start yet", "err", err)
		w.event(corev1.EventTypeWarning, "FailedCreatePodSandBox", err.Error())
		timer := time.NewTimer(time.Second)
		select {
		case <-ctx.Done():
			return nil
		case <-w.terminating:
			return nil
		case <-w.updates:
		case <-changed:
		case <-timer.C:
		}
	}
}

func (w *worker) tryBringUp(ctx context.Context) (*sandbox, error) {
	nics, ips, err := w.resolveNICs(ctx, true)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	pod := w.pod
	w.ips = ips
	facts := w.facts()
	w.mu.Unlock()
	if err := w.writeHostFiles(pod, ips); err != nil {
		return nil, err
	}
	volumes, err := prepareVolumes(ctx, w.node.objects, facts, filepath.Join(w.dir, "volumes"))
	if err != nil {
		return nil, err
	}
	box, err := newSandbox(w.node.fabric, pod)
	if err != nil {
		return nil, err
	}
	for _, nic := range nics {
		if err := w.node.fabric.Attach(string(w.uid), *box.network, nic); err != nil {
			return nil, errors.Join(err, w.node.fabric.Detach(string(w.uid)), box.remove())
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sandbox, w.volumes = box, volumes
	for _, c := range slices.Concat(w.init, w.main) {
		c.done = false
	}
	return box, nil
}

// resolveNICs decides the Pod's NICs, annotates the Pod, and gives those that can be attached. With needPrimary it is an
// error when the primary one cannot be yet.
func (w *worker) resolveNICs(ctx context.Context, needPrimary bool) (nics []fabric.NIC, ips []string, err error) {
	w.mu.Lock()
	pod := w.pod
	w.mu.Unlock()
	if pod.Spec.HostNetwork {
		return nil, []string{w.node.config.NodeIP.String()}, nil
	}
	resolution, err := w.node.fabric.Resolve(pod)
	if err != nil {
		return nil, nil, err
	}
	for _, nic := range resolution.NICs {
		if nic.Network == "" {
			for _, addr := range nic.Addrs {
				ips = append(ips, addr.Addr().String())
			}
		}
	}
	if needPrimary && len(ips) == 0 {
		return nil, nil, fmt.Errorf("no primary NIC yet: %v", resolution.Waiting)
	}
	annotations, err := fabric.Annotations(resolution.NICs)
	if err != nil {
		return nil, nil, err
	}
	for key, value := range annotations {
		if pod.Annotations[key] == value {
			delete(annotations, key)
		}
	}
	if len(annotations) > 0 {
		err = w.patch(ctx, map[string]any{"metadata": map[string]any{"uid": w.uid, "annotations": annotations}})
	}
	return resolution.NICs, ips, err
}

// followNICs attaches NICs that could not be attached when the Pod started.
func (w *worker) followNICs(ctx context.Context, box *sandbox) {
	if box.network == nil {
		return
	}
	for {
		changed := w.node.fabric.Changed()
		w.mu.Lock()
		wanted, err := fabric.Attachments(w.pod)
		w.mu.Unlock()
		attached := w.node.fabric.Attached(string(w.uid))
		if err == nil && len(attached) >= len(wanted) {
			changed = nil // all there
		}
		select {
		case <-ctx.Done():
			return
		case <-w.updates:
		case <-changed:
		}
		if len(attached) >= len(wanted) {
			continue
		}
		nics, _, err := w.resolveNICs(ctx, false)
		if err != nil {
			klog.FromContext(ctx).Error(err, "Resolve NICs")
			continue
		}
		for _, nic := range nics {
			if _, there := attached[nic.Provider]; there {
				continue
			}
			if err := w.node.fabric.Attach(string(w.uid), *box.network, nic); err != nil {
				klog.FromContext(ctx).Error(err, "Attach NIC", "provider", nic.Provider)
			}
		}
	}
}

func (w *worker) writeHostFiles(pod *corev1.Pod, ips []string) error {
	var hosts strings.Builder
	hosts.WriteString("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n")
	for _, ip := range ips {
		fmt.Fprintf(&hosts, "%s\t%s\n", ip, hostname(pod))
	}
	for _, alias := range pod.Spec.HostAliases {
		fmt.Fprintf(&hosts, "%s\t%s\n", alias.IP, strings.Join(alias.Hostnames, "\t"))
	}
	return writeFiles(w.dir, map[string][]byte{"hosts": []byte(hosts.String()), "hostname": []byte(hostname(pod) + "\n")})
}

// runContainers runs the init containers, then the main ones, until all are done. It tells whether they are: else the
// context has ended.
func (w *worker) runContainers(ctx context.Context) bool {
	var running sync.WaitGroup
	defer running.Wait()
	for _, c := range w.init {
		if c.sidecar() {
			running.Go(func() { w.supervise(ctx, c, false) })
			if !w.waitStarted(ctx, c) {
				return false
			}
			continue
		}
		w.supervise(ctx, c, true)
		w.mu.Lock()
		ok, done := c.succeeded(), c.done
		w.mu.Unlock()
		if !ok {
			return ctx.Err() == nil && done
		}
	}
	w.mu.Lock()
	for _, c := range w.main {
		if c.starts == 0 {
			c.state = waitingState("ContainerCreating", "")
		}
	}
	w.mu.Unlock()
	var main sync.WaitGroup
	for _, c := range w.main {
		main.Go(func() { w.supervise(ctx, c, false) })
	}
	main.Wait()
	return ctx.Err() == nil
}

func (w *worker) waitStarted(ctx context.Context, c *container) bool {
	for {
		w.mu.Lock()
		started := c.started
		w.mu.Unlock()
		if started {
			return true
		}
		if !wait(ctx, 20*time.Millisecond) {
			return false
		}
	}
}

func (w *worker) observe() observation {
	w.mu.Lock()
	defer w.mu.Unlock()
	o := observation{
		pod: w.pod, hostIP: w.node.config.NodeIP.String(), ips: w.ips, sandbox: w.sandbox != nil, failed: w.failed, over: w.over,
		started: w.created,
	}
	for _, c := range w.init {
		o.init = append(o.init, c.containerView)
	}
	for _, c := range w.main {
		o.main = append(o.main, c.containerView)
	}
	return o
}

// writeStatuses writes the Pod's status at each change, until the context ends.
func (w *worker) writeStatuses(ctx context.Context) {
	for {
		if err := w.writeStatus(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Write the pod's status")
			if wait(ctx, 200*time.Millisecond) {
				w.touch()
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-w.dirty:
		}
	}
}

func (w *worker) writeStatus(ctx context.Context) error {
	o := w.observe()
	status := podStatus(o, time.Now())
	// Others write conditions as well where there are gates: what they have written last must not be lost, nor go unanswered.
	gated := len(o.pod.Spec.ReadinessGates) > 0
	if w.written != nil && reflect.DeepEqual(*w.written, status) && (!gated || reflect.DeepEqual(o.pod.Status.Conditions, status.Conditions)) {
		return nil
	}
	if finishedPhase(o.pod.Status.Phase) && !finishedPhase(status.Phase) {
		return nil // a Pod does not come back
	}
	body, err := statusBody(status)
	if err != nil {
		return err
	}
	metadata := map[string]any{"uid": w.uid}
	if gated {
		metadata["resourceVersion"] = o.pod.ResourceVersion
	}
	err = w.patch(ctx, map[string]any{"metadata": metadata, "status": body}, "status")
	if err == nil {
		w.written = &status
	}
	return err
}

func finishedPhase(phase corev1.PodPhase) bool {
	return phase == corev1.PodSucceeded || phase == corev1.PodFailed
}

// statusBody is the part of the status that the node writes, with null for what is to go.
func statusBody(status corev1.PodStatus) (map[string]any, error) {
	text, err := json.Marshal(status)
	if err != nil {
		return nil, err
	}
	body := map[string]any{}
	if err := json.Unmarshal(text, &body); err != nil {
		return nil, err
	}
	for _, field := range []string{"reason", "message", "podIP", "podIPs"} {
		if _, found := body[field]; !found {
			body[field] = nil
		}
	}
	return body, nil
}

// patch changes the Pod object, and nothing of a namesake that came after it.
func (w *worker) patch(ctx context.Context, change map[string]any, subresources ...string) error {
	body, err := json.Marshal(change)
	if err != nil {
		return err
	}
	w.mu.Lock()
	namespace, name := w.pod.Namespace, w.pod.Name
	w.mu.Unlock()
	pod, err := w.node.client.CoreV1().Pods(namespace).Patch(ctx, name, types.MergePatchType, body, metav1.PatchOptions{}, subresources...)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) || isNamesake(err) {
		return nil // the informer says what became of it
	}
	if err != nil {
		return fmt.Errorf("patch pod %s: %w", w.key, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	// What the informer brought meanwhile may be newer, and nothing would bring it again.
	if order, err := resourceversion.CompareResourceVersion(pod.ResourceVersion, w.pod.ResourceVersion); err == nil && order > 0 {
		w.pod = pod
	}
	return nil
}

// isNamesake tells whether a patch met another Pod of the same name: the API server then says that the UID, which the patch
// names, cannot be changed.
func isNamesake(err error) bool {
	return apierrors.IsInvalid(err) && apierrors.HasStatusCause(err, metav1.CauseTypeFieldValueInvalid) &&
		strings.Contains(err.Error(), "metadata.uid")
}

// conclude writes the last status and lets the Pod object go.
func (w *worker) conclude(ctx context.Context) {
	logger := klog.FromContext(ctx)
	w.mu.Lock()
	namespace, name, isGone := w.pod.Namespace, w.pod.Name, w.gone
	w.mu.Unlock()
	if isGone {
		return
	}
	options := metav1.NewDeleteOptions(0)
	options.Preconditions = metav1.NewUIDPreconditions(string(w.uid))
	for {
		err := w.writeStatus(ctx)
		if err == nil {
			err = w.node.client.CoreV1().Pods(namespace).Delete(ctx, name, *options)
		}
		if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return
		}
		logger.Error(err, "Let the pod go")
		if !wait(ctx, 200*time.Millisecond) {
			return
		}
	}
}
