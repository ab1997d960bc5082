// SPDX-License-Identifier: Apache-2.0

package lbservice

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

func owners(n int) []sharenat.Owner {
	out := make([]sharenat.Owner, n)
	for i := range out {
		out[i] = sharenat.Owner{Namespace: "ns", Name: fmt.Sprintf("s%d", i)}
	}
	return out
}

func TestTurnsFollowEachOther(t *testing.T) {
	var called []sharenat.Owner
	turns := newTurns(func(key sharenat.Owner) { called = append(called, key) })
	s := owners(4)
	if !turns.take("x", s[0]) || turns.take("x", s[1]) || turns.take("x", s[2]) || turns.take("x", s[1]) {
		t.Fatal("the first takes the turn, and nobody else does")
	}
	if !turns.take("y", s[3]) {
		t.Error("another EIP is not free")
	}
	turns.leave("y")
	for _, want := range s[1:3] {
		turns.leave("x")
		if len(called) != 1 || called[0] != want {
			t.Fatalf("called %v, not %v", called, want)
		}
		called = nil
		if !turns.take("x", want) {
			t.Fatalf("%v was called, and it is not its turn", want)
		}
	}
	turns.leave("x")
	if len(called) > 0 || len(turns.queues) > 0 || len(turns.called) > 0 {
		t.Errorf("called %v, left %v %v", called, turns.queues, turns.called)
	}
}

// Whoever is moved to another EIP while it waits, or after it was called, does not keep those from their turns who wait there.
func TestTurnsOfServicesThatMove(t *testing.T) {
	var called []sharenat.Owner
	turns := newTurns(func(key sharenat.Owner) { called = append(called, key) })
	s := owners(3)
	turns.take("x", s[0])
	turns.take("x", s[1])
	turns.take("x", s[2])
	turns.take("y", s[0])
	turns.take("y", s[1]) // it waits for both
	turns.take("y", s[2])
	turns.leave("x")
	turns.leave("y")
	if want := []sharenat.Owner{s[1], s[1]}; !slices.Equal(called, want) {
		t.Fatalf("called %v, not %v", called, want)
	}
	called = nil
	if !turns.take("z", s[1]) {
		t.Fatal("z is not free")
	}
	if want := []sharenat.Owner{s[2], s[2]}; !slices.Equal(called, want) {
		t.Fatalf("called %v, not %v", called, want)
	}
}

// In whatever order workers, events and moves come, no two passes over an EIP overlap, and nobody who asked is forgotten.
func TestTurnsForgetNobody(t *testing.T) {
	eips := []string{"", "x", "y"}
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1))
		keys := owners(6)
		at, queued, asked := map[sharenat.Owner]string{}, []sharenat.Owner(nil), map[sharenat.Owner]bool{}
		add := func(key sharenat.Owner) {
			if !slices.Contains(queued, key) {
				queued = append(queued, key)
			}
		}
		turns := newTurns(add)
		under := map[string]sharenat.Owner{} // passes under way
		step := func(calm bool) {
			switch choice := random.IntN(4); {
			case choice == 0 && !calm:
				key := keys[random.IntN(len(keys))]
				at[key] = eips[random.IntN(len(eips))]
				asked[key] = true
				add(key)
			case choice == 1:
				for eip := range under {
					delete(under, eip)
					turns.leave(eip)
					break
				}
			case len(queued) > 0:
				key := queued[0]
				queued = queued[1:]
				if !turns.take(at[key], key) {
					return
				}
				if other, ok := under[at[key]]; ok {
					t.Fatalf("seed %d: passes of %v and %v over %q", seed, other, key, at[key])
				}
				under[at[key]] = key
				delete(asked, key)
			}
		}
		for range 200 {
			step(false)
		}
		for range 10000 {
			if len(queued) == 0 && len(under) == 0 {
				break
			}
			step(true)
		}
		if len(asked) > 0 || len(turns.queues) > 0 || len(turns.called) > 0 {
			t.Fatalf("seed %d: forgotten: %v; left: %v %v", seed, asked, turns.queues, turns.called)
		}
	}
}

// Who is called and names no EIP any more lets the next one have its turn.
func TestSkippedTurn(t *testing.T) {
	var called []string
	turns := newTurns(func(key sharenat.Owner) { called = append(called, key.Name) })
	for i, name := range []string{"a", "b", "c"} {
		if took := turns.take("eip", sharenat.Owner{Name: name}); took != (i == 0) {
			t.Fatalf("%s: %v", name, took)
		}
	}
	turns.leave("eip")
	turns.skip(sharenat.Owner{Name: "b"})
	if !slices.Equal(called, []string{"b", "c"}) {
		t.Errorf("called %v", called)
	}
}
