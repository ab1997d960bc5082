// SPDX-License-Identifier: Apache-2.0

package lbservice

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// Somebody takes the EXTERNAL-IP away whenever it is there. It is put right less and less often, and the Service says who does it; when
// it is over, all is as it was.
func TestContestedStatus(t *testing.T) {
	inCluster(t, plan(newService(testService), webPod(), webSlice()), func(cl *cluster) {
		cl.wantServed()
		cl.writes()
		takeAway := func() {
			cl.edit(testService, func(svc *corev1.Service) {
				svc.Status.LoadBalancer.Ingress = nil
				svc.ManagedFields = []metav1.ManagedFieldsEntry{
					{Manager: fieldManager, Subresource: "status", FieldsV1: metav1.NewFieldsV1(`{"f:status":{"f:loadBalancer":{}}}`)},
					{Manager: "metallb-controller", Subresource: "status", FieldsV1: metav1.NewFieldsV1(`{"f:status":{"f:loadBalancer":{"f:ingress":{}}}}`)},
					{Manager: "kubectl", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{}}`)},
				}
			})
		}
		times := 0
		for range 3000 { // ten minutes
			if len(cl.externalIPs(testService)) > 0 {
				times++
				takeAway()
			}
			time.Sleep(200 * time.Millisecond) // virtual
			cl.settle()
		}
		if times < 5 || times > 14 {
			t.Errorf("it was put right %d times in ten minutes", times)
		}
		const want = `status.loadBalancer is written by "metallb-controller" as well`
		condition := meta.FindStatusCondition(cl.service(testNamespace, testService).Status.Conditions, ConditionReady)
		if !strings.Contains(condition.Message, want) {
			t.Errorf("condition: %s", condition.Message)
		}
		told := 0
		for _, event := range cl.events() {
			if strings.Contains(event, want) {
				told++
			}
		}
		if told != 1 {
			t.Errorf("told %d times", told)
		}

		time.Sleep(maxContestPause + contestOver + 2*time.Second) // virtual
		cl.settle()
		cl.wantServed()
		condition = meta.FindStatusCondition(cl.service(testNamespace, testService).Status.Conditions, ConditionReady)
		if condition.Message != "served at 203.0.113.10 by VpcNatGateway gw-a" {
			t.Errorf("condition: %s", condition.Message)
		}
	})
}

// Once is no contest: a slip is put right at once.
func TestTakenOnce(t *testing.T) {
	inCluster(t, plan(newService(testService), webPod(), webSlice()), func(cl *cluster) {
		for range 2 {
			cl.edit(testService, func(svc *corev1.Service) { svc.Status.LoadBalancer.Ingress = nil })
			cl.settle()
			cl.wantServed()
			time.Sleep(contestOver + time.Minute) // virtual
		}
	})
}

// A Service that comes to an EIP of many others, on a port that none of them has, concerns nobody but itself.
func TestNewServiceIsOnePass(t *testing.T) {
	const others = 300
	objects := []runtime.Object{webPod(), webSlice()}
	for i := range others {
		objects = append(objects, newService(fmt.Sprintf("other-%03d", i), withPorts(tcpPort("", int32(1000+i)))))
	}
	inCluster(t, plan(objects...), func(cl *cluster) {
		before := passes(cl)
		cl.put(newService(testService))
		cl.settle()
		cl.wantRules(oneBackend...)
		if got := passes(cl) - before; got > 6 {
			t.Errorf("%d passes", got)
		}
	})
}

// passes counts those that were made so far.
func passes(cl *cluster) (n uint64) {
	cl.t.Helper()
	families, err := cl.registry.Gather()
	if err != nil {
		cl.t.Fatal(err)
	}
	for _, family := range families {
		if strings.HasSuffix(family.GetName(), "_sync_duration_seconds") {
			for _, metric := range family.GetMetric() {
				n += metric.GetHistogram().GetSampleCount()
			}
		}
	}
	if n == 0 {
		cl.t.Fatal("no passes are counted")
	}
	return n
}

// Services that are gone give back side by side: one whose rules the API server is slow to delete holds up no other.
func TestGoneServicesDoNotWaitForEachOther(t *testing.T) {
	gone := func(name string) *kubeovnv1.IptablesDnatRule {
		return newRule(sharenat.Owner{Namespace: testNamespace, Name: name}, eipA, 80, "10.1.0.4:8080")
	}
	c := idleController(t, gone("a"), gone("b"))
	if !c.turns.take("", sharenat.Owner{Namespace: testNamespace, Name: "a"}) {
		t.Fatal("the first has no turn")
	}
	if _, err := c.syncRules(t.Context(), sharenat.Owner{Namespace: testNamespace, Name: "b"}); err != nil {
		t.Errorf("the second: %v", err)
	}
}
