// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
)

// The rounds of a measure that does not say, and the fewest that a median is taken of.
const (
	DefaultRounds = 7
	MinRounds     = 5
)

// Measure compares ways of doing one thing.
type Measure struct {
	// Name is GROUP/WHAT, in small letters, digits and hyphens.
	Name string
	// Title says in one line what is measured.
	Title string
	// Unit of the samples: s, B, ns/flow, bit/s, …
	Unit string
	// Rounds that count, MinRounds at least; DefaultRounds where it is 0.
	Rounds int
	// NoWarmUp leaves out the round that does not count, where a sample is so long that cold caches make no difference.
	NoWarmUp bool
	Aims     []Aim
	// Prepare builds what is measured, and says how each side is sampled. Check, which may be nil, runs after the rounds: it
	// looks whether what was timed does its work. Everything is undone by env.Cleanup, also when Prepare fails.
	Prepare func(ctx context.Context, env *Env) (sides []Side, check func(context.Context) error, err error)
}

// Side is one way of doing it.
type Side struct {
	// Name as it stands in tables: "ours", "nft -f", "kube-proxy", …
	Name string
	// Unit, where it is another one than the measure's.
	Unit string
	// Sample does it, and returns one sample or more.
	Sample func(ctx context.Context) ([]float64, error)
}

// Aim is what a side should come to, in multiples of another side or, where Over is "", in its own unit.
type Aim struct {
	Of, Over string
	// Max is the most it may be; where it is 0, Min is the least.
	Max, Min float64
	// Percentile that is compared; 0 is the median.
	Percentile float64
}

func (m *Measure) rounds() int {
	if m.Rounds == 0 {
		return DefaultRounds
	}
	return m.Rounds
}

// validate finds what is wrong with the definition of a measure.
func (m *Measure) validate() error {
	group, what, ok := strings.Cut(m.Name, "/")
	name := func(s string) bool {
		return s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
	}
	switch {
	case !ok || !name(group) || !name(what):
		return fmt.Errorf("measure %q: the name is not GROUP/WHAT", m.Name)
	case m.Title == "" || m.Unit == "":
		return fmt.Errorf("measure %s: no title or no unit", m.Name)
	case m.rounds() < MinRounds:
		return fmt.Errorf("measure %s: %d rounds, at least %d are needed", m.Name, m.Rounds, MinRounds)
	case m.Prepare == nil:
		return fmt.Errorf("measure %s: no Prepare", m.Name)
	}
	for _, a := range m.Aims {
		if a.Of == "" || (a.Max > 0) == (a.Min > 0) || a.Percentile < 0 || a.Percentile > 100 {
			return fmt.Errorf("measure %s: not an aim: %+v", m.Name, a)
		}
	}
	return nil
}

// validateSides finds what is wrong with the sides that Prepare returned.
func (m *Measure) validateSides(sides []Side) error {
	known := map[string]bool{"": true}
	for _, s := range sides {
		if known[s.Name] || s.Sample == nil {
			return fmt.Errorf("measure %s: side %q has no name of its own, or nothing to sample", m.Name, s.Name)
		}
		known[s.Name] = true
	}
	for _, a := range m.Aims {
		if !known[a.Of] || !known[a.Over] {
			return fmt.Errorf("measure %s: no such side: %+v", m.Name, a)
		}
	}
	return nil
}

// of returns what the aim speaks of: a figure of one side, or the ratio of two.
func (a Aim) of(sides []SideResult) float64 {
	value := func(name string) float64 {
		for i := range sides {
			if sides[i].Name == name {
				return percentile(sides[i].all(), a.percentile())
			}
		}
		return math.NaN()
	}
	if a.Over == "" {
		return value(a.Of)
	}
	return value(a.Of) / value(a.Over)
}

func (a Aim) percentile() float64 {
	if a.Percentile == 0 {
		return 50
	}
	return a.Percentile
}

// met tells whether a value is what the aim asks for.
func (a Aim) met(value float64) bool {
	if a.Max > 0 {
		return value <= a.Max
	}
	return value >= a.Min
}

// limit returns the sign and the number of the aim.
func (a Aim) limit() (sign string, number float64) {
	if a.Max > 0 {
		return "≤", a.Max
	}
	return "≥", a.Min
}

// Select returns the measures that the patterns name, in their own order: each pattern is a name or the beginning of one.
// All of them where there is no pattern; one that names nothing is an error.
func Select(all []Measure, patterns []string) ([]Measure, error) {
	names := map[string]bool{}
	for i := range all {
		if err := all[i].validate(); err != nil {
			return nil, err
		}
		if names[all[i].Name] {
			return nil, fmt.Errorf("two measures are named %s", all[i].Name)
		}
		names[all[i].Name] = true
	}
	if len(patterns) == 0 {
		return all, nil
	}
	var errs []error
	for _, p := range patterns {
		if !anyHasPrefix(names, p) {
			errs = append(errs, fmt.Errorf("no measure is named %s: hack/bench.sh --list says which there are", p))
		}
	}
	var selected []Measure
	for i := range all {
		for _, p := range patterns {
			if strings.HasPrefix(all[i].Name, p) {
				selected = append(selected, all[i])
				break
			}
		}
	}
	return selected, errors.Join(errs...)
}

func anyHasPrefix(names map[string]bool, prefix string) bool {
	for name := range names {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}
