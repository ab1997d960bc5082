// SPDX-License-Identifier: Apache-2.0

package lbservice

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// What Kube-OVN's own handlers do: v1.17's, and a newer one's.
var (
	stockV117  = Abilities{}
	stockNewer = Abilities{Affinity: true}
)

func clientIP(seconds int32) func(*corev1.Service) {
	return func(svc *corev1.Service) {
		svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		svc.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
	}
}

func pinned(rule *kubeovnv1.IptablesDnatRule) {
	rule.Spec.SessionAffinity, rule.Spec.SessionAffinityTimeoutSeconds = sharenat.SessionAffinityIP, 600
}

func TestParseAbilities(t *testing.T) {
	for text, want := range map[string]Abilities{
		"all": AllAbilities, "none": {}, "affinity": {Affinity: true}, " affinity, live-affinity ": {Affinity: true, LiveAffinity: true},
		"affinity,live-affinity,source-ranges,masquerade,every-pod": AllAbilities,
		"every-pod,masquerade": {Masquerade: true, EveryPod: true},
	} {
		got, err := ParseAbilities(text)
		if err != nil || got != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
		if again, err := ParseAbilities(got.String()); err != nil || again != got {
			t.Errorf("%q, written as %q, is read as %v, %v", text, got, again, err)
		}
	}
	for text, want := range map[string]string{
		"":                    `"" is none of all, none and affinity, live-affinity, source-ranges, masquerade, every-pod`,
		"affinity,all":        `"all" is none of`,
		"live-affinity":       "live-affinity goes with affinity",
		"affinity masquerade": `"affinity masquerade" is none of`,
	} {
		if got, err := ParseAbilities(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}

// What the gateways' handler does not do is not promised, and what would be open without it is closed.
func TestAbilities(t *testing.T) {
	var (
		single   = newPod("web-0", "sub-a", "10.1.0.4")
		dual     = newDualPod("web-2", "10.16.0.6", "10.1.0.6")
		ranges   = func(svc *corev1.Service) { svc.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/8"} }
		everyone = func(svc *corev1.Service) { svc.Spec.LoadBalancerSourceRanges = []string{"0.0.0.0/0"} }
		sourceIP = func(value string) func(*corev1.Service) { return withAnnotation(sharenat.SourceIPAnnotation, value) }
		backends = func(pods ...*corev1.Pod) func(*Snapshot) {
			slice := newSlice("web-x", testService, unnamed8080)
			var rules []*kubeovnv1.IptablesDnatRule
			for _, pod := range pods {
				slice.Endpoints = append(slice.Endpoints, endpointOf(pod))
			}
			for _, backend := range []string{"10.1.0.4:8080", "10.1.0.6:8080", "10.1.0.9:8080"} {
				rules = append(rules, newRule(testOwner, eipA, 80, backend, ready))
			}
			return all(withPods(pods...), withSlices(slice), withOwnRules(rules...))
		}
		byHand = func(s *Snapshot) {
			withSlices(newSlice("hand", testService, unnamed8080, discoveryv1.Endpoint{Addresses: []string{"10.1.0.9"}}))(s)
			withOwnRules(newRule(testOwner, eipA, 80, "10.1.0.9:8080", ready))(s)
		}
		replicas = func(s *Snapshot) { s.Gateway.Spec.Replicas = 3 }
		one      = []string{"80/tcp 10.1.0.4:8080"}
	)
	for _, tc := range []struct {
		name      string
		abilities Abilities
		svc       *corev1.Service
		tweak     func(*Snapshot)
		want      string
		message   string
		rules     []string
		published bool
		told      []string
	}{
		{
			"ranges that nobody enforces", stockNewer, newService(testService, ranges),
			all(backends(single), func(s *Snapshot) { s.OwnRules = nil }),
			ReasonSourceRangesNotEnforceable,
			"loadBalancerSourceRanges 10.0.0.0/8: the handler of VpcNatGateway gw-a keeps nobody out, so nobody is let in; " +
				"have the gateway run by a handler that does, or take the ranges off and use a NetworkPolicy",
			nil, false,
			[]string{EventNotServed},
		},
		{
			"ranges that nobody enforces, and rules of before", stockNewer, newService(testService, ranges), backends(single), ReasonSourceRangesNotEnforceable,
			"loadBalancerSourceRanges 10.0.0.0/8: the handler of VpcNatGateway gw-a keeps nobody out, so nobody is let in; " +
				"have the gateway run by a handler that does, or take the ranges off and use a NetworkPolicy; " +
				"rules of before are not out of the gateway yet, and let clients in",
			nil, false,
			[]string{EventNotServed},
		},
		{
			"ranges that nobody enforces, and no gateway either", stockV117, newService(testService, ranges),
			func(s *Snapshot) { s.Gateway = nil }, ReasonGatewayNotFound,
			`VpcNatGateway "gw-a", which IptablesEIP eip-a names, does not exist: create it, or name another EIP`,
			nil, false,
			[]string{EventNotServed},
		},
		{
			"ranges that are enforced",
			Abilities{SourceRanges: true},
			newService(testService, ranges), backends(single), ReasonProgrammed,
			"served at 203.0.113.10 by VpcNatGateway gw-a; the gateway lets in clients of 10.0.0.0/8 only", one, true,
			[]string{EventNote, EventServed},
		},
		{
			"ranges that let everybody in need nobody", stockV117, newService(testService, everyone), backends(single), ReasonProgrammed,
			"served at 203.0.113.10 by VpcNatGateway gw-a", one, true,
			[]string{EventServed},
		},
		{
			"affinity that is not known", stockV117, newService(testService, clientIP(600)), backends(single), ReasonAffinityNotServed,
			"sessionAffinity ClientIP: the handler of VpcNatGateway gw-a does not know it, so connections of one client are spread; " +
				"upgrade Kube-OVN, or have the gateway run by a handler that does",
			one, true,
			[]string{EventNote},
		},
		{
			"affinity that is known", stockNewer, newService(testService, clientIP(600)), backends(single), ReasonProgrammed,
			"served at 203.0.113.10 by VpcNatGateway gw-a", one, true,
			[]string{EventServed},
		},
		{
			"a backend that needs masquerading beside one that does not", stockV117, newService(testService), backends(single, dual), ReasonProgrammed,
			`served at 203.0.113.10 by VpcNatGateway gw-a; no backends without masquerading, which the handler of VpcNatGateway gw-a does not do: "web-2"`,
			one, true,
			[]string{EventBackendSkipped, EventServed},
		},
		{
			"none that does not", stockV117, newService(testService), backends(dual), ReasonNoBackend,
			"no backend for 80/TCP: the handler of VpcNatGateway gw-a does not masquerade, which every ready endpoint needs" +
				`; no backends without masquerading, which the handler of VpcNatGateway gw-a does not do: "web-2"`,
			nil, true,
			[]string{EventBackendSkipped, EventNotServed},
		},
		{
			"masquerading that was asked for", stockV117, newService(testService, sourceIP("masquerade")), backends(single), ReasonNoBackend,
			"no backend for 80/TCP: the handler of VpcNatGateway gw-a does not masquerade, which every ready endpoint needs" +
				`; no backends without masquerading, which the handler of VpcNatGateway gw-a does not do: "web-0"`,
			nil, true,
			[]string{EventBackendSkipped, EventNotServed},
		},
		{
			"the user's own word that there is a way back", stockV117, newService(testService, sourceIP("preserve")), backends(dual), ReasonProgrammed,
			"served at 203.0.113.10 by VpcNatGateway gw-a",
			[]string{"80/tcp 10.1.0.6:8080"},
			true,
			[]string{EventServed},
		},
		{
			"several pods, of which one is programmed",
			Abilities{Masquerade: true},
			newService(testService), all(backends(single), replicas),
			ReasonGatewayPodsNotServed,
			"VpcNatGateway gw-a has 3 pods, of which its handler programs only the first: name an EIP of a gateway with one replica, " +
				"or have this one run by a handler that programs all",
			[]string{"80/tcp 10.1.0.4:8080 m"},
			true,
			[]string{EventNote},
		},
		{
			"several pods, and affinity",
			Abilities{Masquerade: true},
			newService(testService, clientIP(600)), all(backends(single), replicas),
			ReasonGatewayPodsNotServed,
			"VpcNatGateway gw-a has 3 pods, of which its handler programs only the first: name an EIP of a gateway with one replica, " +
				"or have this one run by a handler that programs all; sessionAffinity ClientIP: the handler of VpcNatGateway gw-a does not know it, " +
				"so connections of one client are spread; upgrade Kube-OVN, or have the gateway run by a handler that does",
			[]string{"80/tcp 10.1.0.4:8080 m"},
			true,
			[]string{EventNote},
		},
		{
			"several pods without masquerading, an endpoint without a Pod",
			Abilities{EveryPod: true},
			newService(testService), all(byHand, replicas),
			ReasonNoBackend,
			"no backend for 80/TCP: the handler of VpcNatGateway gw-a does not masquerade, which every ready endpoint needs" +
				`; no backends without masquerading, which the handler of VpcNatGateway gw-a does not do: "10.1.0.9"`,
			nil, true,
			[]string{EventBackendSkipped, EventNotServed},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSnapshot(tc.svc, tc.tweak)
			s.Abilities = tc.abilities
			o := Desired(s)
			status, events := DecideStatus(s, o, testTime)
			condition := meta.FindStatusCondition(status.Conditions, ConditionReady)
			if condition.Reason != tc.want || condition.Message != tc.message || (condition.Status == "True") != (tc.want == ReasonProgrammed) {
				t.Errorf("condition %s %s: %s\nwant %s: %s", condition.Status, condition.Reason, condition.Message, tc.want, tc.message)
			}
			if diff := cmp.Diff(append([]string{}, tc.rules...), backendsIn(o)); diff != "" {
				t.Errorf("rules (-want +got):\n%s", diff)
			}
			if got := len(status.LoadBalancer.Ingress) > 0; got != tc.published {
				t.Errorf("published: %v", got)
			}
			var told []string
			for _, event := range events {
				told = append(told, event.Reason)
			}
			if diff := cmp.Diff(tc.told, told); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		})
	}
}

// Why a backend needs masquerading decides what can be done where there is none.
func TestUnmasqueradedSaysWhatToDo(t *testing.T) {
	pod := newPod("web-2", "sub-a", "10.1.0.6")
	for _, tc := range []struct {
		name    string
		service *corev1.Service
		pods    int32
		want    string
	}{
		{"its NIC", newService(testService), 1, "put its default route on its NIC in VPC"},
		{"the Service asks for it", newService(testService, withAnnotation(sharenat.SourceIPAnnotation, sharenat.SourceIPMasquerade)), 1, "take its annotation"},
		{"the gateway has several pods", newService(testService), 2, "name an EIP of a gateway with one replica"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSnapshot(tc.service, withPods(pod))
			s.Gateway.Spec.Replicas = tc.pods
			if got := skipText(s, &Skip{Pod: pod.Name, UID: pod.UID, Unmasqueraded: true}); !strings.Contains(got, tc.want) {
				t.Errorf("%s\nwant in it: %s", got, tc.want)
			}
		})
	}
}

// A rule is in the gateway when its handler says so, of the rule as it stands.
func TestOnlyWhatIsHeldIsProgrammed(t *testing.T) {
	second := newPod("web-1", "sub-a", "10.1.0.5")
	both := all(withBackend, withPods(second), withSlices(newSlice("web-y", testService, unnamed8080, endpointOf(second))))
	rule := func(backend string, tweaks ...func(*kubeovnv1.IptablesDnatRule)) *kubeovnv1.IptablesDnatRule {
		return newRule(testOwner, eipA, 80, backend, tweaks...)
	}
	programmedAt := func(ip string) func(*kubeovnv1.IptablesDnatRule) {
		return func(r *kubeovnv1.IptablesDnatRule) {
			r.Status = kubeovnv1.IptablesDnatRuleStatus{Ready: true, InternalIP: ip, InternalPort: "8080", ExternalPort: "80", Protocol: "TCP"}
		}
	}
	for _, tc := range []struct {
		name    string
		rules   []*kubeovnv1.IptablesDnatRule
		want    string
		message string
	}{
		{"all of them", []*kubeovnv1.IptablesDnatRule{rule("10.1.0.4:8080", ready), rule("10.1.0.5:8080", programmedAt("10.1.0.5"))}, ReasonProgrammed, "served at 203.0.113.10 by VpcNatGateway gw-a"},
		{"one of two", []*kubeovnv1.IptablesDnatRule{rule("10.1.0.4:8080", ready), rule("10.1.0.5:8080")}, ReasonProgramming, "served at 203.0.113.10, but VpcNatGateway gw-a does not hold all of the Service's rules yet"},
		{"one as it was before", []*kubeovnv1.IptablesDnatRule{rule("10.1.0.4:8080", ready), rule("10.1.0.5:8080", programmedAt("10.1.0.99"))}, ReasonProgramming, "served at 203.0.113.10, but VpcNatGateway gw-a does not hold all of the Service's rules yet"},
		{"one that goes", []*kubeovnv1.IptablesDnatRule{rule("10.1.0.4:8080", ready), deleting(rule("10.1.0.5:8080", ready))}, ReasonProgramming, "served at 203.0.113.10, but VpcNatGateway gw-a does not hold all of the Service's rules yet"},
		{"all of them, and one that goes and is not gone", []*kubeovnv1.IptablesDnatRule{
			rule("10.1.0.4:8080", ready), rule("10.1.0.5:8080", ready), deleting(rule("10.1.0.6:8080", ready)),
		}, ReasonProgramming, "served at 203.0.113.10, but VpcNatGateway gw-a still holds rules of the Service that are deleted"},
		{"all of them, and one that goes of a port that is not the Service's any more", []*kubeovnv1.IptablesDnatRule{
			rule("10.1.0.4:8080", ready), rule("10.1.0.5:8080", ready), deleting(newRule(testOwner, eipA, 81, "10.1.0.6:8080", ready)),
		}, ReasonProgrammed, "served at 203.0.113.10 by VpcNatGateway gw-a"},
		{"none", nil, ReasonProgramming, "VpcNatGateway gw-a does not hold the Service's rules yet"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			status, _ := decide(newSnapshot(newService(testService), both, withOwnRules(tc.rules...)))
			condition := meta.FindStatusCondition(status.Conditions, ConditionReady)
			if condition.Reason != tc.want || condition.Message != tc.message {
				t.Errorf("condition %s: %s", condition.Reason, condition.Message)
			}
		})
	}
}

// A change of affinity that the handler does not see on live rules is made by deleting them, one identity after the other.
func TestRecreate(t *testing.T) {
	const first, second = "10.1.0.4:8080", "10.1.0.5:8080"
	old := func(port uint16, backend string, tweaks ...func(*kubeovnv1.IptablesDnatRule)) *kubeovnv1.IptablesDnatRule {
		return newRule(testOwner, eipA, port, backend, tweaks...)
	}
	name := func(port uint16, backend string) string { return old(port, backend).Name }
	for _, tc := range []struct {
		name                         string
		have                         []*kubeovnv1.IptablesDnatRule
		create, patch, remove, waits []string
	}{
		{
			name:   "all of one identity go, the other keeps what it has",
			have:   []*kubeovnv1.IptablesDnatRule{old(80, first), old(80, second), old(443, first), old(443, second)},
			remove: []string{name(80, first), name(80, second)},
			waits:  []string{name(80, first), name(80, second), name(443, first), name(443, second)},
		},
		{
			name:  "none comes before the last has gone, nor does another identity go",
			have:  []*kubeovnv1.IptablesDnatRule{deleting(old(80, second)), old(443, first), old(443, second)},
			waits: []string{name(80, first), name(80, second), name(443, first), name(443, second)},
		},
		{
			name: "the one that has begun is the one that goes on", have: []*kubeovnv1.IptablesDnatRule{old(80, first), deleting(old(443, first)), old(443, second)},
			remove: []string{name(443, second)},
			waits:  []string{name(80, first), name(80, second), name(443, first), name(443, second)},
		},
		{
			name: "then they are made, and the next goes", have: []*kubeovnv1.IptablesDnatRule{old(443, first), old(443, second)},
			create: []string{name(80, first), name(80, second)}, remove: []string{name(443, first), name(443, second)},
			waits: []string{name(443, first), name(443, second)},
		},
		{
			name:   "a backend that left is of the old affinity too",
			have:   []*kubeovnv1.IptablesDnatRule{old(80, first, pinned), old(80, second, pinned), old(443, first, pinned), old(443, second, pinned), old(443, "10.1.0.9:8080")},
			remove: []string{name(443, first), name(443, second), name(443, "10.1.0.9:8080")},
		},
		{
			name:  "nothing differs but a label",
			have:  []*kubeovnv1.IptablesDnatRule{old(80, first, pinned), old(80, second, pinned), old(443, first, pinned), old(443, second, pinned, func(r *kubeovnv1.IptablesDnatRule) { r.Labels[sharenat.GatewayLabel] = "x" })},
			patch: []string{name(443, second)},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pods := []*corev1.Pod{newPod("web-0", "sub-a", "10.1.0.4"), newPod("web-1", "sub-a", "10.1.0.5")}
			ports := []discoveryv1.EndpointPort{slicePort("a", 8080), slicePort("b", 8080)}
			desired := Desired(newSnapshot(
				newService(testService, clientIP(600), withPorts(tcpPort("a", 80), tcpPort("b", 443))),
				withPods(pods...), withSlices(newSlice("web-x", testService, ports, endpointOf(pods[0]), endpointOf(pods[1]))),
			)).Rules
			changes, err := Diff(desired, tc.have)
			if err != nil {
				t.Fatal(err)
			}
			changes.recreate(desired, tc.have)
			var create, patch, remove []string
			for _, rule := range changes.Create {
				create = append(create, rule.Name)
			}
			for _, p := range changes.Patch {
				patch = append(patch, p.Name)
			}
			for _, rule := range changes.Delete {
				remove = append(remove, rule.Name)
			}
			for i, list := range [][2][]string{{tc.create, create}, {tc.patch, patch}, {tc.remove, remove}, {tc.waits, changes.Waiting}} {
				if diff := cmp.Diff(sorted(append([]string{}, list[0]...)), sorted(slices.Compact(sorted(append([]string{}, list[1]...))))); diff != "" {
					t.Errorf("%s (-want +got):\n%s", []string{"create", "patch", "delete", "wait"}[i], diff)
				}
			}
		})
	}
}

// stockWebhook refuses a rule whose affinity is not that of the others of its identity, as Kube-OVN's own does.
func stockWebhook(cl *cluster) func(clienttesting.Action) error {
	return func(action clienttesting.Action) error {
		if action.GetResource() != rulesGVR || action.GetVerb() == "delete" {
			return nil
		}
		name, spec := "", kubeovnv1.IptablesDnatRuleSpec{}
		others := cl.listRules()
		switch a := action.(type) {
		case clienttesting.CreateActionImpl:
			rule, _ := a.GetObject().(*kubeovnv1.IptablesDnatRule)
			name, spec = rule.Name, rule.Spec
		case clienttesting.PatchActionImpl:
			name = a.Name
			for _, rule := range others {
				if rule.Name == name {
					spec = rule.Spec
				}
			}
			if strings.Contains(string(a.Patch), `"sessionAffinity":"ClientIP"`) {
				spec.SessionAffinity = sharenat.SessionAffinityIP
			}
		}
		for _, rule := range others {
			if rule.Name != name && portKeyOf(&rule.Spec) == portKeyOf(&spec) && rule.Spec.SessionAffinity != spec.SessionAffinity {
				return apierrors.NewForbidden(rulesGVR.GroupResource(), name, errors.New("sessionAffinity differs from rule "+rule.Name))
			}
		}
		return nil
	}
}

// The order in which rules are recreated is one that such a webhook lets pass; a patch is not.
func TestAffinityChangesBesideAWebhook(t *testing.T) {
	second := newPod("web-1", "sub-a", "10.1.0.5")
	slice := newSlice("web-x", testService, unnamed8080, endpointOf(webPod()), endpointOf(second))
	for _, tc := range []struct {
		name      string
		abilities Abilities
		want      string
	}{
		{"recreated", stockNewer, ReasonProgrammed},
		{"patched", AllAbilities, ReasonWriteRefused},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inCluster(t, plan(newService(testService), webPod(), second, slice), func(cl *cluster) {
				cl.c.SetAbilities(tc.abilities)
				cl.setFail(stockWebhook(cl))
				cl.put(newService(testService, clientIP(600)))
				cl.settle()
				if got := cl.readyReason(testService); got != tc.want {
					t.Errorf("reason: %s", got)
				}
				if told := cl.eventsOf(EventWriteFailed) > 0; told != (tc.want == ReasonWriteRefused) {
					t.Errorf("a refusal was told: %v", told)
				}
				for _, rule := range cl.listRules() {
					if (rule.Spec.SessionAffinity == sharenat.SessionAffinityIP) != (tc.want == ReasonProgrammed) {
						t.Errorf("rule %s has affinity %q", rule.Name, rule.Spec.SessionAffinity)
					}
				}
			})
		})
	}
}

// A handler does not look again at a rule that is ready. So affinity that it learns makes the rules anew that it is about. To one that
// knows none it is the same what a rule says of it: there no connection is worth it.
func TestAffinityIsLearned(t *testing.T) {
	inCluster(t, plan(newService(testService, clientIP(600)), webPod(), webSlice()), func(cl *cluster) {
		before := types.UID("")
		for _, tc := range []struct {
			abilities        Abilities
			reason, affinity string
			anew             bool
		}{
			{AllAbilities, ReasonProgrammed, sharenat.SessionAffinityIP, true},
			{stockV117, ReasonAffinityNotServed, sharenat.SessionAffinityNone, false},
			{stockNewer, ReasonProgrammed, sharenat.SessionAffinityIP, true},
			{stockV117, ReasonAffinityNotServed, sharenat.SessionAffinityNone, false},
		} {
			cl.c.SetAbilities(tc.abilities)
			cl.settle()
			if got := cl.readyReason(testService); got != tc.reason {
				t.Errorf("%s: reason %s, want %s", tc.abilities, got, tc.reason)
			}
			rules := cl.listRules()
			if len(rules) != 1 || rules[0].Spec.SessionAffinity != tc.affinity || (rules[0].UID != before) != tc.anew {
				t.Fatalf("%s: rules %v; before %q; want affinity %q, made anew: %v", tc.abilities, rules, before, tc.affinity, tc.anew)
			}
			before = rules[0].UID
		}
	})
}

// What the API server refuses is said at once, in its words, once, and not any more when it lets it pass.
func TestRefusalIsTold(t *testing.T) {
	inCluster(t, plan(newService(testService), webPod(), webSlice()), func(cl *cluster) {
		cl.setFail(func(action clienttesting.Action) error {
			if action.GetResource() == rulesGVR && action.GetVerb() == "create" {
				return apierrors.NewForbidden(rulesGVR.GroupResource(), "x", errors.New("the quota is used up"))
			}
			return nil
		})
		second := newPod("web-1", "sub-a", "10.1.0.5")
		cl.put(second)
		cl.put(newSlice("web-x", testService, unnamed8080, endpointOf(webPod()), endpointOf(second)))
		cl.settle()
		condition := meta.FindStatusCondition(cl.service(testNamespace, testService).Status.Conditions, ConditionReady)
		if condition.Reason != ReasonWriteRefused || !strings.Contains(condition.Message, "the quota is used up") {
			t.Errorf("condition %s: %s", condition.Reason, condition.Message)
		}
		cl.writes()
		time.Sleep(10 * time.Minute) // virtual
		cl.settle()
		if got := cl.writes(); slices.ContainsFunc(got, func(write string) bool { return strings.Contains(write, "services") }) {
			t.Errorf("it is written again and again: %v", got)
		}
		cl.setFail(nil)
		time.Sleep(maxBackoff + minBackoff) // virtual
		cl.settle()
		if got := cl.readyReason(testService); got != ReasonProgrammed {
			t.Errorf("reason: %s", got)
		}
		if got := cl.eventsOf(EventWriteFailed); got != 1 {
			t.Errorf("told %d times", got)
		}
	})
}

// A handler that comes to do more is used for it without anything else happening, and one that comes to do less closes what it leaves open.
func TestAbilitiesChange(t *testing.T) {
	ranged := newService(testService, func(svc *corev1.Service) { svc.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/8"} })
	inCluster(t, plan(ranged, webPod(), webSlice()), func(cl *cluster) {
		cl.wantServed()
		cl.c.SetAbilities(stockV117)
		cl.settle()
		cl.wantRules()
		if got := cl.readyReason(testService); got != ReasonSourceRangesNotEnforceable {
			t.Errorf("reason: %s", got)
		}
		cl.c.SetAbilities(AllAbilities)
		cl.settle()
		cl.wantServed()
	})
}
