// SPDX-License-Identifier: Apache-2.0

package packets

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// addr is the address at an offset from another one.
func addr(from netip.Addr, offset int) netip.Addr {
	base := from.As4()
	var out [4]byte
	binary.BigEndian.PutUint32(out[:], binary.BigEndian.Uint32(base[:])+uint32(offset))
	return netip.AddrFrom4(out)
}

// crowd is who opens connections, and to what.
type crowd struct {
	// clients is how many there are; every one opens a connection before the first opens another. Where it is 0 nobody
	// comes twice.
	clients int
	// from are where clients are, in turn; where it is empty, in clientNet.
	from []netip.Prefix
	to   []sharenat.Identity
	// opened counts the connections so far.
	opened int
}

// firstPort is the lowest source port.
const firstPort = 1024

// next are n more connections. Clients and identities come in an order without pattern, which is the same every time.
func (c *crowd) next(n int) []flow {
	flows := make([]flow, n)
	for i := range flows {
		k := c.opened
		id := c.to[scatter(k, len(c.to))]
		flows[i] = flow{proto: protocolNumber(id.Protocol), src: c.source(k), dst: netip.AddrPortFrom(id.EIP, id.Port)}
		c.opened++
	}
	return flows
}

// source is where the k-th connection comes from; no two come from the same address and port.
func (c *crowd) source(k int) netip.AddrPort {
	prefix, clients := netip.MustParsePrefix(clientNet), c.clients
	if n := len(c.from); n > 0 {
		prefix = c.from[k%n]
		k /= n
	}
	size := 1 << (32 - prefix.Bits())
	if clients == 0 || clients > size {
		clients = size
	}
	// An odd factor makes no two clients one.
	client := k % clients * 2654435761 % size
	return netip.AddrPortFrom(addr(prefix.Addr(), client), uint16(firstPort+k/clients%(65536-firstPort)))
}

// scatter is one of n, each in turn where n is no multiple of the prime 7919, but no two neighbours after each other.
func scatter(k, n int) int { return k * 7919 % n }

func protocolNumber(p sharenat.Protocol) uint8 {
	if p == sharenat.UDP {
		return unix.IPPROTO_UDP
	}
	return unix.IPPROTO_TCP
}

// backends are n of them, each at an address of its own.
func backends(n int) []sharenat.Backend {
	out := make([]sharenat.Backend, n)
	for i := range out {
		out[i].Addr = netip.AddrPortFrom(addr(firstBackend, i), backendPort)
	}
	return out
}

const backendPort = 8080

// Where identities are reached, and where they lead.
var firstEIP, firstBackend = netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("10.2.0.1")

// share is an identity of n backends, at the EIP of this number.
func share(eip int, port uint16, n int, affinity sharenat.Affinity) sharenat.Share {
	return sharenat.Share{
		Identity: sharenat.Identity{EIP: addr(firstEIP, eip), Port: port, Protocol: sharenat.TCP},
		Affinity: affinity,
		Backends: backends(n),
	}
}

// clientIP is the affinity of a Service that says no more than ClientIP.
var clientIP = sharenat.Affinity{ClientIP: true, TimeoutSeconds: 10800}

func identities(shares []sharenat.Share) []sharenat.Identity {
	ids := make([]sharenat.Identity, len(shares))
	for i := range shares {
		ids[i] = shares[i].Identity
	}
	return ids
}
