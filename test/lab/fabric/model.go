// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kubeovn/kube-ovn/test/lab/stockrules"
)

const (
	// DefaultVPC is the name Kube-OVN gives the VPC that nodes can reach.
	DefaultVPC = stockrules.DefaultVPC
	// DefaultSubnet is where Pods land whose namespace has no Subnet of its own.
	DefaultSubnet = "ovn-default"
	// JoinSubnet connects the nodes to the default VPC's router.
	JoinSubnet = "join"
	// OVNProvider is the provider of a Pod's primary NIC.
	OVNProvider = stockrules.OVNProvider
)

// Subnet is a Subnet as the fabric needs it: defaults filled in, everything parsed.
type Subnet struct {
	Name     string
	VPC      string
	Provider string
	// Prefixes holds the IPv4 CIDR, the IPv6 CIDR, or both in this order.
	Prefixes []netip.Prefix
	// Gateways has one address a prefix.
	Gateways    []netip.Addr
	Exclude     []AddrRange
	Namespaces  []string
	Default     bool
	NATOutgoing bool
}

// Overlay tells whether OVN itself would carry the Subnet, so that its VPC's router has a leg in it. The others are
// IPAM-only: a macvlan on a physical network, say.
func (s *Subnet) Overlay() bool {
	return stockrules.Overlay(s.Provider)
}

// Route is a static route.
type Route struct {
	Dst netip.Prefix
	Via []netip.Addr
}

// VPC is a Vpc as the fabric needs it.
type VPC struct {
	Name          string
	Namespaces    []string
	DefaultSubnet string
	Routes        []Route
}

// AddrRange is an inclusive range of addresses.
type AddrRange = stockrules.AddrRange

func parseAddrs(text string) ([]netip.Addr, error) {
	var addrs []netip.Addr
	for _, item := range stockrules.SplitList(text) {
		// Kube-OVN also takes "10.0.0.2/24" where an address is asked for.
		item, _, _ = strings.Cut(item, "/")
		addr, err := netip.ParseAddr(item)
		if err != nil {
			return nil, fmt.Errorf("parse address %q: %w", item, err)
		}
		addrs = append(addrs, addr.Unmap())
	}
	return addrs, nil
}

// subnetFrom reads a Subnet that passed stock's rules.
func subnetFrom(raw *stockrules.Subnet) (*Subnet, error) {
	subnet := &Subnet{
		Name: raw.Name, VPC: raw.VPC(), Provider: raw.Spec.Provider, Namespaces: raw.Spec.Namespaces,
		Default: raw.Spec.Default || raw.Name == DefaultSubnet, NATOutgoing: raw.Spec.NATOutgoing,
	}
	if subnet.Provider == "" {
		subnet.Provider = OVNProvider
	}
	var err error
	if subnet.Prefixes, err = stockrules.ParsePrefixes(raw.Spec.CIDRBlock); err != nil {
		return nil, fmt.Errorf("subnet %s: %w", raw.Name, err)
	}
	gateways, err := parseAddrs(raw.Spec.Gateway)
	if err != nil {
		return nil, fmt.Errorf("gateway of subnet %s: %w", raw.Name, err)
	}
	for _, prefix := range subnet.Prefixes {
		subnet.Gateways = append(subnet.Gateways, gatewayIn(prefix, gateways))
	}
	for _, item := range raw.Spec.ExcludeIPs {
		excluded, err := stockrules.ParseRange(item)
		if err != nil {
			return nil, fmt.Errorf("subnet %s: %w", raw.Name, err)
		}
		subnet.Exclude = append(subnet.Exclude, excluded)
	}
	return subnet, nil
}

// gatewayIn picks the gateway that lies in the prefix, else the prefix's first address, as Kube-OVN does.
func gatewayIn(prefix netip.Prefix, gateways []netip.Addr) netip.Addr {
	for _, gateway := range gateways {
		if prefix.Contains(gateway) {
			return gateway
		}
	}
	return prefix.Addr().Next()
}

// vpcFrom reads a Vpc that passed stock's rules.
func vpcFrom(raw *stockrules.Vpc) (*VPC, error) {
	vpc := &VPC{Name: raw.Name, Namespaces: raw.Spec.Namespaces, DefaultSubnet: raw.Spec.DefaultSubnet}
	byDst := map[netip.Prefix][]netip.Addr{}
	for _, route := range raw.Spec.StaticRoutes {
		if route.Policy != "" && route.Policy != "policyDst" {
			return nil, fmt.Errorf("vpc %s: static route policy %q is beyond this lab", raw.Name, route.Policy)
		}
		dst, err := stockrules.ParsePrefixOrAddr(route.CIDR)
		if err != nil {
			return nil, fmt.Errorf("static route of vpc %s: %w", raw.Name, err)
		}
		via, err := netip.ParseAddr(route.NextHopIP)
		if err != nil {
			return nil, fmt.Errorf("static route of vpc %s: %w", raw.Name, err)
		}
		byDst[dst] = append(byDst[dst], via)
	}
	vpc.Routes = sortedRoutes(byDst)
	return vpc, nil
}

func sortedRoutes(byDst map[netip.Prefix][]netip.Addr) []Route {
	routes := make([]Route, 0, len(byDst))
	for dst, via := range byDst {
		slices.SortFunc(via, netip.Addr.Compare)
		routes = append(routes, Route{Dst: dst, Via: slices.Compact(via)})
	}
	slices.SortFunc(routes, func(a, b Route) int { return a.Dst.Compare(b.Dst) })
	return routes
}
