// SPDX-License-Identifier: Apache-2.0

package lbservice

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
)

func sorted(in []string) []string {
	slices.Sort(in)
	return in
}

func noIP(pod *corev1.Pod) { pod.Status.PodIP = "" }

func TestParsePod(t *testing.T) {
	primary := func(address string) NIC {
		return NIC{Provider: "ovn", Subnet: "ovn-default", IPv4: netip.MustParseAddr(address), Primary: true, DefaultRoute: true}
	}
	attached := func(provider string) NIC {
		return NIC{Provider: provider, Subnet: "sub-a", IPv4: netip.MustParseAddr("10.1.0.4")}
	}
	networks := func(value string) func(*corev1.Pod) { return withPodAnnotation(networksAnnotation, value) }
	for _, tc := range []struct {
		name string
		pod  *corev1.Pod
		want []NIC
	}{
		{"not Kube-OVN's", newPod("p", "", "192.0.2.1"), nil},
		{"primary", newPod("p", "ovn-default", "10.16.0.4"), []NIC{primary("10.16.0.4")}},
		{"dual stack, IPv4 first", newPod("p", "ovn-default", "10.16.0.4,fd00::4"), []NIC{primary("10.16.0.4")}},
		{"dual stack, IPv6 first, spaces", newPod("p", "ovn-default", "fd00::4, 10.16.0.4"), []NIC{primary("10.16.0.4")}},
		{
			"IPv6 only", newPod("p", "ovn-default", "fd00::4"),
			[]NIC{{Provider: "ovn", Subnet: "ovn-default", Primary: true, DefaultRoute: true}},
		},
		{
			"attached by ns/name", newPod("p", "ovn-default", "10.16.0.4", networks("ns/net-a"), withNIC("net-a.ns.ovn", "sub-a", "10.1.0.4")),
			[]NIC{attached("net-a.ns.ovn"), primary("10.16.0.4")},
		},
		{
			"attached by name alone", newPod("p", "ovn-default", "10.16.0.4", networks("net-a"), withNIC("net-a.ns.ovn", "sub-a", "10.1.0.4")),
			[]NIC{attached("net-a.ns.ovn"), primary("10.16.0.4")},
		},
		{
			"attached with an interface, among others",
			newPod("p", "ovn-default", "10.16.0.4", networks(" other/x , ns/net-a@eth7"), withNIC("net-a.ns.ovn", "sub-a", "10.1.0.4")),
			[]NIC{attached("net-a.ns.ovn"), primary("10.16.0.4")},
		},
		{
			"attached by a JSON list",
			newPod("p", "ovn-default", "10.16.0.4", networks(`[{"name":"net-a","namespace":"ns","interface":"eth7"},{"name":"x"}]`), withNIC("net-a.ns.ovn", "sub-a", "10.1.0.4")),
			[]NIC{attached("net-a.ns.ovn"), primary("10.16.0.4")},
		},
		{
			"attached by a JSON list without a namespace",
			newPod("p", "ovn-default", "10.16.0.4", networks(`[{"name":"net-a"}]`), withNIC("net-a.ns.ovn", "sub-a", "10.1.0.4")),
			[]NIC{attached("net-a.ns.ovn"), primary("10.16.0.4")},
		},
		{
			"the same network twice",
			newPod("p", "ovn-default", "10.16.0.4", networks("ns/net-a@eth1,ns/net-a@eth2"),
				withNIC("net-a.ns.ovn.eth1", "sub-a", "10.1.0.4"), withNIC("net-a.ns.ovn.eth2", "sub-a", "10.1.0.4")),
			[]NIC{attached("net-a.ns.ovn.eth1"), attached("net-a.ns.ovn.eth2"), primary("10.16.0.4")},
		},
		{
			"IPAM only", newPod("p", "ovn-default", "10.16.0.4", networks("ns/macvlan"), withNIC("macvlan.ns", "sub-a", "10.1.0.4")),
			[]NIC{attached("macvlan.ns"), primary("10.16.0.4")},
		},
		{
			"annotations of a network that is not attached", newPod("p", "ovn-default", "10.16.0.4", networks("ns/net-b"), withNIC("net-a.ns.ovn", "sub-a", "10.1.0.4")),
			[]NIC{primary("10.16.0.4")},
		},
		{
			"a network whose name only begins the same", newPod("p", "ovn-default", "10.16.0.4", networks("ns/net"), withNIC("net-a.ns.ovn", "sub-a", "10.1.0.4")),
			[]NIC{primary("10.16.0.4")},
		},
		{
			"unreadable networks", newPod("p", "ovn-default", "10.16.0.4", networks(`[{"name":`), withNIC("net-a.ns.ovn", "sub-a", "10.1.0.4")),
			[]NIC{primary("10.16.0.4")},
		},
		{
			"another default network", newPod("p", "", "10.1.0.4", withPodAnnotation(defaultNetworkAnnotation, "ns/net-a"), withNIC("net-a.ns.ovn", "sub-a", "10.1.0.4")),
			[]NIC{{Provider: "net-a.ns.ovn", Subnet: "sub-a", IPv4: netip.MustParseAddr("10.1.0.4"), Primary: true, DefaultRoute: true}},
		},
		{
			"another default network, of Multus' namespace", newPod("p", "", "10.1.0.4", withPodAnnotation(defaultNetworkAnnotation, "net-a"), withNIC("net-a.kube-system.ovn", "sub-a", "10.1.0.4")),
			[]NIC{{Provider: "net-a.kube-system.ovn", Subnet: "sub-a", IPv4: netip.MustParseAddr("10.1.0.4"), Primary: true, DefaultRoute: true}},
		},
		{
			"another default network, and a subnet that was only asked for",
			newPod("p", "", "10.1.0.4", withPodAnnotation(defaultNetworkAnnotation, "ns/net-a"), withNIC("net-a.ns.ovn", "sub-a", "10.1.0.4"),
				withPodAnnotation("ovn"+logicalSwitchSuffix, "ovn-default")),
			[]NIC{{Provider: "net-a.ns.ovn", Subnet: "sub-a", IPv4: netip.MustParseAddr("10.1.0.4"), Primary: true, DefaultRoute: true}},
		},
		{
			"the attached NIC carries the default route",
			newDualPod("p", "10.16.0.4", "10.1.0.4", withPodAnnotation("net-a.ns.ovn"+defaultRouteSuffix, "true")),
			[]NIC{
				{Provider: "net-a.ns.ovn", Subnet: "sub-a", IPv4: netip.MustParseAddr("10.1.0.4"), DefaultRoute: true},
				{Provider: "ovn", Subnet: "ovn-default", IPv4: netip.MustParseAddr("10.16.0.4"), Primary: true},
			},
		},
		{
			"nobody carries it", newPod("p", "ovn-default", "10.16.0.4", withPodAnnotation("ovn"+defaultRouteSuffix, "false")),
			[]NIC{{Provider: "ovn", Subnet: "ovn-default", IPv4: netip.MustParseAddr("10.16.0.4"), Primary: true}},
		},
		{
			"no address yet", newPod("p", "", "", withPodAnnotation("ovn"+logicalSwitchSuffix, "sub-a")),
			[]NIC{{Provider: "ovn", Subnet: "sub-a", Pending: true, Primary: true, DefaultRoute: true}},
		},
		{
			"an address that was only asked for", newPod("p", "", "", withPodAnnotation("ovn"+logicalSwitchSuffix, "sub-a"), withPodAnnotation("ovn"+ipAddressSuffix, "10.1.0.4")),
			[]NIC{{Provider: "ovn", Subnet: "sub-a", Pending: true, Primary: true, DefaultRoute: true}},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := ParsePod(tc.pod).NICs
			if diff := cmp.Diff(tc.want, got, cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Addr{})); diff != "" {
				t.Errorf("NICs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestChooseNIC(t *testing.T) {
	for _, tc := range []struct {
		name       string
		pod        *corev1.Pod
		vpcs       map[string]string
		want       nicChoice
		wantAddr   string
		wantReturn bool
	}{
		{"single NIC", newPod("p", "sub-a", "10.1.0.4"), subnetVPCs, nicFound, "10.1.0.4", true},
		{"dual NIC", newDualPod("p", "10.16.0.4", "10.1.0.4"), subnetVPCs, nicFound, "10.1.0.4", false},
		{"dual NIC, default route by the attached one", newDualPod("p", "10.16.0.4", "10.1.0.4", withPodAnnotation("net-a.ns.ovn"+defaultRouteSuffix, "true")), subnetVPCs, nicFound, "10.1.0.4", true},
		{
			"the lowest address, as an address", newPod("p", "sub-a", "10.1.0.10", withPodAnnotation(networksAnnotation, "net-a"), withNIC("net-a.ns.ovn", "sub-a2", "10.1.0.9")),
			subnetVPCs, nicFound, "10.1.0.9", false,
		},
		{"elsewhere", newPod("p", "sub-b", "10.2.0.4"), subnetVPCs, nicElsewhere, "", false},
		{"in the VPC, but IPv6 alone", newPod("p", "sub-a", "fd00::4"), subnetVPCs, nicElsewhere, "", false},
		{"elsewhere, before it is through CNI", newPod("p", "ovn-default", "10.16.0.4", noIP), subnetVPCs, nicNotYet, "", false},
		{"its Subnet is not seen yet", newPod("p", "sub-new", "10.9.0.4"), subnetVPCs, nicNotYet, "", false},
		{
			"one NIC elsewhere, the other not ready", newPod("p", "ovn-default", "10.16.0.4", withPodAnnotation(networksAnnotation, "net-a"), withPodAnnotation("net-a.ns.ovn"+logicalSwitchSuffix, "sub-a")),
			subnetVPCs, nicNotYet, "", false,
		},
		{
			"a NIC that is not ready, of another VPC", newPod("p", "ovn-default", "10.16.0.4", withPodAnnotation(networksAnnotation, "net-b"), withPodAnnotation("net-b.ns.ovn"+logicalSwitchSuffix, "sub-b")),
			subnetVPCs, nicElsewhere, "", false,
		},
		{"not Kube-OVN's", newPod("p", "", "192.0.2.1"), subnetVPCs, nicNone, "", false},
		{"nothing known yet", newPod("p", "", ""), subnetVPCs, nicNotYet, "", false},
		{"a Subnet that moved away", newPod("p", "sub-a", "10.1.0.4"), map[string]string{"sub-a": vpcB}, nicElsewhere, "", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			nic, choice := ParsePod(tc.pod).chooseNIC(vpcA, tc.vpcs)
			if choice != tc.want {
				t.Fatalf("choice: want %d, got %d", tc.want, choice)
			}
			if choice == nicFound && (nic.IPv4.String() != tc.wantAddr || nic.DefaultRoute != tc.wantReturn) {
				t.Errorf("want %s default route %v, got %s %v", tc.wantAddr, tc.wantReturn, nic.IPv4, nic.DefaultRoute)
			}
		})
	}
}
