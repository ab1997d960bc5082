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

// kinds is where a gateway's hints are.
func (g *gateway) kinds() string { return g.path(etcDir + "/nat-gateway.kinds") }

// allKinds are an identity with each set of objects that there is.
func allKinds() map[string]sharenat.Share {
	all := map[string]sharenat.Share{}
	for _, m := range []string{"", " masquerade"} {
		s := func() sharenat.Share { return share("tcp:80", p1+m, p2) }
		all["none"+m] = s()
		all["60 s"+m] = sticky(60, s())
		all["61 s"+m] = sticky(61, s())
		all["none, sources"+m] = from(s(), "203.0.113.0/24")
		all["60 s, sources"+m] = sticky(60, from(s(), "203.0.113.0/24"))
	}
	return all
}

// Whatever an identity was, it becomes what it is to be, and nothing stays behind; with hints, without, and with wrong ones.
func TestKinds(t *testing.T) {
	t.Parallel()
	names := slices.Sorted(maps.Keys(allKinds()))
	become := func(g *gateway, was, is string) {
		g.t.Helper()
		want := *normalized(g.t, allKinds()[is])
		g.set(want)
		if got := g.listing(); got.Stale != 0 || got.Shares[want.Identity] != (sharenat.Holding{Digest: want.Digest(), Backends: 2}) {
			g.t.Fatalf("%s became %s: %+v\n%s", was, is, got, g.must("nft", "list", "ruleset", "ip"))
		}
	}
	t.Run("right hints", func(t *testing.T) {
		t.Parallel()
		g := newGateway(t)
		was := names[0]
		g.set(allKinds()[was])
		for _, i := range everyPair(len(names)) {
			become(g, was, names[i])
			was = names[i]
		}
	})
	// Some of the pairs will do.
	t.Run("no hints", func(t *testing.T) {
		t.Parallel()
		g := newGateway(t)
		for i, was := range names {
			must(t, os.RemoveAll(g.kinds()))
			g.set(allKinds()[was])
			become(g, was, names[(i+3)%len(names)])
		}
	})
	t.Run("wrong hints", func(t *testing.T) {
		onlyScript(t, "it keeps hints")
		t.Parallel()
		g := newGateway(t)
		for i, was := range names {
			is := names[(i+3)%len(names)]
			all := allKinds()
			g.full()
			g.set(all[was])
			g.hintOf(all[was], all[is])
			become(g, was, is)
		}
	})
}

// everyPair is a walk from 0 over 0 to n-1 that takes each step from one to another, or to itself, once.
func everyPair(n int) (walk []int) {
	for i := range n {
		if i > 0 {
			walk = append(walk, i)
		}
		for j := i + 1; j < n; j++ {
			walk = append(walk, i, j)
		}
	}
	return append(walk, 0)
}

// A walk through the kinds, with each a change of backends, that the short way takes.
func TestKindsInTurn(t *testing.T) {
	t.Parallel()
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

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func normalized(tb testing.TB, s sharenat.Share) *sharenat.Share {
	tb.Helper()
	return &normal(tb, []sharenat.Share{s})[0]
}

// hintOf makes the hint of an identity say what it would say of another kind of it.
func (g *gateway) hintOf(is, said sharenat.Share) {
	g.t.Helper()
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
	must(g.t, os.WriteFile(filepath.Join(g.kinds(), name), []byte(hash(is)+" "+kind+"\n"), 0o600))
}

// A change of backends has nft read nothing.
func TestChangeOfBackendsAsksNothing(t *testing.T) {
	onlyScript(t, "it calls nft")
	t.Parallel()
	for name, s := range allKinds() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
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

// What a gateway has to remember is in the directory that is made for it, and elsewhere where there is none to write to.
func TestWhereHintsAre(t *testing.T) {
	onlyScript(t, "it keeps hints")
	t.Parallel()
	for name, tc := range map[string]struct {
		prepare    []string
		dir, other string
	}{
		"as in the image": {[]string{"true"}, etcDir, "/run"},
		"read-only":       {[]string{"mount", "-o", "remount,bind,ro", etcDir}, "/run", etcDir},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGateway(t)
			g.must(tc.prepare...)
			g.set(share("tcp:80", p1, p2))
			g.holds(share("tcp:80", p1, p2))
			for dir, want := range map[string]int{tc.dir: 2, tc.other: 0} { // the lock and the hints
				there, err := filepath.Glob(g.path(dir) + "/nat-gateway.*")
				if err != nil || len(there) != want {
					t.Errorf("in %s: %v %v", dir, there, err)
				}
			}
		})
	}
}

// Where nft ignores rules in the braces of a chain, as 1.0.6 does without fixes, the short way is not taken.
func TestNftThatIgnoresRulesInBraces(t *testing.T) {
	onlyScript(t, "it calls nft")
	t.Parallel()
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
	t.Parallel()
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
			// The program sees it, and mends it at once.
			if told := l.Shares[s.Identity].Digest != normalized(t, s).Digest() && l.Stale > 0; told == ofProgram() {
				t.Errorf("told: %v: %+v", told, l)
			}
			g.full(s)
			g.holds(s)
		})
	}
}

// An identity that goes takes its hint along.
func TestHintsGoWithTheirIdentities(t *testing.T) {
	onlyScript(t, "it keeps hints")
	t.Parallel()
	g := newGateway(t)
	a, b, c := share("tcp:80", p1), sticky(60, share("udp:81", p1)), share("tcp:82", p1)
	hints := func() string {
		entries, err := os.ReadDir(g.kinds())
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
