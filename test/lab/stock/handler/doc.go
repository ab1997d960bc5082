// SPDX-License-Identifier: Apache-2.0

// Package handler plays the part of Kube-OVN's own kube-ovn-controller that runs the NAT gateways, as it can be told from outside:
// the objects that it makes, the calls of nat-gateway.sh that it makes for them, what it takes for a change and what it passes over,
// and what its webhook refuses. It is there to be installed beside: what it does differently from this project's handler, it does
// on purpose.
//
// calls.go says what is called, judge.go what is a change and what failed, workload.go and address.go what a gateway and an EIP are
// given, webhook.go what is refused; all of that are functions of values. The rest reads and writes.
package handler
