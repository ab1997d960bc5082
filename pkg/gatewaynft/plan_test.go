// SPDX-License-Identifier: Apache-2.0

package gatewaynft

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// share builds one: share("tcp:80", "10.1.0.11:8080", "10.1.0.12:8080 masquerade").
func share(identity string, backends ...string) sharenat.Share {
	proto, port, _ := strings.Cut(identity, ":")
	at := netip.MustParseAddrPort("203.0.113.10:" + port)
	s := sharenat.Share{Identity: sharenat.Identity{EIP: at.Addr(), Port: at.Port(), Protocol: sharenat.Protocol(proto)}}
	for _, b := range backends {
		addr, masquerade := strings.CutSuffix(b, " masquerade")
		s.Backends = append(s.Backends, sharenat.Backend{Addr: netip.MustParseAddrPort(addr), Masquerade: masquerade})
	}
	s.Normalize()
	return s
}

func sticky(timeout int32, s sharenat.Share) sharenat.Share {
	s.Affinity = sharenat.Affinity{ClientIP: true, TimeoutSeconds: timeout}
	return s
}

const (
	p1 = "10.1.0.11:8080"
	p2 = "10.1.0.12:8080"
	p3 = "10.1.0.13:8080"
)

// holding is the snapshot of a kernel that holds these shares, as this package lays them out.
func holding(shares ...sharenat.Share) *snapshot {
	s := newSnapshot()
	s.generation, s.whole, s.table = 7, true, true
	put := func(c chain) {
		s.chains[c.name] = &c
		s.read[c.name] = true
	}
	masquerades := false
	for i := range shares {
		o := objectsOf(&shares[i])
		for _, c := range o.chains {
			put(c)
		}
		if o.aff != nil {
			s.sets[o.aff.name] = o.aff
		}
		n := namesOf(shares[i].Hash())
		s.service[key(shares[i].Identity)] = goTo(n.dnat)
		if o.masquerade {
			masquerades = true
			s.masq[key(shares[i].Identity)] = goTo(n.masq)
		}
	}
	for name, rules := range map[string][]rule{prerouting: preroutingRules(), postrouting: postroutingRules(masquerades)} {
		b := natBase[name]
		put(chain{name: name, base: &b, rules: rules})
	}
	for _, name := range []string{serviceIPs, masqIPs} {
		m := verdictMap(name)
		s.sets[name] = &m
	}
	return s
}

// done are the messages of a change, each in words, without those that begin and end it.
func done(c *change) []string {
	var all []string
	for i := 1; i < c.batch.Count(); i++ {
		all = append(all, strings.TrimPrefix(c.batch.about(i), ""))
	}
	return all
}

func words(texts ...string) (all []string) {
	for _, text := range texts {
		for part := range strings.SplitSeq(text, "; ") {
			verb, name, _ := strings.Cut(part, ": ")
			all = append(all, strings.TrimSpace(fmt.Sprintf("%s ip kube-ovn %s", verb, name)))
		}
	}
	return all
}

func TestPlan(t *testing.T) {
	t.Parallel()
	plain, pinned := share("tcp:80", p1, p2), sticky(60, share("udp:81", p1, p2))
	h, k := plain.Hash(), pinned.Hash()
	for name, tc := range map[string]struct {
		have  *snapshot
		state sharenat.State
		want  []string
		swept []string
		ends  int
	}{
		"nothing there": {
			&snapshot{},
			sharenat.State{Delta: sharenat.Delta{Set: []sharenat.Share{share("tcp:80", p1)}}},
			words("add table", "add map: service-ips; add map: masquerade-ips; add chain: prerouting; add rule: prerouting; add chain: postrouting",
				"add chain: dnat-"+h+"; add rule: dnat-"+h+"; add rule: dnat-"+h+"; add element: service-ips"), nil, 0,
		},
		"the same again": {
			holding(plain, pinned), sharenat.State{Full: true, Delta: sharenat.Delta{Set: []sharenat.Share{plain, pinned}}}, nil, nil, 1,
		},
		"a backend more": {
			holding(plain, pinned),
			sharenat.State{Delta: sharenat.Delta{Set: []sharenat.Share{share("tcp:80", p1, p2, p3)}}},
			words("flush chain: dnat-"+h, "add map: __map%d; add element: __map%d; add rule: dnat-"+h+"; add rule: dnat-"+h), nil, 0,
		},
		// Neither the map of pins nor the chain that looks in it is touched.
		"a pinned backend less": {
			holding(plain, pinned),
			sharenat.State{Delta: sharenat.Delta{Set: []sharenat.Share{sticky(60, share("udp:81", p1))}}},
			words("flush chain: pin-"+k+"-60", "add rule: pin-"+k+"-60; add rule: pin-"+k+"-60; add rule: pin-"+k+"-60",
				"add map: __map%d; add element: __map%d; add rule: pin-"+k+"-60"), nil, 1,
		},
		"removed": {
			holding(plain, pinned),
			sharenat.State{Delta: sharenat.Delta{Remove: []sharenat.Identity{plain.Identity}}},
			words("delete element: service-ips; flush chain: dnat-"+h, "add rule: dnat-"+h), nil, 1,
		},
		"removed, TCP stays": {
			holding(plain, pinned),
			sharenat.State{Delta: sharenat.Delta{
				Remove: []sharenat.Identity{plain.Identity}, Keep: map[sharenat.Identity]bool{plain.Identity: true},
			}},
			words("delete element: service-ips; flush chain: dnat-" + h),
			[]string{"dnat-" + h},
			0,
		},
		"not there": {
			holding(plain), sharenat.State{Delta: sharenat.Delta{Remove: []sharenat.Identity{pinned.Identity}}}, nil, nil, 0,
		},
		"affinity ends": {
			holding(sticky(60, plain)),
			sharenat.State{Full: true, Delta: sharenat.Delta{Set: []sharenat.Share{plain}}},
			words("flush chain: dnat-"+h+"; add map: __map%d; add element: __map%d; add rule: dnat-"+h+"; add rule: dnat-"+h,
				"flush chain: aff-"+h+"-get; flush chain: pin-"+h+"-60"),
			[]string{"aff-" + h + "-get", "pin-" + h + "-60", "aff-" + h},
			0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if tc.have.chains == nil {
				tc.have = newSnapshot()
			}
			c := plan(&tc.state, tc.have, false)
			if diff := cmp.Diff(tc.want, done(c)); diff != "" {
				t.Errorf("transaction (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.swept, append(slices.Clone(c.chains), c.sets...)); diff != "" {
				t.Errorf("swept (-want +got):\n%s", diff)
			}
			if got := len(c.ended.checked); got != tc.ends {
				t.Errorf("connections of %d identities are looked at, want %d", got, tc.ends)
			}
		})
	}
}

// Another timeout leaves the former pin chain, empty, until the pins have it; a call that did not come to that is gone on with.
func TestPlanOfAnotherTimeout(t *testing.T) {
	t.Parallel()
	was, is := sticky(60, share("tcp:80", p1, p2)), sticky(90, share("tcp:80", p1, p2))
	former := "pin-" + was.Hash() + "-60"
	c := plan(&sharenat.State{Delta: sharenat.Delta{Set: []sharenat.Share{is}}}, holding(was), false)
	if diff := cmp.Diff([]string{former}, c.former); diff != "" || len(c.pins) != 1 || len(c.chains) != 0 {
		t.Errorf("%+v %s", c, diff)
	}
	interrupted := holding(is)
	interrupted.chains[former] = &chain{name: former}
	c = plan(&sharenat.State{Full: true, Delta: sharenat.Delta{Set: []sharenat.Share{is}}}, interrupted, false)
	if len(c.former) != 1 || len(c.pins) != 1 || c.pins[0].timeout != 90 {
		t.Errorf("not gone on with: %+v", c)
	}
}

// A removal whose connections are still there is told by the kernel: whoever names the identity next, or says all that there is to be, goes
// on with it.
func TestPlanGoesOnWithARemoval(t *testing.T) {
	t.Parallel()
	gone := share("tcp:80", p1)
	noted := func() *snapshot {
		s := holding()
		name := namesOf(gone.Hash()).dnat
		s.chains[name] = &chain{name: name, rules: noteRules(gone.Identity)}
		s.read[name] = true
		return s
	}
	for name, state := range map[string]sharenat.State{
		"removed again": {Delta: sharenat.Delta{Remove: []sharenat.Identity{gone.Identity}}},
		"full":          {Full: true},
		"there again":   {Delta: sharenat.Delta{Set: []sharenat.Share{gone}}},
	} {
		c := plan(&state, noted(), false)
		if !c.ended.checked[gone.Identity] {
			t.Errorf("%s: its connections are not looked at", name)
		}
		if again := len(state.Set) > 0; again == slices.Contains(c.notes, namesOf(gone.Hash()).dnat) {
			t.Errorf("%s: notes %q", name, c.notes)
		}
		if len(state.Set) > 0 && len(c.ended.alive) != 1 {
			t.Errorf("%s: connections to its backends end", name)
		}
	}
	if l := list(noted()); len(l.Stale) != 1 {
		t.Errorf("not told: %+v", l)
	}
}

// Whatever a share is, it is read back as it is, and a change of anything about it shows.
func TestSharesAreReadBack(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		s := share([]string{"tcp", "udp"}[random.IntN(2)] + fmt.Sprint(":", 1+random.IntN(65535)))
		for i := range 1 + random.IntN(5) {
			addr := netip.AddrFrom4([4]byte{byte(random.IntN(256)), byte(i), 0, byte(random.IntN(256))})
			s.Backends = append(s.Backends, sharenat.Backend{
				Addr: netip.AddrPortFrom(addr, uint16(1+random.IntN(65535))), Masquerade: random.IntN(3) == 0,
			})
		}
		for range random.IntN(6) {
			addr := netip.AddrFrom4([4]byte{byte(random.IntN(256)), byte(random.IntN(4)), 0, byte(random.IntN(4))})
			s.Sources = append(s.Sources, netip.PrefixFrom(addr, random.IntN(33)))
		}
		s.Normalize()
		if random.IntN(2) == 0 {
			s = sticky(int32(1+random.IntN(86400)), s)
		}
		have := holding(s)
		if got := list(have); len(got.Stale) != 0 || got.Held[s.Identity] != (sharenat.Holding{Digest: s.Digest(), Backends: len(s.Backends)}) {
			t.Fatalf("%+v: %+v", s, got)
		}
		// Without any one of its rules it is another.
		for _, c := range have.chains {
			if c.base != nil || len(c.rules) == 0 {
				continue
			}
			whole := c.rules
			c.rules = slices.Delete(slices.Clone(whole), 0, 1)
			if got := list(have).Held[s.Identity]; got.Digest == s.Digest() {
				t.Fatalf("%+v: a rule less in %s does not show", s, c.name)
			}
			c.rules = whole
		}
	}
}

func TestEndings(t *testing.T) {
	t.Parallel()
	s, other := share("udp:53", p1), share("tcp:80", p1)
	to := func(s sharenat.Share, backend string) *connection {
		return &connection{Connections: sharenat.Connections{Identity: s.Identity, Backend: netip.MustParseAddrPort(backend)}}
	}
	e := newEndings()
	e.except(&s)
	e.forget[to(other, p2).Connections] = true
	for _, tc := range []struct {
		what string
		c    *connection
		want bool
	}{
		{"to a backend", to(s, p1), false},
		{"to a backend that left", to(s, p2), true},
		{"of another identity", to(other, p1), false},
		{"forgotten", to(other, p2), true},
		{"over", &connection{Connections: to(other, p2).Connections, over: true}, false},
	} {
		if got := e.ends(tc.c); got != tc.want {
			t.Errorf("%s: ends: %v", tc.what, got)
		}
	}
}

func TestRetimed(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ timeout, expires, to, want uint64 }{
		{300_000, 200_000, 1_000_000, 900_000},
		{300_000, 200_000, 150_000, 50_000},
		{300_000, 200_000, 100_000, 0},
		{300_000, 300_001, 60_000, 60_000},
	} {
		got, ok := pin{timeout: tc.timeout, expires: tc.expires}.retimed(tc.to)
		if ok != (tc.want > 0) || ok && (got.expires != tc.want || got.timeout != tc.to) {
			t.Errorf("%+v: %+v %v", tc, got, ok)
		}
	}
}
