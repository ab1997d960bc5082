// SPDX-License-Identifier: Apache-2.0

package lbservice

import (
	"sync"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// turns make the passes over one EIP follow each other, so that none decides while another writes. A Service whose turn it is not is
// called when it is: no worker waits for it, and nobody asks in vain.
type turns struct {
	// call a Service for its pass.
	call func(sharenat.Owner)

	mu sync.Mutex
	// queues of the EIPs that a pass is under way for, or that somebody was called for.
	queues map[string]*turnQueue
	// called has the EIPs for which a Service was called and has not come yet. There are several where it was moved while it waited.
	called map[sharenat.Owner][]string
}

type turnQueue struct {
	busy    bool
	waiting []sharenat.Owner
	known   map[sharenat.Owner]bool
}

func newTurns(call func(sharenat.Owner)) *turns {
	return &turns{call: call, queues: map[string]*turnQueue{}, called: map[sharenat.Owner][]string{}}
}

// take begins a pass over an EIP; false where another one is under way, after which the Service will be called.
func (t *turns) take(eip string, key sharenat.Owner) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.passOn(key, eip)
	q := t.queues[eip]
	if q == nil {
		q = &turnQueue{known: map[sharenat.Owner]bool{}}
		t.queues[eip] = q
	}
	if !q.busy {
		q.busy = true
		return true
	}
	if !q.known[key] {
		q.known[key] = true
		q.waiting = append(q.waiting, key)
	}
	return false
}

// skip gives up the turns that a Service was called for: it names no EIP any more.
func (t *turns) skip(key sharenat.Owner) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.passOn(key, "")
}

// passOn calls the next where a Service was called and names another EIP by now.
func (t *turns) passOn(key sharenat.Owner, eip string) {
	called := t.called[key]
	delete(t.called, key)
	for _, other := range called {
		if other != eip {
			t.callNext(other)
		}
	}
}

// leave ends a pass.
func (t *turns) leave(eip string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.queues[eip].busy = false
	t.callNext(eip)
}

// callNext calls the first of those that wait, if no pass is under way. Where nobody waits, nothing is left of the queue.
func (t *turns) callNext(eip string) {
	q := t.queues[eip]
	switch {
	case q == nil || q.busy:
		return
	case len(q.waiting) == 0:
		delete(t.queues, eip)
		return
	}
	next := q.waiting[0]
	q.waiting = q.waiting[1:]
	delete(q.known, next)
	t.called[next] = append(t.called[next], eip)
	t.call(next)
}
