// SPDX-License-Identifier: Apache-2.0

package lbservice

import (
	"fmt"
	"slices"
	"strings"
)

// Abilities are what the handler, which programs the rules into the gateways, does with a rule beyond its backend. A Service is
// promised nothing that its handler does not do. The zero value is a handler that spreads connections and no more.
type Abilities struct {
	// Affinity: the rules' session affinity is programmed.
	Affinity bool
	// LiveAffinity: it is programmed as well when it changes on a rule that is there.
	LiveAffinity bool
	// SourceRanges: clients that are not in a rule's source ranges are kept out.
	SourceRanges bool
	// Masquerade: backends whose answers would not come back by the gateway see its address.
	Masquerade bool
	// EveryPod: all pods of a gateway are programmed, not the first one alone.
	EveryPod bool
}

// AllAbilities are those of pkg/natgateway.
var AllAbilities = Abilities{Affinity: true, LiveAffinity: true, SourceRanges: true, Masquerade: true, EveryPod: true}

// Words that stand for all abilities, and for none.
const (
	abilitiesAll  = "all"
	abilitiesNone = "none"
)

// ability is one of them, by its name.
type ability struct {
	name string
	of   func(*Abilities) *bool
}

var abilities = []ability{
	{"affinity", func(a *Abilities) *bool { return &a.Affinity }},
	{"live-affinity", func(a *Abilities) *bool { return &a.LiveAffinity }},
	{"source-ranges", func(a *Abilities) *bool { return &a.SourceRanges }},
	{"masquerade", func(a *Abilities) *bool { return &a.Masquerade }},
	{"every-pod", func(a *Abilities) *bool { return &a.EveryPod }},
}

// ParseAbilities reads names separated by commas, or "all" or "none".
func ParseAbilities(text string) (Abilities, error) {
	switch strings.TrimSpace(text) {
	case abilitiesAll:
		return AllAbilities, nil
	case abilitiesNone:
		return Abilities{}, nil
	}
	var out Abilities
	for word := range strings.SplitSeq(text, ",") {
		word = strings.TrimSpace(word)
		i := slices.IndexFunc(abilities, func(a ability) bool { return a.name == word })
		if i < 0 {
			return Abilities{}, fmt.Errorf("%q is none of %s, %s and %s", word, abilitiesAll, abilitiesNone, strings.Join(abilityNames(), ", "))
		}
		*abilities[i].of(&out) = true
	}
	if out.LiveAffinity && !out.Affinity {
		return Abilities{}, fmt.Errorf("live-affinity goes with affinity")
	}
	return out, nil
}

// String is what ParseAbilities reads.
func (a Abilities) String() string {
	var names []string
	for _, ability := range abilities {
		if *ability.of(&a) {
			names = append(names, ability.name)
		}
	}
	switch {
	case a == AllAbilities:
		return abilitiesAll
	case len(names) == 0:
		return abilitiesNone
	}
	return strings.Join(names, ",")
}

// And is what both of two handlers do.
func (a Abilities) And(b Abilities) Abilities {
	for _, ability := range abilities {
		*ability.of(&a) = *ability.of(&a) && *ability.of(&b)
	}
	return a
}

func abilityNames() []string {
	names := make([]string, len(abilities))
	for i := range abilities {
		names[i] = abilities[i].name
	}
	return names
}
