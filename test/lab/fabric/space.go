// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// space is a network namespace and a netlink socket in it, so that no thread has to change namespaces to configure it.
type space struct {
	name   string
	fd     netns.NsHandle
	handle *netlink.Handle
}

func openSpace(name, path string) (*space, error) {
	fd, err := netns.GetFromPath(path)
	if err != nil {
		return nil, fmt.Errorf("open network namespace %s: %w", name, err)
	}
	handle, err := netlink.NewHandleAt(fd, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open netlink in %s: %w", name, err), fd.Close())
	}
	return &space{name: name, fd: fd, handle: handle}, nil
}

// newSpace creates a named namespace, its loopback up.
func newSpace(name string, sysctls []Sysctl) (*space, error) {
	ns, err := NewNamespace(name, sysctls...)
	if err != nil {
		return nil, err
	}
	s, err := openSpace(name, ns.Path())
	if err != nil {
		return nil, errors.Join(err, ns.Delete())
	}
	if err := s.up("lo"); err != nil {
		return nil, errors.Join(err, ns.Delete())
	}
	return s, nil
}

func (s *space) close() {
	s.handle.Close()
	_ = s.fd.Close()
}

func (s *space) link(name string) (netlink.Link, error) {
	link, err := s.handle.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("find %s in %s: %w", name, s.name, err)
	}
	return link, nil
}

func (s *space) up(name string) error {
	link, err := s.link(name)
	if err != nil {
		return err
	}
	if err := s.handle.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s up in %s: %w", name, s.name, err)
	}
	return nil
}

// ensureBridge makes a bridge that forwards at once and floods multicast.
func (s *space) ensureBridge(name, alias string) error {
	if _, err := s.handle.LinkByName(name); err == nil {
		return s.up(name)
	}
	snooping := false
	bridge := &netlink.Bridge{
		LinkAttrs:         netlink.LinkAttrs{Name: name, Alias: alias, HardwareAddr: macFor("bridge", name), Flags: net.FlagUp},
		MulticastSnooping: &snooping,
	}
	if err := s.handle.LinkAdd(bridge); err != nil {
		return fmt.Errorf("add bridge %s (%s): %w", name, alias, err)
	}
	return nil
}

// cable is a veth pair: one end here, the other in peer.
type cable struct {
	name     string
	alias    string
	bridge   string // where this end is plugged in; none when empty
	peer     *space
	peerName string
	peerMAC  net.HardwareAddr
}

// plug adds the cable; its own end is up, the peer's is not. An old cable of this name is replaced.
func (s *space) plug(c cable) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.Alias, attrs.Flags = c.name, c.alias, net.FlagUp
	if c.bridge != "" {
		bridge, err := s.link(c.bridge)
		if err != nil {
			return err
		}
		attrs.MasterIndex = bridge.Attrs().Index
	}
	veth := &netlink.Veth{
		LinkAttrs: attrs, PeerName: c.peerName, PeerHardwareAddr: c.peerMAC, PeerNamespace: netlink.NsFd(c.peer.fd),
	}
	err := s.handle.LinkAdd(veth)
	if errors.Is(err, unix.EEXIST) {
		if err = s.unplug(c.name); err == nil {
			err = s.handle.LinkAdd(veth)
		}
	}
	if err != nil {
		return fmt.Errorf("connect %s to %s of %s: %w", c.name, c.peerName, c.peer.name, err)
	}
	return nil
}

// waitUp waits until both ends of a cable carry traffic. The kernel says so a little later than it sets them up (linkwatch),
// and a bridge drops what comes before.
func (s *space) waitUp(c cable) error {
	deadline := time.Now().Add(3 * time.Second)
	for _, end := range []struct {
		space *space
		name  string
	}{{s, c.name}, {c.peer, c.peerName}} {
		for {
			link, err := end.space.link(end.name)
			if err != nil {
				return err
			}
			if link.Attrs().OperState == netlink.OperUp {
				break
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("%s in %s has no carrier", end.name, end.space.name)
			}
			time.Sleep(200 * time.Microsecond)
		}
	}
	return nil
}

// unplug removes an interface, and with a cable its other end. One that is not there is fine.
func (s *space) unplug(name string) error {
	link, err := s.handle.LinkByName(name)
	if err != nil {
		var notFound netlink.LinkNotFoundError
		if errors.As(err, &notFound) {
			return nil
		}
		return fmt.Errorf("find %s in %s: %w", name, s.name, err)
	}
	if err := s.handle.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove %s from %s: %w", name, s.name, err)
	}
	return nil
}

// address gives the interface its addresses, sets it up, and adds its routes.
func (s *space) address(name string, addrs []netip.Prefix, routes ...Route) error {
	link, err := s.link(name)
	if err != nil {
		return err
	}
	for _, addr := range addrs {
		flags := 0
		if addr.Addr().Is6() {
			flags = unix.IFA_F_NODAD
		}
		err := s.handle.AddrReplace(link, &netlink.Addr{IPNet: ipNet(addr), Flags: flags})
		if err != nil {
			return fmt.Errorf("add %s to %s of %s: %w", addr, name, s.name, err)
		}
	}
	if err := s.handle.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s up in %s: %w", name, s.name, err)
	}
	for _, route := range routes {
		if err := s.route(route, link.Attrs().Index); err != nil {
			return err
		}
	}
	return nil
}

// route adds or replaces a static route; several next hops share it. linkIndex may be 0.
func (s *space) route(route Route, linkIndex int) error {
	entry := &netlink.Route{Dst: ipNet(route.Dst), Protocol: unix.RTPROT_STATIC, LinkIndex: linkIndex}
	if len(route.Via) == 1 {
		entry.Gw = route.Via[0].AsSlice()
	} else {
		for _, via := range route.Via {
			entry.MultiPath = append(entry.MultiPath, &netlink.NexthopInfo{LinkIndex: linkIndex, Gw: via.AsSlice()})
		}
	}
	if err := s.handle.RouteReplace(entry); err != nil {
		return fmt.Errorf("route %s via %v in %s: %w", route.Dst, route.Via, s.name, err)
	}
	return nil
}

// setRoutes makes the namespace's static routes these and no others. A route whose next hop no interface reaches yet is
// reported, the others stand.
func (s *space) setRoutes(wanted []Route) error {
	filter := &netlink.Route{Protocol: unix.RTPROT_STATIC}
	present, err := s.handle.RouteListFiltered(netlink.FAMILY_ALL, filter, netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return fmt.Errorf("list routes of %s: %w", s.name, err)
	}
	var errs []error
	for _, entry := range present {
		isWanted := func(r Route) bool { return entry.Dst != nil && entry.Dst.String() == ipNet(r.Dst).String() }
		if !slices.ContainsFunc(wanted, isWanted) {
			if err := s.handle.RouteDel(&entry); err != nil && !errors.Is(err, unix.ESRCH) {
				errs = append(errs, fmt.Errorf("remove route %s from %s: %w", entry.Dst, s.name, err))
			}
		}
	}
	for _, route := range wanted {
		if err := s.route(route, 0); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// neighbour tells the interface where an address lives, as OVN knows it from its logical ports.
func (s *space) neighbour(name string, addr netip.Addr, mac net.HardwareAddr) error {
	link, err := s.link(name)
	if err != nil {
		return err
	}
	entry := &netlink.Neigh{LinkIndex: link.Attrs().Index, IP: addr.AsSlice(), HardwareAddr: mac, State: netlink.NUD_PERMANENT}
	if err := s.handle.NeighSet(entry); err != nil {
		return fmt.Errorf("set neighbour %s on %s of %s: %w", addr, name, s.name, err)
	}
	return nil
}

func (s *space) forgetNeighbour(name string, addr netip.Addr) {
	if link, err := s.handle.LinkByName(name); err == nil {
		_ = s.handle.NeighDel(&netlink.Neigh{LinkIndex: link.Attrs().Index, IP: addr.AsSlice()})
	}
}

func ipNet(prefix netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())}
}

// anywhere is the default route's destination, in the family of the address.
func anywhere(addr netip.Addr) netip.Prefix {
	if addr.Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}
