// SPDX-License-Identifier: Apache-2.0

package lbservice

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// Changes is what to write so that the rules become as they should be, each part by name.
type Changes struct {
	Create []Rule
	Patch  []RulePatch
	Delete []*kubeovnv1.IptablesDnatRule
	// Waiting names the rules that cannot be created before something else is gone.
	Waiting []string
}

// Empty tells that there is nothing to write.
func (c *Changes) Empty() bool { return len(c.Create) == 0 && len(c.Patch) == 0 && len(c.Delete) == 0 }

// RulePatch is a JSON merge patch that names what differs, and nothing else.
type RulePatch struct {
	Name  string
	UID   types.UID
	Patch []byte
}

// Diff compares the rules as they should be with those the Service has. A rule that is being deleted does not count as there, and
// its name is taken until it is gone.
func Diff(desired []Rule, own []*kubeovnv1.IptablesDnatRule) (Changes, error) {
	var c Changes
	existing := make(map[string]*kubeovnv1.IptablesDnatRule, len(own))
	for _, rule := range own {
		existing[rule.Name] = rule
	}
	for i := range desired {
		want := &desired[i]
		have, ok := existing[want.Name]
		delete(existing, want.Name)
		switch {
		case !ok && want.Held, ok && have.DeletionTimestamp != nil:
			c.Waiting = append(c.Waiting, want.Name)
		case !ok:
			c.Create = append(c.Create, *want)
		case movedEIP(want, have):
			// Its name does not tell the EIP. Only deletion takes it out of the old one for certain; it is made anew after.
			c.Delete = append(c.Delete, have)
			c.Waiting = append(c.Waiting, want.Name)
		default:
			patch, err := patchOf(want, have)
			if err != nil {
				return Changes{}, err
			}
			if patch != nil {
				c.Patch = append(c.Patch, RulePatch{Name: want.Name, UID: have.UID, Patch: patch})
			}
		}
	}
	for _, rule := range existing {
		if rule.DeletionTimestamp == nil {
			c.Delete = append(c.Delete, rule)
		}
	}
	slices.SortFunc(c.Delete, func(a, b *kubeovnv1.IptablesDnatRule) int { return cmp.Compare(a.Name, b.Name) })
	return c, nil
}

// holdBack keeps an identity from being left without any rule only because those that are wanted wait for their predecessors to be
// gone, as when all backends flap: of the rules to delete, those of backends that still live stay until one of the others is back.
func (c *Changes) holdBack(desired []Rule, own []*kubeovnv1.IptablesDnatRule, living map[netip.Addr]bool) {
	going := make(map[string]bool, len(own))
	for _, rule := range own {
		going[rule.Name] = rule.DeletionTimestamp != nil
	}
	waits, served := map[portKey]bool{}, map[portKey]bool{}
	for i := range desired {
		id := portKeyOf(&desired[i].Spec)
		switch deleting, exists := going[desired[i].Name]; {
		case deleting:
			waits[id] = true
		case exists || !desired[i].Held:
			served[id] = true
		}
	}
	c.Delete = slices.DeleteFunc(c.Delete, func(rule *kubeovnv1.IptablesDnatRule) bool {
		id := portKeyOf(&rule.Spec)
		addr, err := sharenat.ParseIPv4(rule.Spec.InternalIP)
		if !waits[id] || served[id] || err != nil || !living[addr] {
			return false
		}
		c.Waiting = append(c.Waiting, rule.Name)
		return true
	})
}

// portKey is an identity of one Service's rules: a port of an EIP.
type portKey struct{ eip, port, protocol string }

func portKeyOf(spec *kubeovnv1.IptablesDnatRuleSpec) portKey {
	return portKey{spec.EIP, spec.ExternalPort, strings.ToLower(spec.Protocol)}
}

// compare orders them: of one EIP, by port as a number.
func (k portKey) compare(o portKey) int {
	return cmp.Or(cmp.Compare(k.eip, o.eip), cmp.Compare(len(k.port), len(o.port)), cmp.Compare(k.port, o.port), cmp.Compare(k.protocol, o.protocol))
}

// recreate has a change of session affinity made by deleting an identity's rules and making them anew, for a handler that does not
// program it otherwise. Such a handler's webhook also refuses a rule whose affinity is not that of the others of its identity, so
// all of them have to be gone before the first comes back. One identity goes through this at a time: the port does not answer
// meanwhile, and the fewer rules the handler has to see to, the sooner it does.
func (c *Changes) recreate(desired []Rule, own []*kubeovnv1.IptablesDnatRule) {
	outdated := outdatedAffinity(desired, own)
	if len(outdated) == 0 {
		return
	}
	turn := outdated[0]
	in := func(spec *kubeovnv1.IptablesDnatRuleSpec) (outdatedNow, now bool) {
		key := portKeyOf(spec)
		return slices.Contains(outdated, key), key == turn
	}
	specs := make(map[string]*kubeovnv1.IptablesDnatRuleSpec, len(own))
	deleted := make(map[string]bool, len(c.Delete))
	for _, rule := range c.Delete {
		deleted[rule.Name] = true
	}
	for _, rule := range own {
		specs[rule.Name] = &rule.Spec
		if _, now := in(&rule.Spec); now && rule.DeletionTimestamp == nil && !deleted[rule.Name] {
			c.Delete = append(c.Delete, rule)
		}
	}
	c.Create = slices.DeleteFunc(c.Create, func(rule Rule) bool {
		waits, _ := in(&rule.Spec)
		if waits {
			c.Waiting = append(c.Waiting, rule.Name)
		}
		return waits
	})
	c.Patch = slices.DeleteFunc(c.Patch, func(patch RulePatch) bool {
		waits, _ := in(specs[patch.Name])
		if waits {
			c.Waiting = append(c.Waiting, patch.Name)
		}
		return waits
	})
	slices.SortFunc(c.Delete, func(a, b *kubeovnv1.IptablesDnatRule) int { return cmp.Compare(a.Name, b.Name) })
}

// outdatedAffinity lists the identities that are to have another affinity than some rule of them has, be it one that is being deleted.
// One whose rules are going already comes first, then they come by port.
func outdatedAffinity(desired []Rule, own []*kubeovnv1.IptablesDnatRule) []portKey {
	wanted := map[portKey]sharenat.Affinity{}
	for i := range desired {
		wanted[portKeyOf(&desired[i].Spec)] = affinityOfRule(&desired[i].Spec)
	}
	outdated := map[portKey]bool{} // and whether its rules are going
	for _, rule := range own {
		key := portKeyOf(&rule.Spec)
		if want, ok := wanted[key]; ok && affinityOfRule(&rule.Spec) != want {
			outdated[key] = outdated[key] || rule.DeletionTimestamp != nil
		}
	}
	return slices.SortedFunc(maps.Keys(outdated), func(a, b portKey) int {
		if outdated[a] != outdated[b] {
			return map[bool]int{true: -1, false: 1}[outdated[a]]
		}
		return a.compare(b)
	})
}

// affinityOfRule is one that nobody wants where it cannot be read.
func affinityOfRule(spec *kubeovnv1.IptablesDnatRuleSpec) sharenat.Affinity {
	affinity, err := sharenat.ParseAffinity(spec.SessionAffinity, spec.SessionAffinityTimeoutSeconds)
	if err != nil {
		return sharenat.Affinity{TimeoutSeconds: -1}
	}
	return affinity
}

// removals parts what is to be deleted. Where a port keeps a rule that is there, those that go need not wait for the ones that come: a dead
// backend is out, however long the API server takes for the rest. Where all go, the new ones come first, or the port would be closed
// in between.
func (c *Changes) removals(own []*kubeovnv1.IptablesDnatRule) (now, after []*kubeovnv1.IptablesDnatRule) {
	going := make(map[string]bool, len(c.Delete))
	for _, rule := range c.Delete {
		going[rule.Name] = true
	}
	stays, comes := map[portKey]bool{}, map[portKey]bool{}
	for _, rule := range own {
		if !going[rule.Name] && rule.DeletionTimestamp == nil {
			stays[portKeyOf(&rule.Spec)] = true
		}
	}
	for i := range c.Create {
		comes[portKeyOf(&c.Create[i].Spec)] = true
	}
	for _, rule := range c.Delete {
		if key := portKeyOf(&rule.Spec); stays[key] || !comes[key] {
			now = append(now, rule)
		} else {
			after = append(after, rule)
		}
	}
	return now, after
}

// movedEIP tells a rule that was made for another EIP from one whose spec somebody edited: only in the former, what was
// recorded when it was made says so too.
func movedEIP(want *Rule, have *kubeovnv1.IptablesDnatRule) bool {
	recorded, ok := have.Annotations[sharenat.RuleEIPAnnotation]
	if !ok {
		recorded = have.Spec.EIP
	}
	return recorded != want.Spec.EIP
}

// patchOf gives the merge patch that makes a rule as it should be, nil when it is.
func patchOf(want *Rule, have *kubeovnv1.IptablesDnatRule) ([]byte, error) {
	metadata, spec := map[string]any{}, specDifference(&want.Spec, &have.Spec)
	if labels := difference(want.Labels, have.Labels); len(labels) > 0 {
		metadata["labels"] = labels
	}
	annotations := difference(want.Annotations, have.Annotations)
	for _, key := range []string{sharenat.SourceRangesAnnotation, sharenat.PodUIDAnnotation} {
		_, wanted := want.Annotations[key]
		if _, there := have.Annotations[key]; there && !wanted {
			annotations[key] = nil
		}
	}
	if len(annotations) > 0 {
		metadata["annotations"] = annotations
	}
	if len(metadata) == 0 && len(spec) == 0 {
		return nil, nil
	}
	// The UID makes it a precondition: a rule of the same name that came after this one is not meant.
	if have.UID != "" {
		metadata["uid"] = have.UID
	}
	patch := map[string]any{"metadata": metadata}
	if len(spec) > 0 {
		patch["spec"] = spec
	}
	return json.Marshal(patch)
}

func difference(want, have map[string]string) map[string]any {
	out := map[string]any{}
	for key, value := range want {
		if have[key] != value {
			out[key] = value
		}
	}
	return out
}

func specDifference(want, have *kubeovnv1.IptablesDnatRuleSpec) map[string]any {
	out := map[string]any{}
	set := func(key string, want, have any) {
		if want != have {
			out[key] = want
		}
	}
	set("eip", want.EIP, have.EIP)
	set("externalPort", want.ExternalPort, have.ExternalPort)
	if !strings.EqualFold(want.Protocol, have.Protocol) {
		out["protocol"] = want.Protocol
	}
	set("internalIp", want.InternalIP, have.InternalIP)
	set("internalPort", want.InternalPort, have.InternalPort)
	set("type", want.Type, have.Type)
	set("sessionAffinity", want.SessionAffinity, have.SessionAffinity)
	set("sessionAffinityTimeoutSeconds", want.SessionAffinityTimeoutSeconds, have.SessionAffinityTimeoutSeconds)
	return out
}
