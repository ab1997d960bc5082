// SPDX-License-Identifier: Apache-2.0

package sharenat

import (
	"cmp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
)

// ConditionIngress on a Service records, as its message, the address that was published here. By it is known, and taken
// back, what was published, after a restart too, and when the annotation or the EIP that it came from are gone.
const ConditionIngress = "kubeovn.io/NftableLoadBalancerIngress"

// Holder is who has a claim.
type Holder struct {
	// Service that owns it, where Kind is HolderService.
	Service Owner
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

// Compare is negative where h beats o: a FIP has its whole EIP, then come rules made by hand, the smallest name first, then
// Services, the smallest namespace/name first. All rules of one Service are equal.
func (h Holder) Compare(o Holder) int {
	return cmp.Or(cmp.Compare(o.Kind, h.Kind), h.Service.Compare(o.Service), cmp.Compare(h.Name, o.Name))
}

// HolderOf is who has the identity of a rule, if it is this rule that decides.
func HolderOf(rule *Rule, name string) Holder {
	if rule.Managed {
		return Holder{Kind: HolderService, Service: rule.Owner}
	}
	return Holder{Kind: HolderRule, Name: name}
}

// Claims is all that may claim ports of one EIP. It may hold more, in any order: what is of other EIPs, or is being
// deleted, claims nothing.
type Claims struct {
	EIP *kubeovnv1.IptablesEIP
	// RequireGrant: without a grant on the EIP no Service may use it.
	RequireGrant bool
	FIPs         []*kubeovnv1.IptablesFIPRule
	Rules        []*kubeovnv1.IptablesDnatRule
	Services     []*corev1.Service
}

// Ownership answers who has which port of one EIP. It follows from what claims it, in the order of Holder.Compare, and
// never from who wrote first.
type Ownership struct {
	fip     string
	holders map[Claim]Holder
	// live has, for each claim, the Services that have rules for it in the API server which are not being deleted.
	live map[Claim]map[Owner]bool
}

// NewOwnership decides about all ports of an EIP.
func NewOwnership(in *Claims) *Ownership {
	o := &Ownership{
		fip:     FIPOf(in.FIPs, in.EIP.Name),
		holders: map[Claim]Holder{},
		live:    map[Claim]map[Owner]bool{},
	}
	var claimants []Owner
	for _, svc := range in.Services {
		if EIPName(svc) != in.EIP.Name || !Granted(in.EIP, svc.Namespace, in.RequireGrant) {
			continue
		}
		owner := OwnerOfService(svc)
		claimants = append(claimants, owner)
		if !Settled(in.EIP) && !KeepsAddress(in.EIP, svc) {
			continue // it is not served itself: that is no reason to take the port from one who is
		}
		for _, claim := range ClaimsOf(svc) {
			o.claim(claim, Holder{Kind: HolderService, Service: owner})
		}
	}
	for _, rule := range in.Rules {
		if rule.Spec.EIP == in.EIP.Name && rule.DeletionTimestamp == nil {
			o.addRule(rule, claimants)
		}
	}
	return o
}

func (o *Ownership) claim(claim Claim, h Holder) {
	if first, ok := o.holders[claim]; !ok || h.Compare(first) < 0 {
		o.holders[claim] = h
	}
}

func (o *Ownership) addRule(rule *kubeovnv1.IptablesDnatRule, claimants []Owner) {
	claim, ok := ClaimOfRule(rule)
	if !ok {
		return
	}
	if owner, managed := RuleOwner(rule, claimants); managed {
		if o.live[claim] == nil {
			o.live[claim] = map[Owner]bool{}
		}
		o.live[claim][owner] = true
		return
	}
	// One that cannot be read serves nobody, and says so itself: that is no reason to take the port from one who does.
	if Readable(rule) {
		o.claim(claim, Holder{Kind: HolderRule, Name: rule.Name})
	}
}

// HeldByOther is who has a claim, where that is not this Service; ok is false where it is, or nobody claims it.
func (o *Ownership) HeldByOther(claim Claim, owner Owner) (h Holder, ok bool) {
	if o.fip != "" {
		return Holder{Kind: HolderFIP, Name: o.fip}, true
	}
	h, ok = o.holders[claim]
	return h, ok && h != (Holder{Kind: HolderService, Service: owner})
}

// OthersLive tells whether another Service still has live rules for the claim, so that its new owner must not create any yet.
func (o *Ownership) OthersLive(claim Claim, owner Owner) bool {
	live := o.live[claim]
	return len(live) > 1 || len(live) == 1 && !live[owner]
}

// Settled tells an EIP that is ready and stays. On one that is not, only those are served whose address it was.
func Settled(eip *kubeovnv1.IptablesEIP) bool {
	return eip.Status.Ready && eip.DeletionTimestamp == nil
}

// KeepsAddress tells whether a Service has the EIP's address published. An EIP that was good once, and whose address
// clients know, does not lose its Service by a moment of not being ready: that would cut every client off to say that some
// may be.
func KeepsAddress(eip *kubeovnv1.IptablesEIP, svc *corev1.Service) bool {
	addr, _ := EIPAddress(eip)
	return addr.IsValid() && PublishedAddress(svc) == addr.String()
}

// PublishedAddress is the address that was published here for a Service, "" when none is.
func PublishedAddress(svc *corev1.Service) string {
	c := meta.FindStatusCondition(svc.Status.Conditions, ConditionIngress)
	if c == nil || c.Status != metav1.ConditionTrue {
		return ""
	}
	return c.Message
}

// LabelledOwner is the owner that a rule names; ok is false where it names none, or is not to be believed.
func LabelledOwner(rule *kubeovnv1.IptablesDnatRule) (owner Owner, ok bool) {
	owner, managed, err := OwnerOf(rule.Labels)
	return owner, managed && err == nil
}

// LostLabels tells whether a rule that does not name its owner may all the same be a Service's.
func LostLabels(rule *kubeovnv1.IptablesDnatRule) bool {
	_, labelled := LabelledOwner(rule)
	return !labelled && strings.HasPrefix(rule.Name, ruleNamePrefix) && rule.Spec.Type == TypeShare
}

// RuleOwner is the Service that a rule belongs to. Labels say it; a rule that lost them is still known by its name, which is
// made of everything that makes the rule this one.
func RuleOwner(rule *kubeovnv1.IptablesDnatRule, claimants []Owner) (owner Owner, managed bool) {
	if owner, ok := LabelledOwner(rule); ok {
		return owner, true
	}
	if !LostLabels(rule) {
		return Owner{}, false
	}
	claim, ok := ClaimOfRule(rule)
	backend, err := ParseBackendAddr(rule.Spec.InternalIP, rule.Spec.InternalPort)
	if !ok || err != nil {
		return Owner{}, false
	}
	for _, candidate := range claimants {
		if RuleName(candidate, claim.Protocol, claim.Port, backend) == rule.Name {
			return candidate, true
		}
	}
	return Owner{}, false
}
