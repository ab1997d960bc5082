// SPDX-License-Identifier: Apache-2.0

// Package sharenat is the vocabulary that the Service controller, the NAT gateway handler and the webhook share: the
// identity of a share rule (EIP, port, protocol), its backends, its affinity, the labels that say who owns it, and the
// text that nat-gateway.sh reads and prints.
//
// It is pure: no client, clock or log. Everything that enters is validated and brought into one canonical form here
// (protocols in lower case, addresses as netip values, backends in order), so that the rooms above compare values and
// never spellings. docs/gateway-protocol.md describes the text format.
package sharenat
