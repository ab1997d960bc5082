// SPDX-License-Identifier: Apache-2.0

// Package bench compares ways of doing one thing. Machines are shared and noisy, so that no figure stands alone: a Measure
// has several sides (ours, the floor, the peers), which are sampled in turn, in one run, and its aims are ratios of their
// medians.
//
// The measures are in the packages below (script, packets, control), the command that runs them in cmd/kube-ovn-bench;
// docs/performance.md explains each and says how it came out. A measure also checks that what it timed does its work:
// that the rules carry the right traffic.
package bench
