// SPDX-License-Identifier: Apache-2.0

package lbservice

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/utils/ptr"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

var (
	vip   = ptr.To(corev1.LoadBalancerIPModeVIP)
	proxy = ptr.To(corev1.LoadBalancerIPModeProxy)
)

// decide is a pass without writes.
func decide(s *Snapshot) (*corev1.ServiceStatus, []Event) {
	return DecideStatus(s, Desired(s), testTime)
}

func withOwnRules(rules ...*kubeovnv1.IptablesDnatRule) func(*Snapshot) {
	return func(s *Snapshot) { s.OwnRules = rules }
}

func all(tweaks ...func(*Snapshot)) func(*Snapshot) {
	return func(s *Snapshot) {
		for _, tweak := range tweaks {
			tweak(s)
		}
	}
}

func TestReadyCondition(t *testing.T) {
	programmed := all(withBackend, withOwnRules(newRule(testOwner, eipA, 80, "10.1.0.4:8080", ready)))
	for _, tc := range []struct {
		name        string
		svc         *corev1.Service
		tweak       func(*Snapshot)
		want        string
		wantMessage string
		wantIngress bool
	}{
		{"programmed", newService(testService), programmed, ReasonProgrammed, "served at 203.0.113.10 by VpcNatGateway gw-a", true},
		{"rules not made yet", newService(testService), withBackend, ReasonProgramming, "VpcNatGateway gw-a does not hold the Service's rules yet", true},
		{"rules not ready yet", newService(testService), all(withBackend, withOwnRules(newRule(testOwner, eipA, 80, "10.1.0.4:8080"))), ReasonProgramming, "VpcNatGateway gw-a does not hold the Service's rules yet", true},
		{
			"gateway not ready", newService(testService), all(withBackend, func(s *Snapshot) { s.Gateway.Status.Ready = false }),
			ReasonGatewayNotReady, "VpcNatGateway gw-a is not ready: its pods do not hold the Service's rules yet", true,
		},
		{"gateway not ready, but the rules are", newService(testService), all(programmed, func(s *Snapshot) { s.Gateway.Status.Ready = false }), ReasonProgrammed, "served at 203.0.113.10 by VpcNatGateway gw-a", true},
		{"no backend", newService(testService), func(*Snapshot) {}, ReasonNoBackend, "no backend for 80/TCP: the Service has no endpoint; its selector finds no Pod that has an address", true},
		{
			"no backend in the VPC", newService(testService), all(withPods(newPod("far", "sub-b", "10.2.0.4")), withSlices(newSlice("x", testService, unnamed8080, endpointOf(newPod("far", "sub-b", "10.2.0.4"))))),
			ReasonNoBackend, `no backend for 80/TCP: no endpoint is ready with an address in VPC vpc-a; Pods without an IPv4 NIC in VPC vpc-a: "far"`, true,
		},
		{
			"the only port lost", newService(testService), all(withBackend, func(s *Snapshot) { s.Claimants = append(s.Claimants, newService("ns/a")) }),
			ReasonPortConflict, "port 80/TCP of IptablesEIP eip-a belongs to Service ns/a: change the port or the EIP; it is taken over when the owner lets go", false,
		},
		{
			"SCTP alone", newService(testService, withPorts(corev1.ServicePort{Port: 90, Protocol: corev1.ProtocolSCTP})), withBackend,
			ReasonProtocolNotSupported, "port 90/SCTP: only TCP and UDP are supported", false,
		},
		{"EIP absent", newService(testService), func(s *Snapshot) { s.EIP, s.Gateway = nil, nil }, ReasonEIPNotFound, "IptablesEIP eip-a does not exist: create it, or name another in the annotation ovn.kubernetes.io/eip", false},
		{
			"not granted", newService(testService), func(s *Snapshot) { s.RequireEIPGrant = true }, ReasonNotGranted,
			"namespace ns may not use IptablesEIP eip-a: name another, or have the namespace added to the EIP's annotation ovn.kubernetes.io/nftable-lb-svc-namespaces", false,
		},
		{"gateway absent", newService(testService), func(s *Snapshot) { s.Gateway = nil }, ReasonGatewayNotFound, `VpcNatGateway "gw-a", which IptablesEIP eip-a names, does not exist: create it, or name another EIP`, false},
		{
			"nobody let in", newService(testService, func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = []string{"fd00::/8"} }), withBackend,
			ReasonNoClientAllowed, "loadBalancerSourceRanges has no IPv4 range, so no IPv4 client is let in", true,
		},
		{
			"what is served in another way",
			newService(testService, func(s *corev1.Service) {
				s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
				s.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
				s.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/8"}
			}, withAnnotation(sharenat.SourceIPAnnotation, "x")), programmed,
			ReasonProgrammed, "served at 203.0.113.10 by VpcNatGateway gw-a" +
				"; externalTrafficPolicy Local is served as Cluster at the EIP: every ready backend takes traffic" +
				"; internalTrafficPolicy Local is served as Cluster at the EIP: every ready backend takes traffic" +
				"; the gateway lets in clients of 10.0.0.0/8 only" +
				`; annotation ovn.kubernetes.io/nftable-lb-svc-source-ip="x" is not auto, preserve or masquerade, and counts as auto`, true,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.svc.Generation = 7
			status, _ := decide(newSnapshot(tc.svc, tc.tweak))
			conditionStatus := metav1.ConditionFalse
			if tc.want == ReasonProgrammed {
				conditionStatus = metav1.ConditionTrue
			}
			want := &metav1.Condition{Type: ConditionReady, Status: conditionStatus, Reason: tc.want, Message: tc.wantMessage, ObservedGeneration: 7, LastTransitionTime: testTime}
			if diff := cmp.Diff(want, meta.FindStatusCondition(status.Conditions, ConditionReady)); diff != "" {
				t.Errorf("condition (-want +got):\n%s", diff)
			}
			recorded := meta.FindStatusCondition(status.Conditions, sharenat.ConditionIngress) != nil
			if got := len(status.LoadBalancer.Ingress) == 1; got != tc.wantIngress || recorded != got {
				t.Errorf("ingress %v, recorded %v, want %v", status.LoadBalancer.Ingress, recorded, tc.wantIngress)
			}
		})
	}
}

func TestIngress(t *testing.T) {
	var (
		inDefault = newDualPod("dual", "10.16.0.6", "10.1.0.6")
		inVPC     = newPod("a", "sub-a", "10.1.0.4")
		plain     = newPod("plain", "", "192.0.2.8")
		entry     = func(ip string, mode *corev1.LoadBalancerIPMode) corev1.LoadBalancerIngress {
			return corev1.LoadBalancerIngress{IP: ip, IPMode: mode}
		}
		foreign   = corev1.LoadBalancerIngress{IP: "198.51.100.1", IPMode: vip}
		host      = corev1.LoadBalancerIngress{Hostname: "lb.example.com"}
		endpoints = func(pods ...*corev1.Pod) func(*Snapshot) {
			slice := newSlice("x", testService, unnamed8080)
			for _, pod := range pods {
				slice.Endpoints = append(slice.Endpoints, endpointOf(pod))
			}
			return all(withPods(pods...), withSlices(slice))
		}
		lost = func(s *Snapshot) { s.Claimants = append(s.Claimants, newService("ns/a", withPorts(tcpPort("", 81)))) }
	)
	for _, tc := range []struct {
		name  string
		svc   *corev1.Service
		tweak func(*Snapshot)
		want  []corev1.LoadBalancerIngress
	}{
		{"nodes reach the primary NIC", newService(testService), endpoints(inDefault), []corev1.LoadBalancerIngress{entry(eipAddrA, vip)}},
		{"nodes do not", newService(testService), endpoints(inVPC), []corev1.LoadBalancerIngress{entry(eipAddrA, proxy)}},
		{"nodes reach one of them", newService(testService), endpoints(inVPC, inDefault), []corev1.LoadBalancerIngress{entry(eipAddrA, vip)}},
		{"nodes reach what is not Kube-OVN's", newService(testService), endpoints(plain), []corev1.LoadBalancerIngress{entry(eipAddrA, vip)}},
		{"nothing to go by", newService(testService), func(*Snapshot) {}, []corev1.LoadBalancerIngress{entry(eipAddrA, vip)}},
		{
			"nothing to go by any more", newService(testService, withIngress(entry(eipAddrA, proxy)), withConditions(published(eipAddrA))),
			func(*Snapshot) {},
			[]corev1.LoadBalancerIngress{entry(eipAddrA, proxy)},
		},
		{
			"the mode changes", newService(testService, withIngress(entry(eipAddrA, proxy)), withConditions(published(eipAddrA))),
			endpoints(inDefault),
			[]corev1.LoadBalancerIngress{entry(eipAddrA, vip)},
		},
		{"no mode is VIP", newService(testService, withIngress(entry(eipAddrA, nil))), endpoints(inDefault), []corev1.LoadBalancerIngress{entry(eipAddrA, nil)}},
		{"others' entries stay", newService(testService, withIngress(foreign, host)), endpoints(inDefault), []corev1.LoadBalancerIngress{foreign, host, entry(eipAddrA, vip)}},
		{
			"the address changes in its place", newService(testService, withIngress(foreign, entry(eipAddrB, vip), host), withConditions(published(eipAddrB))),
			endpoints(inDefault),
			[]corev1.LoadBalancerIngress{foreign, entry(eipAddrA, vip), host},
		},
		{"no second entry", newService(testService, withIngress(entry(eipAddrA, vip), entry(eipAddrA, vip))), endpoints(inDefault), []corev1.LoadBalancerIngress{entry(eipAddrA, vip)}},
		{
			"a lost port", newService(testService, withPorts(tcpPort("a", 80), tcpPort("b", 81))), lost,
			[]corev1.LoadBalancerIngress{{IP: eipAddrA, IPMode: vip, Ports: []corev1.PortStatus{
				{Port: 80, Protocol: corev1.ProtocolTCP}, {Port: 81, Protocol: corev1.ProtocolTCP, Error: ptr.To("kubeovn.io/PortConflict")},
			}}},
		},
		{
			"all ports lost", newService(testService, withPorts(tcpPort("b", 81)), withIngress(foreign, entry(eipAddrA, vip)), withConditions(published(eipAddrA))), lost,
			[]corev1.LoadBalancerIngress{foreign},
		},
		{"the EIP is gone", newService(testService, withIngress(foreign, entry(eipAddrA, vip)), withConditions(published(eipAddrA))), func(s *Snapshot) { s.EIP = nil }, []corev1.LoadBalancerIngress{foreign}},
		{
			"the Service leaves", newService(testService, withEIP(""), withIngress(foreign, entry(eipAddrA, vip)), withConditions(published(eipAddrA))), func(*Snapshot) {},
			[]corev1.LoadBalancerIngress{foreign},
		},
		{"a Service that never was ours", newService(testService, withEIP(""), withIngress(entry(eipAddrA, vip))), func(*Snapshot) {}, []corev1.LoadBalancerIngress{entry(eipAddrA, vip)}},
		{"not published by us", newService(testService, withIngress(foreign)), func(s *Snapshot) { s.EIP = nil }, []corev1.LoadBalancerIngress{foreign}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			status, _ := decide(newSnapshot(tc.svc, tc.tweak))
			if diff := cmp.Diff(tc.want, status.LoadBalancer.Ingress, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("ingress (-want +got):\n%s", diff)
			}
		})
	}
}

// Whatever another provider set is there afterwards, in a Service that comes, stays and leaves.
func TestConditionsOfOthers(t *testing.T) {
	theirs := []metav1.Condition{
		{Type: corev1.LoadBalancerPortsError, Status: metav1.ConditionTrue, Reason: corev1.LoadBalancerPortsErrorReason, Message: "x", LastTransitionTime: testTime},
		{Type: "example.com/Ready", Status: metav1.ConditionTrue, Reason: "X", LastTransitionTime: testTime},
	}
	ours := []metav1.Condition{published(eipAddrA), {Type: ConditionReady, Status: metav1.ConditionTrue, Reason: ReasonProgrammed, LastTransitionTime: testTime}}
	ourPorts := metav1.Condition{Type: corev1.LoadBalancerPortsError, Status: metav1.ConditionTrue, Reason: "NftableLbSvcPortConflict", LastTransitionTime: testTime}
	conflict := func(s *Snapshot) { s.Claimants = append(s.Claimants, newService("ns/a")) }
	for _, tc := range []struct {
		name  string
		svc   *corev1.Service
		tweak func(*Snapshot)
		// wantPorts is the reason of LoadBalancerPortsError.
		wantPorts string
		wantOurs  int
	}{
		{"comes", newService(testService, withConditions(theirs...)), withBackend, corev1.LoadBalancerPortsErrorReason, 2},
		{"comes, with a conflict", newService(testService, withConditions(theirs...)), conflict, corev1.LoadBalancerPortsErrorReason, 1},
		{"conflict", newService(testService, withConditions(theirs[1])), conflict, "NftableLbSvcPortConflict", 1},
		{"conflict over", newService(testService, withConditions(theirs[1], ourPorts)), withBackend, "", 2},
		{"leaves", newService(testService, withEIP(""), withConditions(append(ours, theirs...)...)), withBackend, corev1.LoadBalancerPortsErrorReason, 0},
		{"leaves, with a conflict", newService(testService, withEIP(""), withConditions(append(ours, theirs[1], ourPorts)...)), withBackend, "", 0},
		{"is deleted", deleting(newService(testService, withConditions(append(ours, theirs...)...))), withBackend, corev1.LoadBalancerPortsErrorReason, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			status, _ := decide(newSnapshot(tc.svc, tc.tweak))
			if meta.FindStatusCondition(status.Conditions, "example.com/Ready") == nil {
				t.Error("another provider's condition is gone")
			}
			got := ""
			if c := meta.FindStatusCondition(status.Conditions, corev1.LoadBalancerPortsError); c != nil {
				got = c.Reason
			}
			n := 0
			for _, c := range status.Conditions {
				if strings.HasPrefix(c.Type, "kubeovn.io/") {
					n++
				}
			}
			if got != tc.wantPorts || n != tc.wantOurs {
				t.Errorf("want %q and %d of ours, got %q and %d", tc.wantPorts, tc.wantOurs, got, n)
			}
		})
	}
}

// A status that is as it should be is not written again, and the patch of one that is not touches only what differs.
func TestStatusPatch(t *testing.T) {
	theirs := metav1.Condition{Type: "example.com/Ready", Status: metav1.ConditionTrue, Reason: "X", LastTransitionTime: testTime}
	svc := newService(testService, withConditions(theirs), withIngress(corev1.LoadBalancerIngress{IP: "198.51.100.1"}))
	svc.ResourceVersion = "5"
	s := newSnapshot(svc, withBackend)
	status, _ := decide(s)
	patch, err := statusPatch(svc, status)
	if err != nil || patch == nil {
		t.Fatalf("patch: %s, %v", patch, err)
	}
	var parsed struct {
		Metadata metav1.ObjectMeta
		Spec     any
		Status   corev1.ServiceStatus
	}
	if err := json.Unmarshal(patch, &parsed); err != nil {
		t.Fatal(err)
	}
	if parsed.Metadata.UID != svc.UID || parsed.Metadata.ResourceVersion != "5" || parsed.Spec != nil || len(parsed.Status.Conditions) != 2 {
		t.Errorf("patch: %s", patch)
	}

	raw, err := json.Marshal(svc)
	if err != nil {
		t.Fatal(err)
	}
	raw, err = strategicpatch.StrategicMergePatch(raw, patch, corev1.Service{})
	if err != nil {
		t.Fatal(err)
	}
	after := &corev1.Service{}
	if err := json.Unmarshal(raw, after); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(status, &after.Status); diff != "" {
		t.Errorf("patched status (-want +got):\n%s", diff)
	}

	s = newSnapshot(after, withBackend)
	again, events := DecideStatus(s, Desired(s), metav1.Unix(testTime.Unix()+100, 0))
	if patch, err := statusPatch(after, again); err != nil || patch != nil {
		t.Errorf("second patch: %s, %v", patch, err)
	}
	if len(events) != 0 {
		t.Errorf("events: %v", events)
	}
}

func TestEvents(t *testing.T) {
	conflict := func(s *Snapshot) { s.Claimants = append(s.Claimants, newService("ns/a")) }
	far := newPod("far", "sub-b", "10.2.0.4")
	skipped := all(withPods(far), withSlices(newSlice("x", testService, unnamed8080, endpointOf(far))))
	for _, tc := range []struct {
		name  string
		svc   *corev1.Service
		tweak func(*Snapshot)
		want  []string
	}{
		{"conflict names the owner", newService(testService), conflict, []string{
			"Warning NftableLbSvcConflict port 80/TCP of IptablesEIP eip-a belongs to Service ns/a: change the port or the EIP; it is taken over when the owner lets go",
		}},
		{"skipped backend", newService(testService), skipped, []string{
			"Warning NftableLbSvcBackendSkipped Pod far is no backend: it has no NIC with an IPv4 address in VPC vpc-a; attach one, or deselect the Pod",
			"Warning NftableLbSvcNotServed no backend for 80/TCP: no endpoint is ready with an address in VPC vpc-a",
		}},
		{"local policy", newService(testService, func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal }), withBackend, []string{
			"Warning NftableLbSvcNote externalTrafficPolicy Local is served as Cluster at the EIP: every ready backend takes traffic",
		}},
		{"IPv6 alone", newService(testService, func(s *corev1.Service) { s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol} }), withBackend, []string{
			"Warning NftableLbSvcNote ipFamilies is IPv6 alone: at the EIP the Service is served over IPv4",
		}},
		{"both families", newService(testService, func(s *corev1.Service) {
			s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}
			s.Spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicyRequireDualStack)
		}), withBackend, []string{
			"Warning NftableLbSvcNote ipFamilyPolicy RequireDualStack: at the EIP only the IPv4 side is served",
		}},
		{"blocked", newService(testService), func(s *Snapshot) { s.EIP = nil }, []string{
			"Warning NftableLbSvcNotServed IptablesEIP eip-a does not exist: create it, or name another in the annotation ovn.kubernetes.io/eip",
		}},
		{"served", newService(testService), all(withBackend, withOwnRules(newRule(testOwner, eipA, 80, "10.1.0.4:8080", ready))), []string{
			"Normal NftableLbSvcServed served at 203.0.113.10 by VpcNatGateway gw-a",
		}},
		{"on the way", newService(testService), withBackend, nil},
		{"no backend", newService(testService), func(*Snapshot) {}, []string{
			"Warning NftableLbSvcNotServed no backend for 80/TCP: the Service has no endpoint; its selector finds no Pod that has an address",
		}},
		{"EIP on its way out", newService(testService, withConditions(published(eipAddrA))), all(withBackend, func(s *Snapshot) { s.EIP = deleting(s.EIP) }), []string{
			"Warning NftableLbSvcNote IptablesEIP eip-a is being deleted, and stays until no Service uses it: name another in the annotation ovn.kubernetes.io/eip",
		}},
		{"EIP not ready, and says why", newService(testService), func(s *Snapshot) {
			s.EIP = newEIP(eipA, "", gwA)
			s.EIP.Status.Conditions = kubeovnv1.Conditions{{Type: kubeovnv1.Ready, Status: corev1.ConditionFalse, Message: "203.0.113.10 is taken by e1"}}
		}, []string{
			"Warning NftableLbSvcNotServed IptablesEIP eip-a is not ready: 203.0.113.10 is taken by e1",
		}},
		{"EIP not ready", newService(testService), func(s *Snapshot) { s.EIP = newEIP(eipA, "", gwA) }, []string{
			"Warning NftableLbSvcNotServed IptablesEIP eip-a is not ready: it has no address in a gateway yet",
		}},
		{"gateway not ready", newService(testService), all(withBackend, func(s *Snapshot) { s.Gateway.Status.Ready = false }), []string{
			"Warning NftableLbSvcNotServed VpcNatGateway gw-a is not ready: its pods do not hold the Service's rules yet",
		}},
		{"no way back", newService(testService), all(strayBackend(), withOwnRules(newRule(testOwner, eipA, 80, "10.1.0.4:8080", ready))), []string{
			"Warning NftableLbSvcNote Pods with their default route elsewhere and a NIC in Subnet sub-a may have no way back to VpcNatGateway gw-a in Subnet sub-a2: " +
				"give them a route to it by that NIC, or attach them to the gateway's Subnet",
			"Normal NftableLbSvcServed served at 203.0.113.10 by VpcNatGateway gw-a",
		}},
		{"leaves", newService(testService, withEIP("")), conflict, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			render := func(events []Event) []string {
				var out []string
				for _, e := range events {
					out = append(out, e.Type+" "+e.Reason+" "+e.Text)
				}
				return out
			}
			s := newSnapshot(tc.svc, tc.tweak)
			status, events := decide(s)
			if diff := cmp.Diff(tc.want, render(newTold().fresh(testOwner, s.Service.UID, events, true))); diff != "" {
				t.Fatalf("events (-want +got):\n%s", diff)
			}
			// A controller that restarts finds in the status what was told.
			tc.svc.Status = *status
			_, events = decide(s)
			if again := render(newTold().fresh(testOwner, s.Service.UID, events, true)); len(again) > 0 {
				t.Errorf("told again: %v", again)
			}
		})
	}
}

// strayBackend is a Pod whose second NIC, without its default route, is not in the gateway's Subnet.
func strayBackend(tweaks ...func(*corev1.Pod)) func(*Snapshot) {
	return func(s *Snapshot) {
		pod := newDualPod("web-0", "10.16.0.4", "10.1.0.4", tweaks...)
		withPods(pod)(s)
		withSlices(newSlice("web-x", testService, unnamed8080, endpointOf(pod)))(s)
		s.Gateway.Spec.Subnet = "sub-a2"
	}
}

// A gateway of several pods: only the pod that has a connection can take its answers.
func TestSourceIPOfSeveralGatewayPods(t *testing.T) {
	several := func(s *Snapshot) { s.Gateway.Spec.Replicas = 3 }
	for _, tc := range []struct {
		name string
		svc  *corev1.Service
		want string
	}{
		{"auto", newService(testService), sharenat.SourceIPMasquerade},
		{"the user's word counts", newService(testService, withAnnotation(sharenat.SourceIPAnnotation, "preserve")), sharenat.SourceIPPreserve},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rules := Desired(newSnapshot(tc.svc, withBackend, several)).Rules
			if len(rules) != 1 || rules[0].Annotations[sharenat.SourceIPAnnotation] != tc.want {
				t.Errorf("rules: %+v", rules)
			}
		})
	}
}

func TestNoWayBack(t *testing.T) {
	for _, tc := range []struct {
		name  string
		tweak func(*Snapshot)
		want  int
	}{
		{"another Subnet", strayBackend(), 1},
		{"the gateway's Subnet", all(strayBackend(), func(s *Snapshot) { s.Gateway.Spec.Subnet = "sub-a" }), 0},
		{"with routes", strayBackend(withPodAnnotation("net-a.ns.ovn"+routesSuffix, `[{"dst":"10.1.1.0/24","gw":"10.1.0.1"}]`)), 0},
		{"with the default route", strayBackend(withPodAnnotation("net-a.ns.ovn"+defaultRouteSuffix, "true")), 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if out := Desired(newSnapshot(newService(testService), tc.tweak)); len(out.Notes) != tc.want || len(out.Rules) != 1 {
				t.Errorf("notes %v, %d rules", out.Notes, len(out.Rules))
			}
		})
	}
}

func TestTold(t *testing.T) {
	a := Event{Reason: EventConflict, Key: "a"}
	b := Event{Reason: EventConflict, Key: "b"}
	seen := Event{Reason: EventConflict, Key: "c", Told: true}
	tl := newTold()
	for i, step := range []struct {
		events []Event
		want   int
	}{
		{[]Event{a, seen}, 1}, {[]Event{a, seen}, 0}, {[]Event{a, b, seen}, 1}, {[]Event{b}, 0}, {[]Event{a, b}, 1}, {[]Event{seen}, 1}, {nil, 0},
	} {
		if got := tl.fresh(testOwner, "", step.events, true); len(got) != step.want {
			t.Errorf("step %d: want %d new, got %v", i, step.want, got)
		}
	}
}

// What keeps a port from having a backend is said as it is.
func TestNoBackend(t *testing.T) {
	pod := newPod("web-0", "sub-a", "10.1.0.4")
	pending := newPod("web-0", "sub-a", "", func(p *corev1.Pod) { p.Status.PodIP = "" })
	named := []discoveryv1.EndpointPort{slicePort("https", 8443)}
	for _, tc := range []struct {
		name  string
		tweak func(*Snapshot)
		want  string
	}{
		{"no endpoint", func(*Snapshot) {}, "the Service has no endpoint; its selector finds no Pod that has an address"},
		{"none ready", all(withPods(pod), withSlices(newSlice("x", testService, unnamed8080, endpointOf(pod, notReady)))), "none of the Service's endpoints is ready"},
		{"no address yet", all(withPods(pending), withSlices(newSlice("x", testService, unnamed8080, endpointOf(pod)))), "no endpoint is ready with an address in VPC vpc-a"},
		{
			"no port of that name", all(withPods(pod), withSlices(newSlice("x", testService, named, endpointOf(pod)))),
			"no ready endpoint has a port of that name and protocol; see targetPort",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			status, _ := decide(newSnapshot(newService(testService), tc.tweak))
			got := meta.FindStatusCondition(status.Conditions, ConditionReady)
			if want := "no backend for 80/TCP: " + tc.want; got.Reason != ReasonNoBackend || got.Message != want {
				t.Errorf("%s: %s\nwant %s", got.Reason, got.Message, want)
			}
		})
	}
}

// After a restart nothing is told again of Pods that the condition has no room to name.
func TestManySkippedPodsAreToldOnce(t *testing.T) {
	svc := newService(testService)
	slice := newSlice("x", testService, unnamed8080)
	tweaks := []func(*Snapshot){}
	for i := range 3 * maxNames {
		pod := newPod(fmt.Sprintf("far-%02d", i), "sub-b", fmt.Sprintf("10.2.0.%d", 4+i))
		tweaks = append(tweaks, withPods(pod))
		slice.Endpoints = append(slice.Endpoints, endpointOf(pod))
	}
	s := newSnapshot(svc, append(tweaks, withSlices(slice))...)
	fresh := func(events []Event) (n int) {
		for _, event := range events {
			if event.Reason == EventBackendSkipped && !event.Told {
				n++
			}
		}
		return n
	}
	status, events := decide(s)
	if got := fresh(events); got != 3*maxNames {
		t.Errorf("%d told at first", got)
	}
	svc.Status = *status
	if _, events = decide(s); fresh(events) != 0 {
		t.Errorf("%d told again", fresh(events))
	}
}
