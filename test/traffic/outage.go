// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"maps"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Outage is a time in which every attempt failed.
type Outage struct {
	// From is when the first attempt that failed began, Until when the next that succeeded began; Until is zero while the
	// outage lasts.
	From  time.Time `json:"from"`
	Until time.Time `json:"until,omitzero"`
	// Length is from From to Until, or to when the last attempt that failed began.
	Length metav1.Duration `json:"length"`
	// Kinds counts the attempts that failed.
	Kinds map[Kind]int `json:"kinds"`
}

// Outages sums up the outages of a time.
type Outages struct {
	Count   int     `json:"count"`
	First   *Outage `json:"first,omitempty"`
	Longest *Outage `json:"longest,omitempty"`
	Last    *Outage `json:"last,omitempty"`
}

// attempt is one try; kind is empty when it succeeded.
type attempt struct {
	began time.Time
	kind  Kind
}

// outageTracker finds outages. Attempts overlap, and one that began earlier can end later, so they are taken in the order
// in which they began: each has a number, from 0 on.
type outageTracker struct {
	next    int
	waiting map[int]attempt
	current *Outage
	sum     Outages
}

// add takes the attempt with the number; all numbers below come as well, sooner or later.
func (t *outageTracker) add(number int, a attempt) {
	if t.waiting == nil {
		t.waiting = map[int]attempt{}
	}
	t.waiting[number] = a
	for {
		a, ok := t.waiting[t.next]
		if !ok {
			return
		}
		delete(t.waiting, t.next)
		t.next++
		t.take(a)
	}
}

func (t *outageTracker) take(a attempt) {
	switch {
	case a.kind == "" && t.current == nil:
	case a.kind == "":
		t.current.Until = a.began
		t.current.Length.Duration = a.began.Sub(t.current.From)
		t.note()
		t.current = nil
	case t.current == nil:
		t.current = &Outage{From: a.began, Kinds: map[Kind]int{a.kind: 1}}
		t.sum.Count++
		t.note()
	default:
		t.current.Kinds[a.kind]++
		t.current.Length.Duration = a.began.Sub(t.current.From)
		t.note()
	}
}

// note brings the sum up to date with the current outage.
func (t *outageTracker) note() {
	copied := *t.current
	copied.Kinds = maps.Clone(copied.Kinds)
	if t.sum.Count == 1 {
		t.sum.First = &copied
	}
	if t.sum.Longest == nil || copied.Length.Duration >= t.sum.Longest.Length.Duration {
		t.sum.Longest = &copied
	}
	t.sum.Last = &copied
}

func (t *outageTracker) outages() Outages { return t.sum }
