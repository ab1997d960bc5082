// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

const (
	eipA, eipB, eip6 = "eip-a", "eip-b", "eip-6"
	gwA, gwB         = "gw-a", "gw-b"
)

type ruleTweak = func(*kubeovnv1.IptablesDnatRule)

// newRule makes a share rule by hand on eip-a, 80/tcp to 10.1.0.4:8080.
func newRule(name string, tweaks ...ruleTweak) *kubeovnv1.IptablesDnatRule {
	rule := &kubeovnv1.IptablesDnatRule{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: kubeovnv1.IptablesDnatRuleSpec{
			EIP: eipA, ExternalPort: "80", Protocol: "tcp", InternalIP: "10.1.0.4", InternalPort: "8080", Type: sharenat.TypeShare,
		},
	}
	for _, tweak := range tweaks {
		tweak(rule)
	}
	return rule
}

func spec(change func(*kubeovnv1.IptablesDnatRuleSpec)) ruleTweak {
	return func(r *kubeovnv1.IptablesDnatRule) { change(&r.Spec) }
}

func port(p string) ruleTweak {
	return spec(func(s *kubeovnv1.IptablesDnatRuleSpec) { s.ExternalPort = p })
}

func backend(ip string) ruleTweak {
	return spec(func(s *kubeovnv1.IptablesDnatRuleSpec) { s.InternalIP = ip })
}

func onEIP(name string) ruleTweak {
	return spec(func(s *kubeovnv1.IptablesDnatRuleSpec) { s.EIP = name })
}

func exclusive(r *kubeovnv1.IptablesDnatRule) { r.Spec.Type = sharenat.TypeExclusive }

func pinned(seconds int32) ruleTweak {
	return spec(func(s *kubeovnv1.IptablesDnatRuleSpec) {
		s.SessionAffinity, s.SessionAffinityTimeoutSeconds = sharenat.SessionAffinityIP, seconds
	})
}

func owned(name string) ruleTweak {
	return func(r *kubeovnv1.IptablesDnatRule) {
		if r.Labels == nil {
			r.Labels = map[string]string{}
		}
		maps.Copy(r.Labels, sharenat.Owner{Namespace: "default", Name: name}.Labels())
	}
}

func annotation(key, value string) ruleTweak {
	return func(r *kubeovnv1.IptablesDnatRule) { metav1.SetMetaDataAnnotation(&r.ObjectMeta, key, value) }
}

func finalizer(r *kubeovnv1.IptablesDnatRule) { r.Finalizers = []string{sharenat.Finalizer} }

func newEIP(name, gateway string) *kubeovnv1.IptablesEIP {
	return &kubeovnv1.IptablesEIP{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.IptablesEIPSpec{NatGwDp: gateway}}
}

func newGateway(name string) *kubeovnv1.VpcNatGateway {
	return &kubeovnv1.VpcNatGateway{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.VpcNatGatewaySpec{Vpc: "vpc-a", Subnet: "sub-a", LanIP: "10.1.0.254"},
	}
}

func newFIP(name, eip string) *kubeovnv1.IptablesFIPRule {
	return &kubeovnv1.IptablesFIPRule{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.IptablesFIPRuleSpec{EIP: eip, InternalIP: "10.1.0.4"}}
}

func newService(name string, tweaks ...func(*corev1.Service)) *corev1.Service {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: map[string]string{sharenat.EIPAnnotation: eipA}},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}}},
	}
	for _, tweak := range tweaks {
		tweak(svc)
	}
	return svc
}

var dryRun = []string{metav1.DryRunAll}

// create makes an object of any of the kinds.
func (u *user) create(ctx context.Context, obj metav1.Object, dry []string) error {
	opts, v1 := metav1.CreateOptions{DryRun: dry}, u.kubeOvn.KubeovnV1()
	var err error
	switch o := obj.(type) {
	case *kubeovnv1.IptablesDnatRule:
		_, err = v1.IptablesDnatRules().Create(ctx, o, opts)
	case *kubeovnv1.IptablesFIPRule:
		_, err = v1.IptablesFIPRules().Create(ctx, o, opts)
	case *kubeovnv1.IptablesEIP:
		_, err = v1.IptablesEIPs().Create(ctx, o, opts)
	case *kubeovnv1.VpcNatGateway:
		_, err = v1.VpcNatGateways().Create(ctx, o, opts)
	case *corev1.Service:
		_, err = u.kube.CoreV1().Services(o.Namespace).Create(ctx, o, opts)
	default:
		err = fmt.Errorf("%T: no kind of these tests", obj)
	}
	return err
}

func (u *user) patch(ctx context.Context, obj metav1.Object, change any, dry []string, subresources ...string) error {
	data, err := json.Marshal(change)
	if err != nil {
		return err
	}
	opts, v1, name := metav1.PatchOptions{DryRun: dry}, u.kubeOvn.KubeovnV1(), obj.GetName()
	switch obj.(type) {
	case *kubeovnv1.IptablesDnatRule:
		_, err = v1.IptablesDnatRules().Patch(ctx, name, types.MergePatchType, data, opts, subresources...)
	case *kubeovnv1.IptablesFIPRule:
		_, err = v1.IptablesFIPRules().Patch(ctx, name, types.MergePatchType, data, opts, subresources...)
	case *kubeovnv1.IptablesEIP:
		_, err = v1.IptablesEIPs().Patch(ctx, name, types.MergePatchType, data, opts, subresources...)
	case *kubeovnv1.VpcNatGateway:
		_, err = v1.VpcNatGateways().Patch(ctx, name, types.MergePatchType, data, opts, subresources...)
	case *corev1.Service:
		_, err = u.kube.CoreV1().Services(obj.GetNamespace()).Patch(ctx, name, types.MergePatchType, data, opts, subresources...)
	default:
		err = fmt.Errorf("%T: no kind of these tests", obj)
	}
	return err
}

func (u *user) remove(ctx context.Context, obj metav1.Object, dry []string) error {
	opts, v1, name := metav1.DeleteOptions{DryRun: dry}, u.kubeOvn.KubeovnV1(), obj.GetName()
	switch obj.(type) {
	case *kubeovnv1.IptablesDnatRule:
		return v1.IptablesDnatRules().Delete(ctx, name, opts)
	case *kubeovnv1.IptablesFIPRule:
		return v1.IptablesFIPRules().Delete(ctx, name, opts)
	case *kubeovnv1.IptablesEIP:
		return v1.IptablesEIPs().Delete(ctx, name, opts)
	case *kubeovnv1.VpcNatGateway:
		return v1.VpcNatGateways().Delete(ctx, name, opts)
	case *corev1.Service:
		return u.kube.CoreV1().Services(obj.GetNamespace()).Delete(ctx, name, opts)
	}
	return fmt.Errorf("%T: no kind of these tests", obj)
}

// specOf is a merge patch of fields of the spec.
func specOf(fields map[string]any) map[string]any { return map[string]any{"spec": fields} }

func metadataOf(field string, values any) map[string]any {
	return map[string]any{"metadata": map[string]any{field: values}}
}

// populate creates objects, and removes them after the test: rules first, then EIPs, then gateways.
func populate(t *testing.T, objects ...metav1.Object) {
	t.Helper()
	for _, obj := range objects {
		t.Cleanup(func() { gone(t, obj) })
		if err := shared.controller.create(t.Context(), obj, nil); err != nil {
			t.Fatal(err)
		}
		if eip, ok := obj.(*kubeovnv1.IptablesEIP); ok {
			address := map[string]string{eipA: "203.0.113.10", eipB: "203.0.113.20", eip6: "2001:db8::1"}[eip.Name]
			if err := shared.controller.patch(t.Context(), eip, map[string]any{"status": map[string]any{"ip": address, "ready": true}}, nil, "status"); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// gone removes an object and its finalizers.
func gone(t *testing.T, obj metav1.Object) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	if err := shared.controller.patch(ctx, obj, metadataOf("finalizers", nil), nil); err != nil && !apierrors.IsNotFound(err) {
		t.Errorf("take the finalizers off %s: %v", obj.GetName(), err)
	}
	if err := shared.controller.remove(ctx, obj, nil); err != nil && !apierrors.IsNotFound(err) {
		t.Errorf("remove %s: %v", obj.GetName(), err)
	}
}

// aCluster has two gateways and three EIPs.
func aCluster(t *testing.T, objects ...metav1.Object) {
	t.Helper()
	populate(t, append([]metav1.Object{newGateway(gwA), newGateway(gwB), newEIP(eipA, gwA), newEIP(eipB, gwB), newEIP(eip6, gwA)}, objects...)...)
}
