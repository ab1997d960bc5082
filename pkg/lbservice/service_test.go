// SPDX-License-Identifier: Apache-2.0

package lbservice

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

func TestQualifies(t *testing.T) {
	for _, tc := range []struct {
		name string
		svc  *corev1.Service
		want bool
	}{
		{"LoadBalancer with an EIP", newService("s"), true},
		{"our class", newService("s", func(s *corev1.Service) { s.Spec.LoadBalancerClass = ptr.To(LoadBalancerClass) }), true},
		{"another class", newService("s", func(s *corev1.Service) { s.Spec.LoadBalancerClass = ptr.To("example.com/lb") }), false},
		{"no annotation", newService("s", func(s *corev1.Service) { s.Annotations = nil }), false},
		{"empty annotation", newService("s", withEIP(" ")), false},
		{"ClusterIP", newService("s", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP }), false},
		{"NodePort", newService("s", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeNodePort }), false},
		{"being deleted", deleting(newService("s")), false},
		{"gone", nil, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := Qualifies(tc.svc); got != tc.want {
				t.Errorf("want %v, got %v", tc.want, got)
			}
		})
	}
}

func TestGranted(t *testing.T) {
	for _, tc := range []struct {
		name     string
		eip      *kubeovnv1.IptablesEIP
		required bool
		want     bool
	}{
		{"no annotation", newEIP(eipA, eipAddrA, gwA), false, true},
		{"no annotation, required", newEIP(eipA, eipAddrA, gwA), true, false},
		{"listed", newEIP(eipA, eipAddrA, gwA, withGrant("other, ns ,more")), true, true},
		{"all", newEIP(eipA, eipAddrA, gwA, withGrant("*")), true, true},
		{"not listed", newEIP(eipA, eipAddrA, gwA, withGrant("other")), false, false},
		{"part of a listed one", newEIP(eipA, eipAddrA, gwA, withGrant("ns2,xns")), false, false},
		{"empty lists nobody", newEIP(eipA, eipAddrA, gwA, withGrant("")), false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := Granted(tc.eip, testNamespace, tc.required); got != tc.want {
				t.Errorf("want %v, got %v", tc.want, got)
			}
		})
	}
}

func TestSourceRanges(t *testing.T) {
	for _, tc := range []struct {
		name           string
		ranges         []string
		annotation     string
		want           string
		wantRestricted bool
	}{
		{"none", nil, "", "", false},
		{"in order, masked, once", []string{"192.0.2.7/24", "10.0.0.0/8", "192.0.2.0/24"}, "", "10.0.0.0/8,192.0.2.0/24", true},
		{"IPv4 of both families", []string{"fd00::/8", "10.0.0.0/8"}, "", "10.0.0.0/8", true},
		{"IPv6 alone lets no IPv4 in", []string{"fd00::/8"}, "", "", true},
		{"unreadable lets nobody in", []string{"10.0.0.0/8", "x"}, "", "", true},
		{"everybody", []string{"10.0.0.0/8", "0.0.0.0/0"}, "", "", false},
		{"by annotation", nil, "10.0.0.0/8, 192.0.2.0/24", "10.0.0.0/8,192.0.2.0/24", true},
		{"the field beats the annotation", []string{"10.0.0.0/8"}, "192.0.2.0/24", "10.0.0.0/8", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			svc := newService("s", func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = tc.ranges })
			if tc.annotation != "" {
				svc.Annotations[corev1.AnnotationLoadBalancerSourceRangesKey] = tc.annotation
			}
			got, restricted := sourceRanges(svc)
			if diff := cmp.Diff(tc.want, sharenat.FormatSources(got)); diff != "" || restricted != tc.wantRestricted {
				t.Errorf("restricted %v (-want +got):\n%s", restricted, diff)
			}
		})
	}
}

func TestEIPAddress(t *testing.T) {
	for _, tc := range []struct {
		name, ip, v6ip string
		ready          bool
		want           string
		wantIPv6Only   bool
	}{
		{"IPv4", eipAddrA, "", true, eipAddrA, false},
		{"both", "fd00::1," + eipAddrA, "", true, eipAddrA, false},
		{"none yet", "", "", false, "", false},
		{"none yet, IPv6 asked for", "", "fd00::1", false, "", false},
		{"IPv6 in status", "fd00::1", "", true, "", true},
		{"ready with IPv6 in spec alone", "", "fd00::1", true, "", true},
		{"garbage", "x", "", true, "", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			addr, ipv6Only := eipAddress(&kubeovnv1.IptablesEIP{
				Spec:   kubeovnv1.IptablesEIPSpec{V6ip: tc.v6ip},
				Status: kubeovnv1.IptablesEIPStatus{IP: tc.ip, Ready: tc.ready},
			})
			got := ""
			if addr.IsValid() {
				got = addr.String()
			}
			if got != tc.want || ipv6Only != tc.wantIPv6Only {
				t.Errorf("want %q %v, got %q %v", tc.want, tc.wantIPv6Only, got, ipv6Only)
			}
		})
	}
}

func TestAffinity(t *testing.T) {
	for _, tc := range []struct {
		name        string
		affinity    corev1.ServiceAffinity
		timeout     *int32
		want        string
		wantTimeout int32
	}{
		{"unset", "", nil, "", 0},
		{"none", corev1.ServiceAffinityNone, ptr.To[int32](5), "", 0},
		{"ClientIP", corev1.ServiceAffinityClientIP, ptr.To[int32](3), "ClientIP", 3},
		{"ClientIP, default", corev1.ServiceAffinityClientIP, nil, "ClientIP", 10800},
	} {
		t.Run(tc.name, func(t *testing.T) {
			svc := newService("s", func(s *corev1.Service) {
				s.Spec.SessionAffinity = tc.affinity
				s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: tc.timeout}}
			})
			if got, timeout := affinityOf(svc); got != tc.want || timeout != tc.wantTimeout {
				t.Errorf("want %q %d, got %q %d", tc.want, tc.wantTimeout, got, timeout)
			}
		})
	}
}
