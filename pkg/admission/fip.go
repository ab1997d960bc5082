// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"fmt"
	"net/netip"

	"k8s.io/apimachinery/pkg/util/validation/field"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
)

// fip judges an IptablesFIPRule, which claims its EIP whole.
func (d *decision) fip(old, fip *kubeovnv1.IptablesFIPRule) {
	if d.op == Delete || !counts(fip) || old != nil && old.Spec == fip.Spec {
		return
	}
	name := fip.Spec.EIP
	d.eipName(name)
	d.check(fip.Spec.InternalIP, specPath.Child("internalIp"), detailAddress, isAddress)
	moved := old == nil || old.Spec.EIP != name
	if name == "" || !isName(name) || !moved {
		return
	}
	d.eipExists(name, "rule", moved)
	users := d.usersOf(name)
	users.remove(KindFIP, fip.Name)
	if !users.none() {
		d.refuse(field.Invalid(specPath.Child("eip"), name, fmt.Sprintf(
			"is used by %s, and an IptablesFIPRule needs the whole of it: name another IptablesEIP", users)), users.evidence()...)
	}
}

func isAddress(s string) bool {
	_, err := netip.ParseAddr(s)
	return err == nil
}
