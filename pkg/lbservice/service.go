// SPDX-License-Identifier: Apache-2.0

package lbservice

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

func protocolOf(p corev1.Protocol) corev1.Protocol {
	if p == "" {
		return corev1.ProtocolTCP
	}
	return p
}

func affinityOf(svc *corev1.Service) (affinity string, timeout int32) {
	if svc.Spec.SessionAffinity != corev1.ServiceAffinityClientIP {
		return sharenat.SessionAffinityNone, 0
	}
	timeout = sharenat.DefaultAffinityTime
	if c := svc.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil && *c.ClientIP.TimeoutSeconds > 0 {
		timeout = min(*c.ClientIP.TimeoutSeconds, sharenat.MaxAffinityTimeout)
	}
	return sharenat.SessionAffinityIP, timeout
}

// sourceRanges are the IPv4 prefixes that clients must come from. restricted with none of them means that no client is allowed:
// the Service names only IPv6 ranges, or one that cannot be read, and letting everybody in would be the wrong way to fail.
func sourceRanges(svc *corev1.Service) (ranges []netip.Prefix, restricted bool) {
	items := rangesOf(svc)
	for _, item := range items {
		prefix, err := netip.ParsePrefix(strings.TrimSpace(item))
		if err != nil {
			return nil, true
		}
		if prefix.Addr().Is4() {
			ranges = append(ranges, prefix)
		}
	}
	ranges = sharenat.NormalizeSources(ranges)
	if slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Bits() == 0 }) {
		return nil, false
	}
	return ranges, len(items) > 0
}

// rangesOf are the source ranges as they are written: the field's, or else the annotation's.
func rangesOf(svc *corev1.Service) []string {
	if len(svc.Spec.LoadBalancerSourceRanges) > 0 {
		return svc.Spec.LoadBalancerSourceRanges
	}
	if value := strings.TrimSpace(svc.Annotations[corev1.AnnotationLoadBalancerSourceRangesKey]); value != "" {
		return strings.Split(value, ",")
	}
	return nil
}

// unreadableRange is the first source range that cannot be read, "" where all can.
func unreadableRange(svc *corev1.Service) string {
	for _, item := range rangesOf(svc) {
		if _, err := netip.ParsePrefix(strings.TrimSpace(item)); err != nil {
			return item
		}
	}
	return ""
}

// sourceIPOverride is what the Service says its backends see as the client's address; valid is false for a value that is not known, which
// then counts as auto.
func sourceIPOverride(svc *corev1.Service) (value string, valid bool) {
	switch value = strings.TrimSpace(svc.Annotations[sharenat.SourceIPAnnotation]); value {
	case sharenat.SourceIPPreserve, sharenat.SourceIPMasquerade, sharenat.SourceIPAuto:
		return value, true
	case "":
		return sharenat.SourceIPAuto, true
	}
	return sharenat.SourceIPAuto, false
}
