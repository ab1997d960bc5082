// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kubeovn/kube-ovn/test/bench"
	"github.com/kubeovn/kube-ovn/test/lab"
)

// The sides of a change: what is seen of it in the kernel, and on the wire.
const (
	oursRule    = "ours, rule in the kernel"
	proxyRule   = "kube-proxy, rule in the kernel"
	oursAnswer  = "ours, answered by the new backend"
	proxyAnswer = "kube-proxy, answered by the new backend"
	quietRule   = "ours, rule in the kernel, quiet cluster"
	quietProxy  = "kube-proxy, rule in the kernel, quiet cluster"
)

// pace is how changes follow each other.
type pace struct {
	name  string
	apart time.Duration
	// each is how many there are in a round, at full scale.
	each int
	// limit is the most that ours may take, in multiples of kube-proxy's.
	limit float64
}

var (
	slow = pace{"2s", 2 * time.Second, 4, 2}
	fast = pace{"300ms", 300 * time.Millisecond, 16, 0.15}
)

// answers says whether packets are looked at, too. A backend that is there for 300 ms is seen by few.
func (p pace) answers() bool { return p.apart >= time.Second }

func changeMeasure(p pace, large bool) bench.Measure {
	m := bench.Measure{
		Name:   "control/change-" + p.name,
		Title:  fmt.Sprintf("a Service's backend becomes another, every %s", p.apart),
		Unit:   "s",
		Rounds: 5,
		// Each round has some at least, and what came before them has set everything up.
		NoWarmUp: true,
		Aims:     []bench.Aim{{Of: oursRule, Over: proxyRule, Max: p.limit}},
	}
	if p.answers() {
		m.Aims = append(m.Aims, bench.Aim{Of: oursAnswer, Over: proxyAnswer, Max: p.limit})
	}
	if large {
		m.Name += "-large"
		m.Title += fmt.Sprintf(", in a cluster of %d Services of %d backends", bigServices, bigBackends)
		m.Aims = append(m.Aims, bench.Aim{Of: oursRule, Over: quietRule, Max: 1.5})
	}
	m.Prepare = func(ctx context.Context, env *bench.Env) ([]bench.Side, func(context.Context) error, error) {
		return prepareChange(ctx, env, p, large)
	}
	return m
}

// quietChanges are those of a quiet cluster in this run, by pace: what those of a large one are compared with.
var quietChanges = map[string]*joint{}

func prepareChange(ctx context.Context, env *bench.Env, p pace, large bool) ([]bench.Side, func(context.Context) error, error) {
	n, err := quiet(ctx, env)
	if err != nil {
		return nil, nil, err
	}
	if large && quietChanges[p.name] == nil {
		// It is asked for alone.
		if err := measureQuiet(ctx, env, n, p); err != nil {
			return nil, nil, err
		}
	}
	name := "change-" + p.name
	if large {
		name += "-large"
		if err := grow(ctx, env); err != nil {
			return nil, nil, err
		}
	}
	c, err := n.newChanges(ctx, env, name, p)
	if err != nil {
		return nil, nil, err
	}
	all := &joint{round: c.round}
	sides := []bench.Side{all.side(oursRule, ""), all.side(proxyRule, "")}
	if p.answers() {
		sides = append(sides, all.side(oursAnswer, ""), all.side(proxyAnswer, ""))
	}
	if large {
		// Minutes lie between the two clusters. What changes meanwhile, be it the machine, falls on kube-proxy as well.
		before := quietChanges[p.name]
		sides = append(sides, replay(quietRule, before.of(oursRule)), replay(quietProxy, before.of(proxyRule)))
	} else {
		quietChanges[p.name] = all
	}
	return sides, func(ctx context.Context) error {
		noteTails(env, all)
		return c.check(ctx)
	}, nil
}

func measureQuiet(ctx context.Context, env *bench.Env, n *network, p pace) error {
	if n.grown > 0 {
		return fmt.Errorf("the cluster is large already, and was not measured before")
	}
	c, err := n.newChanges(ctx, env, "change-"+p.name, p)
	if err != nil {
		return err
	}
	all := &joint{round: c.round}
	side := all.side(oursRule, "")
	for range env.Rounds {
		if _, err := side.Sample(ctx); err != nil {
			return err
		}
	}
	quietChanges[p.name] = all
	return nil
}

// replay is a side that was measured before in this run.
func replay(name string, rounds [][]float64) bench.Side {
	taken := 0
	return bench.Side{Name: name, Sample: func(context.Context) ([]float64, error) {
		taken++
		return rounds[(taken-1)%len(rounds)], nil
	}}
}

// changes are replacements of a Service's only backend by another.
type changes struct {
	*network

	pace         pace
	node, gw     *kernel
	outside, own *caller
	slice        *discoveryv1.EndpointSlice
	made         int
}

// newChanges makes the Service that is changed.
func (n *network) newChanges(ctx context.Context, env *bench.Env, name string, p pace) (*changes, error) {
	c := &changes{network: n, pace: p}
	c.pace.each = max(2, env.Scaled(p.each))
	addr, err := n.makeEIP(ctx, name, n.name)
	if err != nil {
		return nil, err
	}
	const port = 80
	service, err := n.makeService(ctx, name, name, port)
	if err != nil {
		return nil, err
	}
	env.Cleanup(func() { _ = n.removeService(context.WithoutCancel(ctx), name) })
	if c.slice, err = n.writeSlice(ctx, n.slice(name, 0)); err != nil {
		return nil, err
	}
	clusterIP, err := netip.ParseAddr(service.Spec.ClusterIP)
	if err != nil {
		return nil, err
	}
	c.outside = &caller{namespace: lab.Clients[0], to: netip.AddrPortFrom(addr, port), backend: inVPC}
	c.own = &caller{to: netip.AddrPortFrom(clusterIP, port), backend: onPrimary}
	namespace, err := lab.PodNetns(&n.gateway)
	if err != nil {
		return nil, err
	}
	if c.gw, err = watch(namespace); err != nil {
		return nil, err
	}
	env.Cleanup(c.gw.close)
	if c.node, err = watch(""); err != nil {
		return nil, err
	}
	env.Cleanup(c.node.close)
	return c, c.check(ctx)
}

// current is the backend that the Service has now.
func (c *changes) current() int { return c.made % realBackends }

// check waits until both ways lead to the backend that is the last one.
func (c *changes) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	for _, caller := range []*caller{c.outside, c.own} {
		group.Go(func() error {
			_, err := caller.call(ctx, c.current())
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for _, k := range []*kernel{c.gw, c.node} {
		if err := k.complete(); err != nil {
			return err
		}
	}
	return nil
}

// sampled collects what a round's changes came to.
type sampled struct {
	mu    sync.Mutex
	sides map[string][]float64
}

func (s *sampled) add(side string, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sides[side] = append(s.sides[side], took.Seconds())
}

// round makes the changes of a round, whatever has become of those before.
func (c *changes) round(ctx context.Context) (map[string][]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	result := &sampled{sides: map[string][]float64{}}
	tick := time.NewTicker(c.pace.apart)
	defer tick.Stop()
	for range c.pace.each {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if err := c.change(ctx, group, result); err != nil {
			return nil, err
		}
	}
	return result.sides, group.Wait()
}

// change replaces the backend. What it leads to is waited for beside what comes next. Where answers are looked at, it is at every other
// change: who asks for them all the time keeps a processor from those who are measured.
func (c *changes) change(ctx context.Context, group *errgroup.Group, result *sampled) error {
	c.made++
	i := c.current()
	setBackends(c.slice, i)
	began := time.Now()
	measure := func(side string, wait func() (time.Time, error)) {
		group.Go(func() error {
			at, err := wait()
			result.add(side, at.Sub(began))
			return err
		})
	}
	if c.pace.answers() && c.made%2 == 0 {
		measure(oursAnswer, func() (time.Time, error) { return c.outside.call(ctx, i) })
		measure(proxyAnswer, func() (time.Time, error) { return c.own.call(ctx, i) })
	} else {
		ours, proxy := c.gw.expect(c.made, inVPC(i)), c.node.expect(c.made, onPrimary(i))
		measure(oursRule, func() (time.Time, error) { return sight(ctx, inVPC(i).String(), ours) })
		measure(proxyRule, func() (time.Time, error) { return sight(ctx, onPrimary(i).String(), proxy) })
	}
	var err error
	c.slice, err = c.writeSlice(ctx, c.slice)
	return err
}

// noteTails reports what one change in a hundred takes; with fewer samples that is the slowest.
func noteTails(env *bench.Env, measured *joint) {
	for _, side := range []string{oursRule, proxyRule, oursAnswer, proxyAnswer} {
		all := slices.Concat(measured.of(side)...)
		if len(all) < 50 {
			continue // that of a few is the worst of them, and says nothing
		}
		slices.Sort(all)
		env.Note(fmt.Sprintf("%s, p99 of %d", side, len(all)), all[int(math.Ceil(0.99*float64(len(all))))-1], "s")
	}
}
