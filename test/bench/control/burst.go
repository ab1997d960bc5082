// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kubeovn/kube-ovn/pkg/natgateway"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
	"github.com/kubeovn/kube-ovn/test/bench"
	"github.com/kubeovn/kube-ovn/test/lab"
)

// burstSize is how many backends come at once.
const burstSize = 100

const (
	oursBurst  = "ours, until all are in the kernel"
	burstCalls = "ours, calls to the gateway"
	burstFloor = "the API server, creating as many rules"
	perRule    = "a call a rule, each with all backends so far"
)

func burstMeasure() bench.Measure {
	return bench.Measure{
		Name:     "control/burst",
		Title:    "100 backends come at once",
		Unit:     "s",
		Rounds:   5,
		NoWarmUp: true,
		Aims: []bench.Aim{
			{Of: perRule, Over: oursBurst, Min: 50},
			{Of: burstCalls, Max: 3},
		},
		Prepare: prepareBurst,
	}
}

type burst struct {
	*network

	address netip.Addr
	slice   *discoveryv1.EndpointSlice
	gw      *kernel
}

func prepareBurst(ctx context.Context, env *bench.Env) ([]bench.Side, func(context.Context) error, error) {
	n, err := quiet(ctx, env)
	if err != nil {
		return nil, nil, err
	}
	b := &burst{network: n}
	if b.address, err = n.makeEIP(ctx, "burst", n.name); err != nil {
		return nil, nil, err
	}
	if _, err := n.makeService(ctx, "burst", "burst", 80); err != nil {
		return nil, nil, err
	}
	if b.slice, err = n.writeSlice(ctx, n.slice("burst", 0)); err != nil {
		return nil, nil, err
	}
	namespace, err := lab.PodNetns(&n.gateway)
	if err != nil {
		return nil, nil, err
	}
	if b.gw, err = watch(namespace); err != nil {
		return nil, nil, err
	}
	env.Cleanup(b.gw.close)
	env.Cleanup(func() { _ = n.removeService(context.WithoutCancel(ctx), "burst") })
	copies, err := n.makeCopies(ctx)
	if err != nil {
		return nil, nil, err
	}
	ours := &joint{round: b.ours}
	sides := []bench.Side{
		ours.side(oursBurst, ""), ours.side(burstCalls, "calls"),
		{Name: burstFloor, Sample: func(ctx context.Context) ([]float64, error) {
			took, err := copies.create(ctx, burstSize)
			return []float64{took.Seconds()}, err
		}},
		{Name: perRule, Sample: b.perRule},
	}
	return sides, func(context.Context) error { return b.gw.complete() }, b.holds(ctx, 1)
}

// backends are the first of the real ones.
func (b *burst) backends(count int) []sharenat.Backend {
	out := make([]sharenat.Backend, count)
	for i := range out {
		out[i] = sharenat.Backend{Addr: netip.AddrPortFrom(inVPC(i), answerPort), Masquerade: true}
	}
	return out
}

// holds waits until the gateway holds exactly so many backends of the Service, the right ones.
func (b *burst) holds(ctx context.Context, count int) error {
	share := sharenat.Share{
		Identity: sharenat.Identity{EIP: b.address, Port: 80, Protocol: "tcp"}, Backends: b.backends(count),
	}
	share.Normalize()
	return poll(ctx, seldom, fmt.Sprintf("%d backends", count), func(ctx context.Context) (bool, error) {
		listing, err := b.listing(ctx, &b.gateway)
		return err == nil && listing.Shares[share.Identity].Digest == share.Digest(), err
	})
}

// ours lets the backends come, and go again.
func (b *burst) ours(ctx context.Context) (map[string][]float64, error) {
	var addrs []netip.Addr
	backends := []int{0}
	for i := range burstSize {
		addrs = append(addrs, inVPC(i+1))
		backends = append(backends, i+1)
	}
	before, err := b.calls(ctx, "")
	if err != nil {
		return nil, err
	}
	seen := b.gw.expectAll(addrs)
	began := time.Now()
	setBackends(b.slice, backends...)
	if b.slice, err = b.writeSlice(ctx, b.slice); err != nil {
		return nil, err
	}
	at, err := sight(ctx, "all backends", seen)
	if err != nil {
		return nil, err
	}
	took := at.Sub(began).Seconds()
	if err := b.ready(ctx, "burst"); err != nil {
		return nil, err
	}
	after, err := b.calls(ctx, "")
	if err != nil {
		return nil, err
	}
	if err := b.holds(ctx, burstSize+1); err != nil {
		return nil, err
	}
	setBackends(b.slice, 0)
	if b.slice, err = b.writeSlice(ctx, b.slice); err != nil {
		return nil, err
	}
	return map[string][]float64{oursBurst: {took}, burstCalls: {after - before}}, b.holds(ctx, 1)
}

// perRule is how a handler goes about it that knows one rule at a time: by the same way to the pod, and in an identity of
// its own. What else such a handler does, its writes of each rule, is not counted. Some of the calls are made, evenly spread, and stand
// for those between them.
func (b *burst) perRule(ctx context.Context) ([]float64, error) {
	const port = "81"
	const step = 4
	began := time.Now()
	for count := 1 + step; count <= burstSize+1; count += step {
		var addrs []string
		for _, backend := range b.backends(count) {
			addrs = append(addrs, backend.Addr.String())
		}
		arg := b.address.String() + "," + port + ",tcp,none,0," + strings.Join(addrs, "@")
		if _, err := b.call(ctx, &b.gateway, natgateway.Call{Verb: "nft-dnat-map-add", Args: []string{arg}}); err != nil {
			return nil, err
		}
	}
	took := time.Since(began).Seconds() * step
	listing, err := b.listing(ctx, &b.gateway)
	if err != nil {
		return nil, err
	}
	id := sharenat.Identity{EIP: b.address, Port: 81, Protocol: "tcp"}
	if held := listing.Shares[id].Backends; held != burstSize+1 {
		return nil, fmt.Errorf("call by call the gateway has come to hold %d backends", held)
	}
	_, err = b.call(ctx, &b.gateway, natgateway.Call{Verb: "nft-dnat-map-del", Args: []string{b.address.String() + "," + port + ",tcp"}})
	return []float64{took}, err
}
