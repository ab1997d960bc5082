// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
)

type eipTweak = func(*kubeovnv1.IptablesEIP)

func eipSpec(change func(*kubeovnv1.IptablesEIPSpec)) eipTweak {
	return func(e *kubeovnv1.IptablesEIP) { change(&e.Spec) }
}

func TestEIP(t *testing.T) {
	const address = "203.0.113.10"
	on := func(gateway string) *kubeovnv1.IptablesEIP { return newEIP(eipA, address, gateway) }
	with := func(change func(*kubeovnv1.IptablesEIPSpec)) *kubeovnv1.IptablesEIP {
		return newEIP(eipA, address, gwA, eipSpec(change))
	}
	full := func(s *kubeovnv1.IptablesEIPSpec) {
		s.V4ip, s.V6ip, s.MacAddress, s.ExternalSubnet = address, "2001:db8::10", "00:00:00:53:51:95", "outside"
	}
	ofWeb := newRule("lb-web", owned(web))
	const fixed = "Forbidden: cannot be changed once the IptablesEIP has an address: make another IptablesEIP"
	type spec = kubeovnv1.IptablesEIPSpec
	for _, tc := range []decisionTest{
		{name: "new", req: creating(newEIP("new", "", gwA, eipSpec(full)))},
		{
			name: "new, its gateway comes later", req: creating(newEIP("new", "", "later")),
			warnings: []string{`VpcNatGateway "later" does not exist: the IptablesEIP waits until it does`},
		},
		{
			name: "new, all wrong",
			req: creating(newEIP("new", "", "", eipSpec(func(s *spec) {
				s.V4ip, s.V6ip, s.MacAddress = "2001:db8::10", "203.0.113.10", "00:00"
			}))),
			refusals: []string{
				`spec.v4ip: Invalid value: "2001:db8::10": must be an IPv4 address`,
				`spec.v6ip: Invalid value: "203.0.113.10": must be an IPv6 address`,
				`spec.macAddress: Invalid value: "00:00": must be a MAC address`,
				`spec.natGwDp: Required value: must name a VpcNatGateway`,
			},
		},

		{name: "delete, unused", req: removing(on(gwA))},
		{
			name: "delete, used by a Service and by hand", req: removing(on(gwA)),
			cluster:  aCluster(ofWeb, newRule("lb-web2", owned(web), backend("10.1.0.5")), newRule("hand", port("81"))),
			refusals: []string{"metadata.deletionTimestamp: Forbidden: is used by Service shop/web, IptablesDnatRule hand: remove that first"},
			evidence: []Ref{{KindRule, "hand"}, {KindRule, "lb-web"}},
		},
		{
			name: "delete, used by a FIP", req: removing(on(gwA)), cluster: aCluster(newFIP("fip", eipA)),
			refusals: []string{"metadata.deletionTimestamp: Forbidden: is used by IptablesFIPRule fip: remove that first"},
			evidence: []Ref{{KindFIP, "fip"}},
		},
		{
			name: "delete, used by many", req: removing(on(gwA)),
			cluster:  aCluster(newRule("d"), newRule("c"), newRule("b"), newRule("a"), newRule("e")),
			refusals: []string{"metadata.deletionTimestamp: Forbidden: is used by IptablesDnatRule a, IptablesDnatRule b, IptablesDnatRule c and 2 more: remove that first"},
			evidence: []Ref{{KindRule, "a"}, {KindRule, "b"}, {KindRule, "c"}},
		},
		{name: "delete, its rules are being deleted", req: removing(on(gwA)), cluster: aCluster(deleting(newRule("r")), deleting(newFIP("fip", eipA)))},
		{name: "delete, others are used", req: removing(on(gwA)), cluster: aCluster(newRule("r", onEIP(eipB)))},
		{name: "delete again", req: removing(deleting(on(gwA))), cluster: aCluster(newRule("r"))},
		{
			name: "delete, a Service names it", req: removing(on(gwA)), cluster: aCluster(newService(web)),
			warnings: []string{"IptablesEIP eip-a is named by Service shop/web, which loses its EXTERNAL-IP"},
		},

		{name: "move, unused", req: updating(on(gwA), on(gwB))},
		{
			name: "move, used", req: updating(on(gwA), on(gwB)), cluster: aCluster(ofWeb),
			refusals: []string{"spec.natGwDp: Forbidden: is used by Service shop/web, and cannot be moved to another gateway: remove that first"},
			evidence: []Ref{{KindRule, "lb-web"}},
		},
		{
			name: "move nowhere, used", req: updating(on(gwA), on("")), cluster: aCluster(ofWeb),
			refusals: []string{
				"spec.natGwDp: Required value: must name a VpcNatGateway",
				"spec.natGwDp: Forbidden: is used by Service shop/web, and cannot be moved to another gateway: remove that first",
			},
			evidence: []Ref{{KindRule, "lb-web"}},
		},
		{name: "placed, used", req: updating(on(""), on(gwA)), cluster: aCluster(ofWeb)},
		{name: "a wrong gateway corrected before there is an address", req: updating(newEIP(eipA, "", gwA), newEIP(eipA, "", gwB)), cluster: aCluster(ofWeb)},
		{
			name: "metadata, used", req: updating(on(gwA), newEIP(eipA, address, gwA, granted("shop"))), cluster: aCluster(ofWeb),
		},
		{name: "finalizer of one that is being deleted", req: updating(deleting(on(gwA)), deleting(on(gwB))), cluster: aCluster(ofWeb)},

		{name: "what was left open is filled in", req: updating(on(gwA), with(func(s *spec) {
			s.V4ip, s.V6ip, s.MacAddress, s.ExternalSubnet = address, "2001:db8::10", "00:00:00:53:51:95", "ovn-vpc-external-network"
		}))},
		{
			name: "what an address is, is changed", req: updating(with(full), with(func(s *spec) {
				s.V4ip, s.V6ip, s.MacAddress, s.ExternalSubnet = "203.0.113.11", "2001:db8::11", "00:00:00:53:51:96", "elsewhere"
			})),
			refusals: []string{"spec.externalSubnet: " + fixed, "spec.macAddress: " + fixed, "spec.v4ip: " + fixed, "spec.v6ip: " + fixed},
		},
		{
			name: "another address than it has", req: updating(on(gwA), with(func(s *spec) { s.V4ip = "203.0.113.11" })),
			refusals: []string{"spec.v4ip: " + fixed},
		},
		{
			name: "another subnet than the default", req: updating(on(gwA), with(func(s *spec) { s.ExternalSubnet = "outside" })),
			refusals: []string{"spec.externalSubnet: " + fixed},
		},
		{name: "before there is an address, all can be corrected", req: updating(newEIP(eipA, "", gwA, eipSpec(full)), newEIP(eipA, "", gwA))},
		{name: "by the controller", req: byController(updating(with(full), on(gwA)))},
		{name: "quality of service", req: updating(on(gwA), with(func(s *spec) { s.QoSPolicy = "slow" })), cluster: aCluster(ofWeb)},
	} {
		tc.run(t)
	}
}

func TestFIP(t *testing.T) {
	const alone = ", and an IptablesFIPRule needs the whole of it: name another IptablesEIP"
	ipv6 := newFIP("fip", eipA)
	ipv6.Spec.InternalIP = "2001:db8::4"
	for _, tc := range []decisionTest{
		{name: "on a free EIP", req: creating(newFIP("fip", eipA))},
		{name: "IPv6", req: creating(ipv6)},
		{
			name: "nothing is there", req: creating(&kubeovnv1.IptablesFIPRule{ObjectMeta: metav1.ObjectMeta{Name: "fip"}}),
			refusals: []string{"spec.eip: Required value: must name an IptablesEIP", "spec.internalIp: Required value: must be an IP address"},
		},
		{
			name: "on an EIP that comes later", req: creating(newFIP("fip", "later")),
			warnings: []string{`IptablesEIP "later" does not exist: the rule waits until it does`},
		},
		{
			name: "on an EIP with DNAT", req: creating(newFIP("fip", eipA)), cluster: aCluster(newRule("r", exclusive)),
			refusals: []string{`spec.eip: Invalid value: "eip-a": is used by IptablesDnatRule r` + alone}, evidence: []Ref{{KindRule, "r"}},
		},
		{
			name: "on an EIP of a Service", req: creating(newFIP("fip", eipA)), cluster: aCluster(newRule("r", owned(web))),
			refusals: []string{`spec.eip: Invalid value: "eip-a": is used by Service shop/web` + alone}, evidence: []Ref{{KindRule, "r"}},
		},
		{
			name: "on an EIP of another FIP", req: creating(newFIP("fip", eipA)), cluster: aCluster(newFIP("first", eipA)),
			refusals: []string{`spec.eip: Invalid value: "eip-a": is used by IptablesFIPRule first` + alone}, evidence: []Ref{{KindFIP, "first"}},
		},
		{name: "on an EIP whose rules are being deleted", req: creating(newFIP("fip", eipA)), cluster: aCluster(deleting(newRule("r")))},
		{name: "where it is already", req: updating(newFIP("fip", eipA), ipv6), cluster: aCluster(newFIP("fip", eipA), newRule("r"))},
		{
			name: "moved to an EIP with DNAT", req: updating(newFIP("fip", eipB), newFIP("fip", eipA)), cluster: aCluster(newFIP("fip", eipB), newRule("r")),
			refusals: []string{`spec.eip: Invalid value: "eip-a": is used by IptablesDnatRule r` + alone}, evidence: []Ref{{KindRule, "r"}},
		},
		{name: "metadata", req: updating(newFIP("fip", "?"), newFIP("fip", "?"))},
		{name: "deletion", req: removing(newFIP("fip", eipA))},
	} {
		tc.run(t)
	}
}

func TestGateway(t *testing.T) {
	type gateway = kubeovnv1.VpcNatGateway
	ofWeb := newRule("lb-web", owned(web))
	outside := newEIP("outside", "198.51.100.1", gwA, eipSpec(func(s *kubeovnv1.IptablesEIPSpec) { s.ExternalSubnet = "outside" }))
	subnets := func(names ...string) func(*gateway) {
		return func(gw *gateway) { gw.Spec.ExternalSubnets = names }
	}
	const fixed = "Forbidden: cannot be changed: make another VpcNatGateway"
	var many []metav1.Object
	for i := range 4 {
		eip := newEIP(fmt.Sprintf("e%d", i), "", gwA)
		many = append(many, eip, newRule(fmt.Sprintf("r%d", i), onEIP(eip.Name)))
	}
	for _, tc := range []decisionTest{
		{name: "new", req: creating(newGateway("gw"))},
		{
			name: "new, all wrong", req: creating(newGateway("gw", func(gw *gateway) {
				gw.Spec.LanIP, gw.Spec.Selector = "10.1.0.999", []string{"zone: a", "zone", ": b"}
			})),
			refusals: []string{
				`spec.lanIp: Invalid value: "10.1.0.999": must be an IPv4 address`,
				`spec.selector[1]: Invalid value: "zone": must be "key: value"`,
				`spec.selector[2]: Invalid value: ": b": must be "key: value"`,
			},
		},
		{name: "delete, without used EIPs", req: removing(newGateway(gwA))},
		{
			name: "delete, with a used EIP", req: removing(newGateway(gwA)), cluster: aCluster(ofWeb),
			refusals: []string{"metadata.deletionTimestamp: Forbidden: carries IptablesEIP eip-a (used by Service shop/web): remove what uses it first"},
			evidence: []Ref{{KindRule, "lb-web"}, {KindEIP, eipA}},
		},
		{
			name: "delete, with many", req: removing(newGateway(gwA)), cluster: objects(many...),
			refusals: []string{
				"metadata.deletionTimestamp: Forbidden: carries IptablesEIP e0 (used by IptablesDnatRule r0), e1 (used by IptablesDnatRule r1), " +
					"e2 (used by IptablesDnatRule r2) and 1 more: remove what uses it first",
			},
			evidence: []Ref{{KindRule, "r0"}, {KindRule, "r1"}, {KindRule, "r2"}, {KindEIP, "e0"}, {KindEIP, "e1"}, {KindEIP, "e2"}},
		},
		{name: "delete, its EIP's rules are being deleted", req: removing(newGateway(gwA)), cluster: aCluster(deleting(newRule("r")))},
		{name: "delete another", req: removing(newGateway(gwB)), cluster: aCluster(ofWeb)},
		{name: "delete again", req: removing(deleting(newGateway(gwA))), cluster: aCluster(ofWeb)},
		{
			name: "another place", req: updating(newGateway(gwA), newGateway(gwA, func(gw *gateway) { gw.Spec.Vpc, gw.Spec.Subnet = "vpc-b", "sub-b" })),
			refusals: []string{"spec.vpc: " + fixed, "spec.subnet: " + fixed},
		},
		{name: "the default VPC spelled out", req: updating(
			newGateway(gwA, func(gw *gateway) { gw.Spec.Vpc = "" }), newGateway(gwA, func(gw *gateway) { gw.Spec.Vpc = "ovn-cluster" }))},
		{name: "another place, by the controller", req: byController(updating(newGateway(gwA), newGateway(gwA, func(gw *gateway) { gw.Spec.Subnet = "sub-b" })))},
		{name: "more pods", req: updating(newGateway(gwA), newGateway(gwA, func(gw *gateway) { gw.Spec.Replicas = 3 })), cluster: aCluster(ofWeb)},
		{
			name: "an external subnet less, used", req: updating(newGateway(gwA, subnets("outside", "more")), newGateway(gwA, subnets("more"))),
			cluster:  aCluster(outside, newRule("r", onEIP("outside"))),
			refusals: []string{"spec.externalSubnets: Forbidden: subnet outside carries IptablesEIP outside, which is used by IptablesDnatRule r: remove that first"},
			evidence: []Ref{{KindRule, "r"}, {KindEIP, "outside"}},
		},
		{
			name: "the default external subnet is no more, used", req: updating(newGateway(gwA), newGateway(gwA, subnets("more"))), cluster: aCluster(ofWeb),
			refusals: []string{"spec.externalSubnets: Forbidden: subnet ovn-vpc-external-network carries IptablesEIP eip-a, which is used by Service shop/web: remove that first"},
			evidence: []Ref{{KindRule, "lb-web"}, {KindEIP, eipA}},
		},
		{name: "an external subnet less, unused", req: updating(newGateway(gwA, subnets("outside", "more")), newGateway(gwA, subnets("more"))), cluster: aCluster(outside)},
		{name: "metadata of a bad one", req: updating(
			newGateway(gwA, func(gw *gateway) { gw.Spec.LanIP = "x" }),
			newGateway(gwA, func(gw *gateway) { gw.Spec.LanIP, gw.Finalizers = "x", []string{"a/b"} }))},
		{name: "one that is being deleted", req: updating(deleting(newGateway(gwA)), deleting(newGateway(gwA, func(gw *gateway) { gw.Spec.Vpc = "vpc-b" })))},
	} {
		tc.run(t)
	}
}
