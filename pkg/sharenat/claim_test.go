// SPDX-License-Identifier: Apache-2.0

package sharenat

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
)

func TestClaimsOf(t *testing.T) {
	service := func(tweaks ...func(*corev1.Service)) *corev1.Service {
		svc := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", Annotations: map[string]string{EIPAnnotation: " eip-a "}},
			Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{
				{Port: 80}, {Port: 53, Protocol: corev1.ProtocolUDP}, {Port: 99, Protocol: corev1.ProtocolSCTP}, {Port: 65536},
			}},
		}
		for _, tweak := range tweaks {
			tweak(svc)
		}
		return svc
	}
	class := func(name string) func(*corev1.Service) {
		return func(svc *corev1.Service) { svc.Spec.LoadBalancerClass = &name }
	}
	claims := []Claim{{80, TCP}, {53, UDP}}
	for _, tc := range []struct {
		name string
		svc  *corev1.Service
		want []Claim
	}{
		{"served, but for what cannot be balanced", service(), claims},
		{"our class", service(class(LoadBalancerClass)), claims},
		{"another class", service(class("example.com/lb")), nil},
		{"another type", service(func(svc *corev1.Service) { svc.Spec.Type = corev1.ServiceTypeNodePort }), nil},
		{"no annotation", service(func(svc *corev1.Service) { svc.Annotations = nil }), nil},
		{"ClusterIP", service(func(svc *corev1.Service) { svc.Spec.Type = corev1.ServiceTypeClusterIP }), nil},
		{"no EIP", service(func(svc *corev1.Service) { svc.Annotations[EIPAnnotation] = " " }), nil},
		{"being deleted", service(func(svc *corev1.Service) { svc.DeletionTimestamp = &metav1.Time{} }), nil},
		{"none", nil, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, ClaimsOf(tc.svc)); diff != "" {
				t.Errorf("claims (-want +got):\n%s", diff)
			}
		})
	}
	if got := EIPName(service()); got != "eip-a" {
		t.Errorf("EIP name %q", got)
	}
	if got := claims[0].String(); got != "80/TCP" {
		t.Errorf("claim reads %q", got)
	}
}

func TestClaimOfRule(t *testing.T) {
	for _, tc := range []struct {
		port, protocol string
		want           Claim
	}{
		{"80", "TCP", Claim{80, TCP}},
		{"53", "udp", Claim{53, UDP}},
		{"080", "tcp", Claim{}},
		{"80", "sctp", Claim{}},
		{"", "", Claim{}},
	} {
		rule := &kubeovnv1.IptablesDnatRule{Spec: kubeovnv1.IptablesDnatRuleSpec{ExternalPort: tc.port, Protocol: tc.protocol}}
		if got, ok := ClaimOfRule(rule); got != tc.want || ok != (tc.want != Claim{}) {
			t.Errorf("ClaimOfRule(%q, %q) = %v, %v", tc.port, tc.protocol, got, ok)
		}
	}
}

func TestFIPOf(t *testing.T) {
	fip := func(name, eip string) *kubeovnv1.IptablesFIPRule {
		return &kubeovnv1.IptablesFIPRule{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.IptablesFIPRuleSpec{EIP: eip}}
	}
	leaving := fip("a", "eip-a")
	leaving.DeletionTimestamp = &metav1.Time{}
	fips := []*kubeovnv1.IptablesFIPRule{fip("d", "eip-a"), leaving, fip("b", "eip-b"), fip("c", "eip-a")}
	for eip, want := range map[string]string{"eip-a": "c", "eip-b": "b", "eip-c": ""} {
		if got := FIPOf(fips, eip); got != want {
			t.Errorf("FIP of %s: %q, want %q", eip, got, want)
		}
	}
}

func TestGranted(t *testing.T) {
	for _, tc := range []struct {
		name     string
		grant    *string
		required bool
		want     bool
	}{
		{"no annotation", nil, false, true},
		{"no annotation, but one is required", nil, true, false},
		{"everybody", new("*"), true, true},
		{"named among others", new("billing, shop"), false, true},
		{"not named", new("billing"), false, false},
		{"part of a named one", new("shop2,xshop"), false, false},
		{"nobody", new(""), false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			eip := &kubeovnv1.IptablesEIP{}
			if tc.grant != nil {
				eip.Annotations = map[string]string{GrantAnnotation: *tc.grant}
			}
			if got := Granted(eip, "shop", tc.required); got != tc.want {
				t.Errorf("got %v", got)
			}
		})
	}
}

func TestEIPAddress(t *testing.T) {
	for _, tc := range []struct {
		name     string
		eip      kubeovnv1.IptablesEIP
		want     string
		ipv6Only bool
	}{
		{"not yet", kubeovnv1.IptablesEIP{}, "invalid IP", false},
		{"IPv4", kubeovnv1.IptablesEIP{Status: kubeovnv1.IptablesEIPStatus{IP: "203.0.113.10"}}, "203.0.113.10", false},
		{"both", kubeovnv1.IptablesEIP{Status: kubeovnv1.IptablesEIPStatus{IP: "2001:db8::1,203.0.113.10"}}, "203.0.113.10", false},
		{"IPv6", kubeovnv1.IptablesEIP{Status: kubeovnv1.IptablesEIPStatus{IP: "2001:db8::1"}}, "invalid IP", true},
		{
			"ready with IPv6 alone",
			kubeovnv1.IptablesEIP{Spec: kubeovnv1.IptablesEIPSpec{V6ip: "2001:db8::1"}, Status: kubeovnv1.IptablesEIPStatus{Ready: true}},
			"invalid IP", true,
		},
		{"garbage", kubeovnv1.IptablesEIP{Status: kubeovnv1.IptablesEIPStatus{IP: "x", Ready: true}}, "invalid IP", false},
		{"IPv6 asked for", kubeovnv1.IptablesEIP{Spec: kubeovnv1.IptablesEIPSpec{V6ip: "2001:db8::1"}}, "invalid IP", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			addr, ipv6Only := EIPAddress(&tc.eip)
			if addr.String() != tc.want || ipv6Only != tc.ipv6Only {
				t.Errorf("got %s, %v; want %s, %v", addr, ipv6Only, tc.want, tc.ipv6Only)
			}
		})
	}
}
