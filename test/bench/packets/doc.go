// SPDX-License-Identifier: Apache-2.0

// Package packets measures what a packet costs on its way through a gateway: the first of a connection, and those of a
// connection that is there.
//
// A lane is three namespaces in a row, clients, router and pods, joined by veth pairs. The rules in its router are
// written by nat-gateway.sh, or by a real kube-proxy, or there are none.
//
//	clients  net1 ── net1  router  eth0 ── eth0  pods
//
// New connections are timed by a flood of prepared frames, each the first of its connection. One thread sends them, and
// the kernel takes each through the whole of the router before it returns to the thread, so that thread's CPU time is
// what the frames cost, whoever else is on the machine. What has left the router and what conntrack has entered
// is counted after each flood; where the packets went, and with what source, is read off the wire by the checks.
package packets
