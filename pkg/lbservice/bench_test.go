// SPDX-License-Identifier: Apache-2.0

package lbservice

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	ovnfake "github.com/kubeovn/kube-ovn/pkg/client/clientset/versioned/fake"
	"github.com/kubeovn/kube-ovn/pkg/client/informers/externalversions"
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

// idleController is one that does not run, and whose caches hold these objects.
func idleController(b *testing.B, objects ...runtime.Object) *Controller {
	b.Helper()
	kube, ovn := kubefake.NewClientset(), ovnfake.NewSimpleClientset()
	c, err := New(Options{
		KubeClient: kube, KubeOvnClient: ovn,
		KubeInformers: informers.NewSharedInformerFactory(kube, 0), KubeOvnInformers: externalversions.NewSharedInformerFactory(ovn, 0),
	})
	if err != nil {
		b.Fatal(err)
	}
	for _, object := range objects {
		var informer cache.SharedIndexInformer
		switch object.(type) {
		case *corev1.Service:
			informer = c.in.services
		case *corev1.Pod:
			informer = c.in.pods
		case *discoveryv1.EndpointSlice:
			informer = c.in.slices
		case *kubeovnv1.Subnet:
			informer = c.in.subnets
		case *kubeovnv1.IptablesEIP:
			informer = c.in.eips
		case *kubeovnv1.VpcNatGateway:
			informer = c.in.gateways
		case *kubeovnv1.IptablesDnatRule:
			informer = c.in.rules
		default:
			b.Fatalf("no cache of %T", object)
		}
		if err := informer.GetIndexer().Add(object); err != nil {
			b.Fatal(err)
		}
	}
	return c
}
