// SPDX-License-Identifier: Apache-2.0

package script

import (
	"testing"

	"github.com/kubeovn/kube-ovn/test/bench"
	"github.com/kubeovn/kube-ovn/test/lab/room"
)

func TestMain(m *testing.M) {
	room.Main(func() (int, error) { return m.Run(), nil })
}

// Each measure comes to an end, and what it timed carries the right traffic. The figures say nothing at this size.
func TestMeasures(t *testing.T) {
	measures, err := bench.Select(Measures(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range measures {
		m := &measures[i]
		t.Run(m.Name, func(t *testing.T) {
			r := bench.Run(t.Context(), m, bench.Options{Scale: 0.01, Rounds: 1, Logf: t.Logf})
			if r.Error != "" {
				t.Error(r.Error)
			}
			if len(r.Aims) != len(m.Aims) {
				t.Errorf("%d aims judged of %d", len(r.Aims), len(m.Aims))
			}
		})
	}
}

// A check that finds nothing wrong would be no check.
func TestChecksFindWhatIsWrong(t *testing.T) {
	env := bench.NewEnv(1, t.Logf)
	defer env.Close()
	g, err := newGateway(t.Context(), env)
	if err != nil {
		t.Fatal(err)
	}
	plain, pinned := share(0, 3, false), share(1, 3, true)
	for _, s := range many(2) {
		if err := g.set(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.holds(t.Context(), many(2), many(2)[0]); err != nil {
		t.Errorf("as it should be: %v", err)
	}
	if err := g.holds(t.Context(), many(1), many(1)[0]); err == nil {
		t.Error("an identity too many is not found")
	}
	if err := g.carries(t.Context(), plain); err == nil {
		t.Error("a backend too many is not found")
	}
	if err := g.carries(t.Context(), pinned); err == nil {
		t.Error("a client that meets several backends is not found")
	}
	if err := g.carries(t.Context(), share(9, 3, false)); err == nil {
		t.Error("an identity that is not there is not found")
	}
}
