// SPDX-License-Identifier: Apache-2.0

package gatewayip

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

const (
	// routeProtocol marks the routes that subnet-route-add made.
	routeProtocol = 196
	// routeMetric puts them behind connected routes, which must not be replaced.
	routeMetric = 196
)

// Gateway is the network namespace and the file system in which it was opened. Whoever changes it has a lock.
type Gateway struct {
	// Environ gives the container's variables.
	Environ func(string) string
	tables  tables
}

// Open finds out which iptables the gateway has.
func Open() *Gateway { return &Gateway{Environ: os.Getenv, tables: chooseTables()} }

// OpenToChange does so too, and moves there what is in the others.
func OpenToChange() (*Gateway, error) {
	g := Open()
	if g.tables == legacy {
		if err := moveRules(); err != nil {
			return nil, err
		}
	}
	return g, nil
}

// Version is what the gateway's iptables says of itself.
func (g *Gateway) Version() (string, error) { return g.tables.run("--version") }

// undo are steps that take back what a call has done so far.
type undo []func() error

// back takes all back, the last first, and gives the reason for it with what went wrong on the way. Without a reason nothing is.
func (u undo) back(because error) error {
	if because == nil {
		return nil
	}
	for _, step := range slices.Backward(u) {
		if err := step(); err != nil {
			because = fmt.Errorf("%w; and taking back what was done: %w", because, err)
		}
	}
	return because
}

// interfaces are the gateway's, as init was told.
func (g *Gateway) interfaces() Interfaces {
	in := defaults
	if out, err := g.tables.run("-w", "-t", "mangle", "-S", vpcMark); err == nil {
		in, _ = markedIn(strings.Split(out, "\n"))
	}
	return in
}

// markedIn reads the interfaces from the rule of VPC_MARK; false where there is none.
func markedIn(rules []string) (in Interfaces, ok bool) {
	in = defaults
	for _, line := range rules {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "-A" || f[1] != vpcMark {
			continue
		}
		if name := option(f, "-i"); name != "" {
			in.VPC, ok = name, true
		}
		if name, kept := strings.CutPrefix(strings.Trim(option(f, "--comment"), `"`), "external-"); kept {
			in.External = name
		}
	}
	return in, ok
}

// Init lays the wiring.
func (g *Gateway) Init(in Interfaces) error {
	for _, name := range []string{in.VPC, in.External} {
		if _, err := linkOf(name); err != nil {
			return err
		}
	}
	removeLeftOvers()
	have, err := g.tables.list("nat")
	if err != nil {
		return err
	}
	var want []string
	for _, chain := range natChains {
		want = append(want, "-N "+chain)
	}
	want = append(append(want, natRules...), oldNATRule)
	if err := g.tables.want("nat", have, want); err != nil {
		return err
	}
	if err := g.mark(in); err != nil {
		return undo{func() error { return g.tables.want("nat", append(have, want...), undone(have, want)) }}.back(err)
	}
	set("ip_forward", "1")
	// An EIP that goes must not take the others of its subnet along.
	set("conf/"+in.External+"/promote_secondaries", "1")
	// In and out by the VPC interface is the hairpin; a redirect would lead the client around the NAT.
	set("conf/all/send_redirects", "0")
	set("conf/"+in.VPC+"/send_redirects", "0")
	if err := writeNames(in); err != nil {
		return err
	}
	// Another pod may have had its own address before, or this one another NIC.
	link, addrs, err := addresses(in.External)
	if err == nil && len(addrs) > 0 {
		announce(link, prefixOf(addrs[0]).Addr())
	}
	return nil
}

// mark has VPC_MARK hold one rule, whose comment is where the external interface is kept.
func (g *Gateway) mark(in Interfaces) error {
	mark := fmt.Sprintf("-A %s -i %s -m comment --comment external-%s -j MARK --set-xmark 0x1/0xffffffff", vpcMark, in.VPC, in.External)
	have, err := g.tables.list("mangle")
	if err != nil {
		return err
	}
	want := []string{"-N " + vpcMark, "-A PREROUTING -j " + vpcMark}
	for _, line := range have {
		if strings.HasPrefix(line, "-A "+vpcMark+" ") && line != mark {
			want = append(want, deletion(line))
		}
	}
	return g.tables.want("mangle", have, append(want, mark))
}

// set sets a setting of the kernel, where /proc/sys lets us.
func set(name, value string) {
	_ = os.WriteFile(filepath.Join("/proc/sys/net/ipv4", name), []byte(value+"\n"), 0o644) //nolint:gosec // not a file
}

const etcDir = "/etc/kube-ovn"

// writeNames writes the interfaces' names where the stock script beside this one reads them. Here nothing does.
func writeNames(in Interfaces) error {
	if !writable(etcDir) {
		return nil
	}
	file := filepath.Join(etcDir, "nat-gateway.env")
	names := fmt.Sprintf("VPC_INTERFACE=%s\nEXTERNAL_INTERFACE=%s\n", in.VPC, in.External)
	if was, _ := os.ReadFile(file); string(was) == names {
		return nil
	}
	if err := os.WriteFile(file, []byte(names), 0o644); err != nil { //nolint:gosec // the stock script may run as another user
		return fmt.Errorf("cannot write the interfaces' names: %w", err)
	}
	return nil
}

func writable(dir string) bool { return unix.Access(dir, unix.W_OK) == nil }

// hairpin is the rule by which a client in the VPC that asks an EIP gets its answers from there.
func hairpin(in Interfaces, eip netip.Addr) string {
	return fmt.Sprintf("-A %s -o %s -m mark --mark 0x1 -m conntrack --ctorigdst %s -j SNAT --to-source %s", hairpins, in.VPC, eip, eip)
}

// hairpinOf reads the EIP of a hairpin rule, however it is spelled: by this one, by an older script, or by the stock one; false for
// other rules.
func hairpinOf(line string) (netip.Addr, bool) {
	f := strings.Fields(line)
	if len(f) < 3 || f[0] != "-A" || f[1] != hairpins {
		return netip.Addr{}, false
	}
	eip, err := netip.ParseAddr(option(f, "--to-source"))
	return eip, err == nil
}

// need fails where init has not made a chain.
func need(have []string, chain string) error {
	if !slices.Contains(have, "-N "+chain) {
		return errors.New("init has not run in this gateway: no chain " + chain)
	}
	return nil
}

// AddEIPs gives the gateway addresses.
func (g *Gateway) AddEIPs(eips []netip.Prefix) error {
	defaultRoutes, err := g.defaultRoutes()
	if err != nil {
		return err
	}
	in := g.interfaces()
	have, err := g.tables.list("nat")
	if err != nil {
		return err
	}
	if err := need(have, hairpins); err != nil {
		return err
	}
	var want []string
	for _, p := range eips {
		want = append(want, hairpin(in, p.Addr()))
	}
	done, link, err := addAddresses(in.External, eips, defaultRoutes)
	if err == nil {
		err = g.tables.want("nat", have, want)
	}
	if err != nil {
		return done.back(err)
	}
	for _, p := range eips {
		announce(link, p.Addr())
	}
	return nil
}

// defaultRoutes are the next hops that the container's variables name.
func (g *Gateway) defaultRoutes() (via []netip.Addr, err error) {
	if v4 := g.Environ("GATEWAY_V4"); v4 != "" {
		a, err := netip.ParseAddr(v4)
		if err != nil || !a.Is4() || a.IsUnspecified() || a.IsMulticast() {
			return nil, fmt.Errorf("GATEWAY_V4 is not an IPv4 address: %q", v4)
		}
		via = append(via, a)
	}
	if v6 := g.Environ("GATEWAY_V6"); v6 != "" {
		a, err := netip.ParseAddr(v6)
		if err != nil || !a.Is6() || a.Zone() != "" || a.IsUnspecified() || a.IsMulticast() {
			return nil, fmt.Errorf("GATEWAY_V6 is not an IPv6 address: %q", v6)
		}
		via = append(via, a)
	}
	return via, nil
}

// DeleteEIPs takes addresses away.
func (g *Gateway) DeleteEIPs(eips []netip.Prefix) error {
	in := g.interfaces()
	have, err := g.tables.list("nat")
	if err != nil {
		return err
	}
	var want []string
	going := map[netip.Addr]bool{}
	for _, p := range eips {
		going[p.Addr()] = true
	}
	for _, line := range have {
		if eip, ok := hairpinOf(line); ok && going[eip] {
			want = append(want, deletion(line))
		}
	}
	done, err := deleteAddresses(in.External, going)
	if err == nil {
		err = g.tables.want("nat", have, want)
	}
	return done.back(err)
}

// dnatRule is the rule of an exclusive DNAT.
func dnatRule(e sharenat.Exclusive) string {
	return fmt.Sprintf("-A %s -d %s/32 -p %s -m %s --dport %d -j DNAT --to-destination %s",
		sharedDNAT, e.EIP, e.Protocol, e.Protocol, e.Port, e.Backend)
}

// dnatOf reads the rule of an exclusive DNAT; false for other rules.
func dnatOf(line string) (e sharenat.Exclusive, ok bool) {
	f := strings.Fields(line)
	if len(f) < 3 || f[0] != "-A" || f[1] != sharedDNAT || option(f, "-j") != "DNAT" {
		return e, false
	}
	id, err := sharenat.ReadIdentity(0, strings.TrimSuffix(option(f, "-d"), "/32"), option(f, "--dport"), option(f, "-p"))
	to, toErr := netip.ParseAddrPort(option(f, "--to-destination"))
	return sharenat.Exclusive{Identity: id, Backend: to}, err == nil && toErr == nil
}

// Ender ends the connections of exclusive DNATs.
type Ender func([]sharenat.Connections) error

// AddDNATs makes exclusive DNATs. One of the same identity to somewhere else goes in the same transaction, and its connections with it.
func (g *Gateway) AddDNATs(dnats []sharenat.Exclusive, end Ender) error {
	to := map[sharenat.Identity]netip.AddrPort{}
	for _, e := range dnats {
		to[e.Identity] = e.Backend
	}
	have, err := g.tables.list("nat")
	if err != nil {
		return err
	}
	if err := need(have, sharedDNAT); err != nil {
		return err
	}
	var add []string
	for _, e := range dnats {
		add = append(add, dnatRule(e))
	}
	return g.changeDNATs(have, add, end, func(e sharenat.Exclusive) bool {
		backend, named := to[e.Identity]
		return named && backend != e.Backend
	})
}

// DeleteDNATs takes exclusive DNATs away: of one that has no backend whatever it leads to. What is not there is fine.
func (g *Gateway) DeleteDNATs(dnats []sharenat.Exclusive, end Ender) error {
	named := map[sharenat.Exclusive]bool{}
	for _, e := range dnats {
		named[e] = true
	}
	have, err := g.tables.list("nat")
	if err != nil {
		return err
	}
	return g.changeDNATs(have, nil, end, func(e sharenat.Exclusive) bool {
		return named[e] || named[sharenat.Exclusive{Identity: e.Identity}]
	})
}

func (g *Gateway) changeDNATs(have, add []string, end Ender, goes func(sharenat.Exclusive) bool) error {
	var (
		want  []string
		ended []sharenat.Connections
	)
	for _, line := range have {
		if e, ok := dnatOf(line); ok && goes(e) {
			want = append(want, deletion(line))
			ended = append(ended, sharenat.Connections(e))
		}
	}
	want = append(want, add...)
	if err := g.tables.want("nat", have, want); err != nil || len(ended) == 0 {
		return err
	}
	if err := end(ended); err != nil {
		// The rules are put back, so that the next call finds what it has to end.
		return undo{func() error {
			now, listErr := g.tables.list("nat")
			return errors.Join(listErr, g.tables.want("nat", now, undone(have, want)))
		}}.back(err)
	}
	return nil
}

// List adds what the gateway holds to a listing. What is in the other set of iptables, where it has no effect on the stock script, is told
// without the word that init has run, so that init is called, which moves it.
func (g *Gateway) List(l *sharenat.Listing) error {
	nat, err := g.tables.list("nat")
	if err != nil {
		return err
	}
	mangle, err := g.tables.list("mangle")
	if err != nil {
		return err
	}
	left := false
	if g.tables == legacy {
		other, err := tables("-nft").list("nat")
		if left = err == nil && slices.Contains(other, "-N DNAT_FILTER"); left {
			nat = append(nat, other...)
		}
	}
	in, marked := markedIn(mangle)
	missing := slices.ContainsFunc(natRules, func(rule string) bool { return !slices.Contains(nat, rule) })
	if marked && !missing && !left {
		l.Initialized, l.Interfaces = true, in.VPC+","+in.External
	}
	hairpin := map[netip.Addr]bool{}
	for _, line := range nat {
		if e, ok := dnatOf(line); ok && !slices.Contains(l.Exclusives, e) {
			l.Exclusives = append(l.Exclusives, e)
		}
		if eip, ok := hairpinOf(line); ok {
			hairpin[eip] = true
		}
	}
	return listAddresses(l, hairpin)
}

// leftOver is how old a call's room is at least whose call is over: no call lasts as long.
const leftOver = 10 * time.Minute

// removeLeftOvers takes away what earlier versions of this program kept in files, and the rooms of their calls that were killed.
func removeLeftOvers() {
	for _, dir := range []string{etcDir, "/run"} {
		_ = os.RemoveAll(filepath.Join(dir, "nat-gateway.kinds"))
	}
	for _, dir := range []string{"/dev/shm", "/tmp"} {
		rooms, _ := filepath.Glob(filepath.Join(dir, "nat-gateway.*.*")) // the pattern is good
		for _, room := range rooms {
			if info, err := os.Lstat(room); err == nil && info.IsDir() && time.Since(info.ModTime()) > leftOver {
				_ = os.RemoveAll(room)
			}
		}
	}
}

func prefixOf(a netlink.Addr) netip.Prefix {
	addr, _ := netip.AddrFromSlice(a.IP.To4())
	ones, _ := a.Mask.Size()
	return netip.PrefixFrom(addr, ones)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
