// SPDX-License-Identifier: Apache-2.0

package packets

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
	"github.com/kubeovn/kube-ovn/test/bench"
)

// Addresses of Services, from the API server's range.
var firstService, firstOfMany = netip.MustParseAddr("10.96.1.1"), netip.MustParseAddr("10.96.2.1")

// compared are Services whose new connections are timed, and who comes to them.
type compared struct {
	name     string
	clients  int
	services []service
}

func comparedServices() []compared {
	var all []compared
	for _, c := range []struct {
		name     string
		affinity sharenat.Affinity
		clients  int
		backends []int
	}{
		{"none, %d", none, 0, backendCounts},
		{"ClientIP, %d", clientIP, regulars, backendCounts},
		{"ClientIP, %d, new clients", clientIP, 0, []int{10, 1000}},
	} {
		for _, n := range c.backends {
			s := service{name: fmt.Sprintf("s%d", len(all)), addr: addr(firstService, len(all)), affinity: c.affinity, ports: 1, backends: n}
			all = append(all, compared{name: fmt.Sprintf(c.name, n), clients: c.clients, services: []service{s}})
		}
	}
	many := compared{name: "none, 10, all of 1000"}
	for i := range 10 {
		many.services = append(many.services, service{name: fmt.Sprintf("many%d", i), addr: addr(firstOfMany, i), ports: 100, backends: someBackends})
	}
	return append(all, many)
}

// peerMeasure compares a gateway with a real kube-proxy, on the same Services.
func peerMeasure() bench.Measure {
	ours := func(c compared) string { return c.name + ": ours" }
	theirs := func(c compared) string { return c.name + ": kube-proxy" }
	m := bench.Measure{
		Name: "packets/kube-proxy", Title: "new connection, beside kube-proxy on the same Services", Unit: perFlow, Rounds: 9,
		Prepare: func(ctx context.Context, env *bench.Env) ([]bench.Side, func(context.Context) error, error) {
			var services []service
			var shares []sharenat.Share
			for _, c := range comparedServices() {
				services = append(services, c.services...)
			}
			for _, s := range services {
				shares = append(shares, s.shares()...)
			}
			gateway, err := newGateway(env.Cleanup, shares...)
			if err != nil {
				return nil, nil, err
			}
			proxy, err := newProxy(ctx, env, services)
			if err != nil {
				return nil, nil, err
			}
			var ways []*way
			for _, c := range comparedServices() {
				var asked []sharenat.Share
				for _, s := range c.services {
					asked = append(asked, s.shares()...)
				}
				for _, w := range []*way{{name: ours(c), lane: gateway.lane}, {name: theirs(c), lane: proxy}} {
					w.shares, w.crowd = asked, &crowd{clients: c.clients, to: identities(asked)}
					ways = append(ways, w)
				}
			}
			s, check := sides(ways...)
			return s, check, nil
		},
	}
	for _, c := range comparedServices() {
		m.Aims = append(m.Aims, bench.Aim{Of: ours(c), Over: theirs(c), Max: 1})
	}
	return m
}
