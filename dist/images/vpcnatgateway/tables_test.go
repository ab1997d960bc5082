// SPDX-License-Identifier: Apache-2.0

package vpcnatgateway_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// withoutLegacy makes legacy iptables fail, as on a kernel that does not have its tables.
func (g *gateway) withoutLegacy() {
	g.t.Helper()
	g.shim("iptables-legacy", "exit 3")
}

// onlyPrograms leaves nothing to call but what every image has: legacy iptables is not among it.
func (g *gateway) onlyPrograms() {
	g.t.Helper()
	dir := g.t.TempDir()
	for _, name := range programs {
		if err := os.Symlink(pathOf(g.t, name), filepath.Join(dir, name)); err != nil {
			g.t.Fatal(err)
		}
	}
	g.env = append(g.env, "PATH="+dir)
}

// needLegacy skips where this kernel has no legacy tables.
func (g *gateway) needLegacy() {
	g.t.Helper()
	if _, err := g.exec("", "iptables-legacy", "-t", "nat", "-S", "INPUT", "1"); err != nil {
		g.t.Skipf("legacy iptables does not work here: %v", err)
	}
}

// Kube-OVN's own script looks for the chains of init in legacy iptables wherever "iptables-legacy -t nat -S INPUT 1" works, and elsewhere in
// the other.
func TestTablesAreThoseOfTheStockScript(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name         string
		prepare      func(*gateway)
		used, unused string
		version      string
	}{
		{"works", (*gateway).needLegacy, "iptables-legacy-save", "iptables-nft-save", "(legacy)"},
		{"fails", (*gateway).withoutLegacy, "iptables-nft-save", "iptables-legacy-save", "(nf_tables)"},
		{"missing", (*gateway).onlyPrograms, "iptables-nft-save", "iptables-legacy-save", "(nf_tables)"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			g := newGateway(t)
			save := func(program string) string {
				t.Helper()
				out, _ := (&gateway{t: t, ns: g.ns}).exec("", program) // there may be no such program, or tables
				return out
			}
			tc.prepare(g)
			if got := g.run("", "get-iptables-version"); !strings.Contains(got, tc.version) {
				t.Errorf("get-iptables-version: %q", got)
			}
			g.run("", "init", "eth0,net1")
			g.run("", "eip-add", eip+"/24", "203.0.113.11/24")
			g.run("", "eip-del", "203.0.113.11/24")
			g.run("", "dnat-add", eip+",22,tcp,10.1.0.9,22", eip+",23,tcp,10.1.0.9,23")
			g.run("", "dnat-del", eip+",22,tcp")
			rules := save(tc.used)
			for _, want := range []string{
				"-A SNAT_FILTER -j SHARED_SNAT", // what the stock script asks for before it goes on
				"-A VPC_MARK -i eth0",
				"--dport 23 -j DNAT --to-destination 10.1.0.9:23",
				"--to-source " + eip,
			} {
				if !strings.Contains(rules, want) {
					t.Errorf("%s lacks %q:\n%s", tc.used, want, rules)
				}
			}
			for _, not := range []string{"--dport 22 ", "203.0.113.11"} {
				if strings.Contains(rules, not) {
					t.Errorf("%s has %q:\n%s", tc.used, not, rules)
				}
			}
			if other := save(tc.unused); strings.Contains(other, "-A ") {
				t.Errorf("rules in %s as well:\n%s", tc.unused, other)
			}
			if l := g.listing(); l.Interfaces != "eth0,net1" || len(l.EIPs) != 1 || len(l.Exclusives) != 1 {
				t.Errorf("%+v", l)
			}
		})
	}
}

// A gateway that Kube-OVN's own controller and script have set up in legacy iptables.
func TestStockRulesInLegacy(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, "p1", "p2")
	n.needLegacy()
	for _, rule := range []string{
		"-R SNAT_FILTER 3 -j HAIRPIN_SNAT",
		"-F HAIRPIN_SNAT",
		"-A HAIRPIN_SNAT -o eth0 -m mark --mark 0x1 -m conntrack --ctorigdst " + eip + " -j SNAT --to-source " + eip + " --random-fully",
		"-A SHARED_DNAT -p tcp -d " + eip + " --dport 80 -j DNAT --to-destination 10.1.0.11:8080",
		"-A SHARED_DNAT -p tcp -d " + eip + " --dport 81 -j DNAT --to-destination 10.1.0.11:8080",
		"-A EXCLUSIVE_DNAT -d 203.0.113.77 -j DNAT --to-destination 10.1.0.77",
	} {
		n.must(append([]string{"iptables-legacy", "-t", "nat"}, strings.Fields(rule)...)...)
	}
	if l := n.listing(); len(l.EIPs) != 1 || len(l.Exclusives) != 2 {
		t.Errorf("%+v", l)
	}
	n.visit(n.ext, "", 80)
	n.run("", "dnat-del", eip+",80,tcp")
	n.unanswered(n.ext, "", 80)
	n.run("", "dnat-add", eip+",81,tcp,10.1.0.12,8080")
	if pod, _ := n.visit(n.ext, "", 81); pod != "p2" {
		t.Errorf("%s answered", pod)
	}
	n.run("", "init")
	n.run("", "eip-del", eip+"/24")
	rules := n.must("iptables-legacy-save")
	if l := n.listing(); !l.Initialized || len(l.EIPs) != 0 || len(l.Exclusives) != 1 || strings.Contains(rules, "--to-source") {
		t.Errorf("%+v\n%s", l, rules)
	}
	if !strings.Contains(rules, "-A EXCLUSIVE_DNAT -d 203.0.113.77/32 -j DNAT --to-destination 10.1.0.77") {
		t.Errorf("a floating IP is lost:\n%s", rules)
	}
}

// What an earlier script has put into nf_tables goes where this one, and the stock script, look: with whatever is called first, and no
// connection notices. Rules that are nobody's of these stay.
func TestRulesAreMovedToLegacy(t *testing.T) {
	t.Parallel()
	const foreign = "-A PREROUTING -p tcp -m tcp --dport 9 -j ACCEPT"
	for _, call := range [][]string{
		{"init", "eth0,net1"},
		{"eip-add", eip + "/24"},
		{"eip-del", "203.0.113.11/24"},
		{"dnat-add", eip + ",80,tcp,10.1.0.11,8080"},
		{"dnat-del", eip + ",81,tcp"},
		{"subnet-route-add", "10.2.0.0/16,10.1.0.1"},
		{"subnet-route-del", "10.2.0.0/16"},
	} {
		t.Run(call[0], func(t *testing.T) {
			t.Parallel()
			n := newNetwork(t, "p1")
			n.needLegacy()
			n.must("bash", "-ec", "for t in nat mangle; do iptables-legacy -t $t -F; iptables-legacy -t $t -X; done")
			works := slices.Clone(n.env)
			n.withoutLegacy()
			n.run("", "init", "eth0,net1")
			n.run("", "eip-add", eip+"/24", "203.0.113.11/24")
			n.run("", "dnat-add", eip+",80,tcp,10.1.0.11,8080", eip+",81,tcp,10.1.0.11,8080")
			n.must(append([]string{"iptables-nft", "-t", "nat"}, strings.Fields(foreign)...)...)
			before := n.listing()
			c, _, _, err := dial(n.ext, "203.0.113.101", 80, patience)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()

			n.env = works
			l := n.listing()
			if l.Initialized {
				t.Error("said to be initialized, where the stock script finds nothing")
			}
			if diff := cmp.Diff([]int{len(before.EIPs), len(before.Exclusives)}, []int{len(l.EIPs), len(l.Exclusives)}); diff != "" {
				t.Errorf("not all that is there is told of:\n%s", diff)
			}
			n.run("", call...)
			if l := n.listing(); l.Interfaces != "eth0,net1" {
				t.Errorf("not initialized: %+v", l)
			}
			if left := n.must("bash", "-c", "iptables-nft-save 2>/dev/null | grep ^-A"); left != foreign+"\n" {
				t.Errorf("left in nf_tables:\n%s", left)
			}
			n.visit(n.ext, "203.0.113.102", 80)
			if !alive(c, patience) {
				t.Error("a connection was cut")
			}
			if call[0] == "dnat-del" {
				n.unanswered(n.ext, "203.0.113.101", 81)
			}
			again := n.state()
			n.run("", call...)
			if diff := cmp.Diff(again, n.state()); diff != "" {
				t.Errorf("again changed something:\n%s", diff)
			}
		})
	}
}
