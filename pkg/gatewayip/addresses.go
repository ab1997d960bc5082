// SPDX-License-Identifier: Apache-2.0

package gatewayip

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

func linkOf(name string) (netlink.Link, error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", name, err)
	}
	return link, nil
}

// addresses are those of an interface.
func addresses(name string) (netlink.Link, []netlink.Addr, error) {
	link, err := linkOf(name)
	if err != nil {
		return nil, nil, err
	}
	addrs, err := netlink.AddrList(link, netlink.FAMILY_V4)
	if err != nil {
		return nil, nil, fmt.Errorf("addresses of %s: %w", name, err)
	}
	return link, addrs, nil
}

// addAddresses gives an interface addresses, sets it up and sets the default routes.
func addAddresses(name string, eips []netip.Prefix, defaultVia []netip.Addr) (done undo, link netlink.Link, err error) {
	link, had, err := addresses(name)
	if err != nil {
		return nil, nil, err
	}
	for _, p := range eips {
		// Zero: no broadcast address, as ip sets none.
		addr := &netlink.Addr{IPNet: ipNet(p), Broadcast: net.IPv4zero}
		if err := netlink.AddrReplace(link, addr); err != nil {
			return done, link, fmt.Errorf("ip refused: address %s: %w", p, err)
		}
		if !slices.ContainsFunc(had, func(a netlink.Addr) bool { return prefixOf(a) == p }) {
			done = append(done, func() error { return netlink.AddrDel(link, addr) })
		}
	}
	if link.Attrs().Flags&net.FlagUp == 0 {
		if err := netlink.LinkSetUp(link); err != nil {
			return done, link, fmt.Errorf("ip refused: %s up: %w", name, err)
		}
		done = append(done, func() error { return netlink.LinkSetDown(link) })
	}
	for _, via := range defaultVia {
		if via.Is6() && ipv6Off(name) {
			continue // no EIP is worse off
		}
		r := &netlink.Route{LinkIndex: link.Attrs().Index, Gw: via.AsSlice(), Dst: everywhere(via), Flags: int(netlink.FLAG_ONLINK)}
		there, err := mainRoutes(familyOf(via))
		if err != nil {
			return done, link, err
		}
		step, err := replaceRoute(r, there)
		if err != nil {
			return done, link, fmt.Errorf("ip refused: default route via %s: %w", via, err)
		}
		done = append(done, step)
	}
	return done, link, nil
}

func everywhere(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: make(net.IP, a.BitLen()/8), Mask: net.CIDRMask(0, a.BitLen())}
}

// ipv6Off says that IPv6 is off, in the kernel or on the interface.
func ipv6Off(name string) bool {
	off, err := os.ReadFile("/proc/sys/net/ipv6/conf/" + name + "/disable_ipv6")
	return err != nil || strings.TrimSpace(string(off)) != "0"
}

func familyOf(a netip.Addr) int {
	if a.Is4() {
		return netlink.FAMILY_V4
	}
	return netlink.FAMILY_V6
}

// mainRoutes are those of the main table.
func mainRoutes(family int) ([]netlink.Route, error) {
	routes, err := netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("ip cannot list: %w", err)
	}
	return routes, nil
}

// replaceRoute makes a route, and gives the step that takes it back; there are the main table's routes of its family.
func replaceRoute(r *netlink.Route, there []netlink.Route) (func() error, error) {
	metric := r.Priority
	if metric == 0 && r.Gw.To4() == nil {
		metric = 1024 // the kernel's own
	}
	before := slices.IndexFunc(there, func(o netlink.Route) bool { return sameNet(o.Dst, r.Dst) && o.Priority == metric })
	if err := netlink.RouteReplace(r); err != nil {
		return nil, err
	}
	return func() error {
		if before >= 0 {
			return netlink.RouteReplace(&there[before])
		}
		return netlink.RouteDel(r)
	}, nil
}

func sameNet(a, b *net.IPNet) bool {
	if a == nil || b == nil {
		return (a == nil || isDefault(a)) && (b == nil || isDefault(b))
	}
	return a.String() == b.String()
}

func isDefault(n *net.IPNet) bool {
	ones, _ := n.Mask.Size()
	return ones == 0
}

// deleteAddresses takes addresses away from an interface. What stays is put back: without promote_secondaries a primary address takes the
// others of its subnet along, and the routes that need them.
func deleteAddresses(name string, going map[netip.Addr]bool) (done undo, err error) {
	link, had, err := addresses(name)
	if err != nil {
		return nil, err
	}
	ofLink := &netlink.Route{LinkIndex: link.Attrs().Index}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, ofLink, netlink.RT_FILTER_OIF)
	if err != nil {
		return nil, fmt.Errorf("routes of %s: %w", name, err)
	}
	done = undo{func() error { return putBack(link, had, routes) }}
	var stay []netlink.Addr
	for i := range had {
		if !going[prefixOf(had[i]).Addr()] {
			stay = append(stay, had[i])
			continue
		}
		if err := netlink.AddrDel(link, &had[i]); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return done, fmt.Errorf("ip refused: address %s: %w", prefixOf(had[i]), err)
		}
	}
	if len(stay) == len(had) || len(stay) == 0 {
		return done, nil
	}
	routes = slices.DeleteFunc(routes, func(r netlink.Route) bool {
		src, ok := netip.AddrFromSlice(r.Src.To4())
		return ok && going[src]
	})
	if err := putBack(link, stay, routes); err != nil {
		return done, fmt.Errorf("ip refused: what stays: %w", err)
	}
	return done, nil
}

// putBack gives an interface the addresses and the routes that it does not have any more.
func putBack(link netlink.Link, addrs []netlink.Addr, routes []netlink.Route) error {
	now, err := netlink.AddrList(link, netlink.FAMILY_V4)
	if err != nil {
		return err
	}
	for i := range addrs {
		if slices.ContainsFunc(now, func(a netlink.Addr) bool { return prefixOf(a) == prefixOf(addrs[i]) }) {
			continue
		}
		a := &netlink.Addr{IPNet: addrs[i].IPNet, Label: addrs[i].Label, Scope: addrs[i].Scope, Broadcast: addrs[i].Broadcast}
		if a.Broadcast == nil {
			a.Broadcast = net.IPv4zero
		}
		if err := netlink.AddrReplace(link, a); err != nil {
			return fmt.Errorf("address %s: %w", prefixOf(addrs[i]), err)
		}
	}
	ofLink := &netlink.Route{LinkIndex: link.Attrs().Index}
	there, err := netlink.RouteListFiltered(netlink.FAMILY_V4, ofLink, netlink.RT_FILTER_OIF)
	if err != nil {
		return err
	}
	for i := range routes {
		r := &routes[i]
		same := func(o netlink.Route) bool {
			return sameNet(o.Dst, r.Dst) && o.Priority == r.Priority && o.Gw.Equal(r.Gw)
		}
		if r.Protocol == unix.RTPROT_KERNEL || slices.ContainsFunc(there, same) {
			continue // of an address, which brings it along
		}
		if r.Gw != nil {
			r.Flags |= int(netlink.FLAG_ONLINK)
		}
		if err := netlink.RouteReplace(r); err != nil {
			return fmt.Errorf("route %s: %w", r.Dst, err)
		}
	}
	return nil
}

// AddRoutes gives the gateway routes into the VPC.
func (g *Gateway) AddRoutes(routes []sharenat.Route) error {
	link, err := linkOf(g.interfaces().VPC)
	if err != nil {
		return err
	}
	there, err := mainRoutes(netlink.FAMILY_V4)
	if err != nil {
		return err
	}
	var done undo
	for _, r := range routes {
		step, err := replaceRoute(&netlink.Route{
			LinkIndex: link.Attrs().Index, Dst: ipNet(r.CIDR), Gw: r.NextHop.AsSlice(),
			Protocol: routeProtocol, Priority: routeMetric,
		}, there)
		if err != nil {
			return done.back(fmt.Errorf("ip refused: route %s via %s: %w", r.CIDR, r.NextHop, err))
		}
		done = append(done, step)
	}
	steps, err := dropRoutes(routes, func(r *netlink.Route) bool { return older(link, r) })
	return append(done, steps...).back(err)
}

// DeleteRoutes takes routes away, whatever next hop they have.
func (g *Gateway) DeleteRoutes(routes []sharenat.Route) error {
	link, err := linkOf(g.interfaces().VPC)
	if err != nil {
		return err
	}
	done, err := dropRoutes(routes, func(r *netlink.Route) bool { return r.Protocol == routeProtocol || older(link, r) })
	return done.back(err)
}

// older tells the routes that the stock script made: with metric 0 they come before ours.
func older(link netlink.Link, r *netlink.Route) bool {
	return r.LinkIndex == link.Attrs().Index && r.Gw != nil && r.Priority == 0 && r.Protocol != unix.RTPROT_KERNEL && r.Protocol != routeProtocol
}

// dropRoutes deletes the routes that go where these do and are meant.
func dropRoutes(routes []sharenat.Route, meant func(*netlink.Route) bool) (done undo, err error) {
	to := map[string]bool{}
	for _, r := range routes {
		to[r.CIDR.String()] = true
	}
	there, err := mainRoutes(netlink.FAMILY_V4)
	if err != nil {
		return nil, err
	}
	for i := range there {
		r := &there[i]
		if !to[cidr(r.Dst)] || !meant(r) {
			continue
		}
		if err := netlink.RouteDel(r); err != nil && !errors.Is(err, unix.ESRCH) {
			return done, fmt.Errorf("ip refused: route %s: %w", cidr(r.Dst), err)
		}
		done = append(done, func() error { return netlink.RouteReplace(r) })
	}
	return done, nil
}

func cidr(n *net.IPNet) string {
	if n == nil {
		return "0.0.0.0/0"
	}
	return n.String()
}

// listAddresses adds addresses that have a hairpin rule, and routes of subnet-route-add.
func listAddresses(l *sharenat.Listing, hairpin map[netip.Addr]bool) error {
	addrs, err := netlink.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("reading the kernel: addresses: %w", err)
	}
	for _, a := range addrs {
		if p := prefixOf(a); hairpin[p.Addr()] {
			l.EIPs = append(l.EIPs, p)
		}
	}
	ours := &netlink.Route{Protocol: routeProtocol}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, ours, netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return fmt.Errorf("reading the kernel: routes: %w", err)
	}
	for _, r := range routes {
		dst, err := netip.ParsePrefix(cidr(r.Dst))
		via, ok := netip.AddrFromSlice(r.Gw.To4())
		if err == nil && ok {
			l.Routes = append(l.Routes, sharenat.Route{CIDR: dst, NextHop: via})
		}
	}
	return nil
}

// announce tells the neighbours that an address is here, by an ARP request of its own. Nobody answers to that.
func announce(link netlink.Link, addr netip.Addr) {
	mac := link.Attrs().HardwareAddr
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil || len(mac) != 6 {
		return
	}
	defer unix.Close(fd)
	everybody := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	ip := addr.As4()
	arp := binary.BigEndian.AppendUint16(nil, unix.ETH_P_ARP)
	frame := slices.Concat(everybody, mac, arp,
		[]byte{0, 1, 8, 0, 6, 4, 0, 1}, // Ethernet, IPv4, a request
		mac, ip[:], everybody, ip[:])
	to := &unix.SockaddrLinklayer{Ifindex: link.Attrs().Index, Halen: 6, Protocol: binary.NativeEndian.Uint16(arp)}
	copy(to.Addr[:], everybody)
	_ = unix.Sendto(fd, frame, 0, to)
}
