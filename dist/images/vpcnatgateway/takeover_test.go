// SPDX-License-Identifier: Apache-2.0

package vpcnatgateway_test

import (
	"crypto/md5"
	"fmt"
	"strings"
	"testing"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// legacy is what a script of the old layout leaves in the kernel for port 80 (no affinity) and 81 (ClientIP), with the
// protocol as somebody spelled it.
func legacy(proto, verdict string) string {
	name := func(port int) string {
		return fmt.Sprintf("%x", md5.Sum([]byte(fmt.Sprintf("%s:%d:%s", eip, port, proto))))[:12]
	}
	plain, sticky := name(80), name(81)
	var b strings.Builder
	fmt.Fprintf(&b, `
		add table ip kube-ovn
		add chain ip kube-ovn prerouting { type nat hook prerouting priority -150; policy accept; }
		add map ip kube-ovn service-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
		add rule ip kube-ovn prerouting ip daddr . ip protocol . th dport vmap @service-ips
		add chain ip kube-ovn dnat-%[1]s
		add rule ip kube-ovn dnat-%[1]s meta l4proto tcp dnat to numgen random mod 2 map { 0 : 10.1.0.11 . 8080, 1 : 10.1.0.12 . 8080 }
		add chain ip kube-ovn dnat-%[2]s
		add element ip kube-ovn service-ips { %[3]s . tcp . 80 : %[4]s dnat-%[1]s, %[3]s . tcp . 81 : %[4]s dnat-%[2]s }
	`, plain, sticky, eip, verdict)
	for i, backend := range []string{"0123abcd", "4567ef01"} {
		object := sticky + "-" + backend
		fmt.Fprintf(&b, `
			add set ip kube-ovn aff-%[1]s { type ipv4_addr; size 65535; flags dynamic,timeout; timeout 300s; }
			add chain ip kube-ovn ep-%[1]s
			add rule ip kube-ovn ep-%[1]s update @aff-%[1]s { ip saddr timeout 300s }
			add rule ip kube-ovn ep-%[1]s meta l4proto tcp dnat to 10.1.0.%[2]d:8080
			add rule ip kube-ovn dnat-%[3]s ip saddr @aff-%[1]s goto ep-%[1]s
			add element ip kube-ovn aff-%[1]s { 198.51.100.%[2]d timeout 300s }
		`, object, 11+i, sticky)
	}
	fmt.Fprintf(&b, "add rule ip kube-ovn dnat-%[1]s numgen random mod 2 vmap { 0 : goto ep-%[1]s-0123abcd, 1 : goto ep-%[1]s-4567ef01 }\n", sticky)
	return b.String()
}

func TestTakeover(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, "p1", "p2")
	plain, pinned := share("tcp:80", p1, p2), sticky(300, share("tcp:81", p1, p2))
	for _, spelling := range []string{"tcp", "TCP"} {
		for _, verdict := range []string{"goto", "jump"} {
			for how, take := range map[string]func(*network){
				"full":  func(n *network) { n.full(plain, pinned) },
				"delta": func(n *network) { n.set(plain, pinned) },
				"one":   func(n *network) { n.set(plain); n.set(pinned) },
				"legacy": func(n *network) {
					n.run("", "nft-dnat-map-add", eip+",80,"+spelling+","+p1+"@"+p2, eip+",81,"+spelling+",clientip,300,"+p1+"@"+p2)
				},
				"remove": func(n *network) {
					n.run("", "nft-dnat-map-del", eip+",80,"+spelling, eip+",81,"+spelling)
					n.holds()
					n.set(plain, pinned)
				},
				"emptied": func(n *network) {
					n.full()
					n.holds()
					n.full(plain, pinned)
				},
			} {
				if verdict == "jump" && how != "full" && how != "one" {
					continue
				}
				t.Run(strings.Join([]string{spelling, verdict, how}, " "), func(t *testing.T) {
					n.t = t
					n.nft("add table ip kube-ovn\ndelete table ip kube-ovn\n" + legacy(spelling, verdict))
					l := n.listing()
					if len(l.Shares) != 2 || l.Stale != 0 || l.Shares[pinned.Identity].Digest != sharenat.UnknownDigest {
						t.Errorf("before: %+v", l)
					}
					n.visit(n.ext, "", 80)
					n.visit(n.ext, "", 81)
					take(n)
					n.holds(plain, pinned)
					n.visit(n.ext, "", 80)
					n.visit(n.ext, "", 81)
				})
			}
		}
	}
}

// While it is taken over, no connection finds the identity missing.
func TestTakeoverHasNoGap(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, "p1", "p2")
	stop, result := make(chan struct{}), make(chan error, 1)
	n.nft(legacy("TCP", "jump"))
	go func() {
		for {
			select {
			case <-stop:
				result <- nil
				return
			default:
			}
			c, _, _, err := dial(n.ext, "", 81, patience)
			if err != nil {
				result <- err
				return
			}
			c.Close()
		}
	}()
	n.set(share("tcp:80", p1), sticky(300, share("tcp:81", p1, p2)))
	close(stop)
	if err := <-result; err != nil {
		t.Error(err)
	}
}

// What belongs to nobody is told, and taken by the next full state; what is not this script's is left alone.
func TestStaleObjects(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	s := sticky(60, share("tcp:80", p1, p2))
	g.full(s)
	g.nft(`
		add chain ip kube-ovn dnat-0123456789ab
		add chain ip kube-ovn ep-0123456789ab-01234567
		add rule ip kube-ovn dnat-0123456789ab goto ep-0123456789ab-01234567
		add set ip kube-ovn aff-0123456789ab-01234567 { type ipv4_addr; }
		add map ip kube-ovn aff-0123456789ab { type ipv4_addr : mark; flags dynamic,timeout; }
		add chain ip kube-ovn pin-` + hash(s) + `-61
		add chain ip kube-ovn masq-0123456789ab
		add element ip kube-ovn masquerade-ips { 203.0.113.9 . tcp . 9 : goto masq-0123456789ab }
		add chain ip kube-ovn local-notes
		add table ip other
		add chain ip other dnat-0123456789ab
	`)
	// Six objects, the map with an element that no identity has, and the postrouting chain, which does not ask that map.
	if l := g.listing(); l.Stale != 8 {
		t.Errorf("%d stale objects", l.Stale)
	}
	g.full(s)
	g.holds(s)
	if out := g.must("nft", "list", "chains", "ip"); !strings.Contains(out, "local-notes") || !strings.Contains(out, "table ip other") {
		t.Errorf("took what is not its own:\n%s", out)
	}
}
