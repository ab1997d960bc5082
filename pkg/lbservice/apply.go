// SPDX-License-Identifier: Apache-2.0

package lbservice

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// maxNote is how long the API server lets an event's note be.
const maxNote = 1024

// maxRefusal is how much of an API server's word a condition repeats.
const maxRefusal = 512

// behindError says that our caches do not show yet what the API server has; the same pass will do once they do.
type behindError struct{ err error }

func (e *behindError) Error() string { return "cache is behind the API server: " + e.err.Error() }
func (e *behindError) Unwrap() error { return e.err }

// isBehind tells whether an error is all about caches that are behind. Joined errors are, when each of them is.
func isBehind(err error) bool {
	if err == nil {
		return false
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			if !isBehind(e) {
				return false
			}
		}
		return true
	}
	var behind *behindError
	return errors.As(err, &behind)
}

// apply writes the changes: what is added first, so that a full exchange of backends leaves no gap, then what is changed in place,
// then what goes. What goes does so even if an addition failed, and at once where it leaves no gap.
func (c *Controller) apply(ctx context.Context, key sharenat.Owner, changes *Changes, own []*kubeovnv1.IptablesDnatRule) error {
	if changes.Empty() {
		c.told.failed(key, false)
		return nil
	}
	if len(changes.Create) > 0 {
		// For the rare rule that somebody deletes before the informer ever shows it.
		c.queue.AddAfter(key, writtenFor+writtenFor/10)
	}
	now, after := changes.removals(own)
	gone := make(chan error, 1)
	go func() { gone <- parallel(ctx, c.opts.ParallelWrites, now, c.deleteRule) }()
	err := errors.Join(
		parallel(ctx, c.opts.ParallelWrites, changes.Create, c.createRule),
		parallel(ctx, c.opts.ParallelWrites, changes.Patch, c.patchRule),
		parallel(ctx, c.opts.ParallelWrites, after, c.deleteRule),
		<-gone,
	)
	klog.FromContext(ctx).V(2).Info("Wrote rules",
		"created", len(changes.Create), "patched", len(changes.Patch), "deleted", len(changes.Delete), "waiting", len(changes.Waiting))
	refused := err != nil && !isBehind(err)
	if c.told.failed(key, refused) && ctx.Err() == nil {
		c.tellWriteFailed(key, err)
	}
	return err
}

// parallel calls f for every item, some at a time, and joins what fails, in the items' order.
func parallel[T any](ctx context.Context, limit int, items []T, f func(context.Context, T) error) error {
	errs := make([]error, len(items))
	slots := make(chan struct{}, limit)
	var wg sync.WaitGroup
	for i, item := range items {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			errs[i] = f(ctx, item)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (c *Controller) createRule(ctx context.Context, want Rule) error {
	c.written.begin(want.Name)
	rule, err := c.kubeOvn.KubeovnV1().IptablesDnatRules().Create(ctx, &kubeovnv1.IptablesDnatRule{
		ObjectMeta: metav1.ObjectMeta{
			Name:        want.Name,
			Labels:      want.Labels,
			Annotations: want.Annotations,
			Finalizers:  []string{sharenat.Finalizer},
		},
		Spec: want.Spec,
	}, metav1.CreateOptions{FieldManager: fieldManager})
	if apierrors.IsAlreadyExists(err) {
		err = c.alreadyExists(ctx, &want, err)
	}
	c.metrics.observeWrite(operationCreate, err)
	if err != nil {
		c.written.failed(want.Name)
		return fmt.Errorf("create rule %s: %w", want.Name, err)
	}
	c.written.put(rule)
	klog.FromContext(ctx).V(4).Info("Created rule", "rule", want.Name)
	return nil
}

// alreadyExists: the cache did not show the rule a moment ago. Mostly it does soon, and then the rule is compared. One with that
// name that the cache shows, but not as ours, is somebody else's, who is not to be overwritten. One that lost its labels is still ours by its
// name; it is of another EIP, where the Service was before, or it would have been taken back.
func (c *Controller) alreadyExists(ctx context.Context, want *Rule, err error) error {
	rule := get[kubeovnv1.IptablesDnatRule](c.in.rules, want.Name)
	if rule == nil || rule.DeletionTimestamp != nil || len(ownerKeyOfRule(rule)) > 0 {
		return &behindError{err}
	}
	owner, _, _ := sharenat.OwnerOf(want.Labels)
	if known, ours := sharenat.RuleOwner(rule, []sharenat.Owner{owner}); ours && known == owner && rule.Spec.EIP != want.Spec.EIP {
		if err := c.deleteRule(ctx, rule); err != nil {
			return err
		}
		return &behindError{err}
	}
	return err
}

func (c *Controller) patchRule(ctx context.Context, patch RulePatch) error {
	c.written.begin(patch.Name)
	rule, err := c.kubeOvn.KubeovnV1().IptablesDnatRules().Patch(ctx, patch.Name, types.MergePatchType, patch.Patch,
		metav1.PatchOptions{FieldManager: fieldManager})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		err = &behindError{err}
	}
	c.metrics.observeWrite(operationPatch, err)
	if err != nil {
		c.written.failed(patch.Name)
		return fmt.Errorf("patch rule %s: %w", patch.Name, err)
	}
	c.written.put(rule)
	klog.FromContext(ctx).V(4).Info("Patched rule", "rule", patch.Name)
	return nil
}

// deleteRule deletes this very rule: one of the same name that came after it is not meant.
func (c *Controller) deleteRule(ctx context.Context, rule *kubeovnv1.IptablesDnatRule) error {
	opts := metav1.DeleteOptions{}
	if rule.UID != "" {
		opts.Preconditions = metav1.NewUIDPreconditions(string(rule.UID))
	}
	c.written.begin(rule.Name)
	err := c.kubeOvn.KubeovnV1().IptablesDnatRules().Delete(ctx, rule.Name, opts)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		// It is gone, which is what was wanted; its event is on the way, or has been here since we looked.
		c.written.failed(rule.Name)
		return nil
	}
	c.metrics.observeWrite(operationDelete, err)
	if err != nil {
		c.written.failed(rule.Name)
		return fmt.Errorf("delete rule %s: %w", rule.Name, err)
	}
	c.written.deleted(rule)
	klog.FromContext(ctx).V(4).Info("Deleted rule", "rule", rule.Name)
	return nil
}

// syncStatus writes the Service's status where it differs, and then tells the user what is new.
func (c *Controller) syncStatus(ctx context.Context, s *Snapshot, o *Outcome) error {
	if c.statuses.ahead(s.Service) {
		// The cache does not show our last patch yet. Its event brings the Service back.
		return nil
	}
	status, events := DecideStatus(s, o, c.timestamp())
	if rest := c.programming.rest(s, o, status, c.now()); rest > 0 {
		// Mostly there will be nothing to say by then. Whatever else is new waits for it.
		c.queue.AddAfter(s.Key, rest)
		return nil
	}
	contested := taken(s.Service)
	if rest := c.contests.rest(s.Key, c.now()); contested && rest > 0 {
		c.queue.AddAfter(s.Key, rest)
		return nil
	}
	patch, err := statusPatch(s.Service, status)
	if err != nil {
		return err
	}
	if patch != nil {
		if contested {
			c.contests.restored(s.Key, rivalOf(s.Service), c.now())
			// When it is over, that is no longer to be said.
			c.queue.AddAfter(s.Key, contestOver+time.Second)
		}
		patched, err := c.kube.CoreV1().Services(s.Key.Namespace).Patch(ctx, s.Key.Name, types.StrategicMergePatchType, patch,
			metav1.PatchOptions{FieldManager: fieldManager}, "status")
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case apierrors.IsConflict(err):
			err = &behindError{err}
		}
		c.metrics.observeWrite(operationStatus, err)
		if err != nil {
			return fmt.Errorf("patch status: %w", err)
		}
		c.statuses.put(patched)
		klog.FromContext(ctx).V(2).Info("Patched status", "ready", readyReason(status), "ingress", len(status.LoadBalancer.Ingress))
	}
	c.metrics.setReason(s.Key, readyReason(status))
	for _, event := range c.told.fresh(s.Key, s.Service.UID, events, o.Qualified) {
		if event.Reason == EventConflict {
			c.metrics.conflicts.Inc()
		}
		c.record(s.Service, event)
	}
	return nil
}

func readyReason(status *corev1.ServiceStatus) string {
	for i := range status.Conditions {
		if status.Conditions[i].Type == ConditionReady {
			return status.Conditions[i].Reason
		}
	}
	return ""
}

func (c *Controller) record(svc *corev1.Service, event Event) {
	if c.recorder == nil {
		return
	}
	note := cut(event.Text, maxNote)
	c.recorder.Eventf(svc, nil, event.Type, event.Reason, sharenat.EventAction(event.Action, note), "%s", note)
}

func (c *Controller) tellWriteFailed(key sharenat.Owner, err error) {
	svc := c.service(key)
	if svc == nil {
		return
	}
	c.record(svc, Event{Type: corev1.EventTypeWarning, Reason: EventWriteFailed, Action: actionWrite, Text: firstOf(err, nil).Error()})
}

// firstOf gives the first of joined errors that matters, of all where matters is nil; nil where none does.
func firstOf(err error, matters func(error) bool) error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		if err == nil || matters != nil && !matters(err) {
			return nil
		}
		return err
	}
	for _, e := range joined.Unwrap() {
		if first := firstOf(e, matters); first != nil {
			return first
		}
	}
	return nil
}

// refusal is the API server's word about a write that it did not take, "" where there is none. What passes by itself is none: a cache
// that is behind, an API server that has too much to do or is not there.
func refusal(err error) string {
	first := firstOf(err, func(err error) bool {
		return !isBehind(err) && apierrors.ReasonForError(err) != metav1.StatusReasonUnknown && !apierrors.IsTooManyRequests(err) &&
			!apierrors.IsServerTimeout(err) && !apierrors.IsTimeout(err) && !apierrors.IsServiceUnavailable(err)
	})
	if first == nil {
		return ""
	}
	return cut(first.Error(), maxRefusal)
}

// cut shortens a text to some bytes, at a rune's end.
func cut(text string, most int) string {
	for len(text) > most {
		_, size := utf8.DecodeLastRuneInString(text)
		text = text[:len(text)-size]
	}
	return text
}

// told remembers what users were told, so that it is told again only when it is new.
type told struct {
	mu       sync.Mutex
	services map[sharenat.Owner]toldService
	failures map[sharenat.Owner]bool
}

// toldService is what was told of a Service. One that came after it under the same name was told nothing.
type toldService struct {
	uid    types.UID
	events map[string]bool
}

func newTold() *told {
	return &told{services: map[sharenat.Owner]toldService{}, failures: map[sharenat.Owner]bool{}}
}

func (t *told) forget(key sharenat.Owner) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.services, key)
	delete(t.failures, key)
}

// failed remembers whether the last writes were refused, and tells whether that is new.
func (t *told) failed(key sharenat.Owner, refused bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.failures[key]
	if refused {
		t.failures[key] = true
	} else {
		delete(t.failures, key)
	}
	return refused && !before
}

// fresh gives the events that are new, and forgets those that do not hold any more. Of a Service that is seen for the first time since
// the start, those are not new which its status already tells.
func (t *told) fresh(key sharenat.Owner, uid types.UID, events []Event, keep bool) []Event {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.services[key]
	known := before.events != nil
	if before.uid != uid {
		before.events = nil
	}
	now := make(map[string]bool, len(events))
	var out []Event
	for _, event := range events {
		id := event.Reason + "/" + event.Key
		if !now[id] && !before.events[id] && (known || !event.Told) {
			out = append(out, event)
		}
		now[id] = true
	}
	if keep {
		t.services[key] = toldService{uid, now}
	} else {
		delete(t.services, key)
	}
	return out
}
