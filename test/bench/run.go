// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"time"
)

// Options of a run.
type Options struct {
	// Scale of sizes, 1 where it is 0.
	Scale float64
	// Rounds in place of those of the measures.
	Rounds int
	// Logf gets a line now and then.
	Logf func(format string, args ...any)
}

// Result is what came of a measure.
type Result struct {
	Name   string       `json:"name"`
	Title  string       `json:"title"`
	Unit   string       `json:"unit"`
	Rounds int          `json:"rounds"`
	Sides  []SideResult `json:"sides,omitempty"`
	Aims   []AimResult  `json:"aims,omitempty"`
	Notes  []Note       `json:"notes,omitempty"`
	// Took is how long all of it took, in seconds.
	Took float64 `json:"took"`
	// Error is why it came to nothing, or what its check found.
	Error string `json:"error,omitempty"`
}

// SideResult is what came of one side.
type SideResult struct {
	Name    string      `json:"name"`
	Unit    string      `json:"unit"`
	Summary Summary     `json:"summary"`
	Rounds  [][]float64 `json:"samples"`
}

// AimResult is what an aim came to.
type AimResult struct {
	Of         string  `json:"of"`
	Over       string  `json:"over,omitempty"`
	Max        float64 `json:"max,omitempty"`
	Min        float64 `json:"min,omitempty"`
	Percentile float64 `json:"percentile,omitempty"`
	Value      float64 `json:"value"`
	Met        bool    `json:"met"`
}

func (s *SideResult) all() []float64 {
	var all []float64
	for _, round := range s.Rounds {
		all = append(all, round...)
	}
	return all
}

// Run takes a measure. What went wrong stands in the result.
func Run(ctx context.Context, m *Measure, o Options) Result {
	start := time.Now()
	if o.Scale == 0 {
		o.Scale = 1
	}
	rounds := m.rounds()
	if o.Rounds > 0 {
		rounds = o.Rounds
	}
	r := Result{Name: m.Name, Title: m.Title, Unit: m.Unit, Rounds: rounds}
	env := NewEnv(o.Scale, o.Logf)
	env.Rounds = rounds
	defer env.Close()
	if err := take(ctx, m, env, &r); err != nil {
		r.Error = err.Error()
	}
	r.Notes = env.notes
	r.Took = time.Since(start).Seconds()
	return r
}

func take(ctx context.Context, m *Measure, env *Env, r *Result) error {
	if err := m.validate(); err != nil {
		return err
	}
	sides, check, err := m.Prepare(ctx, env)
	if err != nil {
		return fmt.Errorf("prepare: %w", err)
	}
	if err := m.validateSides(sides); err != nil {
		return err
	}
	env.Logf("%s: prepared, %d rounds of %d sides", m.Name, r.Rounds, len(sides))
	samples, err := sample(ctx, sides, r.Rounds, !m.NoWarmUp)
	if err != nil {
		return err
	}
	for i, s := range sides {
		side := SideResult{Name: s.Name, Unit: s.Unit, Rounds: samples[i]}
		if side.Unit == "" {
			side.Unit = m.Unit
		}
		side.Summary = summarize(side.all())
		r.Sides = append(r.Sides, side)
	}
	for _, a := range m.Aims {
		value := a.of(r.Sides)
		if math.IsNaN(value) || math.IsInf(value, 0) {
			return fmt.Errorf("nothing to compare: %s over %s", a.Of, a.Over)
		}
		r.Aims = append(r.Aims, AimResult{a.Of, a.Over, a.Max, a.Min, a.Percentile, value, a.met(value)})
	}
	if check == nil {
		return nil
	}
	if err := check(ctx); err != nil {
		return fmt.Errorf("check: %w", err)
	}
	return nil
}

// sample takes each side in turn, in every round another one first, so that what changes on the machine meanwhile falls on
// all of them. A first round that warms caches does not count.
func sample(ctx context.Context, sides []Side, rounds int, warmUp bool) ([][][]float64, error) {
	samples := make([][][]float64, len(sides))
	skipped := 0
	if warmUp {
		skipped = 1
	}
	for round := range skipped + rounds {
		for turn := range sides {
			if err := ctx.Err(); err != nil {
				return nil, context.Cause(ctx)
			}
			i := (round + turn) % len(sides)
			runtime.GC() // our own, not in a sample
			s, err := sides[i].Sample(ctx)
			if err == nil && len(s) == 0 {
				err = errors.New("no samples")
			}
			if err != nil {
				return nil, fmt.Errorf("%s, round %d: %w", sides[i].Name, round, err)
			}
			if round >= skipped {
				samples[i] = append(samples[i], s)
			}
		}
	}
	return samples, nil
}
