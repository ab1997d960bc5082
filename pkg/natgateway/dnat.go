// SPDX-License-Identifier: Apache-2.0

package natgateway

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// Snapshot is what the desired state of one gateway is made of.
type Snapshot struct {
	Gateway string
	// Partial says that only the rules of the named groups have changed since the previous state; all else stands empty then.
	Partial bool
	// Rules by group: those that have changed when Partial, else all.
	Rules map[GroupKey][]*kubeovnv1.IptablesDnatRule

	// Blocked says why nothing of this gateway can be programmed at all; nil when it can.
	Blocked *Blocked
	EIPs    []SnapshotEIP
	Routes  []sharenat.Route
}

// SnapshotEIP is one EIP of the gateway.
type SnapshotEIP struct {
	Name string
	// CIDR is the zero value as long as the EIP has no address.
	CIDR netip.Prefix
	// Gone is true for an EIP that is being deleted and that nothing uses.
	Gone bool
	// FIP names the FIP rule that claims the EIP whole.
	FIP string
}

// GroupKey is what rules that may share an identity have in common, as their specs spell it.
type GroupKey struct{ EIP, Port, Protocol string }

// GroupOf gives the group that a rule is in.
func GroupOf(rule *kubeovnv1.IptablesDnatRule) GroupKey {
	return GroupKey{rule.Spec.EIP, rule.Spec.ExternalPort, strings.ToLower(rule.Spec.Protocol)}
}

// String gives the key of an index.
func (k GroupKey) String() string { return k.EIP + "|" + k.Port + "|" + k.Protocol }

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
	// Users counts the rules of each EIP by name, those that are being deleted included.
	Users map[string]int
	// Counts the rules by outcome.
	Counts [Deleting + 1]int
	// Backends counts those of all identities.
	Backends int

	eips   map[string]SnapshotEIP
	groups map[GroupKey]*group
	// leaving are the groups with rules that are being deleted.
	leaving map[GroupKey]*group
}

// group is the rules of one identity, by name, and what is decided about each.
type group struct {
	eip      SnapshotEIP
	rules    []*kubeovnv1.IptablesDnatRule
	parsed   []*Verdict // each for itself
	verdicts []*Verdict // all considered
	share    *DesiredShare
	target   netip.AddrPort
	id       sharenat.Identity
}

// Verdict gives what is decided about a rule; nil when the state does not know it.
func (s *State) Verdict(rule *kubeovnv1.IptablesDnatRule) *Verdict {
	if g := s.groups[GroupOf(rule)]; g != nil {
		if i, ok := g.find(rule.Name); ok {
			return g.verdicts[i]
		}
	}
	return nil
}

func (g *group) find(name string) (int, bool) {
	return slices.BinarySearchFunc(g.rules, name, func(r *kubeovnv1.IptablesDnatRule, name string) int { return strings.Compare(r.Name, name) })
}

// Desired computes the desired state of a gateway. It starts from the previous state, if there is one: with a partial snapshot only
// the groups in it are looked at, so that a change among many thousand rules costs little, and else what has not changed is taken over.
func Desired(in Snapshot, previous *State) *State {
	s := &State{
		Gateway:    in.Gateway,
		Blocked:    in.Blocked,
		Shares:     map[sharenat.Identity]*DesiredShare{},
		Exclusives: map[sharenat.Identity]netip.AddrPort{},
		Users:      map[string]int{},
		eips:       map[string]SnapshotEIP{},
		groups:     map[GroupKey]*group{},
		leaving:    map[GroupKey]*group{},
	}
	if in.Partial {
		s = previous.clone()
	} else {
		for _, eip := range in.EIPs {
			s.eips[eip.Name] = eip
			if s.usable(eip) {
				s.EIPs = append(s.EIPs, eip.CIDR)
			}
		}
		slices.SortFunc(s.EIPs, comparePrefixes)
		if in.Blocked == nil {
			s.Routes = slices.SortedFunc(slices.Values(in.Routes), compareRoutes)
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(in.Rules), compareKeys) {
		var before *group
		if previous != nil {
			before = previous.groups[key]
		}
		s.replace(key, s.judge(key, in.Rules[key], before))
	}
	return s
}

func (s *State) clone() *State {
	next := *s
	next.Shares, next.Exclusives = maps.Clone(s.Shares), maps.Clone(s.Exclusives)
	next.Users, next.groups, next.leaving = maps.Clone(s.Users), maps.Clone(s.groups), maps.Clone(s.leaving)
	return &next
}

func (s *State) usable(eip SnapshotEIP) bool {
	return s.Blocked == nil && eip.CIDR.IsValid() && !eip.Gone
}

// replace puts a group, nil for none, in the place of the one that was there.
func (s *State) replace(key GroupKey, g *group) {
	if old := s.groups[key]; old != nil {
		s.count(key, old, -1)
		if old.share != nil && s.Shares[old.id] == old.share {
			delete(s.Shares, old.id)
		}
		if old.target.IsValid() && s.Exclusives[old.id] == old.target {
			delete(s.Exclusives, old.id)
		}
		delete(s.groups, key)
		delete(s.leaving, key)
	}
	if g == nil {
		return
	}
	s.groups[key] = g
	s.count(key, g, 1)
	if slices.ContainsFunc(g.verdicts, func(v *Verdict) bool { return v.Outcome == Deleting }) {
		s.leaving[key] = g
	}
	if g.share != nil {
		s.Shares[g.id] = g.share
	}
	if g.target.IsValid() {
		s.Exclusives[g.id] = g.target
	}
}

func (s *State) count(key GroupKey, g *group, sign int) {
	s.Users[key.EIP] += sign * len(g.rules)
	s.Backends += sign * g.backends()
	for _, v := range g.verdicts {
		s.Counts[v.Outcome] += sign
	}
}

// backends that the identity has.
func (g *group) backends() int {
	switch {
	case g.share != nil:
		return len(g.share.Backends)
	case g.target.IsValid():
		return 1
	}
	return 0
}

// judge decides about the rules of a group.
func (s *State) judge(key GroupKey, rules []*kubeovnv1.IptablesDnatRule, before *group) *group {
	eip, ours := s.eips[key.EIP]
	if !ours || len(rules) == 0 {
		return nil
	}
	g := &group{eip: eip, rules: slices.SortedFunc(slices.Values(rules), compareRules)}
	var claims []int
	for i, rule := range g.rules {
		v := before.remembered(rule, eip)
		if v == nil {
			v = parse(rule, eip.CIDR.Addr())
		}
		g.parsed = append(g.parsed, v)
		if v = s.circumstances(v, eip, rule.Labels[sharenat.GatewayLabel]); v.Outcome == Wanted {
			claims = append(claims, i)
		}
		g.verdicts = append(g.verdicts, v)
	}
	if len(claims) > 0 {
		g.decide(claims)
	}
	if before != nil && before.share != nil && g.share != nil && before.id == g.id && before.share.Digest == g.share.Digest {
		g.share = before.share
	}
	return g
}

// remembered gives how a rule was parsed before, if neither it nor the EIP's address has changed.
func (g *group) remembered(rule *kubeovnv1.IptablesDnatRule, eip SnapshotEIP) *Verdict {
	if g == nil || g.eip.CIDR != eip.CIDR {
		return nil
	}
	if i, ok := g.find(rule.Name); ok && g.rules[i] == rule {
		return g.parsed[i]
	}
	return nil
}

// circumstances turns the verdict on a rule for itself into the one that gateway and EIP allow. A Service's rule was made for one gateway: in
// another one's VPC its backend's address may be another tenant's, so it waits until its Service was looked at again.
func (s *State) circumstances(v *Verdict, eip SnapshotEIP, madeFor string) *Verdict {
	switch {
	case v.Outcome == Deleting:
		return v
	case s.Blocked != nil:
		return &Verdict{Outcome: Pending, Reason: s.Blocked.Reason, Message: s.Blocked.Message, Rule: v.Rule}
	case !s.usable(eip):
		return &Verdict{Outcome: Pending, Reason: ReasonEIPNotReady, Message: "EIP " + eip.Name + " has no IPv4 address yet", Rule: v.Rule}
	case v.Outcome != Invalid && v.Rule.Managed && madeFor != "" && madeFor != s.Gateway:
		return &Verdict{
			Outcome: Pending, Reason: ReasonGatewayChanged, Rule: v.Rule,
			Message: "the rule was made for gateway " + madeFor + "; it waits until Service " + v.Rule.Owner.String() + " was resolved for gateway " + s.Gateway,
		}
	case v.Outcome != Invalid && eip.FIP != "":
		return &Verdict{
			Outcome: Lost, Reason: ReasonEIPUsedByFIP, Rule: v.Rule,
			Message: "EIP " + eip.Name + " belongs to FIP rule " + eip.FIP + " with all its ports; delete that rule or use another EIP",
		}
	}
	return v
}

// parse judges a rule for itself: Deleting, Invalid, Unclaimed, or Wanted if nothing else stands against it.
func parse(obj *kubeovnv1.IptablesDnatRule, eip netip.Addr) *Verdict {
	rule, err := sharenat.ParseRule(obj, eip)
	rule.EIP = eip
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

// decide says which of the rules that could be programmed make the identity. A rule made by hand beats those of Services; among
// Services the smallest namespace and name wins, with all its rules; among rules made by hand the smallest name leads, and
// those that agree with it share the identity, and so do those that only ask for another affinity: they get the first one's.
func (g *group) decide(claims []int) {
	lead := g.leader(claims)
	first := &g.parsed[lead].Rule
	g.id = first.Identity
	share := sharenat.Share{Identity: g.id, Affinity: first.Affinity, Sources: first.Sources}
	seen := map[netip.AddrPort]bool{}
	for _, i := range claims {
		rule := &g.parsed[i].Rule
		why, passes := g.objection(lead, i)
		if why != "" && !passes {
			g.verdicts[i] = &Verdict{Outcome: Lost, Reason: ReasonIdentityConflict, Message: g.id.String() + " " + why, Rule: *rule}
			continue
		}
		if why != "" && !rule.Managed {
			// No controller brings the rest into line: who does it by hand is told what is left.
			g.verdicts[i] = &Verdict{Outcome: Wanted, Message: g.id.String() + " " + why, Rule: *rule}
		}
		if !seen[rule.Backend.Addr] {
			seen[rule.Backend.Addr] = true
			share.Backends = append(share.Backends, rule.Backend)
		}
	}
	if !first.Share {
		g.target = first.Backend.Addr
		return
	}
	share.Normalize()
	g.share = &DesiredShare{Share: share, Digest: share.Digest()}
}

// leader gives the claim that decides what the identity is like.
func (g *group) leader(claims []int) int {
	holder := func(i int) sharenat.Holder { return sharenat.HolderOf(&g.parsed[i].Rule, g.rules[i].Name) }
	return slices.MinFunc(claims, func(a, b int) int { return holder(a).Compare(holder(b)) })
}

// objection says what a claim and the leading one do not agree on; empty when they agree. It passes where the claim is programmed all the
// same, since the identity must not shrink while its rules are changed.
func (g *group) objection(lead, other int) (why string, passes bool) {
	if lead == other {
		return "", false
	}
	l, o, name := &g.parsed[lead].Rule, &g.parsed[other].Rule, g.rules[lead].Name
	discord := sharenat.DiscordOf(l, o)
	switch discord {
	case sharenat.DifferentOwner:
		why = "is owned by rule " + name + ", made by hand"
		if l.Managed {
			why = "is owned by Service " + l.Owner.String()
		}
	case sharenat.DifferentType:
		why = "is owned by rule " + name + ", whose type differs"
	case sharenat.BothExclusive:
		why = "is owned by exclusive rule " + name
	case sharenat.DifferentAffinity:
		why = fmt.Sprintf("has session affinity %q by rule %s, this rule asks for %q", l.Affinity, name, o.Affinity)
	case sharenat.DifferentSources:
		why = "has other source ranges by rule " + name
	case sharenat.Accord:
	}
	return why, discord.Passes(l, o)
}

func compareRules(a, b *kubeovnv1.IptablesDnatRule) int { return strings.Compare(a.Name, b.Name) }

func compareKeys(a, b GroupKey) int {
	return cmp.Or(strings.Compare(a.EIP, b.EIP), strings.Compare(a.Port, b.Port), strings.Compare(a.Protocol, b.Protocol))
}
