// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"

	"github.com/kubeovn/kube-ovn/test/bench"
)

// joint are sides that are measured at the same time: the first that is asked in a round does what is measured.
type joint struct {
	round  func(ctx context.Context) (map[string][]float64, error)
	rounds []map[string][]float64
}

// side is one of them.
func (j *joint) side(name, unit string) bench.Side {
	taken := 0
	return bench.Side{Name: name, Unit: unit, Sample: func(ctx context.Context) ([]float64, error) {
		if taken == len(j.rounds) {
			samples, err := j.round(ctx)
			if err != nil {
				return nil, err
			}
			j.rounds = append(j.rounds, samples)
		}
		taken++
		return j.rounds[taken-1][name], nil
	}}
}

// of lists what a side was measured, round by round.
func (j *joint) of(name string) [][]float64 {
	var all [][]float64
	for _, round := range j.rounds {
		all = append(all, round[name])
	}
	return all
}
