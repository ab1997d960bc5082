// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/test/lab/stockrules"
)

// TestStockTakesCluster: what is measured on has to be what users may have. The rules are those that lbservice makes of
// Services, so that these are held against stock's rules, too.
func TestStockTakesCluster(t *testing.T) {
	cluster, err := NewCluster(Size{Services: 60, Backends: 3, Gateways: 2})
	if err != nil {
		t.Fatal(err)
	}
	var set []*unstructured.Unstructured
	counts := map[string]int{}
	for resource, kind := range map[string]string{
		"vpcs": "Vpc", "subnets": "Subnet", "vpc-nat-gateways": "VpcNatGateway", "iptables-eips": "IptablesEIP",
		"iptables-dnat-rules": "IptablesDnatRule",
	} {
		version := kubeovnv1.SchemeGroupVersion
		list, err := cluster.Ovn.Tracker().List(version.WithResource(resource), version.WithKind(kind), "")
		if err != nil {
			t.Fatal(err)
		}
		raw, err := runtime.DefaultUnstructuredConverter.ToUnstructured(list)
		if err != nil {
			t.Fatal(err)
		}
		for _, item := range raw["items"].([]any) {
			object := &unstructured.Unstructured{Object: item.(map[string]any)}
			object.SetKind(kind)
			set = append(set, object)
			counts[kind]++
		}
	}
	if counts["IptablesDnatRule"] != 180 || counts["IptablesEIP"] != 2 || counts["Subnet"] != 2 {
		t.Fatalf("there are %v", counts)
	}
	if err := stockrules.CheckSet(set); err != nil {
		t.Error(err)
	}
}
