// SPDX-License-Identifier: Apache-2.0

// Package charts tests the templates of charts/: with Helm's own engine, and with the objects of a pretended cluster to
// look up. It is a module of its own, so that Helm's dependencies do not decide the versions of anything else.
package charts
