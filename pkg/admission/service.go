// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"reflect"
	"slices"

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
	owned := d.ownership(eip, svc)
	for _, claim := range sharenat.ClaimsOf(svc) {
		if holder, ok := owned.HeldByOther(claim, sharenat.OwnerOfService(svc)); ok {
			d.warn("port %s of IptablesEIP %s belongs to %s", claim, name, holder)
		}
	}
}

// sameWish tells that an update changes nothing that decides what the Service gets. Annotations are compared as a whole, since kubectl apply
// leaves its mark there: who applies is told again.
func sameWish(a, b *corev1.Service) bool {
	return reflect.DeepEqual(a.Spec, b.Spec) && reflect.DeepEqual(a.Annotations, b.Annotations)
}

// ownership of an EIP's ports, as the Service controller decides it, with a Service as it is to be.
func (d *decision) ownership(eip *kubeovnv1.IptablesEIP, svc *corev1.Service) *sharenat.Ownership {
	services := slices.DeleteFunc(slices.Clone(d.Services), func(s *corev1.Service) bool { return compareServices(s, svc) == 0 })
	return sharenat.NewOwnership(&sharenat.Claims{
		EIP: eip, RequireGrant: d.RequireEIPGrant, FIPs: d.FIPs, Rules: d.Rules, Services: append(services, svc),
	})
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
