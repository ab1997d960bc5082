// SPDX-License-Identifier: Apache-2.0

// Package lbservice turns LoadBalancer Services into share DNAT rules.
//
//	Service, EndpointSlices, Pods, Subnets, EIP, gateway, rules ──► Snapshot ──► Decide ──► Plan ──► rules, status, events
//	            (listers)                                            (value)     (pure)    (value)   (API server)
//
// Its only key is the Service. Everything that can change what a Service gets enqueues it through an index, so nothing
// waits for a retry. One pass takes a snapshot from the listers, decides without any I/O (desired.go, backend.go,
// ownership.go, status.go, nic.go), writes what differs, additions before removals, and then says so in the Service's
// status. A pass that finds nothing to change writes nothing.
//
// Three things keep an identity (EIP, port, protocol) with one owner at every moment, not only at rest:
// the owner is computed from the Services, rules and FIPs there are, never from who came first; a new owner does not create
// rules while live rules of another one are there; and passes over one EIP take turns (turns.go) and see the writes of the passes before
// them even where the informer does not show them yet (written.go).
//
// The package is embeddable: it registers on informer factories that it is given, starts none, and needs no manager.
package lbservice
