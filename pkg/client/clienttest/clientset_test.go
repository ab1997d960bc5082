// SPDX-License-Identifier: Apache-2.0

package clienttest

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/client/informers/externalversions"
)

func objects() []runtime.Object {
	named := metav1.ObjectMeta{Name: "a"}
	return []runtime.Object{
		&kubeovnv1.IptablesDnatRule{ObjectMeta: named},
		&kubeovnv1.IptablesEIP{ObjectMeta: named},
		&kubeovnv1.IptablesFIPRule{ObjectMeta: named},
		&kubeovnv1.Subnet{ObjectMeta: named},
		&kubeovnv1.Vpc{ObjectMeta: named},
		&kubeovnv1.VpcNatGateway{ObjectMeta: named},
	}
}

// TestHeldObjectsReachInformers: an object of any kind is listed, and seen by an informer.
func TestHeldObjectsReachInformers(t *testing.T) {
	factory := externalversions.NewSharedInformerFactory(NewClientset(t, objects()...), 0)
	v1 := factory.Kubeovn().V1()
	informers := map[string]cache.SharedIndexInformer{
		"IptablesDnatRule": v1.IptablesDnatRules().Informer(),
		"IptablesEIP":      v1.IptablesEIPs().Informer(),
		"IptablesFIPRule":  v1.IptablesFIPRules().Informer(),
		"Subnet":           v1.Subnets().Informer(),
		"Vpc":              v1.Vpcs().Informer(),
		"VpcNatGateway":    v1.VpcNatGateways().Informer(),
	}
	factory.Start(t.Context().Done())
	factory.WaitForCacheSync(t.Context().Done())
	for kind, informer := range informers {
		if diff := cmp.Diff([]string{"a"}, informer.GetStore().ListKeys()); diff != "" {
			t.Errorf("%s in the informer (-want +got):\n%s", kind, diff)
		}
	}
}

// TestStatusPatch: what is held can be changed the way our controllers do it.
func TestStatusPatch(t *testing.T) {
	rules := NewClientset(t, objects()...).KubeovnV1().IptablesDnatRules()
	patch := []byte(`{"status":{"ready":true,"v4ip":"203.0.113.10"}}`)
	rule, err := rules.Patch(t.Context(), "a", types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		t.Fatal(err)
	}
	if want := (kubeovnv1.IptablesDnatRuleStatus{Ready: true, V4ip: "203.0.113.10"}); !cmp.Equal(want, rule.Status) {
		t.Errorf("status is %+v, want %+v", rule.Status, want)
	}
}

func TestResourceOfForeignKind(t *testing.T) {
	if resource, err := resourceOf(&metav1.Status{}); err == nil {
		t.Errorf("resource of a foreign kind is %q", resource)
	}
}
