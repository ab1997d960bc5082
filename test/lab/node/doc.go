// SPDX-License-Identifier: Apache-2.0

// Package node plays the one node of the lab: it registers with the API server, and runs the Pods that are scheduled to
// it as groups of processes in network namespaces, with the NICs that package fabric gives them.
//
// A Pod is a sandbox (a network namespace with a name under /run/netns, kept by a pause process) and its containers. A
// container is a process in namespaces of its own (mount, pid, uts) whose root is an overlay of the machine's: it sees the
// machine's programs, writes to a scratch layer, and cannot leave anything behind. Which program an image stands for is
// said by a table.
//
// As on a kubelet, a container that ends is started again in the same sandbox (the network namespace, with its nft rules
// and conntrack entries, stays); when the sandbox itself dies, all is made anew for the same Pod object.
//
// The Pods are driven by this package's own loop, not by virtual-kubelet's PodController, because that one writes the
// whole Pod through the status endpoint, metadata included, from a copy that may be old: an annotation which a controller
// patches meanwhile (`vpc_nat_gw_init`, a NIC's address) would be lost now and then. Here status is patched, and nothing
// but status. What virtual-kubelet gives is the kubelet's HTTP endpoint (exec, logs) and the Node object with its lease.
package node
