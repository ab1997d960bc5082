// SPDX-License-Identifier: Apache-2.0

// Package scale looks past the machine that it runs on: at clusters whose objects are in memory only, with thousands of
// Pods and gateways that nobody runs, and at gateways of several pods behind a router. What comes of it is simulated, and docs/scale.md
// says so of every figure.
package scale
