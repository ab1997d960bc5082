// SPDX-License-Identifier: Apache-2.0

package script

import (
	"net/netip"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// timeout of ClientIP, Kubernetes' own.
const timeout = 10800

// share is identity number n, of some backends that no other number has.
func share(n, backends int, clientIP bool) sharenat.Share {
	s := sharenat.Share{Identity: sharenat.Identity{
		EIP: netip.AddrFrom4([4]byte{203, 0, byte(113 + n/250), byte(1 + n%250)}), Port: 80, Protocol: "tcp",
	}}
	if clientIP {
		s.Affinity = sharenat.Affinity{ClientIP: true, TimeoutSeconds: timeout}
	}
	for i := range backends {
		at := n*10 + i // identities of more backends than ten overlap; they may
		addr := netip.AddrFrom4([4]byte{10, byte(at >> 16), byte(at >> 8), byte(at)})
		s.Backends = append(s.Backends, sharenat.Backend{Addr: netip.AddrPortFrom(addr, backendPort)})
	}
	s.Normalize()
	return s
}

// many are n identities of ten backends; every tenth keeps clients with their backends.
func many(n int) []sharenat.Share {
	shares := make([]sharenat.Share, n)
	for i := range shares {
		shares[i] = share(i, 10, i%10 == 9)
	}
	return shares
}
