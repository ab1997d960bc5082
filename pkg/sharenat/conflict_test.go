// SPDX-License-Identifier: Apache-2.0

package sharenat

import (
	"net/netip"
	"testing"
)

func TestDiscordOf(t *testing.T) {
	rule := func(tweaks ...func(*Rule)) *Rule {
		r := &Rule{Identity: web, Share: true, Backend: backend("10.1.0.4:8080", false)}
		for _, tweak := range tweaks {
			tweak(r)
		}
		return r
	}
	exclusive := func(r *Rule) { r.Share = false }
	owned := func(name string) func(*Rule) {
		return func(r *Rule) { r.Owner, r.Managed = Owner{"shop", name}, true }
	}
	pinned := func(seconds int32) func(*Rule) {
		return func(r *Rule) { r.Affinity = Affinity{ClientIP: true, TimeoutSeconds: seconds} }
	}
	from := func(r *Rule) { r.Sources = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")} }
	other := func(r *Rule) { r.Backend = backend("10.1.0.5:8080", true) }
	for _, tc := range []struct {
		name   string
		a, b   *Rule
		want   Discord
		passes bool
	}{
		{"backends of one identity", rule(), rule(other), Accord, false},
		{"backends of one Service", rule(owned("web")), rule(owned("web"), other), Accord, false},
		{"two Services", rule(owned("web")), rule(owned("api")), DifferentOwner, false},
		{"by hand beside managed", rule(), rule(owned("web")), DifferentOwner, false},
		{"owner goes before type", rule(exclusive), rule(owned("web")), DifferentOwner, false},
		{"types", rule(), rule(exclusive), DifferentType, false},
		{"exclusive ones", rule(exclusive), rule(exclusive), BothExclusive, false},
		{"affinity", rule(), rule(pinned(60)), DifferentAffinity, true},
		{"timeout", rule(pinned(60)), rule(pinned(61)), DifferentAffinity, true},
		{"affinity, and sources as well", rule(), rule(pinned(60), from), DifferentAffinity, false},
		{"sources", rule(from), rule(), DifferentSources, false},
		{"affinity of one Service", rule(owned("web")), rule(owned("web"), pinned(60)), DifferentAffinity, true},
		{"both of one Service", rule(owned("web")), rule(owned("web"), pinned(60), from), DifferentAffinity, true},
		{"sources of one Service", rule(owned("web")), rule(owned("web"), from), DifferentSources, true},
		{"types of one Service", rule(owned("web")), rule(owned("web"), exclusive), DifferentType, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, pair := range [][2]*Rule{{tc.a, tc.b}, {tc.b, tc.a}} {
				got := DiscordOf(pair[0], pair[1])
				if got != tc.want || got.Passes(pair[0], pair[1]) != tc.passes {
					t.Errorf("got %d, passes: %v; want %d, %v", got, got.Passes(pair[0], pair[1]), tc.want, tc.passes)
				}
			}
		})
	}
}
