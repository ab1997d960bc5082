// SPDX-License-Identifier: Apache-2.0

package lbservice

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
)

func TestWritten(t *testing.T) {
	version := func(uid, rv string, tweaks ...func(*kubeovnv1.IptablesDnatRule)) *kubeovnv1.IptablesDnatRule {
		rule := newRule(testOwner, eipA, 80, "10.1.0.4:8080", tweaks...)
		rule.UID, rule.ResourceVersion = types.UID(uid), rv
		return rule
	}
	type rules = []*kubeovnv1.IptablesDnatRule
	// Each case: what we wrote, what the informer then told, what the cache has; and what a pass is to see, as "uid version", with a
	// cross on what is being deleted.
	for _, tc := range []struct {
		name  string
		write func(*written)
		cache rules
		want  []string
	}{
		{"nothing written", func(*written) {}, rules{version("1", "5")}, []string{"1 5"}},
		{"created, not in the cache yet", func(w *written) { w.put(version("1", "5")) }, nil, []string{"1 5"}},
		{"created, in the cache, not told yet", func(w *written) { w.put(version("1", "5")) }, rules{version("1", "5")}, []string{"1 5"}},
		{"created, told", func(w *written) { w.put(version("1", "5")); w.observe(version("1", "5"), false) }, nil, []string{}},
		{"created, told that the one before is gone", func(w *written) { w.put(version("2", "5")); w.observe(version("1", "4"), true) }, nil, []string{"2 5"}},
		{"created, told of the one before", func(w *written) { w.put(version("2", "5")); w.observe(version("1", "4"), false) }, rules{version("1", "4")}, []string{"1 4"}},
		{"created and gone", func(w *written) { w.put(version("1", "5")); w.observe(version("1", "6"), true) }, nil, []string{}},
		{"patched, not in the cache yet", func(w *written) { w.put(version("1", "6")) }, rules{version("1", "5")}, []string{"1 6"}},
		{"patched, told of the version before", func(w *written) { w.put(version("1", "6")); w.observe(version("1", "5"), false) }, rules{version("1", "5")}, []string{"1 6"}},
		{"patched, and again by another", func(w *written) { w.put(version("1", "6")) }, rules{version("1", "7")}, []string{"1 7"}},
		{"deleted, not in the cache yet", func(w *written) { w.deleted(version("1", "5")) }, rules{version("1", "5")}, []string{"1 5 x"}},
		{"deleted, told of an update before", func(w *written) { w.deleted(version("1", "5")); w.observe(version("1", "6"), false) }, rules{version("1", "6")}, []string{"1 5 x"}},
		{"deleted, in the cache", func(w *written) { w.deleted(version("1", "5")) }, rules{deleting(version("1", "6"))}, []string{"1 6 x"}},
		{"deleted, told", func(w *written) { w.deleted(version("1", "5")); w.observe(deleting(version("1", "6")), false) }, rules{deleting(version("1", "6"))}, []string{"1 6 x"}},
		{"deleted and gone", func(w *written) { w.deleted(version("1", "5")); w.observe(version("1", "6"), true) }, nil, []string{}},
		{"deleted, and another is there", func(w *written) { w.deleted(version("1", "5")); w.observe(version("2", "8"), false) }, rules{version("2", "8")}, []string{"2 8"}},
		{"deleted, not told that it is gone", func(w *written) { w.deleted(version("1", "5")) }, nil, []string{"1 5 x"}},
		{"gone before the answer to its creation", func(w *written) {
			w.begin(version("1", "5").Name)
			w.observe(version("1", "6"), true)
			w.put(version("1", "5"))
		}, nil, []string{}},
		{"gone before the answer to its deletion", func(w *written) {
			w.begin(version("1", "5").Name)
			w.observe(version("1", "6"), true)
			w.deleted(version("1", "5"))
		}, nil, []string{}},
		{"the one before is gone before the answer to the creation", func(w *written) {
			w.begin(version("2", "5").Name)
			w.observe(version("1", "4"), true)
			w.put(version("2", "5"))
		}, nil, []string{"2 5"}},
		{"not written", func(w *written) { w.begin(version("1", "5").Name); w.failed(version("1", "5").Name) }, nil, []string{}},
		{"too long ago", func(w *written) {
			w.put(version("1", "5"))
			w.now = func() time.Time { return testTime.Add(time.Hour) }
		}, nil, []string{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWritten(func() time.Time { return testTime.Time })
			tc.write(w)
			got := []string{}
			for _, rule := range w.overlay(func() []*kubeovnv1.IptablesDnatRule { return tc.cache }, func(*kubeovnv1.IptablesDnatRule) bool { return true }) {
				text := string(rule.UID) + " " + rule.ResourceVersion
				if rule.DeletionTimestamp != nil {
					text += " x"
				}
				got = append(got, text)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("rules (-want +got):\n%s", diff)
			}
		})
	}
}

// Between a pass's look at the cache and at what was written, the informer may show a rule, which is then forgotten.
func TestOverlayMissesNothing(t *testing.T) {
	w := newWritten(time.Now)
	rule := newRule(testOwner, eipA, 80, "10.1.0.4:8080")
	w.begin(rule.Name)
	w.put(rule)
	var cache []*kubeovnv1.IptablesDnatRule
	got := w.overlay(func() []*kubeovnv1.IptablesDnatRule {
		seen := cache
		w.observe(rule, false)
		return seen
	}, func(*kubeovnv1.IptablesDnatRule) bool { return true })
	if len(got) != 1 {
		t.Errorf("got %d rules, want the one that was written", len(got))
	}
}
