// SPDX-License-Identifier: Apache-2.0

// Package interleave plays random histories over the decisions of both controllers, Service to rules (lbservice) and rules
// to gateway (natgateway), with caches that are behind and passes that are interrupted, and looks at the gateway after
// every single step. It has no clock, no goroutine and no API server, so that thousands of histories take seconds, and a
// history is the same each time it is played with its seed.
package interleave
