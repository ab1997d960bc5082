// SPDX-License-Identifier: Apache-2.0

package script

import (
	"context"
	"fmt"
	"strings"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
	"github.com/kubeovn/kube-ovn/test/bench"
)

// The sizes of docs/performance.md.
const (
	identities = 5000
	backends   = 1000
	pins       = 1_000_000
)

// shortRounds is for calls of some milliseconds, whose time on a busy machine is mostly waiting: it takes more of them for a
// median that says something.
const shortRounds = 15

// The sides.
const (
	ours    = "ours"
	ahead   = "ours, begun ahead"
	floor   = "nft -f"
	perRule = "a call a rule"
)

// Measures are those of this group.
func Measures() []bench.Measure {
	var all []bench.Measure
	for _, size := range []struct {
		n    int
		name string
	}{{100, "hundred-backends"}, {1000, "thousand-backends"}} {
		for _, clientIP := range []bool{false, true} {
			all = append(all, program(size.name, size.n, clientIP))
		}
	}
	return append(all, oneMore(), wholeState(), listing(), millionPins())
}

// timed is a side that is one call a sample. How much CPU the calls took is noted as well: on a machine that others use,
// it says more than the time.
func timed(env *bench.Env, name string, do func(context.Context) (call, error)) bench.Side {
	var cpu []float64
	return bench.Side{Name: name, Sample: func(ctx context.Context) ([]float64, error) {
		c, err := do(ctx)
		if err != nil {
			return nil, err
		}
		cpu = append(cpu, c.cpu.Seconds())
		env.Note("CPU, "+name, bench.Median(cpu), "s")
		return []float64{c.took.Seconds()}, nil
	}}
}

// program is one identity of n backends in one call.
func program(name string, n int, clientIP bool) bench.Measure {
	affinity := "none"
	if clientIP {
		affinity = "clientip"
	}
	return bench.Measure{
		Name:   "script/" + name + "-" + affinity,
		Title:  fmt.Sprintf("Program one identity of %d backends, affinity %s", n, affinity),
		Unit:   "s",
		Rounds: shortRounds,
		Aims:   []bench.Aim{{Of: ours, Over: floor, Max: 2}, {Of: ahead, Over: floor, Max: 2}},
		Prepare: func(ctx context.Context, env *bench.Env) ([]bench.Side, func(context.Context) error, error) {
			g, err := newGateway(ctx, env)
			if err != nil {
				return nil, nil, err
			}
			s := share(0, env.Scaled(n), clientIP)
			input, err := sharenat.EncodeDelta([]sharenat.Share{s}, nil)
			if err != nil {
				return nil, nil, err
			}
			if err := g.set(ctx, s); err != nil {
				return nil, nil, err
			}
			rules, err := g.ruleset(ctx, env)
			if err != nil {
				return nil, nil, err
			}
			sides := []bench.Side{
				timed(env, ours, func(ctx context.Context) (call, error) { return g.sync(ctx, input) }),
				timed(env, ahead, func(ctx context.Context) (call, error) { return g.syncAhead(ctx, input) }),
				timed(env, floor, func(ctx context.Context) (call, error) { return g.load(ctx, rules) }),
				{Name: perRule, Sample: func(ctx context.Context) ([]float64, error) { return rulewise(ctx, g, s) }},
			}
			return sides, func(ctx context.Context) error { return g.holds(ctx, []sharenat.Share{s}, s) }, nil
		},
	}
}

// ruleSteps is how many of the calls are made that the way of one call a rule takes.
const ruleSteps = 5

// rulewise is what a handler takes that makes a call for each rule, with all backends so far. As many calls as backends
// would take minutes: some are made, evenly spread, and stand for those between them.
func rulewise(ctx context.Context, g *gateway, s sharenat.Share) ([]float64, error) {
	n := len(s.Backends)
	step := max(1, n/ruleSteps)
	sum := 0.0
	for upTo := step; upTo <= n; upTo += step {
		addrs := make([]string, upTo)
		for i := range addrs {
			addrs[i] = s.Backends[i].Addr.String()
		}
		affinity := strings.ReplaceAll(s.Affinity.String(), " ", ",")
		rule := fmt.Sprintf("%s,%d,%s,%s,%s", s.EIP, s.Port, s.Protocol, affinity, strings.Join(addrs, "@"))
		c, err := g.run(ctx, nil, "bash", g.script, "nft-dnat-map-add", rule)
		if err != nil {
			return nil, err
		}
		sum += c.took.Seconds() * float64(step)
	}
	return []float64{sum}, nil
}

// oneMore is one backend more in an identity of 1000, on gateways that hold nothing else and a lot else.
func oneMore() bench.Measure {
	const onEmpty, onFull, floorEmpty, floorFull = "on an empty gateway", "beside 5000 identities", "nft -f, empty", "nft -f, beside 5000"
	return bench.Measure{
		Name:   "script/one-more",
		Title:  "One backend more in an identity of 1000, on an empty gateway and beside 5000 identities",
		Unit:   "s",
		Rounds: shortRounds,
		Aims:   []bench.Aim{{Of: onFull, Over: onEmpty, Max: 1.5}},
		Prepare: func(ctx context.Context, env *bench.Env) ([]bench.Side, func(context.Context) error, error) {
			others := many(env.Scaled(identities))
			n := env.Scaled(backends)
			var sides []bench.Side
			var checks []func(context.Context) error
			for _, at := range []struct {
				ours, floor string
				others      []sharenat.Share
			}{{onEmpty, floorEmpty, nil}, {onFull, floorFull, others}} {
				g, err := newGateway(ctx, env)
				if err != nil {
					return nil, nil, err
				}
				if err := g.full(ctx, at.others); err != nil {
					return nil, nil, err
				}
				grow, check, err := growing(ctx, g, at.others, n)
				if err != nil {
					return nil, nil, err
				}
				bare, err := bareGrowing(env, n)
				if err != nil {
					return nil, nil, err
				}
				sides = append(sides, timed(env, at.ours, grow), timed(env, at.floor, func(ctx context.Context) (call, error) { return g.load(ctx, bare) }))
				checks = append(checks, check)
			}
			return sides, func(ctx context.Context) error {
				for _, check := range checks {
					if err := check(ctx); err != nil {
						return err
					}
				}
				return nil
			}, nil
		},
	}
}

// growing takes an identity from n to n+1 backends, and then, not timed, back.
func growing(ctx context.Context, g *gateway, others []sharenat.Share, n int) (grow func(context.Context) (call, error), check func(context.Context) error, err error) {
	small, large := share(len(others), n, false), share(len(others), n+1, false)
	inputs := make([][]byte, 2)
	for i, s := range []sharenat.Share{small, large} {
		if inputs[i], err = sharenat.EncodeDelta([]sharenat.Share{s}, nil); err != nil {
			return nil, nil, err
		}
	}
	grow = func(ctx context.Context) (call, error) {
		if _, err := g.sync(ctx, inputs[0]); err != nil {
			return call{}, err
		}
		return g.sync(ctx, inputs[1])
	}
	check = func(ctx context.Context) error {
		return g.holds(ctx, append(others[:len(others):len(others)], large), large)
	}
	_, err = grow(ctx)
	return grow, check, err
}

// bareGrowing is the least that nft has to be told for it: empty the chain, and fill it anew. The chain is another one, that nothing leads to.
func bareGrowing(env *bench.Env, n int) (string, error) {
	var b strings.Builder
	b.WriteString("add table ip bench-floor\nadd chain ip bench-floor rules\nflush chain ip bench-floor rules\n")
	fmt.Fprintf(&b, "add rule ip bench-floor rules meta l4proto tcp dnat to numgen random mod %d map { ", n+1)
	for i, backend := range share(0, n+1, false).Backends {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%d : %s . %d", i, backend.Addr.Addr(), backend.Addr.Port())
	}
	b.WriteString(" }\n")
	return tempFile(env, []byte(b.String()))
}

// wholeState is all that a gateway of 5000 identities holds, in one call, on one that holds nothing.
func wholeState() bench.Measure {
	const memory = "ours, memory"
	return bench.Measure{
		Name:     "script/whole-state",
		Title:    "Program 5000 identities of 10 backends in one call",
		Unit:     "s",
		Rounds:   bench.MinRounds,
		NoWarmUp: true,
		Aims:     []bench.Aim{{Of: ours, Over: floor, Max: 2}, {Of: memory, Max: 256e6}},
		Prepare: func(ctx context.Context, env *bench.Env) ([]bench.Side, func(context.Context) error, error) {
			g, err := newGateway(ctx, env)
			if err != nil {
				return nil, nil, err
			}
			shares := many(env.Scaled(identities))
			input, err := sharenat.EncodeFull(shares)
			if err != nil {
				return nil, nil, err
			}
			if _, err := g.sync(ctx, input); err != nil {
				return nil, nil, err
			}
			rules, err := g.ruleset(ctx, env)
			if err != nil {
				return nil, nil, err
			}
			var most float64
			isOurs := true // what the gateway holds
			sides := []bench.Side{
				timed(env, ours, func(ctx context.Context) (call, error) {
					if err := g.clear(ctx); err != nil {
						return call{}, err
					}
					isOurs = true
					c, err := g.runWatched(ctx, input, true, "bash", g.script, sharenat.SyncVerb)
					most = max(most, float64(c.memory))
					return c, err
				}),
				timed(env, floor, func(ctx context.Context) (call, error) {
					if err := g.clear(ctx); err != nil {
						return call{}, err
					}
					isOurs = false
					return g.load(ctx, rules)
				}),
				// What the samples of the first side took.
				{Name: memory, Unit: "B", Sample: func(context.Context) ([]float64, error) { return []float64{most}, nil }},
			}
			check := func(ctx context.Context) error {
				if !isOurs {
					if _, err := g.sync(ctx, input); err != nil {
						return err
					}
				}
				return g.holds(ctx, shares, shares[len(shares)-1])
			}
			return sides, check, nil
		},
	}
}

// listing reads all of that gateway back.
func listing() bench.Measure {
	const floor = "nft list"
	return bench.Measure{
		Name:     "script/listing",
		Title:    "List 5000 identities of 10 backends, with their digests",
		Unit:     "s",
		Rounds:   bench.MinRounds,
		NoWarmUp: true,
		Aims:     []bench.Aim{{Of: ours, Over: floor, Max: 2}},
		Prepare: func(ctx context.Context, env *bench.Env) ([]bench.Side, func(context.Context) error, error) {
			g, err := newGateway(ctx, env)
			if err != nil {
				return nil, nil, err
			}
			shares := many(env.Scaled(identities))
			if err := g.full(ctx, shares); err != nil {
				return nil, nil, err
			}
			sides := []bench.Side{
				timed(env, ours, g.list),
				timed(env, floor, func(ctx context.Context) (call, error) {
					return g.run(ctx, nil, "nft", "list", "table", "ip", "kube-ovn")
				}),
			}
			return sides, func(ctx context.Context) error { return g.holds(ctx, shares, shares[0]) }, nil
		},
	}
}

// millionPins is an identity with a million clients that stay with their backends: nothing reads them.
func millionPins() bench.Measure {
	const update, updateNone, list, listNone = "update", "update, no clients", "listing", "listing, no clients"
	return bench.Measure{
		Name:   "script/million-clients",
		Title:  "Update and list an identity that a million clients are pinned in",
		Unit:   "s",
		Rounds: shortRounds,
		Aims:   []bench.Aim{{Of: update, Over: updateNone, Max: 1.5}, {Of: list, Over: listNone, Max: 1.5}},
		Prepare: func(ctx context.Context, env *bench.Env) ([]bench.Side, func(context.Context) error, error) {
			s := share(0, 10, true)
			input, err := sharenat.EncodeDelta([]sharenat.Share{s}, nil)
			if err != nil {
				return nil, nil, err
			}
			gateways := make([]*gateway, 2)
			for i := range gateways {
				if gateways[i], err = newGateway(ctx, env); err == nil {
					err = gateways[i].set(ctx, s)
				}
				if err != nil {
					return nil, nil, err
				}
			}
			full, empty := gateways[0], gateways[1]
			env.Logf("script/million-clients: pinning the clients")
			n := env.Scaled(pins)
			if err := full.pin(ctx, s, n); err != nil {
				return nil, nil, err
			}
			var sides []bench.Side
			for _, at := range []struct {
				g            *gateway
				update, list string
			}{{full, update, list}, {empty, updateNone, listNone}} {
				sides = append(sides,
					timed(env, at.update, func(ctx context.Context) (call, error) { return at.g.sync(ctx, input) }),
					timed(env, at.list, at.g.list))
			}
			return sides, func(ctx context.Context) error { return full.holds(ctx, []sharenat.Share{s}, s) }, nil
		},
	}
}
