// SPDX-License-Identifier: Apache-2.0

// Package stock has what a lab needs in which Kube-OVN was there first: the CRDs that its users have, made from the table of their
// fields, and a stand-in for the script of its gateways. Package handler plays its controller.
package stock
