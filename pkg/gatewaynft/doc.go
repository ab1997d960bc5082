// SPDX-License-Identifier: Apache-2.0

// Package gatewaynft keeps the share identities of a VPC NAT gateway in the kernel's nftables. What a gateway is to hold comes as a
// sharenat.State; each change is one transaction, and what is there is read back into a listing with the digests of sharenat.
//
// The layout (table ip kube-ovn; h = sharenat.Identity.Hash)
//
//	prerouting (nat, -150)   ip daddr . l4proto . dport vmap @service-ips
//	service-ips              eip . proto . dport : goto dnat-<h>
//	dnat-<h>                 [jump src-<h>]          source ranges, see below
//	  no affinity            dnat to numgen random mod N map { slot : ip . port }, to ip:port where there is but one
//	  ClientIP               jump pin-<h>-<timeout>, twice
//	pin-<h>-<timeout>        1 ct mark := a random backend's mark; put saddr : mark into @aff-<h> (an entry that is there keeps
//	                           its mark, and its clock starts anew)
//	                         2 jump aff-<h>-get
//	                         3 dnat to ct mark map { mark : ip . port }
//	                           (of a lone backend, without maps: 1 ct mark := its mark, 3 where ct mark is its mark, dnat to ip:port)
//	                         4 only reached when that backend is gone: drop the entry. The second jump then pins the client anew.
//	aff-<h>-get              ct mark := what @aff-<h> now holds for saddr. A chain of its own that no update touches: whenever a rule
//	                         that looks something up in a map is made, the kernel goes through all of the map
//	  drop                   at the end of dnat-<h>, see below
//	src-<h>                  one rule a prefix length that returns, then drop
//	postrouting (nat, 90)    eip . proto . dport, as the client sent it, vmap @masquerade-ips; empty as long as no identity masquerades
//	masq-<h>                 masquerade, to all backends or to a set of them
//
// All content of an identity is in rules and their anonymous maps, so a change is "empty the chain, add rules" in one transaction, and its
// digest can be computed from the kernel. Only the clients' pins are in a named map, which no update reads or writes. One map lookup
// whatever the number of backends: a new flow costs the same with 1 as with 1000.
//
// The kernel runs a packet through the rules of one generation, but looks it up in maps as they are at that moment. A packet that was on
// its way through a chain while a transaction replaced it finds the anonymous maps of the old rules empty. It must not go on, to a gateway
// that would refuse the connection: the drop at the end makes the client send again, and the new rules answer. Rule 4 of a pin chain looks
// something up as well, always there, so that such a packet, which stops at it, leaves the pin alone.
//
// Writing the pin before reading it back makes two first connections of one client on two CPUs agree; a map that is full means no pin, not
// no connection. The pin's value is the connection's ct mark, a number made from the backend's address and port, so pins survive whatever
// comes and goes around their backend. The ct mark stays on the connection and nobody else here uses it: iptables' VPC_MARK is on the
// packet's mark.
//
// What a change still has to do behind its transaction is noted in the kernel by that transaction, so that a call that fails or is killed
// leaves it to the next one: a removed identity's chain dnat-<h> stays, with one rule that names the identity, until its connections are
// gone; the pin chain of a former timeout stays, empty, until the pins have the new one.
package gatewaynft
