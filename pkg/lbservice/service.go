// SPDX-License-Identifier: Apache-2.0

package lbservice

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// LoadBalancerClass is the class of the Services served here. A Service without a class is served too, one with another is not.
const LoadBalancerClass = "ovn.kubernetes.io/nftable-lb-svc"

// EIPName is the name of the IptablesEIP that a Service asks for, or "".
func EIPName(svc *corev1.Service) string {
	return strings.TrimSpace(svc.Annotations[sharenat.EIPAnnotation])
}

// Qualifies tells whether a Service is served here: a LoadBalancer that names an EIP, whose class is ours or none. One
// that is being deleted owns nothing any more, whatever finalizers it has.
func Qualifies(svc *corev1.Service) bool {
	return svc != nil &&
		svc.DeletionTimestamp == nil &&
		svc.Spec.Type == corev1.ServiceTypeLoadBalancer &&
		EIPName(svc) != "" &&
		(svc.Spec.LoadBalancerClass == nil || *svc.Spec.LoadBalancerClass == LoadBalancerClass)
}

// Granted tells whether Services of a namespace may use an EIP. Without an annotation on the EIP everybody may, or nobody where
// a grant is required.
func Granted(eip *kubeovnv1.IptablesEIP, namespace string, required bool) bool {
	value, ok := eip.Annotations[sharenat.GrantAnnotation]
	if !ok {
		return !required
	}
	for item := range strings.SplitSeq(value, ",") {
		if item = strings.TrimSpace(item); item == "*" || item == namespace {
			return true
		}
	}
	return false
}

// Claim is a port of an EIP that a Service or a rule claims.
type Claim struct {
	Port     uint16
	Protocol sharenat.Protocol
}

// String gives "80/TCP", as kubectl does.
func (c Claim) String() string {
	return fmt.Sprintf("%d/%s", c.Port, strings.ToUpper(string(c.Protocol)))
}

// claimOf a Service's port; ok is false where the protocol cannot be balanced.
func claimOf(port *corev1.ServicePort) (claim Claim, ok bool) {
	protocol, err := sharenat.ParseProtocol(string(protocolOf(port.Protocol)))
	if err != nil || port.Port < 1 || port.Port > 65535 {
		return Claim{}, false
	}
	return Claim{Port: uint16(port.Port), Protocol: protocol}, true
}

func protocolOf(p corev1.Protocol) corev1.Protocol {
	if p == "" {
		return corev1.ProtocolTCP
	}
	return p
}

// ClaimsOf lists what a Service claims of its EIP; nothing when it does not qualify.
func ClaimsOf(svc *corev1.Service) []Claim {
	if !Qualifies(svc) {
		return nil
	}
	var out []Claim
	for i := range svc.Spec.Ports {
		if claim, ok := claimOf(&svc.Spec.Ports[i]); ok {
			out = append(out, claim)
		}
	}
	return out
}

func ownerOfService(svc *corev1.Service) sharenat.Owner {
	return sharenat.Owner{Namespace: svc.Namespace, Name: svc.Name}
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
	items := svc.Spec.LoadBalancerSourceRanges
	if len(items) == 0 {
		if value := strings.TrimSpace(svc.Annotations[corev1.AnnotationLoadBalancerSourceRangesKey]); value != "" {
			items = strings.Split(value, ",")
		}
	}
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

// eipAddress is the IPv4 address of an EIP. ipv6Only tells the one that will never have it from one that has it not yet.
func eipAddress(eip *kubeovnv1.IptablesEIP) (addr netip.Addr, ipv6Only bool) {
	for item := range strings.SplitSeq(eip.Status.IP, ",") {
		a, err := netip.ParseAddr(strings.TrimSpace(item))
		if err == nil && a.Is4() {
			return a, false
		}
		ipv6Only = ipv6Only || err == nil
	}
	ipv6Only = ipv6Only || eip.Status.IP == "" && eip.Status.Ready && eip.Spec.V6ip != "" && eip.Spec.V4ip == ""
	return netip.Addr{}, ipv6Only
}
