// SPDX-License-Identifier: Apache-2.0

package interleave

import (
	"flag"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var (
	histories = flag.Uint64("histories", 3000, "how many random histories to play")
	from      = flag.Uint64("seed", 0, "the seed of the first history")
)

// At every step at most one owner's backends are programmed for an identity, and at rest it is the right one.
func TestOneOwnerAtEveryStep(t *testing.T) {
	steps, calls := 0, 0
	for seed := *from; seed < *from+*histories; seed++ {
		w := newWorld(t, seed)
		w.play(200)
		steps, calls = steps+len(w.history), calls+w.calls
		if t.Failed() {
			t.Fatalf("in the history of seed %d: go test ./interleave -seed=%d -histories=1", seed, seed)
		}
	}
	t.Logf("seeds %d to %d: %d changes in the API server, %d calls of gateways", *from, *from+*histories-1, steps, calls)
}

func (w *world) play(steps int) {
	for range steps {
		h := w.theirs[gateways[w.r.IntN(len(gateways))]]
		switch n := w.r.IntN(40); {
		case n < 5:
			w.user()
		case n < 15:
			w.begin(owners[w.r.IntN(len(owners))], w.r.IntN(3) == 0)
		case n < 25:
			w.write(w.anyPass())
		case n < 30:
			w.look(h, w.r.IntN(3) == 0)
		case n < 39:
			w.call(h)
		default:
			if w.r.IntN(4) == 0 {
				w.restart(h)
			}
		}
		w.check()
		if w.t.Failed() {
			return
		}
	}
	w.rest()
}

func (w *world) anyPass() string {
	busy := slices.DeleteFunc(slices.Sorted(maps.Keys(w.passes)), func(eip string) bool { return len(w.passes[eip]) == 0 })
	if len(busy) == 0 {
		return ""
	}
	return busy[w.r.IntN(len(busy))]
}

// programmed is whose backends a gateway sends an identity's connections to. A share goes before an exclusive DNAT of the same identity.
func (w *world) programmed() map[string][]string {
	out := map[string][]string{}
	for _, eip := range eips {
		h := w.theirs[gatewayOf[eip]]
		for _, port := range ports {
			id := identity(eip, port)
			whose := map[string]bool{}
			for _, backend := range h.shares[id].Backends {
				whose[ownerOf(backend.Addr.Addr())] = true
			}
			if len(whose) == 0 && len(h.content.Exclusives[id]) > 0 {
				whose[byHand] = true
			}
			if len(whose) > 0 {
				out[id.String()] = slices.Sorted(maps.Keys(whose))
			}
		}
	}
	return out
}

func (w *world) check() {
	programmed := w.programmed()
	for _, eip := range eips {
		for _, port := range ports {
			id := identity(eip, port)
			whose := programmed[id.String()]
			if len(whose) > 1 {
				w.t.Errorf("%s leads to backends of %v", id, whose)
			}
			if w.inOrder && len(whose) == 1 && !w.rightful[id][whose[0]] {
				w.t.Errorf("%s leads to backends of %s, who never was its owner", id, whose[0])
			}
		}
	}
}

// rest lets everything come to an end, each step checked too, and compares with what should be.
func (w *world) rest() {
	for round := 0; ; round++ {
		before, calls := len(w.history), w.calls
		for _, key := range owners {
			w.begin(key, true)
			for _, eip := range append([]string{""}, eips...) {
				for len(w.passes[eip]) > 0 {
					w.write(eip)
					w.check()
				}
			}
		}
		for _, name := range gateways {
			h := w.theirs[name]
			for {
				w.look(h, true)
				for len(h.todo) > 0 || h.done != nil {
					w.call(h)
					w.check()
				}
				if w.look(h, true); len(h.todo) == 0 {
					w.call(h)
					break
				}
			}
		}
		if before == len(w.history) && calls == w.calls {
			break
		}
		if round > 50 {
			w.t.Error("it does not come to rest")
			return
		}
	}
	want := map[string][]string{}
	for _, eip := range eips {
		for _, port := range ports {
			if owner := w.owner(eip, port); owner != "" {
				want[identity(eip, port).String()] = []string{owner}
			}
		}
	}
	if diff := cmp.Diff(want, w.programmed()); diff != "" {
		w.t.Errorf("at rest (-want +got):\n%s", diff)
	}
	for name, rule := range w.now().rules {
		if rule.DeletionTimestamp != nil {
			w.t.Errorf("rule %s is still being deleted", name)
		}
	}
}
