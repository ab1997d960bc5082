// SPDX-License-Identifier: Apache-2.0

package lbservice

import (
	"fmt"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// A pass that takes long, as the first one of a Service with ten thousand backends does, holds up those of its own EIP. However many
// there are, they must not hold up the workers, and with them every other tenant.
func TestSlowPassHoldsUpNoOtherEIP(t *testing.T) {
	pod := newPod("b-0", "sub-b", "10.1.0.9")
	inCluster(t, plan(webPod(), pod), func(cl *cluster) {
		if !cl.c.turns.take(eipA, sharenat.Owner{Namespace: testNamespace, Name: "slow"}) {
			t.Fatal("a pass is under way")
		}
		for i := range 8 {
			name := fmt.Sprintf("web-%d", i)
			cl.put(newService(name, withPorts(tcpPort("", int32(80+i)))))
			cl.put(newSlice(name+"-x", name, unnamed8080, endpointOf(webPod())))
		}
		cl.settle()
		cl.put(newService("other", withEIP(eipB)))
		cl.put(newSlice("other-x", "other", unnamed8080, endpointOf(pod)))
		cl.settle()
		cl.wantRules("other eip-b:80 10.1.0.9:8080")
		cl.c.turns.leave(eipA)
		cl.settle()
		if got := cl.rules(); len(got) != 9 || !slices.IsSorted(got) {
			t.Errorf("rules: %v", got)
		}
	})
}

// A gateway that names no VPC is in its Subnet's. In the default VPC, the same address is somebody else's.
func TestGatewayIsInItsSubnetsVPC(t *testing.T) {
	gw := newGateway(gwA, "")
	gw.Spec.Subnet = "sub-a"
	pod := newDualPod("web-0", "172.16.0.4", "10.1.0.4")
	objects := []runtime.Object{
		newEIP(eipA, eipAddrA, gwA), gw, newSubnet("ovn-default", sharenat.DefaultVPC, "ovn"), pod,
		newService(testService), newSlice("web-x", testService, unnamed8080, endpointOf(pod)),
	}
	inCluster(t, objects, func(cl *cluster) {
		cl.put(newSubnet("sub-a", vpcA, "ovn"))
		cl.settle()
		cl.wantRules("web eip-a:80 10.1.0.4:8080")
	})
}
