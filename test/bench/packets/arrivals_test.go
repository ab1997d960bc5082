// SPDX-License-Identifier: Apache-2.0

package packets

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

func TestCheckArrivals(t *testing.T) {
	free, sticky := share(0, 80, 4, none), share(1, 80, 4, clientIP)
	shares := []sharenat.Share{free, sticky}
	// Connection i, as a gateway would translate it.
	arrive := func(opened []flow) []flow {
		out := make([]flow, len(opened))
		for i, f := range opened {
			out[i] = f
			client := f.src.Addr().As4()
			which := i / 2 % 4
			if f.dst.Addr() == sticky.EIP {
				which = int(client[3]) / 2 % 4
			}
			out[i].dst = free.Backends[which].Addr
		}
		return out
	}
	for _, tc := range []struct {
		name  string
		spoil func(arrived []flow) []flow
		want  string
	}{
		{name: "as it should be"},
		{"one is lost", func(a []flow) []flow { return a[1:] }, "399 arrived"},
		{"another source", func(a []flow) []flow {
			a[7].src = netip.MustParseAddrPort("10.1.0.254:1")
			return a
		}, "did not arrive with its own source"},
		{"no backend", func(a []flow) []flow {
			a[7].dst = netip.MustParseAddrPort("10.9.9.9:8080")
			return a
		}, "no backend of it"},
		{"client moved", func(a []flow) []flow {
			a[101].dst = free.Backends[(a[101].src.Addr().As4()[3]/2+1)%4].Addr
			return a
		}, "and then to"},
		{"one backend gets all", func(a []flow) []flow {
			for i := 0; i < len(a); i += 2 {
				a[i].dst = free.Backends[0].Addr
			}
			return a
		}, "spread unevenly"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var opened []flow
			for i := range 400 {
				opened = append(opened, flow{
					proto: protocolNumber(sharenat.TCP),
					src:   netip.AddrPortFrom(addr(netip.MustParseAddr("100.64.0.0"), i%100), uint16(firstPort+i)),
					dst:   netip.AddrPortFrom(shares[i%2].EIP, 80),
				})
			}
			arrived := arrive(opened)
			if tc.spoil != nil {
				arrived = tc.spoil(arrived)
			}
			err := checkArrivals(opened, arrived, shares)
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}

func TestCheckArrivalsKnowsItsIdentities(t *testing.T) {
	s := share(0, 80, 1, none)
	opened := []flow{{protocolNumber(sharenat.TCP), netip.MustParseAddrPort("100.64.0.1:1"), netip.AddrPortFrom(s.EIP, 81)}}
	arrived := []flow{opened[0]}
	arrived[0].dst = s.Backends[0].Addr
	if err := checkArrivals(opened, arrived, []sharenat.Share{s}); err == nil || !strings.Contains(err.Error(), "no such identity") {
		t.Error(err)
	}
}
