// SPDX-License-Identifier: Apache-2.0

// Package v1 holds the types of the kubeovn.io/v1 API that the load balancer
// and the NAT gateways read or write: DNAT rules, EIPs, FIP rules, VPC NAT
// gateways, subnets and VPCs.
//
// Go names and JSON forms are those of stock Kube-OVN, so that code written
// against one compiles and talks with the other. A newer Kube-OVN may have
// fields that these types do not know, and a typed Update would drop them:
// change objects only by patches that name what they change.
//
// The deepcopy functions, the CRDs in dist/crds and everything under
// pkg/client are generated from here by hack/update-codegen.sh.
//
// +kubebuilder:object:generate=true
// +groupName=kubeovn.io
package v1
