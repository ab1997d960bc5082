// SPDX-License-Identifier: Apache-2.0

// Package vpcnet reads from Kube-OVN's objects which VPC something is in. It is pure: no caches, no calls.
package vpcnet

import (
	"strings"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// OVNProvider is the primary NIC's provider, and the last label of an attached Kube-OVN NIC's.
const OVNProvider = "ovn"

// SubnetVPC is the VPC a Subnet is in, "" for none. A Subnet of Kube-OVN's own that names none is in the default VPC; one
// whose addresses alone are Kube-OVN's, as an external Subnet's are, is in none unless it says so.
func SubnetVPC(subnet *kubeovnv1.Subnet) string {
	provider := subnet.Spec.Provider
	ours := provider == "" || provider == OVNProvider || strings.HasSuffix(provider, "."+OVNProvider)
	if subnet.Spec.Vpc == "" && ours {
		return sharenat.DefaultVPC
	}
	return subnet.Spec.Vpc
}
