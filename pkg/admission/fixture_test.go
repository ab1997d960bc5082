// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// The address plan of the tests.
//
//	EIP eip-a 203.0.113.10 on gateway gw-a (VPC vpc-a), eip-b 203.0.113.20 on gw-b (VPC vpc-b), eip-6 2001:db8::1 on gw-a
//	Backends 10.1.0.x
//	Services web and api of namespace shop, web of namespace billing
const (
	eipA, eipB, eip6 = "eip-a", "eip-b", "eip-6"
	gwA, gwB         = "gw-a", "gw-b"
	alice            = "alice"
)

var (
	policy = Policy{Controllers: []string{DefaultController}}
	past   = metav1.Unix(1700000000, 0)
	web    = sharenat.Owner{Namespace: "shop", Name: "web"}
	api    = sharenat.Owner{Namespace: "shop", Name: "api"}
)

// newRule makes a share rule by hand on eip-a, 80/tcp to 10.1.0.4:8080.
func newRule(name string, tweaks ...func(*kubeovnv1.IptablesDnatRule)) *kubeovnv1.IptablesDnatRule {
	rule := &kubeovnv1.IptablesDnatRule{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), Finalizers: []string{sharenat.Finalizer}},
		Spec: kubeovnv1.IptablesDnatRuleSpec{
			EIP: eipA, ExternalPort: "80", Protocol: "tcp", InternalIP: "10.1.0.4", InternalPort: "8080", Type: sharenat.TypeShare,
		},
	}
	for _, tweak := range tweaks {
		tweak(rule)
	}
	return rule
}

type ruleTweak = func(*kubeovnv1.IptablesDnatRule)

func spec(change func(*kubeovnv1.IptablesDnatRuleSpec)) ruleTweak {
	return func(r *kubeovnv1.IptablesDnatRule) { change(&r.Spec) }
}

func owned(owner sharenat.Owner) ruleTweak {
	return func(r *kubeovnv1.IptablesDnatRule) {
		r.Labels = maps.Clone(r.Labels)
		if r.Labels == nil {
			r.Labels = map[string]string{}
		}
		maps.Copy(r.Labels, owner.Labels())
	}
}

func label(key, value string) ruleTweak {
	return func(r *kubeovnv1.IptablesDnatRule) { metav1.SetMetaDataLabel(&r.ObjectMeta, key, value) }
}

func annotation(key, value string) ruleTweak {
	return func(r *kubeovnv1.IptablesDnatRule) { metav1.SetMetaDataAnnotation(&r.ObjectMeta, key, value) }
}

func backend(ip string) ruleTweak {
	return spec(func(s *kubeovnv1.IptablesDnatRuleSpec) { s.InternalIP = ip })
}

func port(p string) ruleTweak {
	return spec(func(s *kubeovnv1.IptablesDnatRuleSpec) { s.ExternalPort = p })
}

func onEIP(name string) ruleTweak {
	return spec(func(s *kubeovnv1.IptablesDnatRuleSpec) { s.EIP = name })
}

func pinned(seconds int32) ruleTweak {
	return spec(func(s *kubeovnv1.IptablesDnatRuleSpec) {
		s.SessionAffinity, s.SessionAffinityTimeoutSeconds = sharenat.SessionAffinityIP, seconds
	})
}

func exclusive(r *kubeovnv1.IptablesDnatRule) { r.Spec.Type = sharenat.TypeExclusive }

func deleting[T metav1.Object](obj T) T {
	obj.SetDeletionTimestamp(&past)
	return obj
}

func newFIP(name, eip string) *kubeovnv1.IptablesFIPRule {
	return &kubeovnv1.IptablesFIPRule{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       kubeovnv1.IptablesFIPRuleSpec{EIP: eip, InternalIP: "10.1.0.4"},
	}
}

func newEIP(name, address, gateway string, tweaks ...func(*kubeovnv1.IptablesEIP)) *kubeovnv1.IptablesEIP {
	eip := &kubeovnv1.IptablesEIP{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       kubeovnv1.IptablesEIPSpec{NatGwDp: gateway},
		Status:     kubeovnv1.IptablesEIPStatus{IP: address, Ready: address != ""},
	}
	for _, tweak := range tweaks {
		tweak(eip)
	}
	return eip
}

func granted(namespaces string) func(*kubeovnv1.IptablesEIP) {
	return func(e *kubeovnv1.IptablesEIP) {
		metav1.SetMetaDataAnnotation(&e.ObjectMeta, sharenat.GrantAnnotation, namespaces)
	}
}

func newGateway(name string, tweaks ...func(*kubeovnv1.VpcNatGateway)) *kubeovnv1.VpcNatGateway {
	gw := &kubeovnv1.VpcNatGateway{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       kubeovnv1.VpcNatGatewaySpec{Vpc: "vpc-a", Subnet: "sub-a", LanIP: "10.1.0.254"},
	}
	for _, tweak := range tweaks {
		tweak(gw)
	}
	return gw
}

// newService makes a Service that names eip-a, with port 80/TCP.
func newService(owner sharenat.Owner, tweaks ...func(*corev1.Service)) *corev1.Service {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: owner.Namespace, Name: owner.Name, Annotations: map[string]string{sharenat.EIPAnnotation: eipA}},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}}},
	}
	for _, tweak := range tweaks {
		tweak(svc)
	}
	return svc
}

// objects is a snapshot of anything.
func objects(list ...metav1.Object) *Snapshot {
	s := &Snapshot{}
	for _, obj := range list {
		switch o := obj.(type) {
		case *kubeovnv1.IptablesDnatRule:
			s.Rules = append(s.Rules, o)
		case *kubeovnv1.IptablesFIPRule:
			s.FIPs = append(s.FIPs, o)
		case *kubeovnv1.IptablesEIP:
			s.EIPs = append(s.EIPs, o)
		case *kubeovnv1.VpcNatGateway:
			s.Gateways = append(s.Gateways, o)
		case *corev1.Service:
			s.Services = append(s.Services, o)
		}
	}
	return s
}

// aCluster has the EIPs and gateways of the address plan, and what else is given.
func aCluster(list ...metav1.Object) *Snapshot {
	return objects(append([]metav1.Object{
		newEIP(eipA, "203.0.113.10", gwA), newEIP(eipB, "203.0.113.20", gwB), newEIP(eip6, "2001:db8::1", gwA), newGateway(gwA), newGateway(gwB),
	}, list...)...)
}

func creating(obj metav1.Object) Request { return Request{Operation: Create, User: alice, New: obj} }

func updating(old, obj metav1.Object) Request {
	return Request{Operation: Update, User: alice, Old: old, New: obj}
}

func removing(obj metav1.Object) Request { return Request{Operation: Delete, User: alice, Old: obj} }

func byController(req Request) Request {
	req.User = DefaultController
	return req
}

// decisionTest is a row of the tables: the whole answer is compared.
type decisionTest struct {
	name     string
	req      Request
	cluster  *Snapshot
	refusals []string
	warnings []string
	evidence []Ref
}

func (tc decisionTest) run(t *testing.T) {
	t.Helper()
	t.Run(tc.name, func(t *testing.T) {
		t.Helper()
		cluster := tc.cluster
		if cluster == nil {
			cluster = aCluster()
		}
		got := policy.Decide(tc.req, cluster)
		if diff := gocmp.Diff(tc.refusals, texts(got.Refusals)); diff != "" {
			t.Errorf("refusals (-want +got):\n%s", diff)
		}
		if diff := gocmp.Diff(tc.warnings, got.Warnings); diff != "" {
			t.Errorf("warnings (-want +got):\n%s", diff)
		}
		slices.SortFunc(tc.evidence, compareRefs)
		if diff := gocmp.Diff(tc.evidence, got.Evidence); diff != "" {
			t.Errorf("evidence (-want +got):\n%s", diff)
		}
	})
}

// texts gives errors as users read them.
func texts(list field.ErrorList) []string {
	var out []string
	for _, err := range list {
		out = append(out, err.Error())
	}
	return out
}

func mustBackend(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }
