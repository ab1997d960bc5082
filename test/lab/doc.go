// SPDX-License-Identifier: Apache-2.0

// Package lab brings up a whole cluster in a room (package room): a real control plane, a node whose Pods are network
// namespaces wired as Kube-OVN wires them, the objects every Kube-OVN installation starts with, and
// kube-ovn-controller.
//
// Start brings one up and belongs to the process that holds it. Attach works from every other process in the room: specs,
// the demo, a shell.
package lab
