// SPDX-License-Identifier: Apache-2.0

package packets

import "github.com/kubeovn/kube-ovn/test/bench"

// perFlow is the unit of what a new connection costs.
const perFlow = "ns/flow"

// Measures are those of this group.
func Measures() []bench.Measure {
	return []bench.Measure{
		affinityMeasure(),
		identitiesMeasure(),
		sourcesMeasure(),
		peerMeasure(),
		roundTripMeasure(),
		bulkMeasure(),
		throughputMeasure(),
		latencyMeasure(),
	}
}
