// SPDX-License-Identifier: Apache-2.0

package lbservice

import (
	"fmt"
	"testing"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// BenchmarkCrowdedEIP decides about a Service of twenty backends on an EIP that it shares with others of as many.
func BenchmarkCrowdedEIP(b *testing.B) {
	for _, services := range []int{1, 50, 500} {
		b.Run(fmt.Sprintf("services=%d", services), func(b *testing.B) {
			_, s := manyBackends(20)
			for _, rule := range Desired(s).Rules {
				live := newRule(s.Key, eipA, 80, rule.Spec.InternalIP+":"+rule.Spec.InternalPort)
				live.Name, live.Labels, live.Annotations, live.Spec = rule.Name, rule.Labels, rule.Annotations, rule.Spec
				s.OwnRules = append(s.OwnRules, live)
			}
			s.EIPRules = append([]*kubeovnv1.IptablesDnatRule{}, s.OwnRules...)
			for i := 1; i < services; i++ {
				other := newService(fmt.Sprintf("other-%d", i), withPorts(tcpPort("http", int32(1000+i))))
				s.Claimants = append(s.Claimants, other)
				for k := range 20 {
					s.EIPRules = append(s.EIPRules, newRule(sharenat.OwnerOfService(other), eipA, uint16(1000+i), fmt.Sprintf("10.1.%d.%d:8080", i/250, k+1)))
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				changes, err := Diff(Desired(s).Rules, s.OwnRules)
				if err != nil || !changes.Empty() {
					b.Fatalf("changes: %+v, error: %v", changes, err)
				}
			}
		})
	}
}
