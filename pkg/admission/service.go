// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// service warns of what a Service asks for and will not get. It never refuses: Services are everybody's, and what they get
// changes with what else there is.
func (d *decision) service(old, svc *corev1.Service) {
	if d.op == Delete || !sharenat.Qualifies(svc) || old != nil && sameWish(old, svc) {
		return
	}
	for i := range svc.Spec.Ports {
		if port := &svc.Spec.Ports[i]; port.Protocol != corev1.ProtocolTCP && port.Protocol != corev1.ProtocolUDP && port.Protocol != "" {
			d.warn("port %d/%s is not served: only TCP and UDP are", port.Port, port.Protocol)
		}
	}
	name := sharenat.EIPName(svc)
	eip := find(d.EIPs, name)
	switch {
	case eip == nil && !isName(name):
		d.warn("annotation %s=%q is not the name of an IptablesEIP", sharenat.EIPAnnotation, name)
		return
	case eip == nil:
		d.warn("IptablesEIP %q, which annotation %s names, does not exist: the Service gets its EXTERNAL-IP once it does", name, sharenat.EIPAnnotation)
		return
	case !sharenat.Granted(eip, svc.Namespace, d.RequireEIPGrant):
		d.warn("namespace %s may not use IptablesEIP %s: its annotation %s does not list it", svc.Namespace, name, sharenat.GrantAnnotation)
		return
	}
	if _, ipv6Only := sharenat.EIPAddress(eip); ipv6Only {
		d.warn("IptablesEIP %s has only an IPv6 address: name one with an IPv4 address", name)
	}
	for _, claim := range sharenat.ClaimsOf(svc) {
		if holder := d.holder(eip, svc, claim); holder != "" {
			d.warn("port %s of IptablesEIP %s belongs to %s", claim, name, holder)
		}
	}
}

// sameWish tells that an update changes nothing that decides what the Service gets. Annotations are compared as a whole, since kubectl apply
// leaves its mark there: who applies is told again.
func sameWish(a, b *corev1.Service) bool {
	return reflect.DeepEqual(a.Spec, b.Spec) && reflect.DeepEqual(a.Annotations, b.Annotations)
}

// holder names who has a port that a Service claims, "" when it is the Service itself. The order is that of the Service controller: a FIP has the
// whole EIP, then come rules made by hand, then the Service that is first by namespace and name.
func (d *decision) holder(eip *kubeovnv1.IptablesEIP, svc *corev1.Service, claim sharenat.Claim) string {
	if fip := sharenat.FIPOf(d.FIPs, eip.Name); fip != "" {
		return "IptablesFIPRule " + fip
	}
	for _, rule := range byName(d.Rules) {
		if rule.Spec.EIP != eip.Name || !counts(rule) {
			continue
		}
		claimed, ok := sharenat.ClaimOfRule(rule)
		if _, managed, _ := sharenat.OwnerOf(rule.Labels); ok && claimed == claim && !managed && sharenat.Readable(rule) && !d.lostLabels(eip, rule, svc) {
			return "IptablesDnatRule " + rule.Name + " (made by hand)"
		}
	}
	for _, other := range byNamespace(d.Services) {
		if compareServices(other, svc) >= 0 {
			break
		}
		if d.claimant(other, eip) && claims(other, claim) {
			return "Service " + other.Namespace + "/" + other.Name
		}
	}
	return ""
}

// lostLabels tells a rule that a Service's name was made from, though it carries no labels any more; its controller puts them back.
func (d *decision) lostLabels(eip *kubeovnv1.IptablesEIP, rule *kubeovnv1.IptablesDnatRule, svc *corev1.Service) bool {
	if !strings.HasPrefix(rule.Name, "lb-") || rule.Spec.Type != sharenat.TypeShare {
		return false
	}
	claim, ok := sharenat.ClaimOfRule(rule)
	backend, err := sharenat.ParseBackendAddr(rule.Spec.InternalIP, rule.Spec.InternalPort)
	if !ok || err != nil {
		return false
	}
	for _, candidate := range append(slices.Clone(d.Services), svc) {
		if d.claimant(candidate, eip) && sharenat.RuleName(sharenat.OwnerOfService(candidate), claim.Protocol, claim.Port, backend) == rule.Name {
			return true
		}
	}
	return false
}

// claimant tells whether a Service names an EIP, and may.
func (d *decision) claimant(svc *corev1.Service, eip *kubeovnv1.IptablesEIP) bool {
	return sharenat.EIPName(svc) == eip.Name && sharenat.Granted(eip, svc.Namespace, d.RequireEIPGrant)
}

func claims(svc *corev1.Service, claim sharenat.Claim) bool {
	return slices.Contains(sharenat.ClaimsOf(svc), claim)
}

// byNamespace gives Services in the order in which they own what several of them claim, without changing the list.
func byNamespace(services []*corev1.Service) []*corev1.Service {
	return slices.SortedFunc(slices.Values(services), compareServices)
}

func compareServices(a, b *corev1.Service) int {
	return sharenat.OwnerOfService(a).Compare(sharenat.OwnerOfService(b))
}
