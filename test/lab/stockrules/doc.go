// SPDX-License-Identifier: Apache-2.0

// Package stockrules holds objects of kubeovn.io against the rules by which stock Kube-OVN refuses them, in its webhook
// and again in its controller. An object that is refused is not processed, and all that needs it waits for ever: a
// manifest that only a lenient lab takes would fail with every user.
//
// All is pure: an object, and what there is beside it, give a list of faults. The package reads the API by itself, so
// that a mistake in the product's types does not hide here.
package stockrules
