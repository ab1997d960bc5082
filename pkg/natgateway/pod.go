// SPDX-License-Identifier: Apache-2.0

package natgateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kubeovn/kube-ovn/pkg/latency"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// A moment of quiet is half of what a call takes, burstQuiet at least. During a burst that does not end, a gateway rests after a call
// for as long as restCalls of them take, but for no more than maxRest.
const (
	restCalls = 3
	maxRest   = time.Second
)

// programStore keeps what is known of each gateway pod.
type programStore struct {
	mu   sync.Mutex
	pods map[types.NamespacedName]*program
}

// program is what is known of one gateway pod. Only the goroutine that works on the pod changes content; the lock is
// for those that look, and never held during a call.
type program struct {
	mu         sync.Mutex
	containers int // that were seen running in the pod
	leavers    leavers
	knowledge
}

type knowledge struct {
	container string   // UID and container ID that the rest is about
	content   *Content // nil: not known
	filled    bool     // has been right once, since this container runs
	failure   string   // what kind of it the last pass ended with, empty after a success
	rejected  map[sharenat.Identity]string
	refusal   string        // what the pod says to all that is sent to it; empty while it takes something
	retry     time.Duration // until what is rejected is tried again; it grows
	outdated  bool          // it was told that the script is an older one
	// inFlight are the identities that a call which is under way may change: what the content says of them is not true yet.
	inFlight     map[sharenat.Identity]struct{}
	fullInFlight bool
	nextCheck    time.Time

	dirtySince, dirtyLast, lastCall time.Time
	lastTook                        time.Duration
}

func (s *programStore) get(key types.NamespacedName) *program {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pods[key]
	if p == nil {
		p = &program{}
		if s.pods == nil {
			s.pods = map[types.NamespacedName]*program{}
		}
		s.pods[key] = p
	}
	return p
}

func (s *programStore) drop(key types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pods, key)
}

// runningContainer identifies the container that a gateway pod runs just now; empty when it runs none that can be programmed.
func runningContainer(pod *corev1.Pod) string {
	if pod.DeletionTimestamp != nil || pod.Status.Phase != corev1.PodRunning {
		return ""
	}
	for i := range pod.Status.ContainerStatuses {
		s := &pod.Status.ContainerStatuses[i]
		if s.Name == containerName && s.State.Running != nil {
			return fmt.Sprintf("%s/%s/%d", pod.UID, s.ContainerID, s.RestartCount)
		}
	}
	return ""
}

// counts says that a pod takes part in the gateway: rules are not ready, and not gone, before it agrees. A pod whose
// node is lost is not waited for; it is filled before it counts again.
func counts(pod *corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady && condition.Status != corev1.ConditionTrue {
			return false
		}
	}
	return runningContainer(pod) != ""
}

func (p *program) markDirty(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dirtySince.IsZero() {
		p.dirtySince = now
	}
	p.dirtyLast = now
}

// settle says how long to wait before the next call. A change that comes alone is sent at once. One that comes right after a call
// is taken for part of a burst, and waits for a moment of quiet; where that does not come, for some times as long as the last call
// took. Where calls are slow, more of them would only take from those who write the rules, and be made again soon.
func (c *Controller) settle(p *program, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.content == nil || p.dirtySince.IsZero() || p.dirtySince.Sub(p.lastCall) > c.burstMemory {
		return 0
	}
	until := p.dirtyLast.Add(max(c.burstQuiet, min(p.lastTook, maxRest)/2))
	limit := p.dirtySince.Add(c.burstLimit)
	if rest := p.lastCall.Add(min(restCalls*p.lastTook, maxRest)); limit.Before(rest) {
		limit = rest
	}
	if limit.Before(until) {
		until = limit
	}
	return until.Sub(now)
}

// begin starts a pass for a container; what was known of another one is forgotten. It says whether the content must be listed.
func (p *program) begin(container string, now time.Time) (list bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.container != container {
		p.containers++
		p.knowledge = knowledge{container: container, lastCall: p.lastCall}
	}
	p.dirtySince, p.dirtyLast = time.Time{}, time.Time{}
	return p.content == nil || !p.content.Legacy && !now.Before(p.nextCheck)
}

func (p *program) update(f func(p *program)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(p)
}

// session is one pass over one pod.
type session struct {
	c       *Controller
	p       *program
	key     types.NamespacedName
	gateway string
	want    *State
	// refused says that whatever went wrong was a call that the script refused: the others were made.
	refused bool
}

// syncPod brings one gateway pod up to date.
func (c *Controller) syncPod(ctx context.Context, key types.NamespacedName) error {
	pod, err := c.podLister.Pods(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		c.programs.drop(key)
		return nil
	}
	if err != nil {
		return fmt.Errorf("read pod: %w", err)
	}
	gateway := c.gatewayOf(pod)
	if gateway == "" || ended(pod) || pod.DeletionTimestamp != nil {
		c.programs.drop(key)
		c.gatewayQueue.Add(gateway)
		return nil
	}
	p := c.programs.get(key)
	if runningContainer(pod) == "" {
		// It may be between two containers: its connections, and who left them behind, last as long as the pod.
		p.update(func(p *program) { p.knowledge = knowledge{lastCall: p.lastCall} })
		c.gatewayQueue.Add(gateway)
		return nil
	}
	now := c.Clock.Now()
	if pause := c.settle(p, now); pause > 0 && p.is(runningContainer(pod)) {
		c.podQueue.AddAfter(key, pause)
		return nil
	}
	list := p.begin(runningContainer(pod), now)
	s := &session{c: c, p: p, key: key, gateway: gateway, want: c.state(gateway)}
	if s.want.Blocked != nil {
		return nil
	}
	err = s.run(ctx, list)
	s.conclude(ctx, pod, err)
	if err != nil {
		return err
	}
	c.podQueue.AddAfter(key, p.untilCheck(c.Clock.Now(), jitter(c.CheckInterval)))
	return c.publishInit(ctx, pod)
}

func (p *program) is(container string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.container == container
}

// untilCheck says when to look at the pod again; one that cannot list is not checked.
func (p *program) untilCheck(now time.Time, interval time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if left := p.nextCheck.Sub(now); left > 0 {
		return left
	}
	return interval
}

// run lists the pod, if need be, and makes all calls that are missing. A call that the script refuses does not keep the
// others from being made; one that does not reach it does.
func (s *session) run(ctx context.Context, list bool) error {
	if list {
		if err := s.list(ctx); err != nil {
			return err
		}
	}
	var errs []error
	for _, action := range s.heed(Plan(s.want, s.p.content)) {
		err := s.do(ctx, &action)
		if err == nil {
			continue
		}
		errs = append(errs, err)
		if s.refused = refused(err); !s.refused || action.Verb == verbInit {
			break
		}
	}
	return errors.Join(errs...)
}

func (s *session) list(ctx context.Context) error {
	out, err := s.call(ctx, Call{Verb: sharenat.ListVerb})
	var content *Content
	switch {
	case err == nil:
		listing, parseErr := sharenat.ParseListing(bytes.NewReader(out))
		if parseErr != nil {
			return fmt.Errorf("listing of gateway pod %s: %w", s.key, parseErr)
		}
		content = NewContent(listing)
	case unknownVerb(err):
		content = NewLegacyContent(s.want)
		s.sayOutdated(ctx)
	default:
		return err
	}
	s.p.update(func(p *program) {
		p.content = content
		p.nextCheck = s.c.Clock.Now().Add(jitter(s.c.CheckInterval))
	})
	return nil
}

// sayOutdated tells once that a pod's script is an older one.
func (s *session) sayOutdated(ctx context.Context) {
	told := false
	s.p.update(func(p *program) { told, p.outdated = p.outdated, true })
	if told {
		return
	}
	klog.FromContext(ctx).Info("Gateway pod has an older script, falling back to its verbs", "gateway", s.gateway)
	s.c.gatewayEvent(s.gateway, ReasonScriptOutdated,
		fmt.Sprintf("pod %s runs an older nat-gateway.sh: masquerade and source ranges have no effect there; update the image", s.key))
}

// do makes one call.
func (s *session) do(ctx context.Context, a *Action) error {
	if a.Verb == sharenat.SyncVerb {
		return s.syncAll(ctx, a)
	}
	return s.perform(ctx, a, Call{Verb: a.Verb, Args: a.Args})
}

func (s *session) sync(ctx context.Context, a *Action) error {
	stdin, err := a.stdin()
	if err != nil {
		return err
	}
	return s.perform(ctx, a, Call{Verb: sharenat.SyncVerb, Stdin: stdin})
}

// perform makes a call and notes what it has changed.
func (s *session) perform(ctx context.Context, a *Action, call Call) error {
	s.p.update(func(p *program) { p.inFlight, p.fullInFlight = a.touched(), a.Full })
	_, err := s.call(ctx, call)
	s.p.update(func(p *program) {
		p.inFlight, p.fullInFlight = nil, false
		if err != nil {
			return
		}
		a.Apply(p.content)
		p.leavers.done(a)
		for _, share := range a.Set {
			delete(p.rejected, share.Identity)
		}
		if len(a.Set) > 0 {
			p.refusal = ""
		}
	})
	return err
}

// timePerByte is what a call gets for each byte of its input. The kernel takes the longer for an identity the more there are: one and
// a half minutes of a busy processor to replace 5000 with ClientIP, in 350 kB and more. In less time such a gateway would never be whole again.
const timePerByte = 300 * time.Microsecond

// timeFor is how long a call may take.
func (o *Options) timeFor(call *Call) time.Duration {
	return o.CallTimeout + time.Duration(len(call.Stdin))*timePerByte
}

// call runs the script with a deadline.
func (s *session) call(ctx context.Context, call Call) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, s.c.timeFor(&call))
	defer cancel()
	call.Pod, call.Container = s.key, s.p.container // only this goroutine changes it
	start := s.c.Clock.Now()
	out, err := s.c.Executor.Exec(ctx, call)
	took := s.c.Clock.Since(start)
	s.c.Metrics.observeCall(s.gateway, call.Verb, err, took)
	s.p.update(func(p *program) { p.lastCall, p.lastTook = s.c.Clock.Now(), took })
	klog.FromContext(ctx).V(2).Info("Called gateway pod", "verb", call.Verb, "args", len(call.Args), "bytes", len(call.Stdin), "took", took, "failed", err != nil)
	return out, err
}

// conclude publishes what came of a pass. Where a call did not get through, the pod's content counts as unknown. What a
// refused one has left behind is looked up at the next pass; what else was done counts meanwhile.
func (s *session) conclude(ctx context.Context, pod *corev1.Pod, err error) {
	var newlyFilled, newFailure, holds bool
	s.p.update(func(p *program) {
		if err != nil {
			p.nextCheck = time.Time{}
			if !s.refused || p.content.Legacy {
				p.content = nil
			}
			kind := failureKind(err)
			newFailure = p.failure != kind
			p.failure = kind
			return
		}
		if len(p.content.Rejected) == 0 {
			p.retry, p.refusal = 0, ""
		}
		p.failure = p.refusal
		newlyFilled = !p.filled && p.refusal == ""
		p.filled = p.filled || newlyFilled
		holds = p.refusal == ""
	})
	if newFailure && ctx.Err() == nil {
		s.c.gatewayEvent(s.gateway, ReasonProgramFailed, err.Error())
	}
	if holds {
		s.c.Metrics.observeSuccess(s.gateway, s.c.Clock.Now())
		s.c.Latency.Check(s.gateway)
	}
	if newlyFilled {
		klog.FromContext(ctx).Info("Gateway pod holds all that it should", "gateway", s.gateway, "pod", klog.KObj(pod), "identities", len(s.want.Shares))
		s.c.gatewayQueue.Add(s.gateway)
	}
	s.c.wake(s.gateway)
}

// failureKind is the same as long as there is nothing new to tell. What a script says is; what keeps calls from reaching it names ports and
// times that are others at each try.
func failureKind(err error) string {
	if refused(err) {
		return err.Error()
	}
	return "no answer"
}

// gatewayEvent sends a Warning about a gateway.
func (c *Controller) gatewayEvent(gateway, reason, message string) {
	if gw, err := c.gatewayLister.Get(gateway); err == nil {
		c.Recorder.Eventf(gw, nil, corev1.EventTypeWarning, reason, sharenat.EventAction(actionProgram, message), "%s", message)
	}
}

// publishInit says on the pod that init has run in it.
func (c *Controller) publishInit(ctx context.Context, pod *corev1.Pod) error {
	if pod.Annotations[sharenat.GatewayInitAnnotation] == "true" {
		return nil
	}
	data := fmt.Appendf(nil, `{"metadata":{"uid":%q,"annotations":{%q:"true"}}}`, pod.UID, sharenat.GatewayInitAnnotation)
	_, err := c.KubeClient.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, data, metav1.PatchOptions{FieldManager: fieldManager})
	if err != nil {
		return fmt.Errorf("note init on gateway pod %s: %w", keyOf(pod), err)
	}
	return nil
}

// agree says whether all pods that count hold of an identity what is wanted, and how many they are.
func (c *Controller) agree(want *State, id sharenat.Identity) (agreed bool, pods int) {
	return c.agreeOn(want.Gateway, id, func(have *Content) bool { return have.matches(want, id) })
}

// holds says whether a gateway holds what the Service controller has decided about a Service.
func (c *Controller) holds(_ sharenat.Owner, want latency.Decision) bool {
	for id, digest := range want.Digests {
		if agreed, pods := c.agreeOn(want.Gateway, id, func(have *Content) bool { return have.Shares[id] == digest }); !agreed || pods == 0 {
			return false
		}
	}
	return true
}

func (c *Controller) agreeOn(gateway string, id sharenat.Identity, ok func(*Content) bool) (agreed bool, pods int) {
	agreed = true
	for _, pod := range c.podsOf(gateway) {
		if !counts(pod) {
			continue
		}
		pods++
		p := c.programs.get(keyOf(pod))
		if !p.check(runningContainer(pod), func(have *Content) bool { return !p.isInFlight(id) && ok(have) }) {
			agreed = false
		}
	}
	return agreed, pods
}

// isInFlight is for those that hold the lock.
func (p *program) isInFlight(id sharenat.Identity) bool {
	_, touched := p.inFlight[id]
	return touched || p.fullInFlight
}

// check asks what is known of a container; false when nothing is.
func (p *program) check(container string, ask func(*Content) bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.container == container && p.content != nil && ask(p.content)
}
