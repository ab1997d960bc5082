// SPDX-License-Identifier: Apache-2.0

// Package control measures the whole way from a change in the API server to the rules in a gateway, on a lab: with a real
// API server, real gateway pods, and the real kube-proxy on the same changes.
//
// One lab serves all measures of a run, since it is the machine's one node. What they leave in it grows: first comes what
// wants a quiet cluster, then what wants a large one.
//
// Pods that nobody asks over packets are pretended: API objects with the annotations that Kube-OVN gives a Pod of two NICs,
// which no node runs. Their addresses are real where packets are sent to them: one real Pod of two NICs has them all.
package control
