// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"slices"
	"strings"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// user is a rule that uses an EIP, and whom it is for.
type user struct {
	Ref
	// service owns the rule; "" for one that was made by hand.
	service string
}

func (u user) String() string {
	if u.service != "" {
		return "Service " + u.service
	}
	return string(u.Kind) + " " + u.Name
}

// users of an EIP, ordered: Services first, since they are what a person knows.
type users []user

// usersOf gives the rules that use an EIP. Those that are being deleted do not, however long that takes.
func (d *decision) usersOf(eip string) users {
	var services, out users
	for _, rule := range byName(d.Rules) {
		if rule.Spec.EIP != eip || !counts(rule) {
			continue
		}
		u := user{Ref: Ref{KindRule, rule.Name}}
		if owner, managed, err := sharenat.OwnerOf(rule.Labels); err == nil && managed {
			u.service = owner.String()
			services = append(services, u)
		} else {
			out = append(out, u)
		}
	}
	slices.SortStableFunc(services, func(a, b user) int { return strings.Compare(a.service, b.service) })
	for _, fip := range byName(d.FIPs) {
		if fip.Spec.EIP == eip && counts(fip) {
			out = append(out, user{Ref: Ref{KindFIP, fip.Name}})
		}
	}
	return append(services, out...)
}

func (u *users) remove(kind Kind, name string) {
	*u = slices.DeleteFunc(*u, func(x user) bool { return x.Ref == Ref{kind, name} })
}

func (u users) none() bool { return len(u) == 0 }

// shown are the users that are named to a person: a Service once, however many rules it has, and not more than a few.
func (u users) shown() (first users, more int) {
	seen := map[string]bool{}
	for _, x := range u {
		if name := x.String(); !seen[name] {
			seen[name] = true
			first = append(first, x)
		}
	}
	return cut(first)
}

// String names the users.
func (u users) String() string {
	first, more := u.shown()
	names := make([]string, len(first))
	for i, x := range first {
		names[i] = x.String()
	}
	return joined(names, more)
}

// evidence are the users that are named: as long as one of them is there, what was said holds.
func (u users) evidence() []Ref {
	first, _ := u.shown()
	out := make([]Ref, len(first))
	for i, x := range first {
		out[i] = x.Ref
	}
	return out
}
