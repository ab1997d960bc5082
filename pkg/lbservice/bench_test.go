// SPDX-License-Identifier: Apache-2.0

package lbservice

import (
	"fmt"
	"testing"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// BenchmarkCrowdedEIP looks at a Service of twenty backends, all in place, on an EIP that it shares with others of as many.
func BenchmarkCrowdedEIP(b *testing.B) {
	const backends = 20
	for _, services := range []int{1, 50, 1000} {
		b.Run(fmt.Sprintf("services=%d", services), func(b *testing.B) {
			slice := newSlice("web-x", testService, unnamed8080)
			objects := plan(slice)
			for k := range backends {
				pod := newPod(fmt.Sprintf("web-%d", k), "sub-a", fmt.Sprintf("10.1.0.%d", 4+k))
				slice.Endpoints = append(slice.Endpoints, endpointOf(pod))
				objects = append(objects, pod)
			}
			svc := newService(testService)
			for i := range services {
				owner, port := svc, uint16(80)
				if i > 0 {
					port = uint16(1000 + i) //nolint:gosec // small
					owner = newService(fmt.Sprintf("other-%d", i), withPorts(tcpPort("", int32(port))))
				}
				objects = append(objects, owner)
				for k := range backends {
					objects = append(objects, newRule(sharenat.OwnerOfService(owner), eipA, port, fmt.Sprintf("10.1.0.%d:8080", 4+k)))
				}
			}
			c := idleController(b, objects...)
			b.ReportAllocs()
			for b.Loop() {
				s := c.snapshot(testOwner)
				changes, err := Diff(Desired(s).Rules, s.OwnRules)
				if err != nil || !changes.Empty() || len(s.OwnRules) != backends {
					b.Fatalf("%d rules, changes: %+v, error: %v", len(s.OwnRules), changes, err)
				}
			}
		})
	}
}
