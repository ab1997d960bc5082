// SPDX-License-Identifier: Apache-2.0

package packets

import (
	"net/netip"
	"testing"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

func TestCrowds(t *testing.T) {
	ids := identities([]sharenat.Share{share(0, 80, 1, none), share(1, 81, 1, none), share(2, 82, 1, none)})
	ranges := sourceRanges(16, 24, 32)
	for _, tc := range []struct {
		name    string
		crowd   crowd
		clients int
	}{
		{"nobody twice", crowd{to: ids}, 20_000},
		{"regulars", crowd{clients: 1000, to: ids}, 1000},
		{"from ranges", crowd{from: ranges, to: ids}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			sources, clients, to := map[netip.AddrPort]bool{}, map[netip.Addr]bool{}, map[netip.AddrPort]int{}
			for range 2 {
				for _, f := range tc.crowd.next(10_000) {
					if sources[f.src] {
						t.Fatalf("%s comes twice", f.src)
					}
					sources[f.src], clients[f.src.Addr()] = true, true
					to[f.dst]++
				}
			}
			if tc.clients > 0 && len(clients) != tc.clients {
				t.Errorf("%d clients, want %d", len(clients), tc.clients)
			}
			if len(to) != len(ids) {
				t.Errorf("they come to %d identities, want %d", len(to), len(ids))
			}
			within := tc.crowd.from
			if len(within) == 0 {
				within = []netip.Prefix{netip.MustParsePrefix(clientNet)}
			}
			seen := map[netip.Prefix]bool{}
			for c := range clients {
				in := false
				for _, p := range within {
					if p.Contains(c) {
						in, seen[p] = true, true
					}
				}
				if !in {
					t.Fatalf("%s is not where clients are", c)
				}
			}
			if len(seen) != len(within) {
				t.Errorf("clients of %d prefixes, want %d", len(seen), len(within))
			}
		})
	}
}
