// SPDX-License-Identifier: Apache-2.0

// Package e2e holds the end-to-end specs: what users of the load balancer and of the gateways are promised, shown with
// real packets. They run on a lab (make e2e), or, those that need none, on any cluster with Kube-OVN (package framework).
//
// Specs run side by side, each in a scene of its own; those that stop a process of the control plane are Serial.
package e2e
