// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

const (
	// DefaultVPC is the name Kube-OVN gives the VPC that nodes can reach.
	DefaultVPC = "ovn-cluster"
	// DefaultSubnet is where Pods land whose namespace has no Subnet of its own.
	DefaultSubnet = "ovn-default"
	// JoinSubnet connects the nodes to the default VPC's router.
	JoinSubnet = "join"
	// OVNProvider is the provider of a Pod's primary NIC.
	OVNProvider = "ovn"
)

// subnetObject is the part of kubeovn.io/v1 Subnet that the data plane reads. The lab has its own view of the API, so
// that a mistake in the product's types does not hide itself here.
type subnetObject struct {
	metav1.ObjectMeta `json:"metadata"`

	Spec struct {
		Default     bool     `json:"default"`
		VPC         string   `json:"vpc"`
		Protocol    string   `json:"protocol"`
		Namespaces  []string `json:"namespaces"`
		CIDRBlock   string   `json:"cidrBlock"`
		Gateway     string   `json:"gateway"`
		ExcludeIPs  []string `json:"excludeIps"`
		Provider    string   `json:"provider"`
		NATOutgoing bool     `json:"natOutgoing"`
	} `json:"spec"`
}

type vpcObject struct {
	metav1.ObjectMeta `json:"metadata"`

	Spec struct {
		Namespaces    []string         `json:"namespaces"`
		DefaultSubnet string           `json:"defaultSubnet"`
		StaticRoutes  []vpcStaticRoute `json:"staticRoutes"`
	} `json:"spec"`
}

type vpcStaticRoute struct {
	Policy    string `json:"policy"`
	CIDR      string `json:"cidr"`
	NextHopIP string `json:"nextHopIP"`
}

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
	return s.Provider == OVNProvider || strings.HasSuffix(s.Provider, "."+OVNProvider)
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
type AddrRange struct{ From, To netip.Addr }

// Contains tells whether the address is in the range.
func (r AddrRange) Contains(a netip.Addr) bool {
	return a.BitLen() == r.From.BitLen() && r.From.Compare(a) <= 0 && a.Compare(r.To) <= 0
}

func parseRange(text string) (AddrRange, error) {
	from, to, found := strings.Cut(strings.TrimSpace(text), "..")
	if !found {
		to = from
	}
	first, err := netip.ParseAddr(from)
	if err != nil {
		return AddrRange{}, fmt.Errorf("parse address range %q: %w", text, err)
	}
	last, err := netip.ParseAddr(to)
	if err != nil {
		return AddrRange{}, fmt.Errorf("parse address range %q: %w", text, err)
	}
	return AddrRange{From: first.Unmap(), To: last.Unmap()}, nil
}

func splitList(text string) []string {
	var items []string
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	return items
}

func parsePrefixes(text string) ([]netip.Prefix, error) {
	var prefixes []netip.Prefix
	for _, item := range splitList(text) {
		prefix, err := netip.ParsePrefix(item)
		if err != nil {
			return nil, fmt.Errorf("parse CIDR %q: %w", item, err)
		}
		prefixes = append(prefixes, prefix.Masked())
	}
	if len(prefixes) == 0 {
		return nil, fmt.Errorf("no CIDR in %q", text)
	}
	return prefixes, nil
}

func parseAddrs(text string) ([]netip.Addr, error) {
	var addrs []netip.Addr
	for _, item := range splitList(text) {
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

func subnetFrom(object *unstructured.Unstructured) (*Subnet, error) {
	var raw subnetObject
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &raw); err != nil {
		return nil, fmt.Errorf("decode subnet %s: %w", object.GetName(), err)
	}
	subnet := &Subnet{
		Name: raw.Name, VPC: raw.Spec.VPC, Provider: raw.Spec.Provider, Namespaces: raw.Spec.Namespaces,
		Default: raw.Spec.Default || raw.Name == DefaultSubnet, NATOutgoing: raw.Spec.NATOutgoing,
	}
	if subnet.Provider == "" {
		subnet.Provider = OVNProvider
	}
	if subnet.VPC == "" && subnet.Overlay() {
		subnet.VPC = DefaultVPC
	}
	var err error
	if subnet.Prefixes, err = parsePrefixes(raw.Spec.CIDRBlock); err != nil {
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
		excluded, err := parseRange(item)
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

func vpcFrom(object *unstructured.Unstructured) (*VPC, error) {
	var raw vpcObject
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &raw); err != nil {
		return nil, fmt.Errorf("decode vpc %s: %w", object.GetName(), err)
	}
	vpc := &VPC{Name: raw.Name, Namespaces: raw.Spec.Namespaces, DefaultSubnet: raw.Spec.DefaultSubnet}
	byDst := map[netip.Prefix][]netip.Addr{}
	for _, route := range raw.Spec.StaticRoutes {
		if route.Policy != "" && route.Policy != "policyDst" {
			return nil, fmt.Errorf("vpc %s: static route policy %q is beyond this lab", raw.Name, route.Policy)
		}
		dst, err := parsePrefixOrAddr(route.CIDR)
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

func parsePrefixOrAddr(text string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("parse CIDR %q: %w", text, err)
	}
	return prefix.Masked(), nil
}
