// SPDX-License-Identifier: Apache-2.0

package control

import "github.com/kubeovn/kube-ovn/test/bench"

// Measures are those of this group. What wants a quiet cluster comes first.
func Measures() []bench.Measure {
	return []bench.Measure{
		changeMeasure(slow, false),
		changeMeasure(fast, false),
		burstMeasure(),
		deadMeasure(),
		wholeMeasure(),
		coldStartMeasure(),
		changeMeasure(slow, true),
		changeMeasure(fast, true),
		restartMeasure(),
	}
}
