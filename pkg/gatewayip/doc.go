// SPDX-License-Identifier: Apache-2.0

// Package gatewayip keeps what a VPC NAT gateway has beside its share identities: the wiring of its iptables, its addresses and routes, and
// the exclusive DNATs. Rules go through iptables-restore, in the set of tables that Kube-OVN's own script takes; addresses and routes go
// through netlink. What a call that fails has changed is taken back.
package gatewayip
