// SPDX-License-Identifier: Apache-2.0

package packets

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

func TestFrames(t *testing.T) {
	from, to, err := macs(clientNIC, routerNIC)
	if err != nil {
		t.Fatal(err)
	}
	for _, proto := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
		want := flow{proto, netip.MustParseAddrPort("100.64.1.2:1024"), netip.MustParseAddrPort("203.0.113.10:80")}
		frame := appendFrame(nil, want, from, to)
		if len(frame) != maxFrame {
			t.Errorf("protocol %d: a frame of %d bytes, want %d", proto, len(frame), maxFrame)
		}
		if got, ok := parseFrame(frame); !ok || got != want {
			t.Errorf("protocol %d: %v %v, want %v", proto, got, ok, want)
		}
		// With its pseudo header the checksum of what is right is 0.
		pseudo := uint32(proto) + tcpLen
		for i := etherLen + 12; i < etherLen+ipLen; i += 2 {
			pseudo += uint32(frame[i])<<8 | uint32(frame[i+1])
		}
		if sum := checksum(pseudo, frame[etherLen+ipLen:]); sum != 0 {
			t.Errorf("protocol %d: wrong checksum, off by %#x", proto, sum)
		}
		for _, broken := range [][]byte{nil, frame[:40], append([]byte{}, frame...)} {
			if len(broken) == len(frame) {
				broken[etherLen+8]-- // the hop limit, without the checksum
			}
			if _, ok := parseFrame(broken); ok {
				t.Errorf("protocol %d: a broken frame of %d bytes is taken for one", proto, len(broken))
			}
		}
	}
}
