// SPDX-License-Identifier: Apache-2.0

package stockrules

import (
	"fmt"
	"net/netip"
	"strings"
)

// AddrRange is an inclusive range of addresses.
type AddrRange struct{ From, To netip.Addr }

// Contains tells whether the address is in the range.
func (r AddrRange) Contains(a netip.Addr) bool {
	return a.BitLen() == r.From.BitLen() && r.From.Compare(a) <= 0 && a.Compare(r.To) <= 0
}

// ParseRange reads "from..to", or one address.
func ParseRange(text string) (AddrRange, error) {
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
	first, last = first.Unmap(), last.Unmap()
	if first.BitLen() != last.BitLen() || last.Less(first) {
		return AddrRange{}, fmt.Errorf("address range %q does not go up", text)
	}
	return AddrRange{From: first, To: last}, nil
}

// SplitList gives the items of a list with commas.
func SplitList(text string) []string {
	var items []string
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	return items
}

// ParsePrefixes reads a cidrBlock: a network of one family, or one of each.
func ParsePrefixes(text string) ([]netip.Prefix, error) {
	var prefixes []netip.Prefix
	for _, item := range SplitList(text) {
		prefix, err := netip.ParsePrefix(item)
		if err != nil {
			return nil, fmt.Errorf("parse CIDR %q: %w", item, err)
		}
		if prefix != prefix.Masked() {
			return nil, fmt.Errorf("%s is no network address, %s is", item, prefix.Masked())
		}
		prefixes = append(prefixes, prefix)
	}
	switch {
	case len(prefixes) == 0:
		return nil, fmt.Errorf("no CIDR in %q", text)
	case len(prefixes) > 2 || len(prefixes) == 2 && prefixes[0].Addr().Is4() == prefixes[1].Addr().Is4():
		return nil, fmt.Errorf("%q is more than one CIDR a family", text)
	}
	return prefixes, nil
}

// ParsePrefixOrAddr reads where a static route leads. Host bits do not count.
func ParsePrefixOrAddr(text string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("parse CIDR %q: %w", text, err)
	}
	return prefix.Masked(), nil
}

// within gives the network that an address is in, if it is in one.
func within(prefixes []netip.Prefix, addr netip.Addr) (netip.Prefix, bool) {
	for _, prefix := range prefixes {
		if prefix.Contains(addr) {
			return prefix, true
		}
	}
	return netip.Prefix{}, false
}

// Last is a network's last address: for IPv4 the one of broadcasts.
func Last(prefix netip.Prefix) netip.Addr {
	bytes := prefix.Addr().AsSlice()
	for bit := prefix.Bits(); bit < len(bytes)*8; bit++ {
		bytes[bit/8] |= 1 << (7 - bit%8)
	}
	addr, _ := netip.AddrFromSlice(bytes)
	return addr
}
