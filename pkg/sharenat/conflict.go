// SPDX-License-Identifier: Apache-2.0

package sharenat

import "slices"

// Discord is the first reason why two rules cannot make one identity together. The handler judges by it what to program, the webhook
// what to refuse.
type Discord int

// The discords, from the most basic to the least.
const (
	// Accord: nothing stands between them.
	Accord Discord = iota
	// DifferentOwner: they belong to two Services, or one of them to a Service and the other to nobody.
	DifferentOwner
	// DifferentType: one is of type share, the other exclusive.
	DifferentType
	// BothExclusive: an exclusive rule has its identity alone.
	BothExclusive
	// DifferentAffinity: a session affinity, or its timeout, is that of the whole identity.
	DifferentAffinity
	// DifferentSources: so are the source ranges.
	DifferentSources
)

// DiscordOf compares two rules of one identity; which comes first does not matter.
func DiscordOf(a, b *Rule) Discord {
	switch {
	case a.Managed != b.Managed || a.Managed && a.Owner != b.Owner:
		return DifferentOwner
	case a.Share != b.Share:
		return DifferentType
	case !a.Share:
		return BothExclusive
	case a.Affinity != b.Affinity:
		return DifferentAffinity
	case !slices.Equal(a.Sources, b.Sources):
		return DifferentSources
	}
	return Accord
}

// Passes tells a discord that is no reason to leave one of the two out. What is the identity's is changed rule by rule, by the Service
// controller or by hand, so for a moment the rules differ in it: all of them are programmed meanwhile, with what the first by name
// says. Only source ranges are not waited for where nobody is bound to bring the rest into line: the first's may be the wider ones.
func (d Discord) Passes(a, b *Rule) bool {
	if a.Managed != b.Managed || a.Owner != b.Owner {
		return false
	}
	switch d {
	case DifferentAffinity:
		return a.Managed || slices.Equal(a.Sources, b.Sources)
	case DifferentSources:
		return a.Managed
	case Accord, DifferentOwner, DifferentType, BothExclusive:
	}
	return false
}
