// SPDX-License-Identifier: Apache-2.0

// nat-gateway programs one VPC NAT gateway: the share (load-balanced) DNATs in nftables, everything else in iptables, addresses and routes.
// It runs inside the gateway pod, behind nat-gateway.sh, which is called through pods/exec; docs/gateway-protocol.md is the contract.
//
//	nat-gateway VERB [ARG…]
//
//	init [VPCIF,EXTIF]             eip-add CIDR…           eip-del CIDR…
//	subnet-route-add CIDR,NEXTHOP… subnet-route-del CIDR[,NEXTHOP]…
//	dnat-add EIP,DPORT,PROTO,IP,PORT…                      dnat-del EIP,DPORT,PROTO[,IP,PORT]…
//	nft-dnat-map-add EIP,DPORT,PROTO,[AFFINITY,TIMEOUT,]IP:PORT@IP:PORT…
//	nft-dnat-map-del EIP,DPORT,PROTO…
//	nft-dnat-map-sync <state       nft-dnat-map-list       get-iptables-version
//
// How a call goes: read the input and check all of it, take the lock, apply it as one transaction, then end the connections that the
// change left without their backend. Nothing is applied unless all of it is good.
package main

import (
	"fmt"
	"os"
)

// name is what the messages begin with: the script's, by which the program is called.
const name = "nat-gateway.sh"

func main() { os.Exit(run(os.Args[1:])) }

// run gives the exit code, which is the answer: 0, all of it was done.
func run(args []string) int {
	if len(args) == 0 {
		fmt.Fprintln(os.Stderr, "usage: "+name+" init|eip-add|eip-del|subnet-route-add|subnet-route-del|dnat-add|dnat-del|"+
			"nft-dnat-map-add|nft-dnat-map-del|nft-dnat-map-sync|nft-dnat-map-list|get-iptables-version [ARG…]")
		return 2
	}
	verb, rest := args[0], args[1:]
	c := &call{warn: func(what string) { fmt.Fprintf(os.Stderr, "Warning: %s: %s: %s\n", name, verb, what) }}
	err := c.do(verb, rest)
	c.close()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %s: %v\n", name, verb, err)
		return 1
	}
	return 0
}
