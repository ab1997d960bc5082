// SPDX-License-Identifier: Apache-2.0

package lbservice

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// Snapshot is everything that the decision about one Service depends on. Nothing in it is changed.
type Snapshot struct {
	// Key of the Service. Service is nil once it is gone.
	Key     sharenat.Owner
	Service *corev1.Service
	// OwnRules carry the Service's labels, whatever their EIP.
	OwnRules []*kubeovnv1.IptablesDnatRule

	// The rest is only needed for a Service that qualifies.

	// EIP that the Service names, and the gateway that the EIP names; nil where there is none.
	EIP     *kubeovnv1.IptablesEIP
	Gateway *kubeovnv1.VpcNatGateway
	// Claimants are the Services that claim a port of the EIP which this one claims, itself included. Those that only name the
	// EIP may be among them, and all are where a rule has lost its labels: it may be theirs.
	Claimants []*corev1.Service
	// EIPRules are the rules on the EIP that claim a port which this Service claims, whoever made them, and all that name no owner.
	EIPRules []*kubeovnv1.IptablesDnatRule
	// FIPs are those on the EIP.
	FIPs []*kubeovnv1.IptablesFIPRule

	// Slices of the Service, of every address family.
	Slices []*discoveryv1.EndpointSlice
	// Pods that the slices name, as far as they are there, by name.
	Pods map[string]Pod
	// SubnetVPCs has the VPC of every Subnet that the gateway or the Pods' NICs are in, as far as it is there.
	SubnetVPCs map[string]string

	// RequireEIPGrant: an EIP without a grant annotation may not be used.
	RequireEIPGrant bool
	// Contested: somebody else takes the EXTERNAL-IP away again and again: Rival, as far as that is known.
	Contested bool
	Rival     string
	// Abilities of whoever programs the rules.
	Abilities Abilities
}

// gatewayVPC is the one that the gateway names, or else its Subnet's: its pods are there.
func (s *Snapshot) gatewayVPC() string {
	if s.Gateway.Spec.Vpc != "" {
		return s.Gateway.Spec.Vpc
	}
	if vpc, ok := s.SubnetVPCs[s.Gateway.Spec.Subnet]; ok {
		return vpc
	}
	return sharenat.DefaultVPC
}

// adoptUnlabelled takes back the Service's rules that lost their labels: they are known by name.
func (s *Snapshot) adoptUnlabelled() {
	for _, rule := range s.EIPRules {
		if _, labelled := sharenat.LabelledOwner(rule); labelled {
			continue
		}
		if owner, managed := sharenat.RuleOwner(rule, []sharenat.Owner{s.Key}); managed && owner == s.Key {
			s.OwnRules = append(s.OwnRules, rule)
		}
	}
}
