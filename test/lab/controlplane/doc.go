// SPDX-License-Identifier: Apache-2.0

// Package controlplane runs a real Kubernetes control plane in the current network namespace: etcd, kube-apiserver,
// kube-controller-manager, kube-scheduler and kube-proxy, with certificates of its own for everybody and RBAC on.
package controlplane
