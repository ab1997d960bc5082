// SPDX-License-Identifier: Apache-2.0

package natgateway

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
)

var (
	// errNoIPv4 is the error of a subnet without an IPv4 prefix.
	errNoIPv4 = errors.New("no IPv4 prefix")
	// errNoFreeAddress is the error of a subnet whose last address is gone.
	errNoFreeAddress = errors.New("no free IPv4 address")
)

// addressRange is a range of addresses, both ends included.
type addressRange struct{ first, last netip.Addr }

func (r addressRange) contains(a netip.Addr) bool {
	return r.first.Compare(a) <= 0 && a.Compare(r.last) <= 0
}

// addressPool is the IPv4 half of an external subnet.
type addressPool struct {
	prefix netip.Prefix
	// gateways and excluded addresses are never given out of the pool's own accord.
	gateways []netip.Addr
	excluded []addressRange
}

// newAddressPool reads a subnet. What it cannot make sense of in excludeIps is skipped: the subnet's own controller
// refuses such a subnet.
func newAddressPool(subnet *kubeovnv1.Subnet) (*addressPool, error) {
	p := &addressPool{}
	for item := range strings.SplitSeq(subnet.Spec.CIDRBlock, ",") {
		if prefix, err := netip.ParsePrefix(strings.TrimSpace(item)); err == nil && prefix.Addr().Is4() {
			p.prefix = prefix.Masked()
		}
	}
	if !p.prefix.IsValid() {
		return nil, fmt.Errorf("subnet %s, cidrBlock %q: %w", subnet.Name, subnet.Spec.CIDRBlock, errNoIPv4)
	}
	p.gateways = ipv4s(subnet.Spec.Gateway)
	for _, item := range subnet.Spec.ExcludeIps {
		p.excluded = append(p.excluded, parseRange(item, "..")...)
	}
	for item := range strings.SplitSeq(subnet.Status.V4UsingIPRange, ",") {
		p.excluded = append(p.excluded, parseRange(item, "-")...)
	}
	slices.SortFunc(p.excluded, func(a, b addressRange) int { return a.first.Compare(b.first) })
	return p, nil
}

// check says why an address that was asked for cannot be an EIP of this subnet. That it is excluded does not matter: addresses are
// excluded so that they can be given out by name.
func (p *addressPool) check(addr netip.Addr) error {
	switch {
	case !addr.Is4():
		return fmt.Errorf("address %s: must be IPv4", addr)
	case !p.prefix.Contains(addr):
		return fmt.Errorf("address %s: not in %s", addr, p.prefix)
	case slices.Contains(p.gateways, addr):
		return fmt.Errorf("address %s: is the gateway of %s", addr, p.prefix)
	case p.prefix.Bits() < 31 && (addr == p.prefix.Addr() || addr == lastAddress(p.prefix)):
		return fmt.Errorf("address %s: is the network or broadcast address of %s", addr, p.prefix)
	}
	return nil
}

// lowestFree gives the lowest address that is neither special, excluded nor taken. Its cost grows with the number of
// addresses taken, not with the size of the prefix times the number of ranges.
func (p *addressPool) lowestFree(taken map[netip.Addr]string) (netip.Addr, error) {
	last := lastAddress(p.prefix)
	next := 0
	for addr := p.prefix.Addr(); addr.IsValid() && addr.Compare(last) <= 0; addr = addr.Next() {
		for next < len(p.excluded) && p.excluded[next].last.Less(addr) {
			next++
		}
		if jump, hit := p.excludedUntil(next, addr); hit {
			addr = jump
			continue
		}
		if _, used := taken[addr]; used || p.check(addr) != nil {
			continue
		}
		return addr, nil
	}
	return netip.Addr{}, fmt.Errorf("%s: %w", p.prefix, errNoFreeAddress)
}

// excludedUntil gives the end of a range, from the given one on, that holds the address. Ranges are ordered by their first address.
func (p *addressPool) excludedUntil(from int, addr netip.Addr) (netip.Addr, bool) {
	for _, r := range p.excluded[from:] {
		if addr.Less(r.first) {
			break
		}
		if r.contains(addr) {
			return r.last, true
		}
	}
	return netip.Addr{}, false
}

// cidr gives the address with the subnet's prefix length, as eip-add takes it.
func (p *addressPool) cidr(addr netip.Addr) netip.Prefix {
	return netip.PrefixFrom(addr, p.prefix.Bits())
}

// parseRange reads "a" or "a<sep>b"; other families and garbage give nothing.
func parseRange(s, sep string) []addressRange {
	from, to, isRange := strings.Cut(strings.TrimSpace(s), sep)
	if !isRange {
		to = from
	}
	first, err1 := netip.ParseAddr(strings.TrimSpace(from))
	last, err2 := netip.ParseAddr(strings.TrimSpace(to))
	if err1 != nil || err2 != nil || !first.Is4() || !last.Is4() || last.Less(first) {
		return nil
	}
	return []addressRange{{first, last}}
}

// ipv4s gives the IPv4 addresses of a comma-separated list in which each may carry a prefix length.
func ipv4s(list string) []netip.Addr {
	return family(list, netip.Addr.Is4)
}

// ipv6s gives the IPv6 addresses of such a list.
func ipv6s(list string) []netip.Addr {
	return family(list, netip.Addr.Is6)
}

func family(list string, is func(netip.Addr) bool) []netip.Addr {
	var out []netip.Addr
	for item := range strings.SplitSeq(list, ",") {
		item, _, _ = strings.Cut(strings.TrimSpace(item), "/")
		if addr, err := netip.ParseAddr(item); err == nil && is(addr) {
			out = append(out, addr)
		}
	}
	return out
}

// lastAddress gives the highest address of an IPv4 prefix.
func lastAddress(p netip.Prefix) netip.Addr {
	a := p.Masked().Addr().As4()
	for bit := p.Bits(); bit < 32; bit++ {
		a[bit/8] |= 1 << (7 - bit%8)
	}
	return netip.AddrFrom4(a)
}
