// SPDX-License-Identifier: Apache-2.0

package natgateway

import (
	"fmt"
	"strconv"
	"testing"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
)

func manyRules(services, backends int) []*kubeovnv1.IptablesDnatRule {
	var rules []*kubeovnv1.IptablesDnatRule
	for s := range services {
		for b := range backends {
			rules = append(rules, rule(fmt.Sprintf("lb-%d-%d", s, b), "e", fmt.Sprintf("10.1.%d.%d:80", b/250, b%250+1),
				managedBy(fmt.Sprintf("s%d", s), planEIP), port(strconv.Itoa(1+s))))
		}
	}
	return rules
}

// BenchmarkOneChange is one rule that changes on a gateway of so many identities with twenty backends each.
func BenchmarkOneChange(b *testing.B) {
	for _, services := range []int{10, 1000, 5000} {
		b.Run(fmt.Sprintf("identities=%d", services), func(b *testing.B) {
			rules := manyRules(services, 20)
			state := Desired(snapshotOf(rules...), nil)
			have := emptyContent()
			for _, a := range Plan(state, have) {
				a.Apply(have)
			}
			i := 0
			for b.Loop() {
				i++
				rules[0] = rule("lb-0-0", "e", fmt.Sprintf("10.9.0.%d:80", i%250+1), managedBy("s0", planEIP), port("1"))
				state = Desired(Snapshot{Partial: true, Rules: map[GroupKey][]*kubeovnv1.IptablesDnatRule{GroupOf(rules[0]): rules[:20]}}, state)
				actions := Plan(state, have)
				if len(actions) != 1 {
					b.Fatalf("%d actions", len(actions))
				}
				actions[0].Apply(have)
			}
		})
	}
}

// BenchmarkColdState is the desired state of a gateway computed from nothing.
func BenchmarkColdState(b *testing.B) {
	rules := manyRules(1000, 20)
	in := snapshotOf(rules...)
	for b.Loop() {
		Desired(in, nil)
	}
}
