// SPDX-License-Identifier: Apache-2.0

// Package framework is what the end-to-end specs are written with: the cluster they run on, a Scene of objects with
// names of its own for each spec (so that specs run side by side), clients outside and inside of a VPC, and looks into
// gateways and into the controller's metrics.
//
// The cluster is a lab (package lab) when the specs run in one, else the one that KUBECONFIG names, which has to have
// Kube-OVN with NAT gateways and this project's kube-ovn-controller. What needs a lab says so by the label Lab.
//
// Functions that take a context and return no error fail the spec themselves.
package framework
