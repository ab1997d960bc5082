// SPDX-License-Identifier: Apache-2.0

package gatewayip

import (
	"net/netip"
	"regexp"
	"strings"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// Interfaces are the gateway's: one in the VPC, one in the external subnet.
type Interfaces struct{ VPC, External string }

var interfaceName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,15}$`)

// defaults are the interfaces where init was told no others.
var defaults = Interfaces{VPC: "eth0", External: "net1"}

// ParseInterfaces reads init's argument, VPCIF,EXTIF; empty for the usual ones.
func ParseInterfaces(arg string) (Interfaces, error) {
	if arg == "" {
		return defaults, nil
	}
	vpc, external, ok := strings.Cut(arg, ",")
	if !ok || !interfaceName.MatchString(vpc) || !interfaceName.MatchString(external) {
		return Interfaces{}, sharenat.InputError(1, "not two interface names VPCIF,EXTIF", arg)
	}
	return Interfaces{vpc, external}, nil
}

// ParseEIPs reads the arguments of eip-add and eip-del.
func ParseEIPs(args []string, del bool) ([]netip.Prefix, error) {
	var (
		eips []netip.Prefix
		seen = map[netip.Addr]string{}
	)
	for i, arg := range args {
		if _, err := sharenat.Fields(i+1, arg); err != nil {
			return nil, err
		}
		p, err := netip.ParsePrefix(arg)
		if err != nil || !p.Addr().Is4() {
			return nil, sharenat.InputError(i+1, "not an IPv4 address with its prefix length", arg)
		}
		if a := p.Addr(); !del && (p.Bits() == 0 || a.IsUnspecified() || a.IsMulticast() || a.IsLoopback() || a == broadcast) {
			return nil, sharenat.InputError(i+1, "not an address that an interface can have", arg)
		}
		was, twice := seen[p.Addr()]
		if twice && was != arg {
			return nil, sharenat.InputError(i+1, "address given twice, differently", arg)
		}
		seen[p.Addr()] = arg
		if !twice {
			eips = append(eips, p)
		}
	}
	return eips, nil
}

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// ParseRoutes reads the arguments of subnet-route-add and subnet-route-del. Whoever deletes may leave out the next hop.
func ParseRoutes(args []string, del bool) ([]sharenat.Route, error) {
	var (
		routes []sharenat.Route
		seen   = map[netip.Prefix]netip.Addr{}
	)
	for i, arg := range args {
		f, err := sharenat.Fields(i+1, arg)
		if err != nil {
			return nil, err
		}
		if len(f) != 2 && (len(f) != 1 || !del) {
			return nil, sharenat.InputError(i+1, "not CIDR,NEXTHOP", arg)
		}
		var r sharenat.Route
		if r.CIDR, err = netip.ParsePrefix(f[0]); err != nil || !r.CIDR.Addr().Is4() || r.CIDR != r.CIDR.Masked() {
			return nil, sharenat.InputError(i+1, "not an IPv4 prefix", f[0])
		}
		if len(f) == 2 {
			if r.NextHop, err = sharenat.ParseIPv4(f[1]); err != nil {
				return nil, sharenat.InputError(i+1, "not an IPv4 address", f[1])
			}
		}
		was, twice := seen[r.CIDR]
		if twice && was != r.NextHop {
			return nil, sharenat.InputError(i+1, "route given twice, differently", arg)
		}
		seen[r.CIDR] = r.NextHop
		if !twice {
			routes = append(routes, r)
		}
	}
	return routes, nil
}

// ParseDNATs reads the arguments of dnat-add and dnat-del. Whoever deletes may leave out where it leads to: then whatever it is goes.
func ParseDNATs(args []string, del bool) ([]sharenat.Exclusive, error) {
	form := "not EIP,DPORT,PROTO,IP,PORT"
	if del {
		form = "not EIP,DPORT,PROTO[,IP,PORT]"
	}
	var (
		all  []sharenat.Exclusive
		seen = map[sharenat.Identity]sharenat.Exclusive{}
	)
	for i, arg := range args {
		f, err := sharenat.Fields(i+1, arg)
		if err != nil {
			return nil, err
		}
		if len(f) != 5 && (len(f) != 3 || !del) {
			return nil, sharenat.InputError(i+1, form, arg)
		}
		e := sharenat.Exclusive{}
		if e.Identity, err = sharenat.ReadIdentity(i+1, f[0], f[1], f[2]); err != nil {
			return nil, err
		}
		if len(f) == 5 {
			if e.Backend, err = sharenat.ReadBackend(i+1, f[3], f[4]); err != nil {
				return nil, err
			}
		}
		if was, twice := seen[e.Identity]; twice && !del && was != e {
			return nil, sharenat.InputError(i+1, "DNAT given twice, differently", arg)
		}
		seen[e.Identity] = e
		all = append(all, e)
	}
	return all, nil
}
