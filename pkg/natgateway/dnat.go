// SPDX-License-Identifier: Apache-2.0

package natgateway

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// Snapshot is everything that the desired state of one gateway is made of.
type Snapshot struct {
	Gateway string
	// Blocked says why nothing of this gateway can be programmed at all; nil when it can.
	Blocked *Blocked
	EIPs    []SnapshotEIP
	Routes  []sharenat.Route
}

// SnapshotEIP is one EIP of the gateway with the rules on it.
type SnapshotEIP struct {
	Name string
	// CIDR is the zero value as long as the EIP has no address.
	CIDR netip.Prefix
	// Gone is true for an EIP that is being deleted and that nothing uses.
	Gone bool
	// FIP names the FIP rule that claims the EIP whole.
	FIP   string
	Rules []*kubeovnv1.IptablesDnatRule
}

// Blocked is a reason, for machines and for people.
type Blocked struct{ Reason, Message string }

// Outcome is what is decided about one rule.
type Outcome int

// Outcomes.
const (
	// Pending rules wait for something else: an address, a gateway.
	Pending Outcome = iota
	// Unclaimed rules are fine, but do not carry the finalizer yet; they are not programmed before they do.
	Unclaimed
	// Wanted rules are part of the desired state.
	Wanted
	// Lost rules are fine, but another one has their identity.
	Lost
	// Invalid rules cannot be programmed until they change.
	Invalid
	// Deleting rules leave the desired state, and may go once no pod holds them.
	Deleting
)

// Verdict is the outcome for one rule, and why.
type Verdict struct {
	Outcome         Outcome
	Reason, Message string
	// Rule is what the rule says; only its identity counts unless the outcome is Wanted.
	Rule sharenat.Rule
}

// DesiredShare is a share with its digest.
type DesiredShare struct {
	sharenat.Share
	Digest string
}

// State is the desired state of one gateway. It is never changed once made.
type State struct {
	Gateway    string
	Blocked    *Blocked
	EIPs       []netip.Prefix
	Routes     []sharenat.Route
	Shares     map[sharenat.Identity]*DesiredShare
	Exclusives map[sharenat.Identity]netip.AddrPort
	// Verdicts by rule name.
	Verdicts map[string]*Verdict
	// Users counts the rules of each EIP by name, those that are being deleted included.
	Users map[string]int

	identities map[sharenat.Identity]*contest
	parsed     map[*kubeovnv1.IptablesDnatRule]*Verdict
}

// contest is one identity with the rules that claim it, by name, and what came of it.
type contest struct {
	claims   []claim
	verdicts []*Verdict
	share    *DesiredShare
	target   netip.AddrPort
}

type claim struct {
	obj     *kubeovnv1.IptablesDnatRule
	verdict *Verdict // as parsed
}

// Desired computes the desired state of a gateway. What has not changed since the previous state, if there is one, is taken over from
// it, so that one change among many thousand rules costs little.
func Desired(in Snapshot, previous *State) *State {
	if previous == nil {
		previous = &State{}
	}
	s := &State{
		Gateway:    in.Gateway,
		Blocked:    in.Blocked,
		Shares:     make(map[sharenat.Identity]*DesiredShare, len(previous.Shares)),
		Exclusives: make(map[sharenat.Identity]netip.AddrPort, len(previous.Exclusives)),
		Verdicts:   make(map[string]*Verdict, len(previous.Verdicts)),
		Users:      make(map[string]int, len(in.EIPs)),
		identities: make(map[sharenat.Identity]*contest, len(previous.identities)),
		parsed:     make(map[*kubeovnv1.IptablesDnatRule]*Verdict, len(previous.parsed)),
	}
	for i := range in.EIPs {
		s.addEIP(&in.EIPs[i], previous)
	}
	for id, c := range s.identities {
		slices.SortFunc(c.claims, compareClaims)
		if before := previous.identities[id]; before != nil && slices.Equal(c.claims, before.claims) {
			c = before
			s.identities[id] = before
		} else {
			c.decide(id)
		}
		s.adopt(id, c)
	}
	if in.Blocked == nil {
		s.Routes = slices.SortedFunc(slices.Values(in.Routes), compareRoutes)
	}
	slices.SortFunc(s.EIPs, comparePrefixes)
	return s
}

func compareClaims(a, b claim) int { return strings.Compare(a.obj.Name, b.obj.Name) }

// addEIP judges the rules of an EIP one by one, and enters those that can be programmed in the contest for their identity.
func (s *State) addEIP(eip *SnapshotEIP, previous *State) {
	s.Users[eip.Name] = len(eip.Rules)
	usable := s.Blocked == nil && eip.CIDR.IsValid() && !eip.Gone
	if usable {
		s.EIPs = append(s.EIPs, eip.CIDR)
	}
	for _, obj := range eip.Rules {
		v := previous.parsed[obj]
		if v == nil || v.Rule.EIP != eip.CIDR.Addr() {
			v = parse(obj, eip)
		}
		s.parsed[obj] = v
		s.Verdicts[obj.Name] = v
		switch {
		case v.Outcome == Deleting:
		case s.Blocked != nil:
			s.Verdicts[obj.Name] = &Verdict{Outcome: Pending, Reason: s.Blocked.Reason, Message: s.Blocked.Message, Rule: v.Rule}
		case !usable:
			s.Verdicts[obj.Name] = &Verdict{
				Outcome: Pending, Reason: ReasonEIPNotReady, Message: "EIP " + eip.Name + " has no IPv4 address yet", Rule: v.Rule,
			}
		case v.Outcome == Invalid:
		case eip.FIP != "":
			s.Verdicts[obj.Name] = &Verdict{
				Outcome: Lost, Reason: ReasonEIPUsedByFIP, Rule: v.Rule,
				Message: "EIP " + eip.Name + " belongs to FIP rule " + eip.FIP + " with all its ports; delete that rule or use another EIP",
			}
		case v.Outcome == Wanted:
			c := s.identities[v.Rule.Identity]
			if c == nil {
				c = &contest{}
				s.identities[v.Rule.Identity] = c
			}
			c.claims = append(c.claims, claim{obj, v})
		}
	}
}

// parse judges a rule for itself: Deleting, Invalid, Unclaimed, or Wanted if nothing else stands against it.
func parse(obj *kubeovnv1.IptablesDnatRule, eip *SnapshotEIP) *Verdict {
	rule, err := sharenat.ParseRule(obj, eip.CIDR.Addr())
	rule.EIP = eip.CIDR.Addr()
	switch {
	case obj.DeletionTimestamp != nil:
		return &Verdict{Outcome: Deleting, Rule: rule}
	case err != nil:
		return &Verdict{Outcome: Invalid, Reason: ReasonInvalidRule, Message: err.Error(), Rule: rule}
	case !slices.Contains(obj.Finalizers, finalizer):
		return &Verdict{Outcome: Unclaimed, Rule: rule}
	}
	return &Verdict{Outcome: Wanted, Rule: rule}
}

// adopt takes the outcome of a contest over.
func (s *State) adopt(id sharenat.Identity, c *contest) {
	for i, v := range c.verdicts {
		s.Verdicts[c.claims[i].obj.Name] = v
	}
	if c.share != nil {
		s.Shares[id] = c.share
	}
	if c.target.IsValid() {
		s.Exclusives[id] = c.target
	}
}

// decide says which claims make the identity. A rule made by hand beats those of Services; among Services the smallest
// namespace and name wins, with all its rules; among rules made by hand the smallest name leads, and those that agree with it share the identity.
func (c *contest) decide(id sharenat.Identity) {
	lead := c.leader()
	first := &lead.verdict.Rule
	share := sharenat.Share{Identity: id, Affinity: first.Affinity, Sources: first.Sources}
	seen := map[netip.AddrPort]bool{}
	for _, cl := range c.claims {
		why := objection(lead, cl)
		if why != "" {
			c.verdicts = append(c.verdicts, &Verdict{
				Outcome: Lost, Reason: ReasonIdentityConflict, Message: id.String() + " " + why, Rule: cl.verdict.Rule,
			})
			continue
		}
		c.verdicts = append(c.verdicts, cl.verdict)
		if b := cl.verdict.Rule.Backend; !seen[b.Addr] {
			seen[b.Addr] = true
			share.Backends = append(share.Backends, b)
		}
	}
	if !first.Share {
		c.target = first.Backend.Addr
		return
	}
	share.Normalize()
	c.share = &DesiredShare{Share: share, Digest: share.Digest()}
}

// leader gives the claim that decides what the identity is like. Claims are ordered by name.
func (c *contest) leader() claim {
	lead := c.claims[0]
	for _, cl := range c.claims[1:] {
		a, b := &cl.verdict.Rule, &lead.verdict.Rule
		if a.Managed != b.Managed {
			if b.Managed {
				lead = cl
			}
		} else if a.Managed && a.Owner.Compare(b.Owner) < 0 {
			lead = cl
		}
	}
	return lead
}

// objection says why a claim does not go together with the leading one; empty when it does.
func objection(lead, other claim) string {
	l, o := &lead.verdict.Rule, &other.verdict.Rule
	switch {
	case lead.obj == other.obj:
		return ""
	case l.Managed && o.Owner != l.Owner:
		return "is owned by Service " + l.Owner.String()
	case !l.Managed && o.Managed:
		return "is owned by rule " + lead.obj.Name + ", made by hand"
	case l.Share != o.Share:
		return "is owned by rule " + lead.obj.Name + ", whose type differs"
	case !l.Share:
		return "is owned by exclusive rule " + lead.obj.Name
	case l.Managed:
		// One Service, whose rules are changed one after the other: they agree soon, and the identity must not shrink meanwhile.
		return ""
	case l.Affinity != o.Affinity:
		return fmt.Sprintf("has session affinity %q by rule %s, this rule asks for %q", l.Affinity, lead.obj.Name, o.Affinity)
	case !slices.Equal(l.Sources, o.Sources):
		return "has other source ranges by rule " + lead.obj.Name
	}
	return ""
}
