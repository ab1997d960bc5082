// SPDX-License-Identifier: Apache-2.0

package vpcnatgateway_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

func TestInit(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	if l := g.listing(); l.Initialized {
		t.Error("initialized before init")
	}
	g.run("", "init")
	want := `-P PREROUTING ACCEPT
-P INPUT ACCEPT
-P OUTPUT ACCEPT
-P POSTROUTING ACCEPT
-N DNAT_FILTER
-N EXCLUSIVE_DNAT
-N EXCLUSIVE_SNAT
-N HAIRPIN_SNAT
-N SHARED_DNAT
-N SHARED_SNAT
-N SNAT_FILTER
-A PREROUTING -j DNAT_FILTER
-A POSTROUTING -j SNAT_FILTER
-A DNAT_FILTER -j EXCLUSIVE_DNAT
-A DNAT_FILTER -j SHARED_DNAT
-A SNAT_FILTER -j EXCLUSIVE_SNAT
-A SNAT_FILTER -j SHARED_SNAT
-A SNAT_FILTER -m mark --mark 0x1 -j HAIRPIN_SNAT
`
	if diff := cmp.Diff(want, g.iptables("-t", "nat", "-S")); diff != "" {
		t.Errorf("nat table (-want +got):\n%s", diff)
	}
	const exclusive = "-A EXCLUSIVE_DNAT -d 203.0.113.77/32 -j DNAT --to-destination 10.1.0.77"
	g.iptables(append([]string{"-t", "nat"}, strings.Fields(exclusive)...)...)
	before := g.state()
	g.run("", "init")
	g.run("", "init", "eth0,net1")
	if diff := cmp.Diff(before, g.state()); diff != "" {
		t.Errorf("init again changed something:\n%s", diff)
	}
	if l := g.listing(); l.Interfaces != "eth0,net1" {
		t.Errorf("interfaces %q", l.Interfaces)
	}
	g.run("", "init", "net1,eth0")
	if l := g.listing(); l.Interfaces != "net1,eth0" {
		t.Errorf("interfaces %q", l.Interfaces)
	}
	if marks := strings.Count(g.iptables("-t", "mangle", "-S", "VPC_MARK"), "-A"); marks != 1 {
		t.Errorf("%d rules in VPC_MARK", marks)
	}
	// What the stock script laid is replaced.
	g.iptables("-t", "nat", "-R", "SNAT_FILTER", "3", "-j", "HAIRPIN_SNAT")
	if l := g.listing(); l.Initialized {
		t.Error("the stock script's jump to the hairpin rules is taken for this one's")
	}
	g.run("", "init")
	if diff := cmp.Diff(want, strings.ReplaceAll(g.iptables("-t", "nat", "-S"), exclusive+"\n", "")); diff != "" {
		t.Errorf("nat table (-want +got):\n%s", diff)
	}
	// What is lost shows, and init brings it back.
	for _, lost := range []string{"-t nat -F SNAT_FILTER", "-t nat -D PREROUTING -j DNAT_FILTER", "-t mangle -F VPC_MARK"} {
		g.iptables(strings.Fields(lost)...)
		if l := g.listing(); l.Initialized {
			t.Errorf("iptables %s: still said to be initialized", lost)
		}
		g.run("", "init")
		if l := g.listing(); !l.Initialized {
			t.Errorf("iptables %s: not healed by init", lost)
		}
	}
}

func TestEIPs(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	if _, err := g.try("", "eip-add", eip+"/24"); err == nil || !strings.Contains(err.Error(), "init has not run") {
		t.Errorf("eip-add before init: %v", err)
	}
	g.must("ip", "addr", "del", "203.0.113.2/24", "dev", "net1")
	g.run("", "init")
	eips := func() []string {
		t.Helper()
		var got []string
		for _, p := range g.listing().EIPs {
			got = append(got, p.String())
		}
		slices.Sort(got)
		return got
	}
	g.run("", "eip-add", "203.0.113.10/24", "203.0.113.11/24")
	g.run("", "eip-add", "203.0.113.12/24")
	before := g.state()
	g.run("", "eip-add", "203.0.113.12/24", "203.0.113.10/24")
	if diff := cmp.Diff(before, g.state()); diff != "" {
		t.Errorf("eip-add again changed something:\n%s", diff)
	}
	if route := g.must("ip", "route", "show", "default"); !strings.Contains(route, "via 203.0.113.1 dev net1") {
		t.Errorf("default route %q", route)
	}
	// The primary address goes without taking the others along, whatever the kernel's settings are.
	g.must("sysctl", "-qw", "net.ipv4.conf.net1.promote_secondaries=0", "net.ipv4.conf.all.promote_secondaries=0")
	g.run("", "eip-del", "203.0.113.10/24")
	if diff := cmp.Diff([]string{"203.0.113.11/24", "203.0.113.12/24"}, eips()); diff != "" {
		t.Error(diff)
	}
	g.run("", "eip-del", "203.0.113.10/24", "203.0.113.12/24")
	if diff := cmp.Diff([]string{"203.0.113.11/24"}, eips()); diff != "" {
		t.Error(diff)
	}
	// An EIP is both its address and its hairpin rule.
	g.iptables("-t", "nat", "-F", "HAIRPIN_SNAT")
	if got := eips(); len(got) != 0 {
		t.Errorf("%v without hairpin rules", got)
	}
	g.run("", "eip-add", "203.0.113.11/24")
	g.must("ip", "addr", "flush", "dev", "net1")
	if got := eips(); len(got) != 0 {
		t.Errorf("%v without addresses", got)
	}
	g.run("", "eip-add", "203.0.113.11/24")
	if got := eips(); len(got) != 1 {
		t.Errorf("%v after it was added again", got)
	}
}

// An address that moves between gateways is heard of by its neighbours at once.
func TestEIPIsAnnounced(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.announces(t, "203.0.113.44", "eip-add", "203.0.113.44/24")
}

// So is the gateway's own, by init.
func TestOwnAddressIsAnnounced(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.announces(t, "203.0.113.2", "init", "eth0,net1")
}

// announces wants a neighbour to hear of an address by a call. One announcement may be lost: on a machine that has much else to do its
// time can be over before it is sent. It is made anew by each call.
func (n *network) announces(t *testing.T, addr string, call ...string) {
	t.Helper()
	shell(t, "ip -n "+n.ext+" neigh replace "+addr+" lladdr 02:00:00:00:00:01 dev eth0 nud stale")
	eventually(t, "the neighbour learns it", func() bool {
		n.run("", call...)
		out, err := (&gateway{t: t, ns: n.ext}).exec("", "ip", "neigh", "show", addr)
		return err == nil && !strings.Contains(out, "02:00:00:00:00:01")
	})
}

func TestIPv6DefaultRoute(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.run("", "init")
	routes := func() string {
		t.Helper()
		return strings.TrimSpace(g.must("ip", "-6", "route", "show", "default"))
	}
	g.run("", "eip-add", "203.0.113.10/24")
	if got := routes(); got != "" {
		t.Errorf("route %q without GATEWAY_V6", got)
	}
	given := len(g.env)
	for _, gateway := range []string{"fd00::1", "fe80::1", "fd00::1"} {
		g.env = append(g.env[:given], "GATEWAY_V6="+gateway)
		g.run("", "eip-add", "203.0.113.10/24")
		if got := routes(); !strings.HasPrefix(got, "default via "+gateway+" dev net1 ") || strings.Contains(got, "\n") {
			t.Errorf("routes %q, want one via %s", got, gateway)
		}
	}
	if got := g.must("ip", "route", "show", "default"); !strings.Contains(got, "via 203.0.113.1 dev net1") {
		t.Errorf("IPv4 route %q", got)
	}
	before := g.state()
	for _, gateway := range []string{"203.0.113.1", "fd00::1 dev lo", "fd00::1\nlink del net1", "example", "fd00::1%net1"} {
		g.env = append(g.env[:given], "GATEWAY_V6="+gateway)
		if _, err := g.try("", "eip-add", "203.0.113.99/24"); err == nil || !strings.Contains(err.Error(), "GATEWAY_V6 is not an IPv6 address") {
			t.Errorf("%q: %v", gateway, err)
		}
	}
	if diff := cmp.Diff(before, g.state()); diff != "" {
		t.Errorf("changed (-before +after):\n%s", diff)
	}
	// Where IPv6 is switched off, EIPs work as ever.
	g.must("sysctl", "-qw", "net.ipv6.conf.net1.disable_ipv6=1")
	g.env = append(g.env[:given], "GATEWAY_V6=fd00::1")
	g.run("", "eip-add", "203.0.113.12/24")
	if l := g.listing(); len(l.EIPs) != 2 || routes() != "" {
		t.Errorf("%v, routes %q", l.EIPs, routes())
	}
}

func TestRoutes(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.run("", "init")
	g.must("ip", "route", "add", "10.3.0.0/16", "via", "10.1.0.9", "dev", "eth0") // as the stock script would
	g.must("ip", "route", "add", "10.9.0.0/16", "via", "10.1.0.9", "dev", "eth0") // not ours to touch
	g.run("", "subnet-route-add", "10.2.0.0/16,10.1.0.1", "10.3.0.0/16,10.1.0.1", "10.4.4.4/32,10.1.0.1", "10.1.0.0/24,10.1.0.1")
	before := g.state()
	g.run("", "subnet-route-add", "10.3.0.0/16,10.1.0.1", "10.2.0.0/16,10.1.0.1")
	if diff := cmp.Diff(before, g.state()); diff != "" {
		t.Errorf("again changed something:\n%s", diff)
	}
	routes := func() map[string]string {
		t.Helper()
		got := map[string]string{}
		for _, r := range g.listing().Routes {
			got[r.CIDR.String()] = r.NextHop.String()
		}
		return got
	}
	want := map[string]string{"10.2.0.0/16": "10.1.0.1", "10.3.0.0/16": "10.1.0.1", "10.4.4.4/32": "10.1.0.1", "10.1.0.0/24": "10.1.0.1"}
	if diff := cmp.Diff(want, routes()); diff != "" {
		t.Error(diff)
	}
	if via := g.must("ip", "route", "get", "10.3.0.1"); !strings.Contains(via, "via 10.1.0.1 ") {
		t.Errorf("the older route is still used: %s", via)
	}
	if via := g.must("ip", "route", "get", "10.1.0.77"); strings.Contains(via, "via") {
		t.Errorf("the connected route was replaced: %s", via)
	}
	g.run("", "subnet-route-add", "10.2.0.0/16,10.1.0.2")
	g.run("", "subnet-route-del", "10.3.0.0/16", "10.4.4.4/32,10.1.0.1", "10.1.0.0/24,10.1.0.1", "10.77.0.0/16")
	if diff := cmp.Diff(map[string]string{"10.2.0.0/16": "10.1.0.2"}, routes()); diff != "" {
		t.Error(diff)
	}
	if out := g.must("ip", "route"); !strings.Contains(out, "10.9.0.0/16") || !strings.Contains(out, "10.1.0.0/24 dev eth0 proto kernel") {
		t.Errorf("routes:\n%s", out)
	}
}

func TestExclusiveDNAT(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, "p1", "p2")
	n.run("", "dnat-add", eip+",2222,TCP,10.1.0.11,8080", eip+",53,udp,10.1.0.12,8080")
	if pod, client := n.visit(n.ext, "203.0.113.101", 2222); pod != "p1" || client != "203.0.113.101" {
		t.Errorf("%s saw %s", pod, client)
	}
	before := n.state()
	n.run("", "dnat-add", eip+",2222,tcp,10.1.0.11,8080")
	if diff := cmp.Diff(before, n.state()); diff != "" {
		t.Errorf("again changed something:\n%s", diff)
	}
	// Moved: one transaction.
	n.run("", "dnat-add", eip+",2222,tcp,10.1.0.12,8080")
	if pod, _ := n.visit(n.ext, "203.0.113.101", 2222); pod != "p2" {
		t.Errorf("%s answered", pod)
	}
	want := []sharenat.Exclusive{
		{Identity: share("udp:53").Identity, Backend: netip.MustParseAddrPort("10.1.0.12:8080")},
		{Identity: share("tcp:2222").Identity, Backend: netip.MustParseAddrPort("10.1.0.12:8080")},
	}
	if diff := cmp.Diff(want, n.listing().Exclusives, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
	// Side by side with a share identity.
	n.set(share("tcp:80", p1))
	n.visit(n.ext, "", 80)
	n.run("", "dnat-del", eip+",2222,tcp,10.1.0.11,8080") // another target: not this one
	n.visit(n.ext, "", 2222)
	n.run("", "dnat-del", eip+",2222,tcp,10.1.0.12,8080", eip+",53,udp,10.1.0.12,8080")
	n.unanswered(n.ext, "", 2222)
	n.visit(n.ext, "", 80)
	if got := n.listing().Exclusives; len(got) != 0 {
		t.Errorf("%v", got)
	}
}

// Kube-OVN's own controller deletes by identity alone.
func TestExclusiveDNATIsDeletedByIdentity(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, "p1", "p2")
	add := func() {
		t.Helper()
		n.run("", "dnat-add", eip+",2222,tcp,10.1.0.11,8080", eip+",2223,tcp,10.1.0.11,8080", eip+",53,udp,10.1.0.12,8080", eip+",53,tcp,10.1.0.12,8080")
	}
	left := func(want ...string) {
		t.Helper()
		var got []string
		for _, e := range n.listing().Exclusives {
			got = append(got, fmt.Sprintf("%s:%d", e.Protocol, e.Port))
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("left (-want +got):\n%s", diff)
		}
	}
	add()
	before := n.state()
	n.run("", "dnat-del", eip+",4711,tcp") // not there
	if diff := cmp.Diff(before, n.state()); diff != "" {
		t.Errorf("deleting what is not there changed something:\n%s", diff)
	}
	c, _, _, err := dial(n.ext, "203.0.113.101", 2222, patience)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	talk := n.talk("203.0.113.101", 53)
	if pod := talk.ask(patience); pod != "p2" {
		t.Fatalf("%q", pod)
	}
	// As an older script may have left it: twice.
	n.iptables("-t", "nat", "-A", "SHARED_DNAT", "-d", eip+"/32", "-p", "tcp", "--dport", "2222", "-j", "DNAT", "--to-destination", "10.1.0.11:8080")
	for range 2 { // again: nothing is there, and that is fine
		n.run("", "dnat-del", eip+",2222,TCP")
		left("tcp:2223", "tcp:53", "udp:53")
	}
	n.unanswered(n.ext, "203.0.113.101", 2222)
	if alive(c, impatience) || n.conntrack("dport=2222 ") != 0 {
		t.Error("a connection outlived its DNAT")
	}
	n.visit(n.ext, "", 2223)
	// Several in a call, of both forms, one of them named in both.
	n.run("", "dnat-del", eip+",53,udp", eip+",53,udp,10.1.0.12,8080", eip+",2223,tcp,10.1.0.12,8080", eip+",53,tcp,10.1.0.12,8080", eip+",1,udp")
	left("tcp:2223")
	if n.conntrack("dport=53 src=10.1.0.12") != 0 {
		t.Error("an entry outlived its DNAT")
	}
	add()
	n.run("", "dnat-del", eip+",2222,tcp", eip+",2223,tcp", eip+",53,udp", eip+",53,tcp")
	left()
}

func TestUnknownVerbGoesToTheStockScript(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	dir := t.TempDir()
	text, err := os.ReadFile(g.script)
	if err != nil {
		t.Fatal(err)
	}
	stock := "#!/bin/bash\necho stock \"$#\" \"$@\"\nexit 7\n"
	for name, content := range map[string]string{"nat-gateway.sh": string(text), "nat-gateway-stock.sh": stock} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if ofProgram() {
		must(t, os.Link(filepath.Join(filepath.Dir(g.script), "nat-gateway"), filepath.Join(dir, "nat-gateway")))
	}
	g.script = filepath.Join(dir, "nat-gateway.sh")
	out, err := g.try("", "snat-add", "a b", "", "$x")
	if out != "stock 4 snat-add a b  $x\n" || err == nil || !strings.Contains(err.Error(), "exit status 7") {
		t.Errorf("%q %v", out, err)
	}
	if out := g.run("", "get-iptables-version"); !strings.HasPrefix(out, "iptables v") {
		t.Errorf("%q", out)
	}
}
