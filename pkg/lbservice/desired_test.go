// SPDX-License-Identifier: Apache-2.0

package lbservice

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

func TestDesiredBackends(t *testing.T) {
	var (
		a, b  = newPod("a", "sub-a", "10.1.0.4"), newPod("b", "sub-a", "10.1.0.5")
		dual  = newDualPod("dual", "10.16.0.6", "10.1.0.6")
		far   = newPod("far", "sub-b", "10.2.0.4")
		plain = newPod("plain", "", "192.0.2.8")
		v6    = newPod("v6", "sub-a", "fd00::9,10.1.0.9")
		ended = newPod("ended", "sub-a", "10.1.0.10", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
		ipv6  = func(s *discoveryv1.EndpointSlice) { s.AddressType = discoveryv1.AddressTypeIPv6 }
		tweak = func(s *discoveryv1.EndpointSlice, f ...func(*discoveryv1.EndpointSlice)) *discoveryv1.EndpointSlice {
			for _, g := range f {
				g(s)
			}
			return s
		}
		podsIn = withPods(a, b, dual, far, plain, v6, ended)
		slice  = func(endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
			return newSlice("web-x", testService, unnamed8080, endpoints...)
		}
		raw = func(address string) discoveryv1.Endpoint { return discoveryv1.Endpoint{Addresses: []string{address}} }
	)
	for _, tc := range []struct {
		name        string
		svc         *corev1.Service
		slices      []*discoveryv1.EndpointSlice
		want        []string
		wantSkipped []string
		wantWaiting int
	}{
		{"no slice", newService(testService), nil, []string{}, nil, 0},
		{"two Pods", newService(testService), []*discoveryv1.EndpointSlice{slice(endpointOf(a), endpointOf(b))}, []string{"80/tcp 10.1.0.4:8080", "80/tcp 10.1.0.5:8080"}, nil, 0},
		{"the return path is decided a backend", newService(testService), []*discoveryv1.EndpointSlice{slice(endpointOf(a), endpointOf(dual))}, []string{"80/tcp 10.1.0.4:8080", "80/tcp 10.1.0.6:8080 m"}, nil, 0},
		{
			"preserve, by the Service", newService(testService, withAnnotation(sharenat.SourceIPAnnotation, "preserve")),
			[]*discoveryv1.EndpointSlice{slice(endpointOf(a), endpointOf(dual))},
			[]string{"80/tcp 10.1.0.4:8080", "80/tcp 10.1.0.6:8080"},
			nil, 0,
		},
		{
			"masquerade, by the Service", newService(testService, withAnnotation(sharenat.SourceIPAnnotation, "masquerade")),
			[]*discoveryv1.EndpointSlice{slice(endpointOf(a), endpointOf(dual))},
			[]string{"80/tcp 10.1.0.4:8080 m", "80/tcp 10.1.0.6:8080 m"},
			nil, 0,
		},
		{
			"an unknown word counts as auto", newService(testService, withAnnotation(sharenat.SourceIPAnnotation, "perhaps")),
			[]*discoveryv1.EndpointSlice{slice(endpointOf(a), endpointOf(dual))},
			[]string{"80/tcp 10.1.0.4:8080", "80/tcp 10.1.0.6:8080 m"},
			nil, 0,
		},
		{"elsewhere is skipped", newService(testService), []*discoveryv1.EndpointSlice{slice(endpointOf(a), endpointOf(far))}, []string{"80/tcp 10.1.0.4:8080"}, []string{"far"}, 0},
		{"elsewhere, but not ready, is not told of", newService(testService), []*discoveryv1.EndpointSlice{slice(endpointOf(far, notReady))}, []string{}, nil, 0},
		{"not Kube-OVN's: its own address", newService(testService), []*discoveryv1.EndpointSlice{slice(endpointOf(plain))}, []string{"80/tcp 192.0.2.8:8080"}, nil, 0},
		{"no Pod: its own address, the first", newService(testService), []*discoveryv1.EndpointSlice{slice(discoveryv1.Endpoint{Addresses: []string{"10.1.0.77", "10.1.0.78"}})}, []string{"80/tcp 10.1.0.77:8080"}, nil, 0},
		{
			"a Pod that is not seen yet", newService(testService),
			[]*discoveryv1.EndpointSlice{slice(endpointOf(newPod("unseen", "sub-a", "10.1.0.99")))},
			[]string{},
			nil, 1,
		},
		{
			"another Pod of the same name", newService(testService),
			[]*discoveryv1.EndpointSlice{slice(endpointOf(a, func(e *discoveryv1.Endpoint) { e.TargetRef.UID = "uid-before" }))},
			[]string{},
			nil, 1,
		},
		{
			"a Pod of another namespace may not be named", newService(testService),
			[]*discoveryv1.EndpointSlice{slice(endpointOf(a, func(e *discoveryv1.Endpoint) { e.TargetRef.Namespace = "other" }))},
			[]string{},
			nil, 1,
		},
		{
			"a slice made by hand that names a Pod without its UID", newService(testService),
			[]*discoveryv1.EndpointSlice{slice(endpointOf(dual, func(e *discoveryv1.Endpoint) { e.TargetRef.UID, e.TargetRef.Namespace = "", "" }))},
			[]string{"80/tcp 10.1.0.6:8080 m"},
			nil, 0,
		},
		{"an ended Pod's address may be another's", newService(testService), []*discoveryv1.EndpointSlice{slice(endpointOf(ended))}, []string{}, nil, 1},
		{
			"nil conditions mean ready", newService(testService),
			[]*discoveryv1.EndpointSlice{slice(endpointOf(a, func(e *discoveryv1.Endpoint) { e.Conditions = discoveryv1.EndpointConditions{} }))},
			[]string{"80/tcp 10.1.0.4:8080"},
			nil, 0,
		},
		{"draining gives way to ready", newService(testService), []*discoveryv1.EndpointSlice{slice(endpointOf(a), endpointOf(b, draining))}, []string{"80/tcp 10.1.0.4:8080"}, nil, 0},
		{"draining while none is ready", newService(testService), []*discoveryv1.EndpointSlice{slice(endpointOf(a, notReady), endpointOf(b, draining))}, []string{"80/tcp 10.1.0.5:8080"}, nil, 0},
		{"draining while the ready one cannot be reached", newService(testService), []*discoveryv1.EndpointSlice{slice(endpointOf(far), endpointOf(b, draining))}, []string{"80/tcp 10.1.0.5:8080"}, []string{"far"}, 0},
		{
			"terminating, not serving any more", newService(testService),
			[]*discoveryv1.EndpointSlice{slice(endpointOf(a, draining, func(e *discoveryv1.Endpoint) { e.Conditions.Serving = ptr.To(false) }))},
			[]string{},
			nil, 0,
		},
		{
			"terminating, serving unknown", newService(testService),
			[]*discoveryv1.EndpointSlice{slice(endpointOf(a, draining, func(e *discoveryv1.Endpoint) { e.Conditions.Serving = nil }))},
			[]string{"80/tcp 10.1.0.4:8080"},
			nil, 0,
		},
		{
			"ready while terminating, as publishNotReadyAddresses has it", newService(testService),
			[]*discoveryv1.EndpointSlice{slice(endpointOf(a, draining, func(e *discoveryv1.Endpoint) { e.Conditions.Ready = ptr.To(true) }), endpointOf(b))},
			[]string{"80/tcp 10.1.0.4:8080", "80/tcp 10.1.0.5:8080"},
			nil, 0,
		},
		{
			"the same backend in two slices", newService(testService),
			[]*discoveryv1.EndpointSlice{slice(endpointOf(a)), newSlice("web-y", testService, unnamed8080, endpointOf(a), endpointOf(b))},
			[]string{"80/tcp 10.1.0.4:8080", "80/tcp 10.1.0.5:8080"},
			nil, 0,
		},
		{
			"target ports that differ between Pods", newService(testService, withPorts(tcpPort("http", 80))),
			[]*discoveryv1.EndpointSlice{
				newSlice("web-x", testService, []discoveryv1.EndpointPort{slicePort("http", 8080)}, endpointOf(a)),
				newSlice("web-y", testService, []discoveryv1.EndpointPort{slicePort("http", 9090)}, endpointOf(b)),
			},
			[]string{"80/tcp 10.1.0.4:8080", "80/tcp 10.1.0.5:9090"},
			nil, 0,
		},
		{
			"ports by name and protocol",
			newService(testService, withPorts(tcpPort("http", 80), corev1.ServicePort{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP}, tcpPort("other", 81))),
			[]*discoveryv1.EndpointSlice{newSlice("web-x", testService, []discoveryv1.EndpointPort{
				slicePort("http", 8080),
				{Name: ptr.To("dns"), Port: ptr.To[int32](5353), Protocol: ptr.To(corev1.ProtocolUDP)},
				{Name: ptr.To("other"), Port: ptr.To[int32](8081), Protocol: ptr.To(corev1.ProtocolUDP)},
			}, endpointOf(a))},
			[]string{"53/udp 10.1.0.4:5353", "80/tcp 10.1.0.4:8080"},
			nil, 0,
		},
		{
			"TCP and UDP on one port",
			newService(testService, withPorts(corev1.ServicePort{Name: "t", Port: 53, Protocol: corev1.ProtocolTCP}, corev1.ServicePort{Name: "u", Port: 53, Protocol: corev1.ProtocolUDP})),
			[]*discoveryv1.EndpointSlice{newSlice("web-x", testService, []discoveryv1.EndpointPort{
				slicePort("t", 5353), {Name: ptr.To("u"), Port: ptr.To[int32](5353), Protocol: ptr.To(corev1.ProtocolUDP)},
			}, endpointOf(a))},
			[]string{"53/tcp 10.1.0.4:5353", "53/udp 10.1.0.4:5353"},
			nil, 0,
		},
		{
			"a slice port with neither name nor protocol", newService(testService),
			[]*discoveryv1.EndpointSlice{newSlice("web-x", testService, []discoveryv1.EndpointPort{{Port: ptr.To[int32](8080)}}, raw("10.1.0.77"))},
			[]string{"80/tcp 10.1.0.77:8080"},
			nil, 0,
		},
		{
			"a slice port without a number", newService(testService),
			[]*discoveryv1.EndpointSlice{newSlice("web-x", testService, []discoveryv1.EndpointPort{{Name: ptr.To("")}}, raw("10.1.0.77"))},
			[]string{},
			nil, 0,
		},
		{
			"SCTP has no rules, the rest has", newService(testService, withPorts(tcpPort("http", 80), corev1.ServicePort{Name: "s", Port: 90, Protocol: corev1.ProtocolSCTP})),
			[]*discoveryv1.EndpointSlice{newSlice("web-x", testService, []discoveryv1.EndpointPort{
				slicePort("http", 8080), {Name: ptr.To("s"), Port: ptr.To[int32](9000), Protocol: ptr.To(corev1.ProtocolSCTP)},
			}, endpointOf(a))},
			[]string{"80/tcp 10.1.0.4:8080"},
			nil, 0,
		},
		{
			"the IPv6 slice of a Pod with an IPv4 NIC in the VPC", newService(testService),
			[]*discoveryv1.EndpointSlice{tweak(slice(endpointOf(v6)), ipv6)},
			[]string{"80/tcp 10.1.0.9:8080"},
			nil, 0,
		},
		{
			"both families of one Pod", newService(testService),
			[]*discoveryv1.EndpointSlice{tweak(slice(endpointOf(v6)), ipv6), newSlice("web-y", testService, unnamed8080, endpointOf(v6))},
			[]string{"80/tcp 10.1.0.9:8080"},
			nil, 0,
		},
		{"an IPv6 endpoint without a Pod", newService(testService), []*discoveryv1.EndpointSlice{tweak(slice(raw("fd00::1")), ipv6)}, []string{}, nil, 0},
		{"names are no addresses", newService(testService), []*discoveryv1.EndpointSlice{tweak(slice(raw("example.com")), func(s *discoveryv1.EndpointSlice) { s.AddressType = discoveryv1.AddressTypeFQDN })}, []string{}, nil, 0},
		{
			"only IPv6 clients are let in", newService(testService, func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = []string{"fd00::/8"} }),
			[]*discoveryv1.EndpointSlice{slice(endpointOf(a))},
			[]string{},
			nil, 0,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			out := Desired(newSnapshot(tc.svc, podsIn, withSlices(tc.slices...)))
			if diff := cmp.Diff(tc.want, backendsIn(out)); diff != "" {
				t.Errorf("backends (-want +got):\n%s", diff)
			}
			var skipped []string
			for _, skip := range out.Skipped {
				skipped = append(skipped, skip.Pod)
			}
			if diff := cmp.Diff(tc.wantSkipped, skipped); diff != "" || out.Waiting != tc.wantWaiting {
				t.Errorf("waiting: want %d, got %d; skipped (-want +got):\n%s", tc.wantWaiting, out.Waiting, diff)
			}
		})
	}
}

func TestDesiredRule(t *testing.T) {
	svc := newService(testService, func(s *corev1.Service) {
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		s.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24", "10.0.0.0/8"}
	})
	want := []Rule{{
		Name: "lb-web-" + ruleHash(t, "ns/web/tcp/80/10.1.0.4/8080"),
		Labels: map[string]string{
			"ovn.kubernetes.io/nftable-lb-svc-ns":   "ns",
			"ovn.kubernetes.io/nftable-lb-svc-name": "web",
			"ovn.kubernetes.io/vpc-nat-gw-name":     gwA,
			"ovn.kubernetes.io/vpc_dnat_eport":      "80",
			"ovn.kubernetes.io/eip_v4_ip":           eipAddrA,
		},
		Annotations: map[string]string{
			"ovn.kubernetes.io/vpc_eip":                      eipA,
			"ovn.kubernetes.io/nftable-lb-svc-source-ip":     "preserve",
			"ovn.kubernetes.io/nftable-lb-svc-source-ranges": "10.0.0.0/8,192.0.2.0/24",
			"ovn.kubernetes.io/nftable-lb-svc-pod-uid":       "uid-web-0",
		},
		Spec: kubeovnv1.IptablesDnatRuleSpec{
			EIP: eipA, ExternalPort: "80", Protocol: "tcp", InternalIP: "10.1.0.4", InternalPort: "8080", Type: "share",
			SessionAffinity: "ClientIP", SessionAffinityTimeoutSeconds: 10800,
		},
	}}
	if diff := cmp.Diff(want, Desired(newSnapshot(svc, withBackend)).Rules); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
}

func TestDesiredBlocked(t *testing.T) {
	eip := func(tweaks ...func(*kubeovnv1.IptablesEIP)) func(*Snapshot) {
		return func(s *Snapshot) { s.EIP = newEIP(eipA, eipAddrA, gwA, tweaks...) }
	}
	notReadyEIP := func(e *kubeovnv1.IptablesEIP) { e.Status.Ready = false }
	for _, tc := range []struct {
		name         string
		svc          *corev1.Service
		tweak        func(*Snapshot)
		wantBlocked  string
		wantDegraded string
	}{
		{"nothing is missing", newService(testService), eip(), "", ""},
		{"no EIP", newService(testService), func(s *Snapshot) { s.EIP, s.Gateway = nil, nil }, ReasonEIPNotFound, ""},
		{"no address yet", newService(testService), eip(func(e *kubeovnv1.IptablesEIP) { e.Status = kubeovnv1.IptablesEIPStatus{} }), ReasonEIPNotReady, ""},
		{"an address that is not ready", newService(testService), eip(notReadyEIP), ReasonEIPNotReady, ""},
		{"not ready any more, but published", newService(testService, withConditions(published(eipAddrA))), eip(notReadyEIP), "", ReasonEIPNotReady},
		{"not ready, and another address was published", newService(testService, withConditions(published(eipAddrB))), eip(notReadyEIP), ReasonEIPNotReady, ""},
		{"being deleted", newService(testService), func(s *Snapshot) { s.EIP = deleting(newEIP(eipA, eipAddrA, gwA)) }, ReasonEIPNotReady, ""},
		{"being deleted, in use", newService(testService, withConditions(published(eipAddrA))), func(s *Snapshot) { s.EIP = deleting(newEIP(eipA, eipAddrA, gwA)) }, "", ReasonEIPNotReady},
		{"IPv6 alone", newService(testService), eip(func(e *kubeovnv1.IptablesEIP) { e.Status.IP = "fd00::1" }), ReasonEIPIPv6Only, ""},
		{"not granted", newService(testService), eip(withGrant("other")), ReasonNotGranted, ""},
		{"not granted any more", newService(testService, withConditions(published(eipAddrA))), eip(withGrant("other")), ReasonNotGranted, ""},
		{"a grant is required", newService(testService), func(s *Snapshot) { s.RequireEIPGrant = true }, ReasonNotGranted, ""},
		{"no gateway, and so no address", newService(testService), func(s *Snapshot) {
			s.EIP = newEIP(eipA, eipAddrA, gwA, func(e *kubeovnv1.IptablesEIP) { e.Status = kubeovnv1.IptablesEIPStatus{} })
			s.Gateway = nil
		}, ReasonGatewayNotFound, ""},
		{"no gateway any more", newService(testService), func(s *Snapshot) {
			s.EIP, s.Gateway = newEIP(eipA, eipAddrA, gwA, notReadyEIP), nil
		}, ReasonGatewayNotFound, ""},
		{"no gateway", newService(testService), func(s *Snapshot) { s.Gateway = nil }, ReasonGatewayNotFound, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			out := Desired(newSnapshot(tc.svc, withBackend, tc.tweak))
			if out.Blocked != tc.wantBlocked || out.Degraded != tc.wantDegraded {
				t.Fatalf("want blocked %q degraded %q, got %q %q", tc.wantBlocked, tc.wantDegraded, out.Blocked, out.Degraded)
			}
			if want := 1; (tc.wantBlocked == "") != (len(out.Rules) == want) {
				t.Errorf("rules: got %d", len(out.Rules))
			}
			if tc.wantBlocked != "" && out.BlockedMessage == "" {
				t.Error("no message")
			}
		})
	}
}

func TestDesiredForeignService(t *testing.T) {
	for _, svc := range []*corev1.Service{
		nil,
		deleting(newService(testService)),
		newService(testService, func(s *corev1.Service) { s.Spec.LoadBalancerClass = ptr.To("example.com/lb") }),
	} {
		s := newSnapshot(newService(testService), withBackend)
		s.Service = svc
		if out := Desired(s); out.Qualified || len(out.Rules) > 0 {
			t.Errorf("%v: want nothing, got %+v", svc, out)
		}
	}
}

func TestDesiredIsDeterministic(t *testing.T) {
	svc, s := manyBackends(50)
	first := Desired(s)
	for range 20 {
		if diff := cmp.Diff(first.Rules, Desired(s).Rules); diff != "" {
			t.Fatalf("rules of %s differ (-first +again):\n%s", svc.Name, diff)
		}
	}
}

// manyBackends is a Service of two ports with n dual-NIC backends in slices of 100.
func manyBackends(n int) (*corev1.Service, *Snapshot) {
	svc := newService(testService, withPorts(tcpPort("http", 80), tcpPort("https", 443)))
	s := newSnapshot(svc)
	ports := []discoveryv1.EndpointPort{slicePort("http", 8080), slicePort("https", 8443)}
	for i := range n {
		if i%100 == 0 {
			s.Slices = append(s.Slices, newSlice(fmt.Sprintf("web-%d", i/100), testService, ports))
		}
		pod := newDualPod(fmt.Sprintf("web-%d", i), fmt.Sprintf("10.16.%d.%d", i/250, i%250+2), fmt.Sprintf("10.1.%d.%d", i/250, i%250+2))
		withPods(pod)(s)
		slice := s.Slices[len(s.Slices)-1]
		slice.Endpoints = append(slice.Endpoints, endpointOf(pod))
	}
	return svc, s
}

func BenchmarkDesired(b *testing.B) {
	for _, n := range []int{10, 1000} {
		b.Run(fmt.Sprintf("backends=%d", n), func(b *testing.B) {
			_, s := manyBackends(n)
			b.ReportAllocs()
			for b.Loop() {
				if out := Desired(s); len(out.Rules) != 2*n {
					b.Fatalf("rules: %d", len(out.Rules))
				}
			}
		})
	}
}

func BenchmarkParsePod(b *testing.B) {
	pod := newDualPod("web-0", "10.16.0.4", "10.1.0.4")
	b.ReportAllocs()
	for b.Loop() {
		ParsePod(pod)
	}
}
