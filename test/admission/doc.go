// SPDX-License-Identifier: Apache-2.0

// Package admission runs kube-ovn-webhook against a real API server, with no more rights than the chart gives it, and looks at
// what users get to read.
package admission
