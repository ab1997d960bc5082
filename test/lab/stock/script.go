// SPDX-License-Identifier: Apache-2.0

package stock

import _ "embed"

// ScriptDir is where the tree has the directory that gateways of Kube-OVN's own image see as /kube-ovn.
const ScriptDir = "test/lab/stock/script"

// Script is the nat-gateway.sh in it.
//
//go:embed script/nat-gateway.sh
var Script string

// SNATRules is the CRD of a kind that is not in Table.
//
//go:embed snat.yaml
var SNATRules string
