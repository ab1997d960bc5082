// SPDX-License-Identifier: Apache-2.0

package handler

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
)

const eipAddress = "203.0.113.10"

// dnat makes a rule of port 80 of EIP "web" for a backend, as programmed.
func dnat(name, kind, backend string, tweaks ...func(*kubeovnv1.IptablesDnatRule)) *kubeovnv1.IptablesDnatRule {
	rule := &kubeovnv1.IptablesDnatRule{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       kubeovnv1.IptablesDnatRuleSpec{EIP: "web", ExternalPort: "80", Protocol: "tcp", InternalIP: backend, InternalPort: "8080", Type: kind},
		Status: kubeovnv1.IptablesDnatRuleStatus{
			Ready: true, V4ip: eipAddress, NatGwDp: "gw", ExternalPort: "80", Protocol: "tcp", InternalIP: backend, InternalPort: "8080",
		},
	}
	for _, tweak := range tweaks {
		tweak(rule)
	}
	return rule
}

func deleting(rule *kubeovnv1.IptablesDnatRule) {
	rule.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
}

func pinned(seconds int32) func(*kubeovnv1.IptablesDnatRule) {
	return func(rule *kubeovnv1.IptablesDnatRule) {
		rule.Spec.SessionAffinity, rule.Spec.SessionAffinityTimeoutSeconds = "ClientIP", seconds
	}
}

// TestCalls holds the calls against the contract, to the letter: verbs, the number of fields, and what is in them.
func TestCalls(t *testing.T) {
	a, b, c := dnat("a", "share", "10.1.0.5"), dnat("b", "share", "10.1.0.6"), dnat("c", "share", "10.1.0.4", deleting)
	other := dnat("d", "share", "10.1.0.7", func(r *kubeovnv1.IptablesDnatRule) { r.Spec.ExternalPort = "81" })
	sticky, stickier := dnat("a", "share", "10.1.0.5", pinned(600)), dnat("b", "share", "10.1.0.6", pinned(0))
	all := []*kubeovnv1.IptablesDnatRule{a, b, c, other}
	alone := dnat("x", "exclusive", "10.1.0.9")
	untyped := dnat("x", "", "10.1.0.9")
	for _, test := range []struct {
		name string
		got  call
		want string
	}{
		{"a share, by v1.17: four fields, all backends", V117.addCall(a, wanted(a, eipAddress), all), "nft-dnat-map-add 203.0.113.10,80,tcp,10.1.0.5:8080@10.1.0.6:8080"},
		{"v1.17 passes over affinity", V117.addCall(sticky, wanted(sticky, eipAddress), nil), "nft-dnat-map-add 203.0.113.10,80,tcp,10.1.0.5:8080"},
		{"a share, by a newer one: six", Newer.addCall(a, wanted(a, eipAddress), all), "nft-dnat-map-add 203.0.113.10,80,tcp,none,0,10.1.0.5:8080@10.1.0.6:8080"},
		{"with affinity", Newer.addCall(sticky, wanted(sticky, eipAddress), nil), "nft-dnat-map-add 203.0.113.10,80,tcp,clientip,600,10.1.0.5:8080"},
		{"with affinity, no time said", Newer.addCall(stickier, wanted(stickier, eipAddress), nil), "nft-dnat-map-add 203.0.113.10,80,tcp,clientip,10800,10.1.0.6:8080"},
		{"one of several goes: the rest is added", V117.delCall(c, all), "nft-dnat-map-add 203.0.113.10,80,tcp,10.1.0.5:8080@10.1.0.6:8080"},
		{"the same, by a newer one", Newer.delCall(c, all), "nft-dnat-map-add 203.0.113.10,80,tcp,none,0,10.1.0.5:8080@10.1.0.6:8080"},
		{"the last one goes", Newer.delCall(c, []*kubeovnv1.IptablesDnatRule{c, other}), "nft-dnat-map-del 203.0.113.10,80,tcp"},
		{"exclusive: five fields", Newer.addCall(alone, wanted(alone, eipAddress), all), "dnat-add 203.0.113.10,80,tcp,10.1.0.9,8080"},
		{"exclusive goes: three", V117.delCall(alone, all), "dnat-del 203.0.113.10,80,tcp"},
		{"no type is exclusive", V117.delCall(untyped, all), "dnat-del 203.0.113.10,80,tcp"},
		{"a FIP", natKinds[0].addCall(eipAddress, "10.1.0.9"), "floating-ip-add 203.0.113.10,10.1.0.9"},
		{"a FIP goes", natKinds[0].delCall(eipAddress, "10.1.0.9"), "floating-ip-del 203.0.113.10,10.1.0.9"},
		{"SNAT", natKinds[1].addCall(eipAddress, "10.1.0.0/24"), "snat-add 203.0.113.10,10.1.0.0/24"},
		{"SNAT goes", natKinds[1].delCall(eipAddress, "10.1.0.0/24"), "snat-del 203.0.113.10,10.1.0.0/24"},
		{"a route goes", routeDelCall("10.2.0.0/24,10.1.0.1"), "subnet-route-del 10.2.0.0/24"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, test.got.String()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestDue has a rule programmed for what the contract names, and for nothing else.
func TestDue(t *testing.T) {
	spec := func(change func(*kubeovnv1.IptablesDnatRuleSpec)) func(*kubeovnv1.IptablesDnatRule) {
		return func(rule *kubeovnv1.IptablesDnatRule) { change(&rule.Spec) }
	}
	for name, test := range map[string]struct {
		change func(*kubeovnv1.IptablesDnatRule)
		want   bool
	}{
		"nothing":       {func(*kubeovnv1.IptablesDnatRule) {}, false},
		"not ready":     {func(r *kubeovnv1.IptablesDnatRule) { r.Status.Ready = false }, true},
		"external port": {spec(func(s *kubeovnv1.IptablesDnatRuleSpec) { s.ExternalPort = "81" }), true},
		"backend":       {spec(func(s *kubeovnv1.IptablesDnatRuleSpec) { s.InternalIP = "10.1.0.6" }), true},
		"backend port":  {spec(func(s *kubeovnv1.IptablesDnatRuleSpec) { s.InternalPort = "81" }), true},
		"protocol":      {spec(func(s *kubeovnv1.IptablesDnatRuleSpec) { s.Protocol = "udp" }), true},
		"address":       {func(r *kubeovnv1.IptablesDnatRule) { r.Status.V4ip = "203.0.113.11" }, true},
		"affinity":      {pinned(600), false},
		"source ranges": {func(r *kubeovnv1.IptablesDnatRule) {
			r.Annotations = map[string]string{"ovn.kubernetes.io/nftable-lb-svc-source-ranges": "192.0.2.0/24"}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := due(dnat("a", "share", "10.1.0.5", test.change), eipAddress); got != test.want {
				t.Errorf("due: %v", got)
			}
		})
	}
}
