// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/kubeovn/kube-ovn/test/lab/stockrules"
)

// Owner is who holds an address: one NIC of one Pod.
type Owner struct {
	// PodUID is the UID, so that a re-created Pod is another owner.
	PodUID string
	// Pod is namespace/name, for messages.
	Pod      string
	Provider string
}

// TakenError says that a requested address belongs to somebody else.
type TakenError struct {
	Subnet string
	Addr   netip.Addr
	By     string
}

func (e *TakenError) Error() string {
	return fmt.Sprintf("address %s of subnet %s is taken by %s", e.Addr, e.Subnet, e.By)
}

// ExhaustedError says that a Subnet has no free address.
type ExhaustedError struct{ Subnet string }

func (e *ExhaustedError) Error() string {
	return fmt.Sprintf("subnet %s has no free address", e.Subnet)
}

// OutsideError says that a requested address does not lie in the Subnet.
type OutsideError struct {
	Subnet string
	Addr   netip.Addr
}

func (e *OutsideError) Error() string {
	return fmt.Sprintf("address %s is not in subnet %s", e.Addr, e.Subnet)
}

// IPAM hands out addresses, each to one owner at a time. Safe for concurrent use.
type IPAM struct {
	mu sync.Mutex
	// held maps subnet → address → owner.
	held map[string]map[netip.Addr]Owner
	// reserved tells who holds an address of the external network that no Pod may get: an EIP, a client of the lab.
	reserved func(netip.Addr) (string, bool)
	// changes counts what was given out and taken back.
	changes int
}

// NewIPAM makes an empty IPAM.
func NewIPAM(reserved func(netip.Addr) (string, bool)) *IPAM {
	if reserved == nil {
		reserved = func(netip.Addr) (string, bool) { return "", false }
	}
	return &IPAM{held: map[string]map[netip.Addr]Owner{}, reserved: reserved}
}

// Assign gives the owner one address of each family of the Subnet: those wanted, those it already holds, or else the
// lowest free ones. In an IPAM-only Subnet it is the highest free one, because the EIPs of that network are given out
// from below by somebody else, at the same time. All or nothing.
func (m *IPAM) Assign(subnet *Subnet, owner Owner, wanted []netip.Addr) ([]netip.Addr, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	held := m.held[subnet.Name]
	if held == nil {
		held = map[netip.Addr]Owner{}
		m.held[subnet.Name] = held
	}
	for _, addr := range wanted {
		if !slices.ContainsFunc(subnet.Prefixes, func(p netip.Prefix) bool { return p.Contains(addr) }) {
			return nil, &OutsideError{Subnet: subnet.Name, Addr: addr}
		}
	}
	result := make([]netip.Addr, 0, len(subnet.Prefixes))
	for i, prefix := range subnet.Prefixes {
		addr, err := m.pick(subnet, i, owner, addrIn(prefix, wanted))
		if err != nil {
			return nil, err
		}
		result = append(result, addr)
	}
	for _, addr := range result {
		if held[addr] != owner {
			held[addr] = owner
			m.changes++
		}
	}
	return result, nil
}

func addrIn(prefix netip.Prefix, addrs []netip.Addr) netip.Addr {
	for _, addr := range addrs {
		if prefix.Contains(addr) {
			return addr
		}
	}
	return netip.Addr{}
}

func (m *IPAM) pick(subnet *Subnet, family int, owner Owner, wanted netip.Addr) (netip.Addr, error) {
	held := m.held[subnet.Name]
	if wanted.IsValid() {
		if by, taken := held[wanted]; taken && by != owner {
			return netip.Addr{}, &TakenError{Subnet: subnet.Name, Addr: wanted, By: "pod " + by.Pod}
		}
		if by, taken := m.reservedIn(subnet, wanted); taken {
			return netip.Addr{}, &TakenError{Subnet: subnet.Name, Addr: wanted, By: by}
		}
		return wanted, nil
	}
	prefix := subnet.Prefixes[family]
	for addr, by := range held {
		if by == owner && prefix.Contains(addr) {
			return addr, nil
		}
	}
	first, last := hosts(prefix)
	step, from := netip.Addr.Next, first
	if !subnet.Overlay() {
		step, from = netip.Addr.Prev, last
	}
	for addr := from; addr.IsValid() && first.Compare(addr) <= 0 && addr.Compare(last) <= 0; addr = step(addr) {
		if _, taken := held[addr]; taken || addr == subnet.Gateways[family] {
			continue
		}
		if slices.ContainsFunc(subnet.Exclude, func(r AddrRange) bool { return r.Contains(addr) }) {
			continue
		}
		if _, taken := m.reservedIn(subnet, addr); !taken {
			return addr, nil
		}
	}
	return netip.Addr{}, &ExhaustedError{Subnet: subnet.Name}
}

func (m *IPAM) reservedIn(subnet *Subnet, addr netip.Addr) (string, bool) {
	if subnet.Overlay() {
		return "", false
	}
	return m.reserved(addr)
}

// hosts gives the first and last address a host may have: not the network's own nor the broadcast address.
func hosts(prefix netip.Prefix) (first, last netip.Addr) {
	first, last = prefix.Addr(), stockrules.Last(prefix)
	if prefix.Addr().BitLen()-prefix.Bits() > 1 {
		first = first.Next()
		if first.Is4() {
			last = last.Prev()
		}
	}
	return first, last
}

// Release takes back whatever the Pod holds.
func (m *IPAM) Release(podUID string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, held := range m.held {
		for addr, owner := range held {
			if owner.PodUID == podUID {
				delete(held, addr)
				m.changes++
			}
		}
	}
}

// Held lists the addresses of the Subnet that are in use, sorted.
func (m *IPAM) Held(subnet string) []netip.Addr {
	m.mu.Lock()
	defer m.mu.Unlock()
	addrs := make([]netip.Addr, 0, len(m.held[subnet]))
	for addr := range m.held[subnet] {
		addrs = append(addrs, addr)
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return addrs
}

// Changes counts what was given out and taken back, so that a caller can tell whether anything was.
func (m *IPAM) Changes() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changes
}
