// SPDX-License-Identifier: Apache-2.0

package stockrules

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// The cluster that objects are held against.
const there = `
- {kind: Vpc, metadata: {name: ovn-cluster}}
- {kind: Vpc, metadata: {name: demo}}
- {kind: Subnet, metadata: {name: ovn-default}, spec: {cidrBlock: 10.16.0.0/16}}
- {kind: Subnet, metadata: {name: demo-net}, spec: {vpc: demo, cidrBlock: 10.1.0.0/24}}
- kind: Subnet
  metadata: {name: ovn-vpc-external-network}
  spec: {provider: ovn-vpc-external-network.kube-system, cidrBlock: 203.0.113.0/24}
- {kind: VpcNatGateway, metadata: {name: demo}}
- {kind: IptablesEIP, metadata: {name: demo}}
`

func objects(t *testing.T, list string) []*unstructured.Unstructured {
	t.Helper()
	var raw []map[string]any
	if err := yaml.Unmarshal([]byte(list), &raw); err != nil {
		t.Fatal(err)
	}
	var out []*unstructured.Unstructured
	for _, object := range raw {
		out = append(out, &unstructured.Unstructured{Object: object})
	}
	return out
}

func TestCheck(t *testing.T) {
	const (
		name  = `metadata.name: Invalid value: "demo-net": a Vpc and a Subnet cannot have the same name`
		named = `metadata.name: Invalid value: "demo": a Vpc and a Subnet cannot have the same name`
	)
	cidr := func(value, why string) []string {
		return []string{`spec.cidrBlock: Invalid value: "` + value + `": ` + why}
	}
	gateway := func(value, why string) []string {
		return []string{`spec.gateway: Invalid value: "` + value + `": ` + why}
	}
	exclude := func(value, why string) []string {
		return []string{`spec.excludeIps[0]: Invalid value: "` + value + `": ` + why}
	}
	for _, tc := range []struct {
		name, kind, called, spec string
		want                     []string
	}{
		{"another kind", "Service", "demo", `{}`, nil},
		{"a VPC", "Vpc", "new", `{staticRoutes: [
   {policy: policyDst, cidr: 0.0.0.0/0, nextHopIP: 10.1.0.254},
			{policy: policySrc, cidr: 10.1.0.7, nextHopIP: 10.1.0.254},
			{cidr: "fd00::/8", nextHopIP: "fd00::1"}]}`, nil},
		{"a VPC with a Subnet's name", "Vpc", "demo-net", `{}`, []string{name}},
		{"a static route's fields", "Vpc", "new", `{staticRoutes: [
   {policy: policyAny, cidr: 0.0.0.0/33, nextHopIP: 10.1.0}]}`, []string{
			`spec.staticRoutes[0].policy: Unsupported value: "policyAny": supported values: "policySrc", "policyDst"`,
			`spec.staticRoutes[0].cidr: Invalid value: "0.0.0.0/33": parse CIDR "0.0.0.0/33": ` +
				`netip.ParsePrefix("0.0.0.0/33"): prefix length out of range`,
			`spec.staticRoutes[0].nextHopIP: Invalid value: "10.1.0": ParseAddr("10.1.0"): IPv4 address too short`,
		}},

		{"a Subnet", "Subnet", "new", `{vpc: demo, cidrBlock: 10.2.0.0/24, gateway: 10.2.0.1,
			excludeIps: [10.2.0.1, 10.2.0.200..10.2.0.254]}`, nil},
		{
			"a Subnet as it is there already", "Subnet", "demo-net", `{
			vpc: demo, cidrBlock: 10.1.0.0/24}`,
			nil,
		},
		{"a Subnet of both families", "Subnet", "new", `{cidrBlock: "10.2.0.0/24,fd00::/112",
			gateway: "10.2.0.1,fd00::1", excludeIps: ["fd00::1..fd00::9"]}`, nil},
		{"the same addresses in another VPC", "Subnet", "new", `{cidrBlock: 10.1.0.0/24}`, nil},
		{
			"a Subnet with a VPC's name", "Subnet", "demo", `{vpc: demo, cidrBlock: 10.2.0.0/24}`,
			[]string{named},
		},
		{"a Subnet of no VPC", "Subnet", "new", `{vpc: none, cidrBlock: 10.2.0.0/24}`, []string{
			`spec.vpc: Not found: "none"`,
		}},
		{
			"addresses in common", "Subnet", "new", `{vpc: demo, cidrBlock: 10.1.0.128/25}`,
			cidr("10.1.0.128/25", "conflicts with 10.1.0.0/24 of Subnet demo-net in the same VPC"),
		},
		{
			"addresses in common in the default VPC", "Subnet", "new", `{cidrBlock: 10.0.0.0/8}`,
			cidr("10.0.0.0/8", "conflicts with 10.16.0.0/16 of Subnet ovn-default in the same VPC"),
		},
		{"no CIDR", "Subnet", "new", `{}`, cidr("", `no CIDR in ""`)},
		{
			"a CIDR that is none", "Subnet", "new", `{cidrBlock: 10.2.0.0}`,
			cidr("10.2.0.0", `parse CIDR "10.2.0.0": netip.ParsePrefix("10.2.0.0"): no '/'`),
		},
		{
			"a host's address", "Subnet", "new", `{cidrBlock: 10.2.0.1/24}`,
			cidr("10.2.0.1/24", "10.2.0.1/24 is no network address, 10.2.0.0/24 is"),
		},
		{
			"two of a family", "Subnet", "new", `{cidrBlock: "10.2.0.0/24,10.3.0.0/24"}`,
			cidr("10.2.0.0/24,10.3.0.0/24", `"10.2.0.0/24,10.3.0.0/24" is more than one CIDR a family`),
		},
		{
			"a gateway outside", "Subnet", "new", `{cidrBlock: 10.2.0.0/24, gateway: 10.3.0.1}`,
			gateway("10.3.0.1", "10.3.0.1 is not in 10.2.0.0/24"),
		},
		{
			"a gateway that is no address", "Subnet", "new", `{cidrBlock: 10.2.0.0/24, gateway: 10.2.0.1/24}`,
			gateway("10.2.0.1/24", `ParseAddr("10.2.0.1/24"): unexpected character (at "/24")`),
		},
		{
			"the network as gateway", "Subnet", "new", `{cidrBlock: 10.2.0.0/24, gateway: 10.2.0.0}`,
			gateway("10.2.0.0", "10.2.0.0 is the network's own address"),
		},
		{
			"everybody as gateway", "Subnet", "new", `{cidrBlock: 10.2.0.0/24, gateway: 10.2.0.255}`,
			gateway("10.2.0.255", "10.2.0.255 is the broadcast address"),
		},
		{
			"an excluded address outside", "Subnet", "new", `{cidrBlock: 10.2.0.0/24, excludeIps: [10.1.0.254]}`,
			exclude("10.1.0.254", "not in 10.2.0.0/24"),
		},
		{
			"an excluded range that leaves", "Subnet", "new", `{cidrBlock: 10.2.0.0/24, excludeIps: [10.2.0.9..10.2.1.1]}`,
			exclude("10.2.0.9..10.2.1.1", "not in 10.2.0.0/24"),
		},
		{
			"an excluded range backwards", "Subnet", "new", `{cidrBlock: 10.2.0.0/24, excludeIps: [10.2.0.9..10.2.0.2]}`,
			exclude("10.2.0.9..10.2.0.2", `address range "10.2.0.9..10.2.0.2" does not go up`),
		},
		{
			"an excluded range of three", "Subnet", "new", `{cidrBlock: 10.2.0.0/24,
			excludeIps: [10.2.0.2..10.2.0.3..10.2.0.4]}`,
			exclude("10.2.0.2..10.2.0.3..10.2.0.4", `parse address range "10.2.0.2..10.2.0.3..10.2.0.4": `+
				`ParseAddr("10.2.0.3..10.2.0.4"): IPv4 address too long`),
		},

		{
			"a gateway", "VpcNatGateway", "new", `{vpc: demo, subnet: demo-net, lanIp: 10.1.0.254}`,
			nil,
		},
		{
			"replicas without addresses", "VpcNatGateway", "new", `{
			vpc: demo, subnet: demo-net, replicas: 2}`,
			nil,
		},
		{"a gateway of nothing", "VpcNatGateway", "new", `{}`, []string{
			"spec.vpc: Required value", `spec.lanIp: Invalid value: "": ParseAddr(""): unable to parse IP`,
			"spec.subnet: Required value",
		}},
		{"a gateway of what is not there", "VpcNatGateway", "new", `{vpc: v, subnet: s, lanIp: 10.1.0.254,
			externalSubnets: [e]}`, []string{
			`spec.vpc: Not found: "v"`,
			`spec.subnet: Not found: "s"`, `spec.externalSubnets: Not found: "e"`,
		}},
		{
			"a lanIp outside", "VpcNatGateway", "new", `{
			vpc: demo, subnet: demo-net, lanIp: 10.2.0.254}`,
			[]string{
				`spec.lanIp: Invalid value: "10.2.0.254": not in 10.1.0.0/24 of Subnet demo-net`,
			},
		},

		{"an EIP", "IptablesEIP", "new", `{natGwDp: demo}`, nil},
		{"an EIP with an address", "IptablesEIP", "new", `{natGwDp: demo, v4ip: 203.0.113.9,
			externalSubnet: ovn-vpc-external-network}`, nil},
		{
			"an EIP of no gateway", "IptablesEIP", "new", `{}`,
			[]string{"spec.natGwDp: Required value"},
		},
		{
			"an EIP of what is not there", "IptablesEIP", "new", `{natGwDp: g, externalSubnet: e}`,
			[]string{
				`spec.natGwDp: Not found: "g"`, `spec.externalSubnet: Not found: "e"`,
			},
		},
		{"an EIP outside", "IptablesEIP", "new", `{natGwDp: demo, v4ip: 198.51.100.1}`, []string{
			`spec.v4ip: Invalid value: "198.51.100.1": not in 203.0.113.0/24 of Subnet ovn-vpc-external-network`,
		}},
		{
			"an EIP that is no address", "IptablesEIP", "new", `{
			natGwDp: demo, v4ip: 203.0.113, v6ip: 203.0.113.9}`,
			[]string{
				`spec.v4ip: Invalid value: "203.0.113": ParseAddr("203.0.113"): IPv4 address too short`,
				`spec.v6ip: Invalid value: "203.0.113.9": of the other family`,
			},
		},

		{"a rule", "IptablesDnatRule", "new", `{eip: demo, externalPort: "80", internalPort: "65535",
			protocol: TCP, internalIp: 10.1.0.4}`, nil},
		{"a rule of nothing", "IptablesDnatRule", "new", `{}`, []string{
			"spec.eip: Required value", `spec.externalPort: Invalid value: "": not a port from 1 to 65535`,
			`spec.internalPort: Invalid value: "": not a port from 1 to 65535`,
			`spec.protocol: Unsupported value: "": supported values: "tcp", "udp"`,
			`spec.internalIp: Invalid value: "": ParseAddr(""): unable to parse IP`,
		}},
		{"a rule's fields", "IptablesDnatRule", "new", `{eip: e, externalPort: "0", internalPort: "65536",
			protocol: sctp, internalIp: 10.1.0.256}`, []string{
			`spec.eip: Not found: "e"`, `spec.externalPort: Invalid value: "0": not a port from 1 to 65535`,
			`spec.internalPort: Invalid value: "65536": not a port from 1 to 65535`,
			`spec.protocol: Unsupported value: "sctp": supported values: "tcp", "udp"`,
			`spec.internalIp: Invalid value: "10.1.0.256": ParseAddr("10.1.0.256"): IPv4 field has value >255`,
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := &Cluster{}
			for _, object := range objects(t, there) {
				if err := in.Add(object); err != nil {
					t.Fatal(err)
				}
			}
			object := objects(t, "- {spec: "+tc.spec+"}")[0]
			object.SetKind(tc.kind)
			object.SetName(tc.called)
			faults, err := Check(object, in)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, fault := range faults {
				got = append(got, fault.Error())
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestRefused: what is not there yet may come, so that nobody is refused for it.
func TestRefused(t *testing.T) {
	object := objects(t, `[{kind: Subnet, metadata: {name: demo}, spec: {vpc: demo, cidrBlock: 10.2.0.0}}]`)[0]
	faults, err := Check(object, &Cluster{})
	if err != nil {
		t.Fatal(err)
	}
	refused := Refused(faults)
	if len(faults) != 2 || len(refused) != 1 || refused[0].Field != "spec.cidrBlock" {
		t.Errorf("of %v refused for %v", faults, refused)
	}
}
