// SPDX-License-Identifier: Apache-2.0

package sharenat

import (
	"cmp"
	"crypto/md5" //nolint:gosec // names nft chains as stock does; nothing secret
	"encoding/hex"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Protocol is a transport protocol, always in lower case: "tcp" or "udp".
type Protocol string

// The protocols that a gateway can balance.
const (
	TCP Protocol = "tcp"
	UDP Protocol = "udp"
)

// ParseProtocol takes a protocol in any case.
func ParseProtocol(s string) (Protocol, error) {
	switch p := Protocol(strings.ToLower(s)); p {
	case TCP, UDP:
		return p, nil
	}
	return "", fmt.Errorf("protocol %q: must be tcp or udp", s)
}

// ParsePort takes a port number in 1–65535, in decimal without sign or leading zeros, as nat-gateway.sh does.
func ParsePort(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 || s[0] == '0' || s[0] == '+' {
		return 0, fmt.Errorf("port %q: must be a number from 1 to 65535 without leading zeros", s)
	}
	return uint16(n), nil
}

// ParseIPv4 takes an IPv4 address in dotted decimal.
func ParseIPv4(s string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(s)
	if err != nil || !addr.Is4() {
		return netip.Addr{}, fmt.Errorf("address %q: must be IPv4", s)
	}
	return addr, nil
}

// Identity is what a client connects to. It has exactly one owner in a cluster.
type Identity struct {
	EIP      netip.Addr
	Port     uint16
	Protocol Protocol
}

// String gives "203.0.113.10:80/tcp".
func (id Identity) String() string {
	return netip.AddrPortFrom(id.EIP, id.Port).String() + "/" + string(id.Protocol)
}

// Hash names the identity's objects in nft: the first 12 hexadecimal digits of md5("eip:port:protocol").
func (id Identity) Hash() string {
	sum := md5.Sum(fmt.Appendf(nil, "%s:%d:%s", id.EIP, id.Port, id.Protocol)) //nolint:gosec // see the import
	return hex.EncodeToString(sum[:])[:12]
}

// Compare orders identities by address, port, protocol.
func (id Identity) Compare(other Identity) int {
	return cmp.Or(id.EIP.Compare(other.EIP), cmp.Compare(id.Port, other.Port), cmp.Compare(id.Protocol, other.Protocol))
}
