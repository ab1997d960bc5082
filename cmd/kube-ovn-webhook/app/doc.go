// SPDX-License-Identifier: Apache-2.0

// Package app is the command kube-ovn-webhook: flags, certificates, health, and a stop that loses no call.
package app
