// SPDX-License-Identifier: Apache-2.0

// Package clienttest gives tests fake clientsets of kubeovn.io/v1 that already
// hold objects.
//
// The generated constructors do not serve here: both guess a resource from the
// kind (iptableseips), which is not the one that the client asks for
// (iptables-eips). fake.NewSimpleClientset(objects...) never finds its objects
// again, and fake.NewClientset's field tracking refuses the real resource.
package clienttest
