// SPDX-License-Identifier: Apache-2.0

// Package kubeovn names the API group that all of Kube-OVN's kinds are in.
package kubeovn

// GroupName is the API group of Kube-OVN's kinds.
const GroupName = "kubeovn.io"
