// SPDX-License-Identifier: Apache-2.0

package vpcnet

import (
	"testing"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

func TestSubnetVPC(t *testing.T) {
	for _, tc := range []struct{ name, vpc, provider, want string }{
		{"named", "tenant", "ovn", "tenant"},
		{"default", "", "ovn", sharenat.DefaultVPC},
		{"default, no provider", "", "", sharenat.DefaultVPC},
		{"default, attached", "", "net-a.ns.ovn", sharenat.DefaultVPC},
		{"IPAM only is in none", "", "macvlan.ns", ""},
		{"IPAM only, named", "tenant", "macvlan.ns", "tenant"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := SubnetVPC(&kubeovnv1.Subnet{Spec: kubeovnv1.SubnetSpec{Vpc: tc.vpc, Provider: tc.provider}}); got != tc.want {
				t.Errorf("want %q, got %q", tc.want, got)
			}
		})
	}
}
