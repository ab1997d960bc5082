// SPDX-License-Identifier: Apache-2.0

// Package script measures nat-gateway.sh in a network namespace, with nothing else around it, beside nft reading the same
// rules.
package script
