// SPDX-License-Identifier: Apache-2.0

package lbservice

import (
	"strings"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// Holder is who has a claim.
type Holder struct {
	// Service that owns it, where Kind is HolderService.
	Service sharenat.Owner
	Kind    HolderKind
	// Name of the rule or FIP.
	Name string
}

// HolderKind orders holders: the higher kind beats the lower.
type HolderKind int

// The kinds of holders.
const (
	HolderService HolderKind = iota
	HolderRule
	HolderFIP
)

// String names the holder for a person.
func (h Holder) String() string {
	switch h.Kind {
	case HolderFIP:
		return "IptablesFIPRule " + h.Name
	case HolderRule:
		return "IptablesDnatRule " + h.Name + " (made by hand)"
	}
	return "Service " + h.Service.String()
}

// ownership answers who has which port of one EIP. It is derived from what claims it, never from who wrote first: a FIP has the
// whole EIP, then come rules made by hand, then the Service whose namespace/name is the smallest of those that the EIP can serve.
type ownership struct {
	fip      string
	rules    map[sharenat.Claim]string
	services map[sharenat.Claim]sharenat.Owner
	// live has, for each claim, the Services that have rules for it in the API server which are not being deleted.
	live map[sharenat.Claim]map[sharenat.Owner]bool
}

func newOwnership(s *Snapshot) *ownership {
	o := &ownership{
		rules:    map[sharenat.Claim]string{},
		services: map[sharenat.Claim]sharenat.Owner{},
		live:     map[sharenat.Claim]map[sharenat.Owner]bool{},
	}
	o.fip = sharenat.FIPOf(s.FIPs, s.EIP.Name)
	var claimants []sharenat.Owner
	for _, svc := range s.Claimants {
		if sharenat.EIPName(svc) != s.EIP.Name || !sharenat.Granted(s.EIP, svc.Namespace, s.RequireEIPGrant) {
			continue
		}
		owner := sharenat.OwnerOfService(svc)
		claimants = append(claimants, owner)
		if !settled(s.EIP) && !keepsAddress(s.EIP, svc) {
			continue // it is not served itself: that is no reason to take the port from one who is
		}
		for _, claim := range sharenat.ClaimsOf(svc) {
			if first, ok := o.services[claim]; !ok || owner.Compare(first) < 0 {
				o.services[claim] = owner
			}
		}
	}
	for _, rule := range s.EIPRules {
		if rule.DeletionTimestamp == nil {
			o.addRule(rule, claimants)
		}
	}
	return o
}

func (o *ownership) addRule(rule *kubeovnv1.IptablesDnatRule, claimants []sharenat.Owner) {
	claim, ok := sharenat.ClaimOfRule(rule)
	if !ok {
		return
	}
	owner, managed := ruleOwner(rule, claimants)
	if !managed {
		if !sharenat.Readable(rule) {
			return // it serves nobody, and says so itself: that is no reason to take the port from one who does
		}
		if first, ok := o.rules[claim]; !ok || rule.Name < first {
			o.rules[claim] = rule.Name
		}
		return
	}
	if o.live[claim] == nil {
		o.live[claim] = map[sharenat.Owner]bool{}
	}
	o.live[claim][owner] = true
}

// holder of a claim; ok is false when nobody claims it.
func (o *ownership) holder(claim sharenat.Claim) (h Holder, ok bool) {
	if o.fip != "" {
		return Holder{Kind: HolderFIP, Name: o.fip}, true
	}
	if name, ok := o.rules[claim]; ok {
		return Holder{Kind: HolderRule, Name: name}, true
	}
	owner, ok := o.services[claim]
	return Holder{Kind: HolderService, Service: owner}, ok
}

// othersLive tells whether another Service still has live rules for the claim, so that its new owner must not create any yet.
func (o *ownership) othersLive(claim sharenat.Claim, owner sharenat.Owner) bool {
	live := o.live[claim]
	return len(live) > 1 || len(live) == 1 && !live[owner]
}

// labelledOwner is the owner that a rule names; ok is false where it names none, or is not to be believed.
func labelledOwner(rule *kubeovnv1.IptablesDnatRule) (owner sharenat.Owner, ok bool) {
	owner, managed, err := sharenat.OwnerOf(rule.Labels)
	return owner, managed && err == nil
}

// lostLabels tells whether a rule that does not name its owner may all the same be one of ours.
func lostLabels(rule *kubeovnv1.IptablesDnatRule) bool {
	_, labelled := labelledOwner(rule)
	return !labelled && strings.HasPrefix(rule.Name, "lb-") && rule.Spec.Type == sharenat.TypeShare
}

// ruleOwner is the Service that a rule belongs to. Labels say it; a rule that lost them is still known by its name, which is made of
// everything that makes the rule this one.
func ruleOwner(rule *kubeovnv1.IptablesDnatRule, claimants []sharenat.Owner) (owner sharenat.Owner, managed bool) {
	if owner, ok := labelledOwner(rule); ok {
		return owner, true
	}
	if !lostLabels(rule) {
		return sharenat.Owner{}, false
	}
	claim, ok := sharenat.ClaimOfRule(rule)
	backend, err := sharenat.ParseBackendAddr(rule.Spec.InternalIP, rule.Spec.InternalPort)
	if !ok || err != nil {
		return sharenat.Owner{}, false
	}
	for _, candidate := range claimants {
		if sharenat.RuleName(candidate, claim.Protocol, claim.Port, backend) == rule.Name {
			return candidate, true
		}
	}
	return sharenat.Owner{}, false
}
