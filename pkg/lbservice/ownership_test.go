// SPDX-License-Identifier: Apache-2.0

package lbservice

import (
	"crypto/sha256"
	"encoding/hex"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// ruleHash is the tail of a rule's name as the contract has it.
func ruleHash(t *testing.T, input string) string {
	t.Helper()
	sum := sha256.Sum256([]byte(input))
	return hex.EncodeToString(sum[:])[:12]
}

func TestOwnership(t *testing.T) {
	const (
		service = "Service ns/web"
	)
	before := newService("ns/a")
	for _, tc := range []struct {
		name  string
		tweak func(*Snapshot)
		// wantHolder of port 80; service: it is ours.
		wantHolder string
		wantHeld   bool
	}{
		{"alone", func(*Snapshot) {}, service, false},
		{"a later Service", func(s *Snapshot) { s.Claimants = append(s.Claimants, newService("ns/x")) }, service, false},
		{"an earlier Service", func(s *Snapshot) { s.Claimants = append(s.Claimants, before) }, "Service ns/a", false},
		{"an earlier namespace", func(s *Snapshot) { s.Claimants = append(s.Claimants, newService("a/z")) }, "Service a/z", false},
		{"the strings namespace/name are compared, not their parts", func(s *Snapshot) { s.Claimants = append(s.Claimants, newService("ns-1/a")) }, "Service ns-1/a", false},
		{"an earlier Service on another port", func(s *Snapshot) { s.Claimants = append(s.Claimants, newService("ns/a", withPorts(tcpPort("", 81)))) }, service, false},
		{
			"an earlier Service on another protocol", func(s *Snapshot) {
				s.Claimants = append(s.Claimants, newService("ns/a", withPorts(corev1.ServicePort{Port: 80, Protocol: corev1.ProtocolUDP})))
			}, service, false,
		},
		{"an earlier Service that is being deleted", func(s *Snapshot) { s.Claimants = append(s.Claimants, deleting(newService("ns/a"))) }, service, false},
		{
			"an earlier Service of another class", func(s *Snapshot) {
				s.Claimants = append(s.Claimants, newService("ns/a", func(svc *corev1.Service) { svc.Spec.LoadBalancerClass = ptr.To("example.com/lb") }))
			}, service, false,
		},
		{"an earlier Service without a grant", func(s *Snapshot) {
			s.EIP, s.Claimants = newEIP(eipA, eipAddrA, gwA, withGrant("ns")), append(s.Claimants, newService("a/z"))
		}, service, false},
		{"an earlier Service of another EIP", func(s *Snapshot) { s.Claimants = append(s.Claimants, newService("ns/a", withEIP(eipB))) }, service, false},
		{"an earlier Service, and the EIP serves us while it is deleted", func(s *Snapshot) {
			withConditions(published(eipAddrA))(s.Service)
			s.EIP, s.Claimants = deleting(newEIP(eipA, eipAddrA, gwA)), append(s.Claimants, before)
		}, service, false},
		{"an earlier Service, and the EIP serves us while it is not ready", func(s *Snapshot) {
			withConditions(published(eipAddrA))(s.Service)
			s.EIP = newEIP(eipA, eipAddrA, gwA, func(e *kubeovnv1.IptablesEIP) { e.Status.Ready = false })
			s.Claimants = append(s.Claimants, before)
		}, service, false},
		{"an earlier Service that is served too", func(s *Snapshot) {
			first := newService("ns/a")
			withConditions(published(eipAddrA))(s.Service)
			withConditions(published(eipAddrA))(first)
			s.EIP, s.Claimants = deleting(newEIP(eipA, eipAddrA, gwA)), append(s.Claimants, first)
		}, "Service ns/a", false},
		{"a share rule made by hand", func(s *Snapshot) { s.EIPRules = append(s.EIPRules, newManualRule("m", eipA, "80", "TCP", "share")) }, "IptablesDnatRule m (made by hand)", false},
		{"an exclusive rule made by hand", func(s *Snapshot) { s.EIPRules = append(s.EIPRules, newManualRule("m", eipA, "80", "tcp", "")) }, "IptablesDnatRule m (made by hand)", false},
		{"a rule made by hand beats earlier Services too", func(s *Snapshot) {
			s.Claimants = append(s.Claimants, before)
			s.EIPRules = append(s.EIPRules, newManualRule("m", eipA, "80", "tcp", "share"))
		}, "IptablesDnatRule m (made by hand)", false},
		{"of two, the first by name", func(s *Snapshot) {
			s.EIPRules = append(s.EIPRules, newManualRule("n", eipA, "80", "tcp", "share"), newManualRule("m", eipA, "80", "tcp", "share"))
		}, "IptablesDnatRule m (made by hand)", false},
		{"made by hand for another port", func(s *Snapshot) { s.EIPRules = append(s.EIPRules, newManualRule("m", eipA, "81", "tcp", "share")) }, service, false},
		{"made by hand for UDP", func(s *Snapshot) { s.EIPRules = append(s.EIPRules, newManualRule("m", eipA, "80", "udp", "share")) }, service, false},
		{"made by hand, unreadable", func(s *Snapshot) { s.EIPRules = append(s.EIPRules, newManualRule("m", eipA, "080", "tcp", "share")) }, service, false},
		{"made by hand, being deleted", func(s *Snapshot) {
			s.EIPRules = append(s.EIPRules, deleting(newManualRule("m", eipA, "80", "tcp", "share")))
		}, service, false},
		{"what the handler cannot program takes nothing: half of the owner labels", func(s *Snapshot) {
			rule := newManualRule("m", eipA, "80", "tcp", "share")
			rule.Labels = map[string]string{sharenat.OwnerNameLabel: testService}
			s.EIPRules = append(s.EIPRules, rule)
		}, service, false},
		{"nor a backend that is none, beside one that is", func(s *Snapshot) {
			broken, sound := newManualRule("m", eipA, "80", "tcp", "share"), newManualRule("n", eipA, "80", "tcp", "share")
			broken.Spec.InternalIP = "10.1.0"
			s.EIPRules = append(s.EIPRules, broken, sound)
		}, "IptablesDnatRule n (made by hand)", false},
		{"nor an exclusive rule with source ranges", func(s *Snapshot) {
			rule := newManualRule("m", eipA, "80", "tcp", "exclusive")
			rule.Annotations = map[string]string{sharenat.SourceRangesAnnotation: "10.0.0.0/8"}
			s.EIPRules = append(s.EIPRules, rule)
		}, service, false},
		{"our own rules", func(s *Snapshot) { s.EIPRules = append(s.EIPRules, newRule(testOwner, eipA, 80, "10.1.0.4:8080")) }, service, false},
		{"our own rule that lost its labels", func(s *Snapshot) {
			s.EIPRules = append(s.EIPRules, newRule(testOwner, eipA, 80, "10.1.0.4:8080", func(r *kubeovnv1.IptablesDnatRule) { r.Labels = nil }))
		}, service, false},
		{"live rules of another Service are waited for", func(s *Snapshot) {
			s.EIPRules = append(s.EIPRules, newRule(sharenat.Owner{Namespace: "ns", Name: "gone"}, eipA, 80, "10.1.0.4:8080"))
		}, service, true},
		{"live rules of another Service on another port are not", func(s *Snapshot) {
			s.EIPRules = append(s.EIPRules, newRule(sharenat.Owner{Namespace: "ns", Name: "gone"}, eipA, 81, "10.1.0.4:8080"))
		}, service, false},
		{"nor are those being deleted", func(s *Snapshot) {
			s.EIPRules = append(s.EIPRules, deleting(newRule(sharenat.Owner{Namespace: "ns", Name: "gone"}, eipA, 80, "10.1.0.4:8080")))
		}, service, false},
		{"a FIP beats all", func(s *Snapshot) {
			s.FIPs = append(s.FIPs, newFIP("f2", eipA), newFIP("f1", eipA))
			s.EIPRules = append(s.EIPRules, newManualRule("m", eipA, "80", "tcp", "share"))
		}, "IptablesFIPRule f1", false},
		{"a FIP being deleted does not", func(s *Snapshot) { s.FIPs = append(s.FIPs, deleting(newFIP("f1", eipA))) }, service, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSnapshot(newService(testService), withBackend)
			tc.tweak(s)
			out := Desired(s)
			got := service
			if out.Ports[0].Err == PortConflict {
				got = out.Ports[0].Holder.String()
			}
			if diff := cmp.Diff(tc.wantHolder, got); diff != "" {
				t.Fatalf("holder (-want +got):\n%s", diff)
			}
			if ours := tc.wantHolder == service; ours != (len(out.Rules) == 1) {
				t.Fatalf("rules: got %d", len(out.Rules))
			}
			if len(out.Rules) == 1 && out.Rules[0].Held != tc.wantHeld {
				t.Errorf("held: want %v, got %v", tc.wantHeld, out.Rules[0].Held)
			}
		})
	}
}

// Ports are owned one by one.
func TestOwnershipOfSomePorts(t *testing.T) {
	s := newSnapshot(newService(testService, withPorts(tcpPort("a", 80), tcpPort("b", 81), corev1.ServicePort{Name: "c", Port: 82, Protocol: corev1.ProtocolSCTP})))
	s.Claimants = append(s.Claimants, newService("ns/a", withPorts(tcpPort("", 81))))
	var got []PortError
	for _, port := range Desired(s).Ports {
		got = append(got, port.Err)
	}
	if diff := cmp.Diff([]PortError{"", PortConflict, PortProtocolUnsupported}, got); diff != "" {
		t.Errorf("ports (-want +got):\n%s", diff)
	}
}
