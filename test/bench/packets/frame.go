// SPDX-License-Identifier: Apache-2.0

package packets

import (
	"encoding/binary"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// flow is a connection as its first packet shows it.
type flow struct {
	proto    uint8 // unix.IPPROTO_TCP or unix.IPPROTO_UDP
	src, dst netip.AddrPort
}

const (
	etherLen, ipLen, udpLen, tcpLen = 14, 20, 8, 20
	maxFrame                        = etherLen + ipLen + tcpLen
	payload                         = tcpLen - udpLen // so that frames of both protocols are of one size
	syn                             = 0x02
)

// appendFrame appends the first frame of a flow: a SYN, or a datagram.
func appendFrame(out []byte, f flow, from, to net.HardwareAddr) []byte {
	out = append(append(out, to...), from...)
	out = append(out, 0x08, 0x00)
	ip := len(out)
	out = append(out, 0x45, 0, 0, ipLen+tcpLen, 0, 0, 0x40, 0, 64, f.proto, 0, 0)
	src, dst := f.src.Addr().As4(), f.dst.Addr().As4()
	out = append(append(out, src[:]...), dst[:]...)
	binary.BigEndian.PutUint16(out[ip+10:], checksum(0, out[ip:]))

	l4 := len(out)
	out = binary.BigEndian.AppendUint16(out, f.src.Port())
	out = binary.BigEndian.AppendUint16(out, f.dst.Port())
	sum := l4 + 16
	if f.proto == unix.IPPROTO_TCP {
		out = append(out, 0, 0, 0, 1, 0, 0, 0, 0, 5<<4, syn, 0xff, 0xff, 0, 0, 0, 0)
	} else {
		sum = l4 + 6
		out = append(out, 0, udpLen+payload, 0, 0)
		out = append(out, make([]byte, payload)...)
	}
	pseudo := uint32(f.proto) + uint32(len(out)-l4)
	for i := ip + 12; i < ip+20; i += 2 {
		pseudo += uint32(binary.BigEndian.Uint16(out[i:]))
	}
	binary.BigEndian.PutUint16(out[sum:], checksum(pseudo, out[l4:]))
	return out
}

// checksum is the Internet checksum of b, whose length is even, begun with sum.
func checksum(sum uint32, b []byte) uint16 {
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// parseFrame is the reverse of appendFrame; ok is false for what is no TCP or UDP over IPv4, or has a wrong checksum.
func parseFrame(b []byte) (f flow, ok bool) {
	const end = etherLen + ipLen + udpLen
	if len(b) < end || b[12] != 0x08 || b[13] != 0 || b[etherLen] != 0x45 || checksum(0, b[etherLen:etherLen+ipLen]) != 0 {
		return f, false
	}
	ip, l4 := b[etherLen:], b[etherLen+ipLen:]
	f.proto = ip[9]
	f.src = netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip[12:16])), binary.BigEndian.Uint16(l4))
	f.dst = netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip[16:20])), binary.BigEndian.Uint16(l4[2:]))
	return f, f.proto == unix.IPPROTO_TCP || f.proto == unix.IPPROTO_UDP
}
