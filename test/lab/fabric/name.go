// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"crypto/sha256"
	"encoding/hex"
	"net"
	"net/netip"
	"strings"
)

// maxInterfaceName is IFNAMSIZ without the terminating zero.
const maxInterfaceName = 15

// interfaceName makes an interface name: readable where it fits, else cut and hashed.
func interfaceName(prefix, name string) string {
	if !strings.ContainsAny(name, "/ :") && len(prefix)+len(name) <= maxInterfaceName {
		return prefix + name
	}
	sum := sha256.Sum256([]byte(name))
	return prefix + hex.EncodeToString(sum[:])[:maxInterfaceName-len(prefix)]
}

// macFor derives a MAC from its parts; locally administered, unicast.
func macFor(parts ...string) net.HardwareAddr {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return net.HardwareAddr{0x0a, 0x58, sum[0], sum[1], sum[2], sum[3]}
}

// nicMAC is the MAC of a Pod's NIC. In an overlay it follows the address, since OVN's logical ports know where an
// address lives and no stale neighbour entry ever shows. On the external network each new Pod comes with a new MAC, as a
// macvlan would, so that a gateway which does not announce its EIPs is found out.
func nicMAC(subnet *Subnet, addr netip.Addr, podUID string) net.HardwareAddr {
	if subnet.Overlay() {
		return macFor(subnet.Name, addr.String())
	}
	return macFor(subnet.Name, addr.String(), podUID)
}

// routerNamespace is the name of a VPC's router in /run/netns.
func routerNamespace(vpc string) string { return "vpc-" + vpc }
