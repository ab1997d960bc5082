// SPDX-License-Identifier: Apache-2.0

package stockrules

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var spec = field.NewPath("spec")

// Check holds an object of any kind against the rules. One that no rule is about passes.
func Check(object *unstructured.Unstructured, in *Cluster) (field.ErrorList, error) {
	switch object.GetKind() {
	case "Vpc":
		return decodeAnd(CheckVPC, object, in)
	case "Subnet":
		return decodeAnd(CheckSubnet, object, in)
	case "VpcNatGateway":
		return decodeAnd(CheckGateway, object, in)
	case "IptablesEIP":
		return decodeAnd(CheckEIP, object, in)
	case "IptablesDnatRule":
		return decodeAnd(CheckDNATRule, object, in)
	}
	return nil, nil
}

func decodeAnd[T any](
	check func(*T, *Cluster) field.ErrorList, object *unstructured.Unstructured, in *Cluster,
) (field.ErrorList, error) {
	decoded, err := Decode[T](object)
	if err != nil {
		return nil, err
	}
	return check(decoded, in), nil
}

// Refused leaves out what the object only waits for: something it names that is not there yet.
func Refused(faults field.ErrorList) field.ErrorList {
	return faults.Filter(func(err error) bool {
		fault, ok := err.(*field.Error) //nolint:errorlint // a list has nothing else
		return ok && fault.Type == field.ErrorTypeNotFound
	})
}

// CheckVPC holds a Vpc against the rules. A Subnet of its name forbids it.
func CheckVPC(vpc *Vpc, in *Cluster) field.ErrorList {
	var faults field.ErrorList
	for _, subnet := range in.Subnets {
		if subnet.Name == vpc.Name {
			faults = append(faults, namesake(vpc.Name))
		}
	}
	for i, route := range vpc.Spec.StaticRoutes {
		path := spec.Child("staticRoutes").Index(i)
		switch route.Policy {
		case "", "policySrc", "policyDst":
		default:
			known := []string{"policySrc", "policyDst"}
			faults = append(faults, field.NotSupported(path.Child("policy"), route.Policy, known))
		}
		if _, err := ParsePrefixOrAddr(route.CIDR); err != nil {
			faults = append(faults, field.Invalid(path.Child("cidr"), route.CIDR, err.Error()))
		}
		if _, err := netip.ParseAddr(route.NextHopIP); err != nil {
			faults = append(faults, field.Invalid(path.Child("nextHopIP"), route.NextHopIP, err.Error()))
		}
	}
	return faults
}

func namesake(name string) *field.Error {
	return field.Invalid(field.NewPath("metadata", "name"), name, "a Vpc and a Subnet cannot have the same name")
}

// CheckSubnet holds a Subnet against the rules. A Vpc of its name forbids it, and so does another Subnet of its VPC
// that has addresses in common with it.
func CheckSubnet(subnet *Subnet, in *Cluster) field.ErrorList {
	var faults field.ErrorList
	for _, vpc := range in.VPCs {
		if vpc.Name == subnet.Name {
			faults = append(faults, namesake(subnet.Name))
		}
	}
	if name := subnet.VPC(); name != "" && !slices.ContainsFunc(in.VPCs, func(v *Vpc) bool { return v.Name == name }) {
		faults = append(faults, field.NotFound(spec.Child("vpc"), name))
	}
	prefixes, err := ParsePrefixes(subnet.Spec.CIDRBlock)
	if err != nil {
		return append(faults, field.Invalid(spec.Child("cidrBlock"), subnet.Spec.CIDRBlock, err.Error()))
	}
	faults = append(faults, overlaps(subnet, prefixes, in)...)
	faults = append(faults, subnetGateways(subnet, prefixes)...)
	for i, item := range subnet.Spec.ExcludeIPs {
		path := spec.Child("excludeIps").Index(i)
		excluded, err := ParseRange(item)
		if err != nil {
			faults = append(faults, field.Invalid(path, item, err.Error()))
			continue
		}
		network, inside := within(prefixes, excluded.From)
		if !inside || !network.Contains(excluded.To) {
			faults = append(faults, field.Invalid(path, item, "not in "+subnet.Spec.CIDRBlock))
		}
	}
	return faults
}

func overlaps(subnet *Subnet, prefixes []netip.Prefix, in *Cluster) field.ErrorList {
	var faults field.ErrorList
	for _, other := range in.Subnets {
		if other.Name == subnet.Name || other.VPC() != subnet.VPC() || other.Spec.VLAN != subnet.Spec.VLAN {
			continue
		}
		taken, err := ParsePrefixes(other.Spec.CIDRBlock)
		if err != nil {
			continue // it is refused itself
		}
		for _, prefix := range prefixes {
			if slices.ContainsFunc(taken, prefix.Overlaps) {
				faults = append(faults, field.Invalid(spec.Child("cidrBlock"), subnet.Spec.CIDRBlock,
					"conflicts with "+other.Spec.CIDRBlock+" of Subnet "+other.Name+" in the same VPC"))
			}
		}
	}
	return faults
}

func subnetGateways(subnet *Subnet, prefixes []netip.Prefix) field.ErrorList {
	var faults field.ErrorList
	for _, item := range SplitList(subnet.Spec.Gateway) {
		refuse := func(why string) {
			faults = append(faults, field.Invalid(spec.Child("gateway"), subnet.Spec.Gateway, why))
		}
		gateway, err := netip.ParseAddr(item)
		if err != nil {
			refuse(err.Error())
			continue
		}
		switch network, inside := within(prefixes, gateway); {
		case !inside:
			refuse(item + " is not in " + subnet.Spec.CIDRBlock)
		case network.Addr().BitLen()-network.Bits() < 2: // a network so small has neither
		case gateway == network.Addr():
			refuse(item + " is the network's own address")
		case gateway == Last(network):
			refuse(item + " is the broadcast address")
		}
	}
	return faults
}

// VPC is the VPC that a Subnet is in: the default one where it names none. A Subnet whose addresses Kube-OVN only
// counts, in a network of somebody else, is in none.
func (s *Subnet) VPC() string {
	if s.Spec.VPC == "" && Overlay(s.Spec.Provider) {
		return DefaultVPC
	}
	return s.Spec.VPC
}

// Overlay tells whether OVN itself carries a Subnet with this provider.
func Overlay(provider string) bool {
	return provider == "" || provider == OVNProvider || strings.HasSuffix(provider, "."+OVNProvider)
}

// CheckGateway holds a VpcNatGateway against the rules.
func CheckGateway(gateway *VpcNatGateway, in *Cluster) field.ErrorList {
	var faults field.ErrorList
	if gateway.Spec.VPC == "" {
		faults = append(faults, field.Required(spec.Child("vpc"), ""))
	} else if !slices.ContainsFunc(in.VPCs, func(v *Vpc) bool { return v.Name == gateway.Spec.VPC }) {
		faults = append(faults, field.NotFound(spec.Child("vpc"), gateway.Spec.VPC))
	}
	lan, err := netip.ParseAddr(gateway.Spec.LanIP)
	// Several replicas take an address each, of those that are free.
	if err != nil && (gateway.Spec.LanIP != "" || gateway.Spec.Replicas < 2) {
		faults = append(faults, field.Invalid(spec.Child("lanIp"), gateway.Spec.LanIP, err.Error()))
	}
	if gateway.Spec.Subnet == "" {
		faults = append(faults, field.Required(spec.Child("subnet"), ""))
	} else if fault := addressIn(lan, gateway.Spec.Subnet, "lanIp", "subnet", in); fault != nil {
		faults = append(faults, fault)
	}
	externals := gateway.Spec.ExternalSubnets
	if len(externals) == 0 {
		externals = []string{DefaultExternalSubnet}
	}
	for _, name := range externals {
		if in.subnet(name) == nil {
			faults = append(faults, field.NotFound(spec.Child("externalSubnets"), name))
		}
	}
	return faults
}

// CheckEIP holds an IptablesEIP against the rules.
func CheckEIP(eip *IptablesEIP, in *Cluster) field.ErrorList {
	var faults field.ErrorList
	if eip.Spec.NatGwDp == "" {
		faults = append(faults, field.Required(spec.Child("natGwDp"), ""))
	} else if !slices.ContainsFunc(in.Gateways, func(g *VpcNatGateway) bool { return g.Name == eip.Spec.NatGwDp }) {
		faults = append(faults, field.NotFound(spec.Child("natGwDp"), eip.Spec.NatGwDp))
	}
	external := eip.Spec.ExternalSubnet
	if external == "" {
		external = DefaultExternalSubnet
	}
	v4, fault := ofFamily(eip.Spec.V4IP, "v4ip", netip.Addr.Is4)
	if fault == nil {
		fault = addressIn(v4, external, "v4ip", "externalSubnet", in)
	}
	if fault != nil {
		faults = append(faults, fault)
	}
	v6, fault := ofFamily(eip.Spec.V6IP, "v6ip", netip.Addr.Is6)
	if fault == nil && v6.IsValid() {
		fault = addressIn(v6, external, "v6ip", "externalSubnet", in)
	}
	if fault != nil {
		faults = append(faults, fault)
	}
	return faults
}

// ofFamily reads an address that need not be there.
func ofFamily(text, name string, isOf func(netip.Addr) bool) (netip.Addr, *field.Error) {
	if text == "" {
		return netip.Addr{}, nil
	}
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return addr, field.Invalid(spec.Child(name), text, err.Error())
	}
	if !isOf(addr) {
		return addr, field.Invalid(spec.Child(name), text, "of the other family")
	}
	return addr, nil
}

// addressIn finds a Subnet, which is named by a field, and looks whether an address of another field is in it, if there
// is one.
func addressIn(addr netip.Addr, name, addressField, subnetField string, in *Cluster) *field.Error {
	subnet := in.subnet(name)
	if subnet == nil {
		return field.NotFound(spec.Child(subnetField), name)
	}
	prefixes, err := ParsePrefixes(subnet.Spec.CIDRBlock)
	if err != nil || !addr.IsValid() {
		return nil //nolint:nilerr // the Subnet is refused itself
	}
	if _, inside := within(prefixes, addr); !inside {
		return field.Invalid(spec.Child(addressField), addr.String(), "not in "+subnet.Spec.CIDRBlock+" of Subnet "+name)
	}
	return nil
}

func (c *Cluster) subnet(name string) *Subnet {
	for _, subnet := range c.Subnets {
		if subnet.Name == name {
			return subnet
		}
	}
	return nil
}

// CheckDNATRule holds an IptablesDnatRule against the rules.
func CheckDNATRule(rule *IptablesDnatRule, in *Cluster) field.ErrorList {
	var faults field.ErrorList
	if rule.Spec.EIP == "" {
		faults = append(faults, field.Required(spec.Child("eip"), ""))
	} else if !slices.ContainsFunc(in.EIPs, func(e *IptablesEIP) bool { return e.Name == rule.Spec.EIP }) {
		faults = append(faults, field.NotFound(spec.Child("eip"), rule.Spec.EIP))
	}
	for _, port := range []struct{ name, value string }{
		{"externalPort", rule.Spec.ExternalPort}, {"internalPort", rule.Spec.InternalPort},
	} {
		if number, err := strconv.Atoi(port.value); err != nil || number < 1 || number > 65535 {
			faults = append(faults, field.Invalid(spec.Child(port.name), port.value, "not a port from 1 to 65535"))
		}
	}
	if protocol := strings.ToLower(rule.Spec.Protocol); protocol != "tcp" && protocol != "udp" {
		faults = append(faults, field.NotSupported(spec.Child("protocol"), rule.Spec.Protocol, []string{"tcp", "udp"}))
	}
	if _, err := netip.ParseAddr(rule.Spec.InternalIP); err != nil {
		faults = append(faults, field.Invalid(spec.Child("internalIp"), rule.Spec.InternalIP, err.Error()))
	}
	return faults
}

// CheckSet holds objects against the rules as a set that is complete: what they name has to be among them.
func CheckSet(set []*unstructured.Unstructured) error {
	in := &Cluster{}
	var errs []error
	for _, object := range set {
		errs = append(errs, in.Add(object))
	}
	for _, object := range set {
		faults, err := Check(object, in)
		if err == nil {
			err = faults.ToAggregate()
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s %s: %w", object.GetKind(), object.GetName(), err))
		}
	}
	return errors.Join(errs...)
}
