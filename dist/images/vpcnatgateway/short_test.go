// SPDX-License-Identifier: Apache-2.0

package vpcnatgateway_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

const kinds = "/run/nat-gateway.kinds"

// allKinds are an identity with each set of objects that there is.
func allKinds() map[string]sharenat.Share {
	backends := map[string]sharenat.Share{"": share("tcp:80", p1, p2), " masquerade": share("tcp:80", p1+" masquerade", p2)}
	all := map[string]sharenat.Share{}
	for m, s := range backends {
		all["none"+m] = s
		all["60 s"+m] = sticky(60, s)
		all["61 s"+m] = sticky(61, s)
		all["none, sources"+m] = from(s, "203.0.113.0/24")
		all["60 s, sources"+m] = sticky(60, from(s, "203.0.113.0/24"))
	}
	return all
}

// Whatever an identity was, it becomes what it is to be, and nothing stays behind; with hints, without, and with wrong ones.
func TestKinds(t *testing.T) {
	g := newGateway(t)
	all := allKinds()
	names := slices.Sorted(maps.Keys(all))
	for _, hints := range []string{"right", "none", "wrong"} {
		for i, was := range names {
			for j, is := range names {
				if hints != "right" && j != (i+3)%len(names) {
					continue // some will do
				}
				a, b := all[was], all[is]
				switch hints {
				case "none":
					must(t, os.RemoveAll(kinds))
				case "wrong":
					g.full()
				}
				g.set(a)
				if hints == "wrong" {
					hintOf(t, a, b)
				}
				g.set(b)
				if got, want := g.listing(), (sharenat.Holding{Digest: normalized(t, b).Digest(), Backends: 2}); got.Stale != 0 || got.Shares[b.Identity] != want {
					t.Fatalf("hints %s: %s became %s: %+v\n%s", hints, was, is, got, g.must("nft", "list", "ruleset", "ip"))
				}
			}
		}
	}
}

// A walk through the kinds, with each a change of backends, that the short way takes.
func TestKindsInTurn(t *testing.T) {
	g := newGateway(t)
	other := sticky(60, share("udp:53", p1))
	g.set(other)
	all := allKinds()
	random := rand.New(rand.NewPCG(1, 2))
	for range 3 {
		for _, s := range all {
			for range random.IntN(3) {
				s.Backends = append(s.Backends, share("tcp:80", fmt.Sprintf("10.1.1.%d:8080", random.IntN(100)+1+100*(len(s.Backends)-2))).Backends...)
				g.set(s)
			}
			g.set(s)
			g.holds(s, other)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func normalized(t *testing.T, s sharenat.Share) *sharenat.Share {
	t.Helper()
	return &normal(t, []sharenat.Share{s})[0]
}

// hintOf makes the hint of an identity say what it would say of another kind of it.
func hintOf(t *testing.T, is, said sharenat.Share) {
	t.Helper()
	kind := "0"
	if said.Affinity.ClientIP {
		kind = "c" + strconv.Itoa(int(said.Affinity.TimeoutSeconds))
	}
	if len(said.Sources) > 0 {
		kind += "s"
	}
	if slices.ContainsFunc(said.Backends, func(b sharenat.Backend) bool { return b.Masquerade }) {
		kind += "m"
	}
	name := fmt.Sprintf("%s:%d:%s", is.EIP, is.Port, is.Protocol)
	must(t, os.WriteFile(filepath.Join(kinds, name), []byte(hash(is)+" "+kind+"\n"), 0o600))
}

// A change of backends has nft read nothing.
func TestChangeOfBackendsAsksNothing(t *testing.T) {
	for name, s := range allKinds() {
		t.Run(name, func(t *testing.T) {
			g := newGateway(t)
			g.set(s)
			log := filepath.Join(t.TempDir(), "calls")
			g.shim("nft", `echo "$*" >>`+log+"\nexec "+pathOf(t, "nft")+` "$@"`)
			s.Backends = s.Backends[:1]
			g.set(s)
			g.env = g.env[:len(g.env)-1]
			calls, err := os.ReadFile(log)
			must(t, err)
			if string(calls) != "-f -\n" {
				t.Errorf("nft was called with %q", calls)
			}
			g.holds(s)
		})
	}
}

// Where nft ignores rules in the braces of a chain, as 1.0.6 does without fixes, the short way is not taken.
func TestNftThatIgnoresRulesInBraces(t *testing.T) {
	must(t, os.RemoveAll(kinds))
	t.Cleanup(func() { must(t, os.RemoveAll(kinds)) })
	g := newGateway(t)
	g.shim("nft", "[ \"$1\" != -c ] || exit 0\nexec "+pathOf(t, "nft")+` "$@"`)
	for range 3 {
		g.set(share("tcp:80", p1, p2))
	}
	g.holds(share("tcp:80", p1, p2))
	if out := g.must("nft", "list", "chains", "ip"); strings.Contains(out, hash(share("tcp:80", p1))+"-0") {
		t.Errorf("a promise was made:\n%s", out)
	}
}

// A promise that somebody else's edit broke is told, and a full state mends it.
func TestBrokenPromise(t *testing.T) {
	g := newGateway(t)
	s := share("tcp:80", p1, p2)
	h := hash(s)
	for name, edit := range map[string]string{
		"masquerade":         "add chain ip kube-ovn masq-" + h + "\nadd rule ip kube-ovn masq-" + h + " masquerade\nadd element ip kube-ovn masquerade-ips { " + eip + " . tcp . 80 : goto masq-" + h + " }",
		"masquerade, broken": "add chain ip kube-ovn masq-" + h + "\nadd element ip kube-ovn masquerade-ips { " + eip + " . tcp . 80 : goto masq-" + h + " }",
	} {
		t.Run(name, func(t *testing.T) {
			g.full()
			g.set(s)
			g.nft(edit)
			g.set(s)
			l := g.listing()
			if l.Shares[s.Identity].Digest == normalized(t, s).Digest() || l.Stale == 0 {
				t.Errorf("not told: %+v", l)
			}
			g.full(s)
			g.holds(s)
		})
	}
}

// An identity that goes takes its hint along.
func TestHintsGoWithTheirIdentities(t *testing.T) {
	must(t, os.RemoveAll(kinds))
	g := newGateway(t)
	a, b, c := share("tcp:80", p1), sticky(60, share("udp:81", p1)), share("tcp:82", p1)
	hints := func() string {
		entries, err := os.ReadDir(kinds)
		must(t, err)
		var names []string
		for _, e := range entries {
			names = append(names, strings.TrimPrefix(e.Name(), eip+":"))
		}
		return strings.Join(names, " ")
	}
	for _, step := range []struct {
		do   func()
		want string
	}{
		{func() { g.set(a, b, c) }, "80:tcp 81:udp 82:tcp"},
		{func() { g.delta(nil, b.Identity) }, "80:tcp 82:tcp"},
		{func() { g.full(c) }, "82:tcp"},
		{func() { g.run("", "nft-dnat-map-del", eip+",82,tcp") }, ""},
	} {
		step.do()
		if got := hints(); got != step.want {
			t.Errorf("hints of %q, want %q", got, step.want)
		}
	}
}
