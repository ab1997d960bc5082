// SPDX-License-Identifier: Apache-2.0

package script

import "github.com/kubeovn/kube-ovn/test/bench"

// Measures are those of this group.
func Measures() []bench.Measure {
	return nil
}
