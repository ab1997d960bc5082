// SPDX-License-Identifier: Apache-2.0

package packets

import (
	"context"
	"fmt"
	"slices"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
	"github.com/kubeovn/kube-ovn/test/bench"
)

// A sample is so many volleys of so many connections: short enough that what else happens on the machine falls on few of
// them, and few enough for conntrack's table.
const (
	volleysPerSample = 10
	flowsPerVolley   = 1000
)

// way is a lane, and who comes along it.
type way struct {
	name   string
	lane   *lane
	crowd  *crowd
	shares []sharenat.Share
}

// side has the way's new connections timed.
func (w *way) side() bench.Side { return bench.Side{Name: w.name, Sample: w.sample} }

// sample opens connections, and looks whether all of them passed the router and are in its table.
func (w *way) sample(context.Context) ([]float64, error) {
	volleys := make([]*volley, volleysPerSample)
	for i := range volleys {
		var err error
		if volleys[i], err = newVolley(w.crowd.next(flowsPerVolley)); err != nil {
			return nil, err
		}
	}
	if err := w.lane.flush(); err != nil {
		return nil, err
	}
	before, err := w.lane.received()
	if err != nil {
		return nil, err
	}
	took, err := w.lane.flood(volleys...)
	if err != nil {
		return nil, err
	}
	if err := w.lane.passed(before, volleysPerSample*flowsPerVolley); err != nil {
		return nil, err
	}
	samples := make([]float64, len(took))
	for i, t := range took {
		samples[i] = float64(t.Nanoseconds()) / flowsPerVolley
	}
	return samples, nil
}

// passed looks whether n connections came through and are tracked.
func (l *lane) passed(before uint64, n int) error {
	after, err := l.received()
	if err != nil {
		return err
	}
	tracked, err := l.tracked()
	if err != nil {
		return err
	}
	// kube-proxy has connections of its own.
	if after-before != uint64(n) || tracked < n {
		return fmt.Errorf("of %d connections %d came through and %d are tracked", n, after-before, tracked)
	}
	return nil
}

// check opens connections once more and looks where they went.
func (w *way) check() error {
	if err := w.lane.flush(); err != nil {
		return err
	}
	opened := w.crowd.next(volleysPerSample * flowsPerVolley)
	arrived, err := w.lane.try(opened)
	if err == nil {
		err = checkArrivals(opened, arrived, w.shares)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", w.name, err)
	}
	return nil
}

// try opens connections and returns those that came out behind the router.
func (l *lane) try(opened []flow) ([]flow, error) {
	v, err := newVolley(opened)
	if err != nil {
		return nil, err
	}
	return capture(l.pods, l.podsIndex, func() error {
		_, err := l.flood(v)
		return err
	})
}

// sides of ways, and a check of all of them.
func sides(ways ...*way) ([]bench.Side, func(context.Context) error) {
	out := make([]bench.Side, len(ways))
	for i, w := range ways {
		out[i] = w.side()
	}
	return out, func(ctx context.Context) error {
		for _, w := range ways {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := w.check(); err != nil {
				return err
			}
		}
		return nil
	}
}

// newWay is a gateway of its own that holds shares, and a crowd that comes to those of them that reached says, all where it is nil.
func newWay(env *bench.Env, name string, clients int, to []sharenat.Identity, shares ...sharenat.Share) (*way, error) {
	g, err := newGateway(env.Cleanup, slices.Clone(shares)...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if to == nil {
		to = identities(shares)
	}
	return &way{name: name, lane: g.lane, shares: g.shares, crowd: &crowd{clients: clients, to: to}}, nil
}
