// SPDX-License-Identifier: Apache-2.0

package sharenat

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
)

// Rule is an IptablesDnatRule, decoded.
type Rule struct {
	Identity
	Backend  Backend
	Affinity Affinity
	Sources  []netip.Prefix
	// Share tells rules of type share from exclusive ones.
	Share bool
	// Owner of the rule; Managed is false for one that was made by hand, which has none.
	Owner   Owner
	Managed bool
}

// ParseRule decodes a rule whose EIP has this address. All that is wrong with it is in the one error.
func ParseRule(rule *kubeovnv1.IptablesDnatRule, eip netip.Addr) (Rule, error) {
	var (
		r    = Rule{Identity: Identity{EIP: eip}}
		errs = make([]error, 7)
		spec = &rule.Spec
	)
	if !eip.Is4() {
		errs[0] = fmt.Errorf("EIP %s: must have an IPv4 address", spec.EIP)
	}
	r.Port, errs[1] = ParsePort(spec.ExternalPort)
	r.Protocol, errs[2] = ParseProtocol(spec.Protocol)
	r.Backend.Addr, errs[3] = ParseBackendAddr(spec.InternalIP, spec.InternalPort)
	r.Owner, r.Managed, errs[4] = OwnerOf(rule.Labels)
	r.Share, errs[5] = parseType(spec.Type)
	r.Affinity, errs[6] = ParseAffinity(spec.SessionAffinity, spec.SessionAffinityTimeoutSeconds)
	masquerade, mErr := parseSourceIP(rule.Annotations[SourceIPAnnotation])
	sources, sErr := ParseSources(rule.Annotations[SourceRangesAnnotation])
	errs = append(errs, mErr, sErr)
	if r.Share {
		r.Backend.Masquerade, r.Sources = masquerade, sources
		return r, errors.Join(errs...)
	}
	// Nothing of this is programmed for an exclusive rule. Whoever asks for it is not to believe that it is.
	for _, asked := range []struct {
		what string
		is   bool
	}{
		{"session affinity", r.Affinity.ClientIP},
		{"annotation " + SourceIPAnnotation + "=" + SourceIPMasquerade, masquerade},
		{"annotation " + SourceRangesAnnotation, len(sources) > 0},
	} {
		if asked.is {
			errs = append(errs, errors.New(asked.what+": only with type share"))
		}
	}
	return r, errors.Join(errs...)
}

// anyAddress stands for that of an EIP whose address does not matter.
var anyAddress = netip.AddrFrom4([4]byte{192, 0, 2, 1})

// Readable tells a rule that can be programmed as soon as its EIP has an address.
func Readable(rule *kubeovnv1.IptablesDnatRule) bool {
	_, err := ParseRule(rule, anyAddress)
	return err == nil
}

func parseType(s string) (share bool, err error) {
	switch s {
	case TypeShare:
		return true, nil
	case TypeExclusive, "":
		return false, nil
	}
	return false, fmt.Errorf("type %q: must be %s or %s", s, TypeExclusive, TypeShare)
}

// ParseAffinity takes a rule's sessionAffinity and its timeout in seconds; ClientIP with timeout 0 means the default of three hours.
func ParseAffinity(affinity string, timeout int32) (Affinity, error) {
	switch affinity {
	case SessionAffinityNone:
		// A timeout without affinity has no meaning and, as in a Service, no effect.
		return Affinity{}, nil
	case SessionAffinityIP:
		a := Affinity{ClientIP: true, TimeoutSeconds: timeout}
		if timeout == 0 {
			a.TimeoutSeconds = DefaultAffinityTime
		}
		return a, a.validate()
	}
	return Affinity{}, fmt.Errorf("session affinity %q: must be empty or %s", affinity, SessionAffinityIP)
}

func parseSourceIP(s string) (masquerade bool, err error) {
	switch s {
	case "", SourceIPPreserve:
		return false, nil
	case SourceIPMasquerade:
		return true, nil
	}
	return false, fmt.Errorf("annotation %s=%q: must be %s or %s", SourceIPAnnotation, s, SourceIPPreserve, SourceIPMasquerade)
}

// ParseSources takes comma-separated IPv4 prefixes; spaces around them are ignored, and so is an empty string.
func ParseSources(s string) ([]netip.Prefix, error) {
	if strings.TrimSpace(s) == "" {
		return nil, nil
	}
	var out []netip.Prefix
	for item := range strings.SplitSeq(s, ",") {
		p, err := netip.ParsePrefix(strings.TrimSpace(item))
		if err != nil || !p.Addr().Is4() {
			return nil, fmt.Errorf("source range %q: must be an IPv4 prefix", item)
		}
		out = append(out, p)
	}
	return NormalizeSources(out), nil
}

// FormatSources is the reverse of ParseSources.
func FormatSources(sources []netip.Prefix) string {
	items := make([]string, len(sources))
	for i, p := range sources {
		items[i] = p.String()
	}
	return strings.Join(items, ",")
}
