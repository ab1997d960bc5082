// SPDX-License-Identifier: Apache-2.0

package handler

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// Release is which of Kube-OVN's releases is played.
type Release string

const (
	// V117 knows share rules and no affinity.
	V117 Release = "v1.17"
	// Newer knows affinity, and has a webhook that refuses to mix it.
	Newer Release = "newer"
)

// Releases are all of them.
var Releases = []Release{V117, Newer}

// Verbs of nat-gateway.sh.
const (
	verbInit     = "init"
	verbRouteAdd = "subnet-route-add"
	verbRouteDel = "subnet-route-del"
	verbEIPAdd   = "eip-add"
	verbEIPDel   = "eip-del"
	verbDNATAdd  = "dnat-add"
	verbDNATDel  = "dnat-del"
	verbShareAdd = "nft-dnat-map-add"
	verbShareDel = "nft-dnat-map-del"
	verbFIPAdd   = "floating-ip-add"
	verbFIPDel   = "floating-ip-del"
	verbSNATAdd  = "snat-add"
	verbSNATDel  = "snat-del"
)

// initArgument names the interfaces.
const initArgument = "eth0,net1"

// call is one run of the script, with one rule.
type call struct{ verb, rule string }

// String gives the command line after the script's name.
func (c call) String() string { return c.verb + " " + c.rule }

// target is what of a rule is programmed: of its spec at the EIP's address, or of its status.
type target struct{ eip, externalPort, protocol, internalIP, internalPort string }

func wanted(rule *kubeovnv1.IptablesDnatRule, eip string) target {
	return target{eip, rule.Spec.ExternalPort, rule.Spec.Protocol, rule.Spec.InternalIP, rule.Spec.InternalPort}
}

func programmed(rule *kubeovnv1.IptablesDnatRule) target {
	s := rule.Status
	return target{s.V4ip, s.ExternalPort, s.Protocol, s.InternalIP, s.InternalPort}
}

func (t target) identity() string {
	return strings.Join([]string{t.eip, t.externalPort, t.protocol}, ",")
}

func isShare(rule *kubeovnv1.IptablesDnatRule) bool { return rule.Spec.Type == sharenat.TypeShare }

// addCall programs a rule: an exclusive one as it is, of a share the backends of all rules of its identity.
func (r Release) addCall(rule *kubeovnv1.IptablesDnatRule, t target, all []*kubeovnv1.IptablesDnatRule) call {
	if !isShare(rule) {
		return call{verbDNATAdd, strings.Join([]string{t.eip, t.externalPort, t.protocol, t.internalIP, t.internalPort}, ",")}
	}
	mates := mates(rule, t, all)
	backends := []string{t.internalIP + ":" + t.internalPort}
	for _, mate := range mates {
		backends = append(backends, mate.Spec.InternalIP+":"+mate.Spec.InternalPort)
	}
	return r.shareCall(rule, t, backends)
}

func (r Release) shareCall(like *kubeovnv1.IptablesDnatRule, t target, backends []string) call {
	slices.Sort(backends)
	fields := []string{t.identity()}
	if r == Newer {
		affinity, timeout := affinityOf(like)
		fields = append(fields, affinity, strconv.Itoa(int(timeout)))
	}
	return call{verbShareAdd, strings.Join(append(fields, strings.Join(slices.Compact(backends), "@")), ",")}
}

// delCall takes a rule away as its status has it: of a share the identity gets the other backends, and goes with the last.
func (r Release) delCall(rule *kubeovnv1.IptablesDnatRule, all []*kubeovnv1.IptablesDnatRule) call {
	t := programmed(rule)
	if !isShare(rule) {
		return call{verbDNATDel, t.identity()}
	}
	mates := mates(rule, t, all)
	if len(mates) == 0 {
		return call{verbShareDel, t.identity()}
	}
	var backends []string
	for _, mate := range mates {
		backends = append(backends, mate.Spec.InternalIP+":"+mate.Spec.InternalPort)
	}
	return r.shareCall(mates[0], t, backends)
}

// mates are the other rules of an identity that are not being deleted, by name.
func mates(rule *kubeovnv1.IptablesDnatRule, t target, all []*kubeovnv1.IptablesDnatRule) []*kubeovnv1.IptablesDnatRule {
	var out []*kubeovnv1.IptablesDnatRule
	for _, other := range all {
		if other.Name != rule.Name && isShare(other) && other.DeletionTimestamp == nil && other.Spec.EIP == rule.Spec.EIP &&
			other.Spec.ExternalPort == t.externalPort && other.Spec.Protocol == t.protocol {
			out = append(out, other)
		}
	}
	slices.SortFunc(out, func(a, b *kubeovnv1.IptablesDnatRule) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// affinityOf gives a rule's affinity as the script takes it.
func affinityOf(rule *kubeovnv1.IptablesDnatRule) (string, int32) {
	if rule.Spec.SessionAffinity != sharenat.SessionAffinityIP {
		return "none", 0
	}
	if rule.Spec.SessionAffinityTimeoutSeconds == 0 {
		return "clientip", sharenat.DefaultAffinityTime
	}
	return "clientip", rule.Spec.SessionAffinityTimeoutSeconds
}

// natKind is a kind of rule that is programmed by an EIP and one more field.
type natKind struct {
	resource, nat, field string
	add, del             string
}

// natKinds are those that this project's own handler does not know.
var natKinds = []natKind{
	{"iptables-fip-rules", "fip", "internalIp", verbFIPAdd, verbFIPDel},
	{"iptables-snat-rules", "snat", "internalCIDR", verbSNATAdd, verbSNATDel},
}

func (k natKind) addCall(eip, value string) call {
	return call{k.add, fmt.Sprintf("%s,%s", eip, value)}
}

func (k natKind) delCall(eip, value string) call {
	return call{k.del, fmt.Sprintf("%s,%s", eip, value)}
}

// routeDelCall takes "cidr,nexthop" away by its prefix.
func routeDelCall(route string) call {
	cidr, _, _ := strings.Cut(route, ",")
	return call{verbRouteDel, cidr}
}
