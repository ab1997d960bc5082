// SPDX-License-Identifier: Apache-2.0

package sharenat

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
)

// Owner is the Service that owns a rule.
type Owner struct {
	Namespace, Name string
}

// String gives "namespace/name".
func (o Owner) String() string { return o.Namespace + "/" + o.Name }

// Compare orders owners as the strings "namespace/name", so that "a-b/x" comes before "a/y"; the smallest that claims an identity owns it.
func (o Owner) Compare(other Owner) int {
	return cmp.Compare(o.String(), other.String())
}

// Labels gives the labels by which a rule names its owner.
func (o Owner) Labels() map[string]string {
	return map[string]string{OwnerNamespaceLabel: o.Namespace, OwnerNameLabel: o.Name}
}

// OwnerOf reads the owner from a rule's labels. found is false for a rule made by hand; a rule that carries only one of
// the two labels was tampered with, and is an error.
func OwnerOf(labels map[string]string) (owner Owner, found bool, err error) {
	owner = Owner{Namespace: labels[OwnerNamespaceLabel], Name: labels[OwnerNameLabel]}
	switch {
	case owner == Owner{}:
		return owner, false, nil
	case owner.Namespace == "" || owner.Name == "":
		return Owner{}, false, fmt.Errorf("owner labels %s=%q and %s=%q: both or none must be set",
			OwnerNamespaceLabel, owner.Namespace, OwnerNameLabel, owner.Name)
	}
	return owner, true, nil
}

// RuleName gives the name of the rule that sends an owner's external port to one backend: "lb-", up to 47 characters of the Service's
// name, "-", and 12 hexadecimal digits over all that makes the rule this one and no other. It has at most 63 characters.
func RuleName(owner Owner, protocol Protocol, externalPort uint16, backend netip.AddrPort) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%s/%s/%d/%s/%d",
		owner.Namespace, owner.Name, protocol, externalPort, backend.Addr(), backend.Port()))
	name := owner.Name
	if len(name) > maxRuleNameService {
		name = name[:maxRuleNameService]
	}
	return ruleNamePrefix + name + "-" + hex.EncodeToString(sum[:])[:ruleNameHashHexChars]
}
