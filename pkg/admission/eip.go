// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"fmt"
	"net"

	"k8s.io/apimachinery/pkg/util/validation/field"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

const (
	detailIPv6      = "must be an IPv6 address"
	detailMAC       = "must be a MAC address"
	detailGateway   = "must name a VpcNatGateway"
	detailImmutable = "cannot be changed once the IptablesEIP has an address: make another IptablesEIP"
)

// eip judges an IptablesEIP.
func (d *decision) eip(old, eip *kubeovnv1.IptablesEIP) {
	switch {
	case d.op == Delete:
		d.deleteEIP(old)
	case !counts(eip) || old != nil && old.Spec == eip.Spec:
	default:
		d.eipFields(old, eip)
		if old != nil {
			d.moveEIP(old, eip)
			d.eipImmutable(old, eip)
		}
	}
}

func (d *decision) deleteEIP(eip *kubeovnv1.IptablesEIP) {
	if eip == nil || !counts(eip) {
		return
	}
	if users := d.usersOf(eip.Name); !users.none() {
		d.refuse(field.Forbidden(deletionPath, fmt.Sprintf("is used by %s: remove that first", users)), users.evidence()...)
		return
	}
	var names []string
	for _, svc := range byNamespace(d.Services) {
		if sharenat.Qualifies(svc) && sharenat.EIPName(svc) == eip.Name {
			names = append(names, svc.Namespace+"/"+svc.Name)
		}
	}
	if len(names) > 0 {
		d.warn("IptablesEIP %s is named by Service %s, which loses its EXTERNAL-IP", eip.Name, listed(names))
	}
}

// eipFields looks at each field that is new for itself.
func (d *decision) eipFields(old, eip *kubeovnv1.IptablesEIP) {
	before := kubeovnv1.IptablesEIPSpec{}
	if old != nil {
		before = old.Spec
	}
	spec := &eip.Spec
	for _, f := range []struct {
		name, was, is, detail string
		ok                    func(string) bool
	}{
		{"v4ip", before.V4ip, spec.V4ip, detailIPv4, isIPv4},
		{"v6ip", before.V6ip, spec.V6ip, detailIPv6, isIPv6},
		{"macAddress", before.MacAddress, spec.MacAddress, detailMAC, isMAC},
	} {
		if f.is != "" && f.is != f.was {
			d.check(f.is, specPath.Child(f.name), f.detail, f.ok)
		}
	}
	if gateway := spec.NatGwDp; old == nil || gateway != before.NatGwDp {
		d.check(gateway, specPath.Child("natGwDp"), detailGateway, isName)
		if isName(gateway) && find(d.Gateways, gateway) == nil {
			d.warn("VpcNatGateway %q does not exist: the IptablesEIP waits until it does", gateway)
		}
	}
}

func isIPv6(s string) bool { return isAddress(s) && !isIPv4(s) }

func isMAC(s string) bool {
	_, err := net.ParseMAC(s)
	return err == nil
}

// addressed tells an EIP that has been given its address; before that it may still be corrected.
func addressed(eip *kubeovnv1.IptablesEIP) bool { return eip.Status.IP != "" || eip.Status.Ready }

// moveEIP keeps an EIP on its gateway as long as it is used: its connections live in that gateway, and its Services in that VPC.
func (d *decision) moveEIP(old, eip *kubeovnv1.IptablesEIP) {
	if old.Spec.NatGwDp == "" || old.Spec.NatGwDp == eip.Spec.NatGwDp || !addressed(old) {
		return
	}
	if users := d.usersOf(eip.Name); !users.none() {
		d.refuse(field.Forbidden(specPath.Child("natGwDp"), fmt.Sprintf("is used by %s, and cannot be moved to another gateway: remove that first", users)),
			users.evidence()...)
	}
}

// eipImmutable keeps what an address is. What was left open may be filled in with what it has become; the controllers may do as they need.
func (d *decision) eipImmutable(old, eip *kubeovnv1.IptablesEIP) {
	if d.trusted || !addressed(old) {
		return
	}
	was, is := old.Spec, eip.Spec
	addr, _ := sharenat.EIPAddress(old)
	for _, f := range []struct{ name, was, is, become string }{
		{"externalSubnet", was.ExternalSubnet, is.ExternalSubnet, sharenat.DefaultExternalSubnet},
		{"macAddress", was.MacAddress, is.MacAddress, is.MacAddress},
		{"v4ip", was.V4ip, is.V4ip, addr.String()},
		{"v6ip", was.V6ip, is.V6ip, is.V6ip},
	} {
		if f.was != f.is && (f.was != "" || f.is != f.become) {
			d.refuse(field.Forbidden(specPath.Child(f.name), detailImmutable))
		}
	}
}
