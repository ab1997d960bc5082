// SPDX-License-Identifier: Apache-2.0

package packets

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
	"github.com/kubeovn/kube-ovn/test/bench"
)

const (
	// regulars are clients that come again and again.
	regulars = 1000
	// someBackends is how many an identity has where it is not about them.
	someBackends = 10
	// newFlowRounds is how often a side's new connections are sampled.
	newFlowRounds = 11
)

var backendCounts = []int{1, 10, 100, 1000}

var none sharenat.Affinity

// affinityMeasure compares a new connection with ClientIP with one without, by the number of backends.
func affinityMeasure() bench.Measure {
	const base = "none, 1"
	m := bench.Measure{
		Name: "packets/affinity", Title: "new connection, by affinity and number of backends", Unit: perFlow, Rounds: newFlowRounds,
		Prepare: func(_ context.Context, env *bench.Env) ([]bench.Side, func(context.Context) error, error) {
			var ways []*way
			add := func(name string, clients int, s sharenat.Share) error {
				w, err := newWay(env, name, clients, nil, s)
				ways = append(ways, w)
				return err
			}
			simplest := []sharenat.Share{share(0, 80, 1, none)}
			l, err := newBare(env.Cleanup, simplest[0])
			if err != nil {
				return nil, nil, err
			}
			ways = append(ways, &way{name: bare, lane: l, shares: simplest, crowd: &crowd{to: identities(simplest)}})
			for _, n := range backendCounts {
				if err := add(fmt.Sprintf("none, %d", n), 0, share(0, 80, n, none)); err != nil {
					return nil, nil, err
				}
			}
			for _, n := range backendCounts {
				if err := add(fmt.Sprintf("ClientIP, %d", n), regulars, share(0, 80, n, clientIP)); err != nil {
					return nil, nil, err
				}
			}
			if err := add("ClientIP, 1000, new clients", 0, share(0, 80, 1000, clientIP)); err != nil {
				return nil, nil, err
			}
			s, check := sides(ways...)
			return s, check, nil
		},
	}
	for _, n := range backendCounts {
		m.Aims = append(m.Aims, bench.Aim{Of: fmt.Sprintf("ClientIP, %d", n), Over: base, Max: 1.2})
	}
	m.Aims = append(m.Aims, bench.Aim{Of: "ClientIP, 1000, new clients", Over: base, Max: 1.2})
	return m
}

// identitiesMeasure compares a gateway of many identities with one of a single one.
func identitiesMeasure() bench.Measure {
	const (
		one, toOne, toAll = "1", "10000, to one of them", "10000, to all of them"
		eips              = 50
	)
	return bench.Measure{
		Name: "packets/identities", Title: "new connection, by number of identities of the gateway", Unit: perFlow, Rounds: newFlowRounds,
		Aims: []bench.Aim{{Of: toOne, Over: one, Max: 1.15}},
		Prepare: func(_ context.Context, env *bench.Env) ([]bench.Side, func(context.Context) error, error) {
			var shares []sharenat.Share
			for i := range env.Scaled(10_000) {
				shares = append(shares, share(i%eips, uint16(1+i/eips), someBackends, none))
			}
			few, err := newWay(env, one, 0, nil, shares[0])
			if err != nil {
				return nil, nil, err
			}
			many, err := newWay(env, toOne, 0, identities(shares[:1]), shares...)
			if err != nil {
				return nil, nil, err
			}
			spread := &way{name: toAll, lane: many.lane, shares: shares, crowd: &crowd{to: identities(shares)}}
			s, check := sides(few, many, spread)
			return s, check, nil
		},
	}
}

// sourcesMeasure compares identities that are open to some networks only with ones that are open to all. What a gateway
// has to look at is the lengths of the prefixes.
func sourcesMeasure() bench.Measure {
	const open, few, many = "open to all", "50 ranges of 6 lengths", "50 ranges of 15 lengths"
	return bench.Measure{
		Name: "packets/source-ranges", Title: "new connection to one of 100 identities, by source ranges of each", Unit: perFlow, Rounds: newFlowRounds,
		Aims: []bench.Aim{{Of: few, Over: open, Max: 1.2}, {Of: many, Over: open, Max: 1.2}},
		Prepare: func(_ context.Context, env *bench.Env) ([]bench.Side, func(context.Context) error, error) {
			var ways []*way
			for _, side := range []struct {
				name    string
				sources []netip.Prefix
			}{
				{open, nil},
				{few, sourceRanges(16, 20, 22, 24, 28, 32)},
				{many, sourceRanges(16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 32)},
			} {
				var shares []sharenat.Share
				for i := range 100 {
					s := share(0, uint16(1+i), someBackends, none)
					s.Sources = side.sources
					shares = append(shares, s)
				}
				w, err := newWay(env, side.name, 0, nil, shares...)
				if err != nil {
					return nil, nil, err
				}
				ways = append(ways, w)
			}
			// Clients come from each of the ranges in turn.
			ways[0].crowd.from = ways[2].shares[0].Sources
			ways[1].crowd.from, ways[2].crowd.from = ways[1].shares[0].Sources, ways[2].shares[0].Sources
			s, check := sides(ways...)
			return s, func(ctx context.Context) error {
				outside := netip.MustParsePrefix("192.0.2.0/24")
				return errors.Join(check(ctx), ways[1].refuses(outside), ways[2].refuses(outside))
			}, nil
		},
	}
}

// sourceRanges are 50 prefixes of these lengths, all within clientNet.
func sourceRanges(lengths ...int) []netip.Prefix {
	first := netip.MustParsePrefix(clientNet).Addr()
	ranges := make([]netip.Prefix, 50)
	for i := range ranges {
		ranges[i] = netip.PrefixFrom(addr(first, i<<16), lengths[i%len(lengths)])
	}
	return ranges
}

// refuses looks whether nobody from a network comes through.
func (w *way) refuses(from netip.Prefix) error {
	outsiders := crowd{from: []netip.Prefix{from}, to: w.crowd.to}
	arrived, err := w.lane.try(outsiders.next(flowsPerVolley))
	if err == nil && len(arrived) > 0 {
		err = fmt.Errorf("%s: %d connections from %s came through", w.name, len(arrived), from)
	}
	return err
}
