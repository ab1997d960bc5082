// SPDX-License-Identifier: Apache-2.0

// Package room runs a program in namespaces of its own: mounts, processes, network, host name, and users where it is
// not root. Its process 1 is a small init; when that ends, or whoever started it, the kernel ends every process in the
// room and drops its mounts, interfaces and rules. /run is a tmpfs of the room's own, so that what is written there
// (Dir, /run/netns, lock files of iptables) is gone with it, too, and two rooms never meet.
package room
