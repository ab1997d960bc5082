// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/kubeovn/kube-ovn/test/bench"
	"github.com/kubeovn/kube-ovn/test/bench/control"
	"github.com/kubeovn/kube-ovn/test/bench/packets"
	"github.com/kubeovn/kube-ovn/test/bench/scale"
	"github.com/kubeovn/kube-ovn/test/bench/script"
)

// groups are all there are, in the order in which they run.
var groups = []func() []bench.Measure{
	script.Measures,
	packets.Measures,
	scale.Measures,
	control.Measures, // last: its lab stays until the end
}
