// SPDX-License-Identifier: Apache-2.0

// Package stock makes the CRDs that Kube-OVN's users have, v1.17's, from the table of their fields: for a lab in which
// Kube-OVN was there first.
package stock
