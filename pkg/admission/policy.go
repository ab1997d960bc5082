// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
)

// Operation is what a request wants to do.
type Operation string

// The operations, as the API server spells them.
const (
	Create Operation = "CREATE"
	Update Operation = "UPDATE"
	Delete Operation = "DELETE"
)

// Kind names a kind of objects.
type Kind string

// The kinds that are looked at.
const (
	KindRule    Kind = "IptablesDnatRule"
	KindFIP     Kind = "IptablesFIPRule"
	KindEIP     Kind = "IptablesEIP"
	KindGateway Kind = "VpcNatGateway"
	KindService Kind = "Service"
)

// Request is a wish to change one object. Old is nil on Create, New on Delete; both are pointers of the same kind's type, and
// neither is changed.
type Request struct {
	Operation Operation
	// User is the name of who wishes it.
	User     string
	Old, New metav1.Object
}

// Snapshot is what else there is. It may hold more than matters, in any order; what does not matter is passed over.
type Snapshot struct {
	Rules    []*kubeovnv1.IptablesDnatRule
	FIPs     []*kubeovnv1.IptablesFIPRule
	EIPs     []*kubeovnv1.IptablesEIP
	Gateways []*kubeovnv1.VpcNatGateway
	Services []*corev1.Service
}

// Verdict is the answer. With no refusals the request is admitted.
type Verdict struct {
	// Refusals are all the problems there are, by field.
	Refusals field.ErrorList
	// Warnings are shown to the user, whatever the answer.
	Warnings []string
	// Evidence are the objects of the snapshot that refusals rest on, ordered; none for what the request itself shows.
	Evidence []Ref
}

// Ref names an object of cluster scope.
type Ref struct {
	Kind Kind
	Name string
}

func compareRefs(a, b Ref) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
}

// Policy is what an administrator can set.
type Policy struct {
	// Controllers are the users as whom the controllers write.
	Controllers []string
	// RequireEIPGrant: an EIP without a grant annotation may not be used by any Service.
	RequireEIPGrant bool
}

// Decide answers a request. A kind that is not looked at is admitted.
func (p Policy) Decide(req Request, s *Snapshot) Verdict {
	d := &decision{Policy: p, Snapshot: s, op: req.Operation, trusted: slices.Contains(p.Controllers, req.User)}
	for _, obj := range []metav1.Object{req.New, req.Old} {
		switch obj.(type) {
		case *kubeovnv1.IptablesDnatRule:
			d.rule(as[*kubeovnv1.IptablesDnatRule](req.Old), as[*kubeovnv1.IptablesDnatRule](req.New))
		case *kubeovnv1.IptablesFIPRule:
			d.fip(as[*kubeovnv1.IptablesFIPRule](req.Old), as[*kubeovnv1.IptablesFIPRule](req.New))
		case *kubeovnv1.IptablesEIP:
			d.eip(as[*kubeovnv1.IptablesEIP](req.Old), as[*kubeovnv1.IptablesEIP](req.New))
		case *kubeovnv1.VpcNatGateway:
			d.gateway(as[*kubeovnv1.VpcNatGateway](req.Old), as[*kubeovnv1.VpcNatGateway](req.New))
		case *corev1.Service:
			d.service(as[*corev1.Service](req.Old), as[*corev1.Service](req.New))
		default:
			continue
		}
		break
	}
	slices.SortFunc(d.Evidence, compareRefs)
	d.Evidence = slices.Compact(d.Evidence)
	return d.Verdict
}

// as gives an object as its type, nil when it is none.
func as[T metav1.Object](obj metav1.Object) T {
	typed, _ := obj.(T)
	return typed
}

// decision is a verdict in the making.
type decision struct {
	Policy
	*Snapshot
	Verdict

	op Operation
	// trusted: the request comes from a controller.
	trusted bool
}

func (d *decision) refuse(err *field.Error, evidence ...Ref) {
	d.Refusals = append(d.Refusals, err)
	d.Evidence = append(d.Evidence, evidence...)
}

func (d *decision) warn(format string, args ...any) {
	d.Warnings = append(d.Warnings, fmt.Sprintf(format, args...))
}

// find gives the object with a name, nil when the snapshot has none.
func find[T metav1.Object](objects []T, name string) T {
	for _, obj := range objects {
		if obj.GetName() == name {
			return obj
		}
	}
	var none T
	return none
}

// counts tells an object that is there to stay.
func counts(obj metav1.Object) bool { return obj.GetDeletionTimestamp() == nil }

// byName gives objects in the order of their names, without changing the list.
func byName[T metav1.Object](objects []T) []T {
	return slices.SortedFunc(slices.Values(objects), func(a, b T) int { return strings.Compare(a.GetName(), b.GetName()) })
}

// cut leaves as many items as a person wants to read, and says how many more there are.
func cut[T any](items []T) (first []T, more int) {
	const shown = 3
	if len(items) <= shown {
		return items, 0
	}
	return items[:shown], len(items) - shown
}

func joined(names []string, more int) string {
	text := strings.Join(names, ", ")
	if more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// listed gives the first few names, and how many more there are.
func listed(names []string) string {
	first, more := cut(names)
	return joined(first, more)
}
