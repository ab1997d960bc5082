// SPDX-License-Identifier: Apache-2.0

package lbservice

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// writtenFor is how long a write is remembered at most. The informer shows it within milliseconds; this is for a rule that came and
// went while the informer was cut off, of which it never tells.
const writtenFor = 30 * time.Second

// written remembers the rules as we wrote them until the informer shows them, so that a pass which follows at once neither
// repeats a write nor takes a rule for absent that was created a moment ago.
//
// The informer may be faster than the answer to the write. So a write begins here before it is sent, and what the informer tells in
// between counts.
type written struct {
	now func() time.Time

	mu    sync.Mutex
	rules map[string]writtenRule
	// sent has the names of the rules that a write is on its way for, with the UIDs that the informer has shown gone since.
	sent map[string]map[types.UID]bool
}

type writtenRule struct {
	rule *kubeovnv1.IptablesDnatRule
	at   time.Time
}

func newWritten(now func() time.Time) *written {
	return &written{now: now, rules: map[string]writtenRule{}, sent: map[string]map[types.UID]bool{}}
}

// begin is called before a write is sent; put, deleted or failed end it.
func (w *written) begin(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent[name] = map[types.UID]bool{}
}

// failed: nothing was written.
func (w *written) failed(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.sent, name)
}

// put remembers a rule as the API server returned it.
func (w *written) put(rule *kubeovnv1.IptablesDnatRule) {
	w.mu.Lock()
	defer w.mu.Unlock()
	gone := w.sent[rule.Name][rule.UID]
	delete(w.sent, rule.Name)
	if !gone {
		w.rules[rule.Name] = writtenRule{rule: rule, at: w.now()}
	}
}

// deleted remembers that the API server took our deletion of a rule.
func (w *written) deleted(rule *kubeovnv1.IptablesDnatRule) {
	gone := rule.DeepCopy()
	gone.DeletionTimestamp = &metav1.Time{Time: w.now()}
	w.put(gone)
}

// observe forgets what the informer now shows.
func (w *written) observe(rule *kubeovnv1.IptablesDnatRule, gone bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if sent, ok := w.sent[rule.Name]; ok && gone {
		sent[rule.UID] = true
	}
	entry, ok := w.rules[rule.Name]
	if !ok {
		return
	}
	sameObject := entry.rule.UID == rule.UID
	var seen bool
	switch {
	case gone:
		seen = sameObject
	case sameObject && entry.rule.DeletionTimestamp != nil:
		seen = rule.DeletionTimestamp != nil
	default:
		seen = !newer(entry.rule, rule)
	}
	if seen {
		delete(w.rules, rule.Name)
	}
}

// overlay gives the cached rules as they are after our own writes; match selects the written ones that belong to the list. A rule that we
// deleted stays, with its deletion timestamp: its name is taken until the informer shows it gone.
//
// The cache is read after what was written: the other way round, a rule that the informer shows in between, and that is forgotten here
// for that, would be in neither.
func (w *written) overlay(list func() []*kubeovnv1.IptablesDnatRule, match func(*kubeovnv1.IptablesDnatRule) bool) []*kubeovnv1.IptablesDnatRule {
	rules := w.remembered()
	cached := list()
	if len(rules) == 0 {
		return cached
	}
	out := make([]*kubeovnv1.IptablesDnatRule, 0, len(cached))
	inCache := make(map[string]bool, len(cached))
	for _, rule := range cached {
		inCache[rule.Name] = true
		entry, ok := rules[rule.Name]
		if ok && entry.rule.UID == rule.UID && rule.DeletionTimestamp == nil &&
			(entry.rule.DeletionTimestamp != nil || newer(entry.rule, rule)) {
			rule = entry.rule
		}
		out = append(out, rule)
	}
	for name, entry := range rules {
		if !inCache[name] && match(entry.rule) {
			out = append(out, entry.rule)
		}
	}
	slices.SortFunc(out, func(a, b *kubeovnv1.IptablesDnatRule) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// remembered copies what is remembered, less what is too old.
func (w *written) remembered() map[string]writtenRule {
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.rules, func(_ string, entry writtenRule) bool { return w.now().Sub(entry.at) > writtenFor })
	return maps.Clone(w.rules)
}

// newer tells whether a is newer than b. Versions that cannot be compared are not.
func newer(a, b metav1.Object) bool {
	order, err := resourceversion.CompareResourceVersion(a.GetResourceVersion(), b.GetResourceVersion())
	return err == nil && order > 0
}

// statuses remembers each Service as our last status patch left it, until the informer shows that.
type statuses struct {
	mu       sync.Mutex
	services map[sharenat.Owner]*corev1.Service
}

func newStatuses() *statuses { return &statuses{services: map[sharenat.Owner]*corev1.Service{}} }

func (st *statuses) put(svc *corev1.Service) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.services[sharenat.OwnerOfService(svc)] = svc
}

// ahead tells whether our last patch is newer than the Service as the cache has it.
func (st *statuses) ahead(cached *corev1.Service) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	key := sharenat.OwnerOfService(cached)
	patched, ok := st.services[key]
	if ok && patched.UID == cached.UID && newer(patched, cached) {
		return true
	}
	delete(st.services, key)
	return false
}

func (st *statuses) forget(key sharenat.Owner) {
	st.mu.Lock()
	defer st.mu.Unlock()
	delete(st.services, key)
}

// transition remembers since when Services that were programmed are being programmed anew. A change of backends is programmed long before
// anybody could act on the condition saying so: two writes each, at the very moment when the API server and the gateway
// work on the rules.
type transition struct {
	mu    sync.Mutex
	since map[sharenat.Owner]time.Time
}

func newTransition() *transition { return &transition{since: map[sharenat.Owner]time.Time{}} }

// rest says how long a status may still be held back: one that differs from the Service's by nothing but that its rules, all of
// which were in place, are not just now.
func (t *transition) rest(s *Snapshot, o *Outcome, status *corev1.ServiceStatus, now time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !onlyProgramming(s.Service, o, status) {
		delete(t.since, s.Key)
		return 0
	}
	since, ok := t.since[s.Key]
	if !ok {
		since, t.since[s.Key] = now, now
	}
	if heldBy(s, o) != heldNone {
		return since.Add(partDelay).Sub(now)
	}
	return since.Add(programmingDelay).Sub(now)
}

func (t *transition) forget(key sharenat.Owner) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.since, key)
}

func onlyProgramming(svc *corev1.Service, o *Outcome, after *corev1.ServiceStatus) bool {
	was := meta.FindStatusCondition(svc.Status.Conditions, ConditionReady)
	is := meta.FindStatusCondition(after.Conditions, ConditionReady)
	if was == nil || is == nil || is.Reason != ReasonProgramming || was.ObservedGeneration != svc.Generation ||
		was.Reason != ReasonProgrammed && was.Reason != cmp.Or(o.Limited, ReasonProgrammed) {
		return false
	}
	undone := after.DeepCopy()
	*meta.FindStatusCondition(undone.Conditions, ConditionReady) = *was
	return equality.Semantic.DeepEqual(&svc.Status, undone)
}
