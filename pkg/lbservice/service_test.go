// SPDX-License-Identifier: Apache-2.0

package lbservice

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

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

func TestUnreadableRangeIsNamed(t *testing.T) {
	for item, want := range map[string]string{
		"10.0.0.0/8": msgNoClientAllowed, "fd00::/8": msgNoClientAllowed, "010.0.0.0/8": `"010.0.0.0/8"`, "192.0.2.1": `"192.0.2.1"`,
	} {
		svc := newService("s", func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = []string{"fd00::/8", item} })
		if got := noClientText(svc); !strings.Contains(got, want) {
			t.Errorf("%s: %s", item, got)
		}
	}
}
