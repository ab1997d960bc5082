// SPDX-License-Identifier: Apache-2.0

package sharenat

import (
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
)

// LoadBalancerClass is the class of the Services served here. A Service without a class is served too, one with another is not.
const LoadBalancerClass = "ovn.kubernetes.io/nftable-lb-svc"

// Claim is a port of an EIP that a Service or a rule claims.
type Claim struct {
	Port     uint16
	Protocol Protocol
}

// String gives "80/TCP", as kubectl does.
func (c Claim) String() string {
	return fmt.Sprintf("%d/%s", c.Port, strings.ToUpper(string(c.Protocol)))
}

// EIPName is the name of the IptablesEIP that a Service asks for, or "".
func EIPName(svc *corev1.Service) string {
	return strings.TrimSpace(svc.Annotations[EIPAnnotation])
}

// Qualifies tells whether a Service is served here: a LoadBalancer that names an EIP, whose class is ours or none. One
// that is being deleted claims nothing any more, whatever finalizers it has.
func Qualifies(svc *corev1.Service) bool {
	return svc != nil &&
		svc.DeletionTimestamp == nil &&
		svc.Spec.Type == corev1.ServiceTypeLoadBalancer &&
		EIPName(svc) != "" &&
		(svc.Spec.LoadBalancerClass == nil || *svc.Spec.LoadBalancerClass == LoadBalancerClass)
}

// OwnerOfService is the owner that the Service's rules name.
func OwnerOfService(svc *corev1.Service) Owner {
	return Owner{Namespace: svc.Namespace, Name: svc.Name}
}

// ClaimOfPort is what a Service's port claims; ok is false where the protocol cannot be balanced.
func ClaimOfPort(port *corev1.ServicePort) (claim Claim, ok bool) {
	protocol := port.Protocol
	if protocol == "" {
		protocol = corev1.ProtocolTCP
	}
	p, err := ParseProtocol(string(protocol))
	if err != nil || port.Port < 1 || port.Port > 65535 {
		return Claim{}, false
	}
	return Claim{Port: uint16(port.Port), Protocol: p}, true
}

// ClaimsOf lists what a Service claims of its EIP; nothing when it does not qualify.
func ClaimsOf(svc *corev1.Service) []Claim {
	if !Qualifies(svc) {
		return nil
	}
	var out []Claim
	for i := range svc.Spec.Ports {
		if claim, ok := ClaimOfPort(&svc.Spec.Ports[i]); ok {
			out = append(out, claim)
		}
	}
	return out
}

// ClaimOfRule is the port that a rule claims; ok is false for one that cannot be read, which claims nothing.
func ClaimOfRule(rule *kubeovnv1.IptablesDnatRule) (claim Claim, ok bool) {
	port, err := ParsePort(rule.Spec.ExternalPort)
	if err != nil {
		return Claim{}, false
	}
	protocol, err := ParseProtocol(rule.Spec.Protocol)
	if err != nil {
		return Claim{}, false
	}
	return Claim{Port: port, Protocol: protocol}, true
}

// FIPOf names the FIP rule that claims an EIP with all its ports: of those that name it, the first by name. One that is being deleted
// claims nothing any more. "" where there is none.
func FIPOf(fips []*kubeovnv1.IptablesFIPRule, eip string) string {
	first := ""
	for _, fip := range fips {
		if fip.Spec.EIP == eip && fip.DeletionTimestamp == nil && (first == "" || fip.Name < first) {
			first = fip.Name
		}
	}
	return first
}

// Granted tells whether Services of a namespace may use an EIP. Without an annotation on the EIP everybody may, or nobody where
// a grant is required.
func Granted(eip *kubeovnv1.IptablesEIP, namespace string, required bool) bool {
	value, ok := eip.Annotations[GrantAnnotation]
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

// EIPAddress is the IPv4 address of an EIP. ipv6Only tells the one that will never have it from one that has it not yet.
func EIPAddress(eip *kubeovnv1.IptablesEIP) (addr netip.Addr, ipv6Only bool) {
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
