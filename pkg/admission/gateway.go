// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// gateway judges a VpcNatGateway.
func (d *decision) gateway(old, gw *kubeovnv1.VpcNatGateway) {
	switch {
	case d.op == Delete:
		d.deleteGateway(old)
	case !counts(gw) || old != nil && reflect.DeepEqual(old.Spec, gw.Spec):
	default:
		d.gatewayFields(old, gw)
		if old != nil {
			d.gatewayImmutable(old, gw)
			d.gatewayExternals(old, gw)
		}
	}
}

func (d *decision) deleteGateway(gw *kubeovnv1.VpcNatGateway) {
	if gw == nil || !counts(gw) {
		return
	}
	used, more := cut(d.usedEIPs(gw.Name))
	if len(used) == 0 {
		return
	}
	names := make([]string, len(used))
	var evidence []Ref
	for i, eip := range used {
		names[i] = fmt.Sprintf("%s (used by %s)", eip.name, eip.users)
		evidence = append(evidence, eip.evidence()...)
	}
	d.refuse(field.Forbidden(deletionPath, "carries IptablesEIP "+joined(names, more)+": remove what uses it first"), evidence...)
}

// usedEIP is an EIP of a gateway with those who use it.
type usedEIP struct {
	name, subnet string
	users        users
}

func (e usedEIP) evidence() []Ref { return append(e.users.evidence(), Ref{KindEIP, e.name}) }

// usedEIPs lists the EIPs of a gateway that are used. One that is being deleted counts as long as it is used: it stays until then.
func (d *decision) usedEIPs(gateway string) []usedEIP {
	var out []usedEIP
	for _, eip := range byName(d.EIPs) {
		if eip.Spec.NatGwDp != gateway {
			continue
		}
		if users := d.usersOf(eip.Name); !users.none() {
			out = append(out, usedEIP{eip.Name, cmp.Or(eip.Spec.ExternalSubnet, sharenat.DefaultExternalSubnet), users})
		}
	}
	return out
}

// gatewayFields looks at what a gateway could not be run with.
func (d *decision) gatewayFields(old, gw *kubeovnv1.VpcNatGateway) {
	if gw.Spec.LanIP != "" && (old == nil || old.Spec.LanIP != gw.Spec.LanIP) {
		d.check(gw.Spec.LanIP, specPath.Child("lanIp"), detailIPv4, isIPv4)
	}
	if old != nil && slices.Equal(old.Spec.Selector, gw.Spec.Selector) {
		return
	}
	for i, item := range gw.Spec.Selector {
		key, _, ok := strings.Cut(item, ":")
		if !ok || strings.TrimSpace(key) == "" {
			d.refuse(field.Invalid(specPath.Child("selector").Index(i), item, `must be "key: value"`))
		}
	}
}

// gatewayImmutable keeps the place of a gateway: its addresses, and the Services behind them, belong to that VPC.
func (d *decision) gatewayImmutable(old, gw *kubeovnv1.VpcNatGateway) {
	if d.trusted {
		return
	}
	for _, f := range []struct{ name, was, is string }{
		{"vpc", cmp.Or(old.Spec.Vpc, sharenat.DefaultVPC), cmp.Or(gw.Spec.Vpc, sharenat.DefaultVPC)},
		{"subnet", old.Spec.Subnet, gw.Spec.Subnet},
	} {
		if f.was != "" && f.was != f.is {
			d.refuse(field.Forbidden(specPath.Child(f.name), "cannot be changed: make another VpcNatGateway"))
		}
	}
}

// gatewayExternals keeps the external subnets that used EIPs are from.
func (d *decision) gatewayExternals(old, gw *kubeovnv1.VpcNatGateway) {
	for _, eip := range d.usedEIPs(gw.Name) {
		if slices.Contains(externals(old), eip.subnet) && !slices.Contains(externals(gw), eip.subnet) {
			d.refuse(field.Forbidden(specPath.Child("externalSubnets"),
				fmt.Sprintf("subnet %s carries IptablesEIP %s, which is used by %s: remove that first", eip.subnet, eip.name, eip.users)),
				eip.evidence()...)
		}
	}
}

func externals(gw *kubeovnv1.VpcNatGateway) []string {
	if len(gw.Spec.ExternalSubnets) == 0 {
		return []string{sharenat.DefaultExternalSubnet}
	}
	return gw.Spec.ExternalSubnets
}
