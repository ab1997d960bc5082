// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"fmt"
	"net/netip"

	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

var (
	specPath        = field.NewPath("spec")
	labelsPath      = field.NewPath("metadata", "labels")
	annotationsPath = field.NewPath("metadata", "annotations")
	deletionPath    = field.NewPath("metadata", "deletionTimestamp")
)

const (
	detailPort      = "must be a number from 1 to 65535 without leading zeros"
	detailIPv4      = "must be an IPv4 address"
	detailAddress   = "must be an IP address"
	detailProtocol  = "must be tcp or udp"
	detailTimeout   = "must be from 0 to 86400 seconds"
	detailSourceIP  = "must be preserve or masquerade"
	detailSources   = "must be IPv4 prefixes, separated by commas"
	detailOnlyShare = "only with type share"
	detailBothOr    = "must be set together with the other label of the owner, or not at all"
)

// anyEIP stands for the EIP's address where rules of one EIP are compared: it may have none yet, and is the same for all of them.
var anyEIP = netip.AddrFrom4([4]byte{192, 0, 2, 1})

// contentAnnotations of a rule say what is programmed; all others are mere metadata.
var contentAnnotations = []string{sharenat.SourceIPAnnotation, sharenat.SourceRangesAnnotation}

// rule judges an IptablesDnatRule. Deleting one is nobody's concern here: the Service controller makes its own anew.
func (d *decision) rule(old, rule *kubeovnv1.IptablesDnatRule) {
	if d.op == Delete {
		return
	}
	d.ownerLabels(old, rule)
	if !counts(rule) || old != nil && sameContent(old, rule) {
		return
	}
	d.ruleFields(rule)
	d.ruleEIP(old, rule)
	d.ruleIdentity(old, rule)
	if _, managed, _ := sharenat.OwnerOf(rule.Labels); managed && !d.trusted && old != nil {
		d.warn("the rule belongs to Service %s/%s, whose controller will undo the change",
			rule.Labels[sharenat.OwnerNamespaceLabel], rule.Labels[sharenat.OwnerNameLabel])
	}
}

// sameContent tells that an update changes nothing that is programmed.
func sameContent(a, b *kubeovnv1.IptablesDnatRule) bool {
	for _, key := range contentAnnotations {
		if a.Annotations[key] != b.Annotations[key] {
			return false
		}
	}
	return a.Spec == b.Spec
}

// ownerLabels guards the labels that say which Service owns the rule: who could forge them could take another tenant's port, and who drops them
// makes an orphan that looks made by hand.
func (d *decision) ownerLabels(old, rule *kubeovnv1.IptablesDnatRule) {
	var before map[string]string
	if old != nil {
		before = old.Labels
	}
	changed := false
	for _, key := range []string{sharenat.OwnerNamespaceLabel, sharenat.OwnerNameLabel} {
		was, had := before[key]
		is, has := rule.Labels[key]
		if was == is && had == has {
			continue
		}
		changed = true
		if !d.trusted {
			d.refuse(field.Forbidden(labelsPath.Key(key),
				"names the Service that owns the rule: only the load balancer's controller may set, change or remove it"))
		}
	}
	if changed && d.trusted {
		if _, _, err := sharenat.OwnerOf(rule.Labels); err != nil {
			for _, key := range []string{sharenat.OwnerNamespaceLabel, sharenat.OwnerNameLabel} {
				if rule.Labels[key] == "" {
					d.refuse(field.Required(labelsPath.Key(key), detailBothOr))
				}
			}
		}
	}
}

// ruleFields looks at each field for itself. What it lets pass, sharenat.ParseRule can read and nat-gateway.sh accepts.
func (d *decision) ruleFields(rule *kubeovnv1.IptablesDnatRule) {
	spec := &rule.Spec
	d.eipName(spec.EIP)
	d.check(spec.ExternalPort, specPath.Child("externalPort"), detailPort, isPort)
	d.check(spec.Protocol, specPath.Child("protocol"), detailProtocol, isProtocol)
	d.check(spec.InternalIP, specPath.Child("internalIp"), detailIPv4, isIPv4)
	d.check(spec.InternalPort, specPath.Child("internalPort"), detailPort, isPort)

	share := spec.Type == sharenat.TypeShare
	if !share && spec.Type != sharenat.TypeExclusive && spec.Type != "" {
		d.refuse(field.NotSupported(specPath.Child("type"), spec.Type, []string{sharenat.TypeExclusive, sharenat.TypeShare}))
	}
	affinityPath, timeoutPath := specPath.Child("sessionAffinity"), specPath.Child("sessionAffinityTimeoutSeconds")
	pinned := spec.SessionAffinity == sharenat.SessionAffinityIP
	switch {
	case !pinned && spec.SessionAffinity != sharenat.SessionAffinityNone:
		d.refuse(field.NotSupported(affinityPath, spec.SessionAffinity, []string{sharenat.SessionAffinityNone, sharenat.SessionAffinityIP}))
	case pinned && !share:
		d.refuse(field.Forbidden(affinityPath, detailOnlyShare))
	}
	switch timeout := spec.SessionAffinityTimeoutSeconds; {
	case timeout < 0 || timeout > sharenat.MaxAffinityTimeout:
		d.refuse(field.Invalid(timeoutPath, timeout, detailTimeout))
	case timeout != 0 && !pinned:
		d.refuse(field.Forbidden(timeoutPath, "only with sessionAffinity ClientIP"))
	}
	d.optional(rule.Annotations, sharenat.SourceIPAnnotation, detailSourceIP, isSourceIP)
	d.optional(rule.Annotations, sharenat.SourceRangesAnnotation, detailSources, isSources)
	if share {
		return
	}
	// Who asks for less than everybody must not be let in with everybody.
	if rule.Annotations[sharenat.SourceIPAnnotation] == sharenat.SourceIPMasquerade {
		d.refuse(field.Forbidden(annotationsPath.Key(sharenat.SourceIPAnnotation), detailOnlyShare))
	}
	if sources, err := sharenat.ParseSources(rule.Annotations[sharenat.SourceRangesAnnotation]); err == nil && len(sources) > 0 {
		d.refuse(field.Forbidden(annotationsPath.Key(sharenat.SourceRangesAnnotation), detailOnlyShare))
	}
}

// check refuses a value that is missing or not ok.
func (d *decision) check(value string, path *field.Path, detail string, ok func(string) bool) {
	switch {
	case value == "":
		d.refuse(field.Required(path, detail))
	case !ok(value):
		d.refuse(field.Invalid(path, value, detail))
	}
}

// optional refuses an annotation that is there and not ok.
func (d *decision) optional(annotations map[string]string, key, detail string, ok func(string) bool) {
	if value, has := annotations[key]; has && !ok(value) {
		d.refuse(field.Invalid(annotationsPath.Key(key), value, detail))
	}
}

// eipName refuses a name that no EIP can ever have.
func (d *decision) eipName(name string) {
	path := specPath.Child("eip")
	if name == "" {
		d.refuse(field.Required(path, "must name an IptablesEIP"))
	} else if !isName(name) {
		d.refuse(field.Invalid(path, name, "must be the name of an IptablesEIP"))
	}
}

func isName(s string) bool { return len(validation.NameIsDNSSubdomain(s, false)) == 0 }

func isPort(s string) bool {
	_, err := sharenat.ParsePort(s)
	return err == nil
}

func isProtocol(s string) bool {
	_, err := sharenat.ParseProtocol(s)
	return err == nil
}

func isIPv4(s string) bool {
	_, err := sharenat.ParseIPv4(s)
	return err == nil
}

func isSourceIP(s string) bool {
	return s == "" || s == sharenat.SourceIPPreserve || s == sharenat.SourceIPMasquerade
}

func isSources(s string) bool {
	_, err := sharenat.ParseSources(s)
	return err == nil
}

// ruleEIP looks at the EIP that the rule names.
func (d *decision) ruleEIP(old, rule *kubeovnv1.IptablesDnatRule) {
	name := rule.Spec.EIP
	if name == "" || !isName(name) {
		return
	}
	moved := old == nil || old.Spec.EIP != name
	d.eipExists(name, "rule", moved)
	if eip := find(d.EIPs, name); eip != nil {
		if _, ipv6Only := sharenat.EIPAddress(eip); ipv6Only {
			d.refuse(field.Invalid(specPath.Child("eip"), name, "has only an IPv6 address: name an IptablesEIP with an IPv4 address"), Ref{KindEIP, name})
		}
	}
	if !moved {
		return
	}
	if fip := sharenat.FIPOf(d.FIPs, name); fip != "" {
		d.refuse(field.Invalid(specPath.Child("eip"), name, fmt.Sprintf(
			"belongs to IptablesFIPRule %s with all its ports: delete that, or name another IptablesEIP", fip)), Ref{KindFIP, fip})
	}
}

// eipExists warns of an EIP that is not there, or not for long. That is no reason to refuse: objects may come in any order.
func (d *decision) eipExists(name, what string, moved bool) {
	switch eip := find(d.EIPs, name); {
	case eip == nil:
		d.warn("IptablesEIP %q does not exist: the %s waits until it does", name, what)
	case moved && !counts(eip):
		d.warn("IptablesEIP %q is being deleted", name)
	}
}

// ruleIdentity looks at the other rules of the identity: what is wrong between them is refused once each way it is wrong. What was wrong
// before an update already does not keep the update from passing.
func (d *decision) ruleIdentity(old, rule *kubeovnv1.IptablesDnatRule) {
	if _, ok := sharenat.ClaimOfRule(rule); !ok {
		return
	}
	mine, _ := sharenat.ParseRule(rule, anyEIP)
	var before *sharenat.Rule
	if old != nil && old.Spec.EIP == rule.Spec.EIP && counts(old) {
		if was, err := sharenat.ParseRule(old, anyEIP); err == nil && was.Identity == mine.Identity {
			before = &was
		}
	}
	type way struct {
		discord sharenat.Discord
		owner   sharenat.Owner
	}
	told := map[way]bool{}
	// Rules that make an identity already are changed one by one, by the controller or by hand; one that joins them has to agree.
	mayPass := d.trusted || before != nil && !mine.Managed && !before.Managed
	var differing []string
	for _, peer := range byName(d.Rules) {
		if peer.Name == rule.Name || peer.Spec.EIP != rule.Spec.EIP || !counts(peer) {
			continue
		}
		theirs, err := sharenat.ParseRule(peer, anyEIP)
		if err != nil || theirs.Identity != mine.Identity {
			continue
		}
		discord := sharenat.DiscordOf(&mine, &theirs)
		tolerated := discord == sharenat.Accord || mayPass && discord.Passes(&mine, &theirs) ||
			before != nil && sharenat.DiscordOf(before, &theirs) == discord
		if discord == sharenat.DifferentAffinity && mayPass && !mine.Managed && discord.Passes(&mine, &theirs) {
			differing = append(differing, peer.Name)
		}
		w := way{discord: discord}
		if discord == sharenat.DifferentOwner {
			w.owner = theirs.Owner
		}
		if tolerated || told[w] {
			continue
		}
		told[w] = true
		if err := discordError(discord, rule, peer, &theirs); err != nil {
			d.refuse(err, Ref{KindRule, peer.Name})
		}
	}
	if before == nil && !mine.Managed {
		d.warnClaimants(rule)
	}
	d.warnDiffering(rule, &mine, differing)
}

// warnDiffering tells who changes the affinity of a rule made by hand which other rules of the identity have another one: the first
// by name counts for all of them.
func (d *decision) warnDiffering(rule *kubeovnv1.IptablesDnatRule, mine *sharenat.Rule, differing []string) {
	if len(differing) == 0 || len(d.Refusals) > 0 {
		return
	}
	identity := fmt.Sprintf("%s of IptablesEIP %s", sharenat.Claim{Port: mine.Port, Protocol: mine.Protocol}, rule.Spec.EIP)
	if first := differing[0]; first < rule.Name {
		d.warn("%s has the affinity of IptablesDnatRule %s, which is the first by name: change that as well", identity, first)
		return
	}
	d.warn("%s gets affinity %q, by this rule, which is the first by name: change IptablesDnatRule %s as well", identity, mine.Affinity, listed(differing))
}

// discordError words a discord; nil where the rule has no valid value that could differ.
func discordError(discord sharenat.Discord, rule, peer *kubeovnv1.IptablesDnatRule, theirs *sharenat.Rule) *field.Error {
	claim := sharenat.Claim{Port: theirs.Port, Protocol: theirs.Protocol}
	identity := fmt.Sprintf("%s of IptablesEIP %s", claim, rule.Spec.EIP)
	port, spec := specPath.Child("externalPort"), &rule.Spec
	switch discord {
	case sharenat.DifferentOwner:
		if theirs.Managed {
			return field.Invalid(port, spec.ExternalPort, fmt.Sprintf("%s is owned by Service %s", identity, theirs.Owner))
		}
		return field.Invalid(port, spec.ExternalPort, fmt.Sprintf("%s is owned by IptablesDnatRule %s (made by hand)", identity, peer.Name))
	case sharenat.DifferentType:
		if !isType(spec.Type) {
			return nil
		}
		return field.Invalid(specPath.Child("type"), spec.Type, fmt.Sprintf("%s is of type %s by IptablesDnatRule %s", identity, typeOf(peer), peer.Name))
	case sharenat.BothExclusive:
		return field.Invalid(port, spec.ExternalPort, fmt.Sprintf("%s is taken by IptablesDnatRule %s of type exclusive", identity, peer.Name))
	case sharenat.DifferentAffinity:
		if !isAffinity(spec) {
			return nil
		}
		return field.Invalid(specPath.Child("sessionAffinity"), spec.SessionAffinity, fmt.Sprintf(
			"%s has affinity %q by IptablesDnatRule %s: the rules of an identity have the same affinity and timeout", identity, theirs.Affinity, peer.Name))
	case sharenat.DifferentSources:
		ranges := rule.Annotations[sharenat.SourceRangesAnnotation]
		if !isSources(ranges) {
			return nil
		}
		return field.Invalid(annotationsPath.Key(sharenat.SourceRangesAnnotation), ranges, fmt.Sprintf(
			"%s has source ranges %q by IptablesDnatRule %s: the rules of an identity have the same", identity, sharenat.FormatSources(theirs.Sources), peer.Name))
	case sharenat.Accord:
	}
	return nil
}

func isAffinity(spec *kubeovnv1.IptablesDnatRuleSpec) bool {
	_, err := sharenat.ParseAffinity(spec.SessionAffinity, spec.SessionAffinityTimeoutSeconds)
	return err == nil
}

func isType(s string) bool {
	return s == "" || s == sharenat.TypeExclusive || s == sharenat.TypeShare
}

func typeOf(rule *kubeovnv1.IptablesDnatRule) string {
	if rule.Spec.Type == "" {
		return sharenat.TypeExclusive
	}
	return rule.Spec.Type
}

// warnClaimants tells who made a rule by hand that it takes a port which a Service claims, even though that has no backend there yet.
func (d *decision) warnClaimants(rule *kubeovnv1.IptablesDnatRule) {
	claim, ok := sharenat.ClaimOfRule(rule)
	if !ok || len(d.Refusals) > 0 {
		return
	}
	var names []string
	for _, svc := range byNamespace(d.Services) {
		if sharenat.EIPName(svc) == rule.Spec.EIP && claims(svc, claim) {
			names = append(names, svc.Namespace+"/"+svc.Name)
		}
	}
	if len(names) > 0 {
		d.warn("%s of IptablesEIP %s is claimed by Service %s, which does not get it as long as this rule is there",
			claim, rule.Spec.EIP, listed(names))
	}
}
