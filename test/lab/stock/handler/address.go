// SPDX-License-Identifier: Apache-2.0

package handler

import (
	"fmt"
	"net/netip"
	"strings"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
)

// prefixOf gives the IPv4 prefix of a Subnet.
func prefixOf(subnet *kubeovnv1.Subnet) (netip.Prefix, error) {
	for part := range strings.SplitSeq(subnet.Spec.CIDRBlock, ",") {
		if prefix, err := netip.ParsePrefix(strings.TrimSpace(part)); err == nil && prefix.Addr().Is4() {
			return prefix.Masked(), nil
		}
	}
	return netip.Prefix{}, fmt.Errorf("subnet %s has no IPv4 prefix", subnet.Name)
}

// gatewayOf gives a Subnet's gateway of a family, "" for none.
func gatewayOf(subnet *kubeovnv1.Subnet, is func(netip.Addr) bool) string {
	for part := range strings.SplitSeq(subnet.Spec.Gateway, ",") {
		if addr, err := netip.ParseAddr(strings.TrimSpace(part)); err == nil && is(addr) {
			return addr.String()
		}
	}
	return ""
}

// allocate gives the address that is asked for, or else the lowest one that is free.
func allocate(subnet *kubeovnv1.Subnet, taken map[string]bool, asked string) (netip.Addr, error) {
	prefix, err := prefixOf(subnet)
	if err != nil {
		return netip.Addr{}, err
	}
	if asked != "" {
		addr, err := netip.ParseAddr(asked)
		if err != nil || !prefix.Contains(addr) || taken[asked] {
			return netip.Addr{}, fmt.Errorf("address %s of subnet %s cannot be had", asked, subnet.Name)
		}
		return addr, nil
	}
	for addr := prefix.Addr().Next(); prefix.Contains(addr.Next()); addr = addr.Next() {
		if !taken[addr.String()] && addr.String() != gatewayOf(subnet, netip.Addr.Is4) && !excluded(subnet, addr) {
			return addr, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("subnet %s has no free address", subnet.Name)
}

func excluded(subnet *kubeovnv1.Subnet, addr netip.Addr) bool {
	for _, item := range subnet.Spec.ExcludeIps {
		from, to, isRange := strings.Cut(item, "..")
		if !isRange {
			to = from
		}
		first, err := netip.ParseAddr(from)
		if err != nil {
			continue
		}
		if last, err := netip.ParseAddr(to); err == nil && first.Compare(addr) <= 0 && addr.Compare(last) <= 0 {
			return true
		}
	}
	return false
}

// routes are those of a gateway to the Subnets of its VPC, but to the one it is in, as "cidr,nexthop".
func routes(gw *kubeovnv1.VpcNatGateway, subnets []*kubeovnv1.Subnet) []string {
	nextHop := ""
	for _, subnet := range subnets {
		if subnet.Name == gw.Spec.Subnet {
			nextHop = gatewayOf(subnet, netip.Addr.Is4)
		}
	}
	var out []string
	for _, subnet := range subnets {
		if subnet.Spec.Vpc != gw.Spec.Vpc || subnet.Name == gw.Spec.Subnet || nextHop == "" {
			continue
		}
		if prefix, err := prefixOf(subnet); err == nil {
			out = append(out, prefix.String()+","+nextHop)
		}
	}
	return out
}
