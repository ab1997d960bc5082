// SPDX-License-Identifier: Apache-2.0

package vpcnatgateway_test

import (
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

const (
	p1 = "10.1.0.11:8080"
	p2 = "10.1.0.12:8080"
	p3 = "10.1.0.13:8080"
	d1 = "10.1.0.21:8080"
)

// hash is the 12 digits that name an identity's objects.
func hash(s sharenat.Share) string { return s.Hash() }

func TestDigestIsThatOfTheKernel(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	shares := []sharenat.Share{
		share("tcp:80", p1),
		share("udp:80", p1, p2, "10.1.0.9:53"),
		share("tcp:81", p1+" masquerade"),
		share("tcp:82", p1, p2+" masquerade", d1+" masquerade"),
		sticky(1, share("tcp:83", p1, p2)),
		sticky(86400, share("udp:83", p1+" masquerade", "10.1.0.11:1", "10.1.0.11:65535", "255.255.255.255:65535", "0.0.0.1:1")),
		sticky(59, share("tcp:84", p3)), sticky(60, share("tcp:85", p3)), sticky(3599, share("tcp:86", p3)), sticky(3661, share("tcp:87", p3)), sticky(10800, share("tcp:88", p3)),
		from(share("tcp:89", p1), "0.0.0.0/0"),
		from(share("tcp:90", p1), "10.0.0.1/32"),
		from(sticky(10, share("tcp:91", p1, p2)), "10.0.0.0/8", "10.0.0.0/9", "10.128.0.0/9", "10.0.0.0/32", "192.168.0.0/16", "128.0.0.0/1", "192.0.2.1/32", "198.51.100.0/31", "198.51.100.2/31"),
	}
	for i := range 40 {
		s := share("tcp:100", p1)
		s.Port += uint16(i)
		for j := range i {
			s.Backends = append(s.Backends, sharenat.Backend{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(j * 7), byte(j), 9}), uint16(1+j*1600)), Masquerade: j%3 == 0})
		}
		if i%2 == 0 {
			s = sticky(int32(1+i*i*50), s)
		}
		shares = append(shares, s)
	}
	g.full(shares...)
	g.holds(shares...)
	before := g.state()
	g.full(shares...)
	if diff := cmp.Diff(sorted(before), sorted(g.state())); diff != "" {
		t.Errorf("the same state again changed something:\n%s", diff)
	}
	// As a delta, and with every identity's content moved to another.
	for i := range shares {
		j := (i + 1) % len(shares)
		shares[i].Affinity, shares[i].Sources, shares[i].Backends, shares[j].Affinity, shares[j].Sources, shares[j].Backends = shares[j].Affinity, shares[j].Sources, shares[j].Backends, shares[i].Affinity, shares[i].Sources, shares[i].Backends
	}
	g.set(shares...)
	g.holds(shares...)
}

// sorted makes rulesets comparable in which chains stand in another order.
func sorted(s string) []string {
	lines := strings.Split(s, "\n")
	slices.Sort(lines)
	return lines
}

// TestEditsShow changes each part of what the kernel holds by hand; the digest has to tell, and sending the identity again has to heal it.
func TestEditsShow(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	plain := share("tcp:80", p1, p2+" masquerade")
	pinned := from(sticky(60, share("tcp:81", p1, p2)), "10.0.0.0/8")
	both := []sharenat.Share{plain, pinned}
	g.full(both...)
	h, k := hash(plain), hash(pinned)
	for name, edit := range map[string]string{
		"rule lost":                "flush chain ip kube-ovn dnat-" + h,
		"rule added":               "add rule ip kube-ovn dnat-" + h + " counter",
		"rule before":              "insert rule ip kube-ovn dnat-" + h + " drop",
		"backend edited":           "flush chain ip kube-ovn dnat-" + h + "\nadd rule ip kube-ovn dnat-" + h + " meta l4proto tcp dnat ip to numgen random mod 2 map { 0 : 10.1.0.11 . 8080, 1 : 10.1.0.12 . 8081 }",
		"slot without backend":     "flush chain ip kube-ovn dnat-" + h + "\nadd rule ip kube-ovn dnat-" + h + " meta l4proto tcp dnat ip to numgen random mod 3 map { 0 : 10.1.0.11 . 8080, 1 : 10.1.0.12 . 8080 }",
		"one backend in two slots": "flush chain ip kube-ovn dnat-" + h + "\nadd rule ip kube-ovn dnat-" + h + " meta l4proto tcp dnat ip to numgen random mod 3 map { 0 : 10.1.0.11 . 8080, 1 : 10.1.0.12 . 8080, 2 : 10.1.0.12 . 8080 }",
		"other protocol":           "flush chain ip kube-ovn dnat-" + h + "\nadd rule ip kube-ovn dnat-" + h + " meta l4proto udp dnat ip to numgen random mod 2 map { 0 : 10.1.0.11 . 8080, 1 : 10.1.0.12 . 8080 }",
		"masquerade lost":          "delete element ip kube-ovn masquerade-ips { " + eip + " . tcp . 80 }",
		"masquerade for all":       "flush chain ip kube-ovn masq-" + h + "\nadd rule ip kube-ovn masq-" + h + " masquerade",
		"masquerade emptied":       "flush chain ip kube-ovn masq-" + h,
		"sources open":             "flush chain ip kube-ovn src-" + k,
		"sources other":            "flush chain ip kube-ovn src-" + k + "\nadd rule ip kube-ovn src-" + k + " ip saddr 10.0.0.0/9 return\nadd rule ip kube-ovn src-" + k + " drop",
		"sources passed by":        "insert rule ip kube-ovn src-" + k + " ip protocol tcp return",
		"sources dropped":          "insert rule ip kube-ovn src-" + k + " drop",
		"sources accepted":         "insert rule ip kube-ovn src-" + k + " accept",
		"source dropped":           "insert rule ip kube-ovn src-" + k + " ip saddr 10.1.2.3 drop",
		"sources counted":          "insert rule ip kube-ovn src-" + k + " counter return",
		"sources not asked":        "flush chain ip kube-ovn dnat-" + k + "\nadd rule ip kube-ovn dnat-" + k + " jump pin-" + k + "-60\nadd rule ip kube-ovn dnat-" + k + " jump pin-" + k + "-60",
		"pins lost":                "flush chain ip kube-ovn pin-" + k + "-60",
		"verdict swapped":          "delete element ip kube-ovn service-ips { " + eip + " . tcp . 80 }\nadd element ip kube-ovn service-ips { " + eip + " . tcp . 80 : goto dnat-" + k + " }",
		"verdict a jump":           "delete element ip kube-ovn service-ips { " + eip + " . tcp . 80 }\nadd element ip kube-ovn service-ips { " + eip + " . tcp . 80 : jump dnat-" + h + " }",
		"verdict a drop":           "delete element ip kube-ovn service-ips { " + eip + " . tcp . 80 }\nadd element ip kube-ovn service-ips { " + eip + " . tcp . 80 : drop }",
		"policy":                   "add chain ip kube-ovn prerouting { policy drop; }",
		"table asleep":             "add table ip kube-ovn { flags dormant; }",
		"identity lost":            "delete element ip kube-ovn service-ips { " + eip + " . tcp . 80 }",
		"prerouting lost":          "flush chain ip kube-ovn prerouting",
		"postrouting lost":         "flush chain ip kube-ovn postrouting",
		"prerouting passed by":     "insert rule ip kube-ovn prerouting accept",
		"everything lost":          "flush ruleset",
	} {
		g.nft(edit + "\n")
		l := g.listing()
		told := false
		for _, s := range both {
			told = told || l.Shares[s.Identity].Digest != s.Digest()
		}
		if !told {
			t.Errorf("%s: not seen in the listing", name)
		}
		g.set(both...)
		l = g.listing()
		for _, s := range both {
			if got := l.Shares[s.Identity].Digest; got != s.Digest() {
				t.Errorf("%s: not healed by a delta: %s holds %s", name, s.Identity, got)
			}
		}
		g.full(both...)
		g.holds(both...)
	}
}

// TestFullStateHeals puts what no identity has where identities are. The listing has to call for a full state, and that has to put it right.
func TestFullStateHeals(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	plain, pinned := share("tcp:80", p1, p2+" masquerade"), sticky(60, share("tcp:81", p1, p2))
	const table = "ip kube-ovn "
	key := eip + " . tcp . 80"
	for name, edit := range map[string]string{
		"protocol":              "add element " + table + "service-ips { " + eip + " . sctp . 80 : goto dnat-" + hash(plain) + " }",
		"port of nobody":        "add element " + table + "service-ips { " + eip + " . tcp . 90 : drop }",
		"masquerade accepted":   "add element " + table + "masquerade-ips { " + eip + " . tcp . 81 : accept }",
		"masquerade of nobody":  "add element " + table + "masquerade-ips { " + eip + " . udp . 90 : accept }",
		"prerouting not first":  "delete chain " + table + "prerouting\nadd chain " + table + "prerouting { type nat hook prerouting priority 10; }",
		"prerouting not hooked": "delete chain " + table + "prerouting\nadd chain " + table + "prerouting",
		"pins without timeout":  "delete table " + table + "\nadd table " + table + "\nadd map " + table + "aff-" + hash(pinned) + " { type ipv4_addr : mark; }",
		"keys of another kind":  "delete table " + table + "\nadd table " + table + "\nadd map " + table + "service-ips { type ipv4_addr . inet_service : verdict; }",
	} {
		g.full(plain)
		g.set(plain)
		g.nft(edit + "\n")
		if l := g.listing(); l.Stale == 0 && len(l.Shares) == 1 && l.Shares[plain.Identity].Digest == plain.Digest() {
			t.Errorf("%s: not seen in the listing", name)
		}
		g.full(plain, pinned)
		g.holds(plain, pinned)
	}
	// What somebody remarks changes nothing.
	g.nft("delete element " + table + "service-ips { " + key + " }\nadd element " + table + "service-ips { " + key + ` comment "a, b : c }" : goto dnat-` + hash(plain) + " }\n")
	g.holds(plain, pinned)
}

// TestLoneBackendEditsShow does the same with identities of one backend, which do without maps.
func TestLoneBackendEditsShow(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	plain, pinned := share("tcp:80", p1), sticky(60, share("tcp:81", p1))
	g.full(plain, pinned)
	h, k := hash(plain), hash(pinned)
	pin := g.must("nft", "-n", "list", "chain", "ip", "kube-ovn", "pin-"+k+"-60")
	edited := func(from, to string) string {
		pattern := regexp.MustCompile(from)
		if !pattern.MatchString(pin) {
			t.Fatalf("no %q in\n%s", from, pin)
		}
		return "flush chain ip kube-ovn pin-" + k + "-60\n" + pattern.ReplaceAllString(pin, to)
	}
	sentTo := func(rule string) string {
		chain := " rule ip kube-ovn dnat-" + h + " "
		return "flush chain ip kube-ovn dnat-" + h + "\nadd" + chain + rule + "\nadd" + chain + "drop"
	}
	for name, edit := range map[string]string{
		"other backend":           sentTo("meta l4proto tcp dnat ip to 10.1.0.12:8080"),
		"other port":              sentTo("meta l4proto tcp dnat ip to 10.1.0.11:8081"),
		"other protocol":          sentTo("meta l4proto udp dnat ip to 10.1.0.11:8080"),
		"range of ports":          sentTo("meta l4proto tcp dnat ip to 10.1.0.11:8080-8081"),
		"pinned to another":       edited(`dnat to 10\.1\.0\.11`, "dnat to 10.1.0.12"),
		"mark of another backend": edited(`ct mark set 0x\w+`, "ct mark set 0x1"),
		"pins lost":               "flush chain ip kube-ovn pin-" + k + "-60",
	} {
		g.nft(edit + "\n")
		l := g.listing()
		if l.Shares[plain.Identity].Digest == plain.Digest() && l.Shares[pinned.Identity].Digest == pinned.Digest() {
			t.Errorf("%s: not seen in the listing:\n%s", name, g.must("nft", "list", "table", "ip", "kube-ovn"))
		}
		g.set(plain, pinned)
		g.holds(plain, pinned)
	}
}

// Connections are looked up for masquerading only where an identity masquerades.
func TestPostrouting(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	one, two, masqueraded := share("tcp:80", p1), share("tcp:80", p1, p2), share("tcp:81", p1+" masquerade")
	for _, step := range []struct {
		what    string
		do      func()
		want    []sharenat.Share
		lookups int
	}{
		{"nobody", func() { g.set(two) }, []sharenat.Share{two}, 0},
		{"one more does", func() { g.set(masqueraded) }, []sharenat.Share{two, masqueraded}, 2},
		{"another changes", func() { g.set(one) }, []sharenat.Share{one, masqueraded}, 2},
		{"it changes", func() { g.set(masqueraded) }, []sharenat.Share{one, masqueraded}, 2},
		{"a new one beside it", func() { g.set(share("tcp:82", p1)) }, []sharenat.Share{one, masqueraded, share("tcp:82", p1)}, 2},
		{"nobody any more", func() { g.full(one) }, []sharenat.Share{one}, 0},
	} {
		step.do()
		if got := strings.Count(g.must("nft", "list", "chain", "ip", "kube-ovn", "postrouting"), "vmap @masquerade-ips"); got != step.lookups {
			t.Errorf("%s: %d lookups, not %d", step.what, got, step.lookups)
		}
		g.holds(step.want...)
	}
	// A change by hand is seen, and goes with the full state that what is stale calls for.
	for _, edit := range []string{
		"add rule ip kube-ovn postrouting accept",
		"add rule ip kube-ovn postrouting ip daddr . meta l4proto . th dport vmap @masquerade-ips",
		"add element ip kube-ovn masquerade-ips { " + eip + " . tcp . 80 : goto dnat-" + hash(one) + " }",
	} {
		g.nft(edit + "\n")
		if l := g.listing(); l.Shares[one.Identity].Digest == one.Digest() || l.Stale == 0 {
			t.Errorf("%s: %+v", edit, l)
		}
		g.full(one)
		g.holds(one)
	}
}

func TestDistribution(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, "p1", "p2", "p3")
	n.set(share("tcp:80", p1, p2, p3))
	const visits = 300
	count := n.visits(n.ext, "203.0.113.101", 80, visits)
	chi := 0.0
	for _, pod := range []string{"p1", "p2", "p3"} {
		d := float64(count[pod]) - visits/3
		chi += d * d / (visits / 3)
	}
	if chi > 27.6 || len(count) != 3 { // p = 1e-6 with two degrees of freedom
		t.Errorf("%v, chi-square %.1f", count, chi)
	}
	if _, client := n.visit(n.ext, "203.0.113.105", 80); client != "203.0.113.105" {
		t.Errorf("the backend saw %s", client)
	}
	// Nothing on another port, and nothing once it is gone.
	n.unanswered(n.ext, "", 81)
	n.delta(nil, share("tcp:80").Identity)
	n.unanswered(n.ext, "", 80)
}

func pins(n *gateway, s sharenat.Share) map[string]string {
	out := n.must("nft", "-n", "list", "map", "ip", "kube-ovn", "aff-"+hash(s))
	pins := map[string]string{}
	for _, m := range regexp.MustCompile(`([0-9.]+) timeout \S+ expires \S+ : (0x[0-9a-f]+)`).FindAllStringSubmatch(out, -1) {
		pins[m[1]] = m[2]
	}
	return pins
}

// expiry is the time left to a client's pin, 0 without one.
func expiry(t *testing.T, n *gateway, s sharenat.Share, client string) time.Duration {
	t.Helper()
	out := n.must("nft", "-n", "list", "map", "ip", "kube-ovn", "aff-"+hash(s))
	m := regexp.MustCompile(regexp.QuoteMeta(client) + ` timeout \S+ expires (\S+) :`).FindStringSubmatch(out)
	if m == nil {
		return 0
	}
	text := m[1]
	days := time.Duration(0)
	if d, rest, ok := strings.Cut(text, "d"); ok {
		v, err := strconv.Atoi(d)
		if err != nil {
			t.Fatal(err)
		}
		days, text = time.Duration(v)*24*time.Hour, rest
	}
	left, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return days + left
}

func clients() []string {
	var c []string
	for i := 101; i < 110; i++ {
		c = append(c, fmt.Sprintf("203.0.113.%d", i))
	}
	return c
}

// where visits once from each client.
func (n *network) where(port int) map[string]string {
	n.t.Helper()
	at := map[string]string{}
	for _, c := range clients() {
		at[c], _ = n.visit(n.ext, c, port)
	}
	return at
}

func TestClientIPStays(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, "p1", "p2", "p3")
	s := sticky(300, share("tcp:80", p1, p2, p3))
	n.set(s)
	for _, c := range clients()[:3] {
		if count := n.visits(n.ext, c, 80, 30); len(count) != 1 {
			t.Errorf("%s: %v", c, count)
		}
	}
	at := n.where(80)
	n.set(s) // again
	if diff := cmp.Diff(at, n.where(80)); diff != "" {
		t.Errorf("the same again moved clients:\n%s", diff)
	}
	if got := slices.Sorted(maps.Keys(pins(n.gateway, s))); !slices.Equal(got, clients()) {
		t.Errorf("pins %v", got)
	}
}

// A new client's first connections, many at once, agree on one backend.
func TestClientIPFirstConnectionsAtOnce(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, "p1", "p2", "p3")
	for port := 80; port < 90; port++ {
		n.set(sticky(300, share("tcp:"+strconv.Itoa(port), p1, p2, p3)))
		if count := n.visits(n.ext, "203.0.113.101", port, 16); len(count) != 1 {
			t.Errorf("%d: %v", port, count)
		}
	}
}

func TestClientIPSurvivesChange(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, "p1", "p2", "p3")
	two := sticky(300, share("tcp:80", p1, p2))
	n.set(two)
	at := n.where(80)
	same := func(what string) {
		t.Helper()
		if diff := cmp.Diff(at, n.where(80)); diff != "" {
			t.Errorf("%s moved clients:\n%s", what, diff)
		}
	}
	n.set(sticky(300, share("tcp:80", p1, p2, p3)))
	same("a backend more")
	n.set(sticky(300, share("tcp:80", "10.1.0.2:8080", p1, "10.1.0.12:80", p2, "10.1.0.3:1")))
	same("backends before and after")
	n.full(sticky(300, share("tcp:80", p1, p2+" masquerade")))
	same("masquerade")
	n.set(from(sticky(300, share("tcp:80", p1, p2)), "203.0.113.0/24"))
	same("source ranges")
	n.run("", "nft-dnat-map-add", eip+",80,tcp,clientip,300,"+p1+"@"+p2)
	same("the legacy form")
	n.holds(two)

	// p1 goes: its clients pin anew, once, and the others stay.
	n.set(sticky(300, share("tcp:80", p2, p3)))
	first := n.where(80)
	for c, pod := range at {
		if pod != "p1" && first[c] != pod {
			t.Errorf("%s was with %s, which is still there, and is with %s", c, pod, first[c])
		}
		if first[c] == "p1" {
			t.Errorf("%s is with a backend that is gone", c)
		}
	}
	at = first
	same("another visit")
	// All exchanged at once.
	n.set(sticky(300, share("tcp:80", p1)))
	for c, pod := range n.where(80) {
		if pod != "p1" {
			t.Errorf("%s is with %s", c, pod)
		}
	}
}

func TestClientIPOnAndOff(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, "p1", "p2", "p3")
	s := share("tcp:80", p1, p2, p3)
	n.set(s)
	for range 2 {
		n.set(sticky(300, s))
		if count := n.visits(n.ext, "203.0.113.101", 80, 10); len(count) != 1 {
			t.Errorf("on: %v", count)
		}
		n.holds(sticky(300, s))
		n.set(s)
		n.holds(s)
		if count := n.visits(n.ext, "203.0.113.101", 80, 60); len(count) != 3 {
			t.Errorf("off: %v", count)
		}
	}
}

func TestClientIPWindowCountsFromTheLastConnection(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, "p1", "p2")
	s := sticky(300, share("tcp:80", p1, p2))
	n.set(s)
	n.visit(n.ext, "203.0.113.101", 80)
	eventually(t, "three seconds pass", func() bool { return expiry(t, n.gateway, s, "203.0.113.101") < 297*time.Second })
	again := time.Now()
	n.visit(n.ext, "203.0.113.101", 80)
	if left := expiry(t, n.gateway, s, "203.0.113.101"); left < 299*time.Second-time.Since(again) {
		t.Errorf("%v left %v after a new connection", left, time.Since(again))
	}
	// And it ends.
	n.set(sticky(1, share("tcp:80", p1, p2)))
	n.visit(n.ext, "203.0.113.102", 80)
	eventually(t, "the pins expire", func() bool { return len(pins(n.gateway, s)) == 0 })
}

func TestTimeoutChangeCountsTheTimeElapsed(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, "p1", "p2")
	at := func(timeout int32) sharenat.Share { return sticky(timeout, share("tcp:80", p1, p2)) }
	const client = "203.0.113.101"
	n.set(at(300), sticky(300, share("tcp:81", p1)), sticky(300, share("udp:81", p1)))
	start := time.Now()
	pod, _ := n.visit(n.ext, client, 80)
	n.visit(n.ext, client, 81)
	eventually(t, "two seconds pass", func() bool { return expiry(t, n.gateway, at(300), client) < 298*time.Second })
	for _, timeout := range []int32{86400, 3600, 1000} {
		n.set(at(timeout))
		left, whole := expiry(t, n.gateway, at(300), client), time.Duration(timeout)*time.Second
		// Each change rounds down to a second, and so does nft.
		if left > whole-1*time.Second || left < whole-5*time.Second-time.Since(start) {
			t.Errorf("timeout %d: %v left after %v", timeout, left, time.Since(start))
		}
		n.holds(at(timeout), sticky(300, share("tcp:81", p1)), sticky(300, share("udp:81", p1)))
	}
	if now, _ := n.visit(n.ext, client, 80); now != pod {
		t.Errorf("was with %s, is with %s", pod, now)
	}
	// A new connection's clock starts anew; several identities at once; and elapsed time that is all of it.
	eventually(t, "two seconds pass", func() bool { return expiry(t, n.gateway, at(1000), client) < 998*time.Second })
	n.set(at(1), sticky(250, share("tcp:81", p1)))
	if left := expiry(t, n.gateway, at(1), client); left != 0 {
		t.Errorf("timeout 1 after two seconds: %v left", left)
	}
	if left := expiry(t, n.gateway, share("tcp:81"), client); left == 0 || left > 248*time.Second {
		t.Errorf("timeout 250: %v left after %v", left, time.Since(start))
	}
}

func TestSourceRanges(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, "p1", "p2")
	for _, s := range []sharenat.Share{share("tcp:80", p1, p2), sticky(60, share("tcp:81", p1))} {
		port := int(s.Port)
		n.set(from(s, "203.0.113.101/32", "203.0.113.104/31", "198.51.100.0/24", "10.1.0.0/24"))
		for _, ok := range []string{"203.0.113.101", "203.0.113.104", "203.0.113.105"} {
			n.visit(n.ext, ok, port)
		}
		for _, no := range []string{"203.0.113.102", "203.0.113.106"} {
			n.unanswered(n.ext, no, port)
		}
		n.visit(n.pods["p2"], "", port)
		// A connection that stands is not cut by new ranges.
		c, pod, _, err := dial(n.ext, "203.0.113.101", port, patience)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		n.set(from(s, "203.0.113.102/32"))
		n.unanswered(n.ext, "203.0.113.101", port)
		n.visit(n.ext, "203.0.113.102", port)
		if _, err := c.Write([]byte("still\n")); err != nil {
			t.Fatal(err)
		}
		if got, _, err := answer(c); err != nil || got != "still" {
			t.Errorf("%s on the standing connection: %q %v", pod, got, err)
		}
		n.set(s)
		n.visit(n.ext, "203.0.113.101", port)
	}
	n.holds(share("tcp:80", p1, p2), sticky(60, share("tcp:81", p1)))
}

// A backend whose default route is another NIC answers only when the gateway puts its own address in.
func TestMasquerade(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, "p1", "d1")
	for _, s := range []sharenat.Share{share("tcp:80", d1), sticky(60, share("tcp:81", d1))} {
		n.set(s)
		n.unanswered(n.ext, "203.0.113.101", int(s.Port))
		s.Backends[0].Masquerade = true
		n.set(s)
		if pod, client := n.visit(n.ext, "203.0.113.101", int(s.Port)); pod != "d1" || client != gatewayIP {
			t.Errorf("%s saw %s", pod, client)
		}
		if pod, client := n.visit(n.pods["p1"], "", int(s.Port)); pod != "d1" || client != gatewayIP {
			t.Errorf("from the VPC: %s saw %s", pod, client)
		}
	}
	// Beside one that keeps the client's address, and beside the same backend under an identity without it.
	n.set(share("tcp:80", p1, d1+" masquerade"), share("tcp:82", p1))
	seen := map[string]string{}
	eventually(t, "both answered", func() bool {
		pod, client := n.visit(n.ext, "203.0.113.101", 80)
		seen[pod] = client
		return len(seen) == 2
	})
	if diff := cmp.Diff(map[string]string{"p1": "203.0.113.101", "d1": gatewayIP}, seen); diff != "" {
		t.Error(diff)
	}
	n.set(share("tcp:80", p1+" masquerade"))
	if _, client := n.visit(n.ext, "203.0.113.101", 80); client != gatewayIP {
		t.Errorf("saw %s", client)
	}
	if _, client := n.visit(n.ext, "203.0.113.101", 82); client != "203.0.113.101" {
		t.Errorf("the other identity saw %s", client)
	}
	n.set(share("tcp:80", p1))
	if _, client := n.visit(n.ext, "203.0.113.101", 80); client != "203.0.113.101" {
		t.Errorf("without masquerade saw %s", client)
	}
}

// A client in the VPC reaches the EIP and sees its answers come from there, also the backend that is itself the client.
func TestHairpin(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, "p1", "p2")
	for _, s := range []sharenat.Share{share("tcp:80", p1), sticky(60, share("tcp:81", p1)), share("tcp:82", p1+" masquerade"), sticky(60, share("tcp:83", p1+" masquerade"))} {
		want := eip
		if s.Backends[0].Masquerade {
			want = gatewayIP
		}
		n.set(s)
		for _, from := range []string{"p2", "p1"} {
			if pod, client := n.visit(n.pods[from], "", int(s.Port)); pod != "p1" || client != want {
				t.Errorf("%s from %s: %s saw %s, want %s", s.Identity, from, pod, client, want)
			}
		}
	}
}

// Each change is one transaction: while one client connects all the time, everything about the identity changes.
func TestChangesLoseNoConnection(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, "p1", "p2", "p3")
	n.set(share("tcp:80", p1))
	stop, result := make(chan struct{}), make(chan error, 1)
	tried := 0
	go func() {
		for {
			select {
			case <-stop:
				result <- nil
				return
			default:
			}
			c, _, _, err := dial(n.ext, clients()[tried%9], 80, patience)
			if err != nil {
				result <- err
				return
			}
			c.Close()
			tried++
		}
	}()
	for range 3 {
		n.set(share("tcp:80", p2, p3))
		n.set(sticky(60, share("tcp:80", p2, p3)))
		n.full(sticky(60, share("tcp:80", p1)))
		n.set(sticky(30, share("tcp:80", p1, p2+" masquerade")))
		n.set(from(sticky(30, share("tcp:80", p3, p2)), "203.0.113.0/24"))
		n.full(share("tcp:80", p3+" masquerade"))
		n.run("", "nft-dnat-map-add", eip+",80,TCP,"+p1)
	}
	close(stop)
	if err := <-result; err != nil {
		t.Errorf("connection %d: %v", tried, err)
	}
	t.Logf("%d connections", tried)
}
