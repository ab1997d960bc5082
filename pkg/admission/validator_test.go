// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kubeovn/kube-ovn/pkg/client/clientset/versioned/fake"
	"github.com/kubeovn/kube-ovn/pkg/client/clienttest"
	"github.com/kubeovn/kube-ovn/pkg/client/informers/externalversions"
)

// newValidator makes a Validator whose caches hold some objects while the API server holds others.
func newValidator(tb testing.TB, cached, live []metav1.Object) (*Validator, *fake.Clientset) {
	tb.Helper()
	services := map[string]runtime.Object{}
	split := func(list []metav1.Object) (ours []runtime.Object) {
		for _, obj := range list {
			if svc, ok := obj.(*corev1.Service); ok {
				services[svc.Namespace+"/"+svc.Name] = svc
				continue
			}
			o, ok := obj.(runtime.Object)
			if !ok {
				tb.Fatalf("%T is no object", obj)
			}
			ours = append(ours, o)
		}
		return ours
	}
	server, behind := clienttest.NewClientset(tb, split(live)...), clienttest.NewClientset(tb, split(cached)...)
	kube := kubefake.NewClientset(slices.Collect(maps.Values(services))...)
	kubeInformers := informers.NewSharedInformerFactory(kube, 0)
	kubeOvnInformers := externalversions.NewSharedInformerFactory(behind, 0)
	v, err := New(Options{KubeOvnClient: server, KubeInformers: kubeInformers, KubeOvnInformers: kubeOvnInformers})
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(tb.Context())
	tb.Cleanup(func() {
		cancel()
		kubeInformers.Shutdown()
		kubeOvnInformers.Shutdown()
	})
	kubeInformers.Start(ctx.Done())
	kubeOvnInformers.Start(ctx.Done())
	return v, server
}

func reads(server *fake.Clientset) map[string]int {
	out := map[string]int{}
	for _, action := range server.Actions() {
		out[action.GetVerb()+" "+action.GetResource().Resource]++
	}
	return out
}

func thousand(object func(i int) metav1.Object) []metav1.Object {
	out := make([]metav1.Object, 1000)
	for i := range out {
		out[i] = object(i)
	}
	return out
}

func TestReview(t *testing.T) {
	a, b, six := newEIP(eipA, "203.0.113.10", gwA), newEIP(eipB, "203.0.113.20", gwB), newEIP(eip6, "2001:db8::1", gwA)
	gateways := []metav1.Object{newGateway(gwA), newGateway(gwB)}
	here := func(list ...metav1.Object) []metav1.Object { return append(list, append(gateways, a, b)...) }
	sole := newRule("sole", exclusive, backend("10.1.0.5"))
	conflict := []string{`spec.type: Invalid value: "share": 80/TCP of IptablesEIP eip-a is of type exclusive by IptablesDnatRule sole`}
	rules := thousand(func(i int) metav1.Object { return newRule(fmt.Sprintf("r%03d", i), owned(web)) })
	for _, tc := range []struct {
		name         string
		req          Request
		cached, live []metav1.Object
		refusals     []string
		warnings     []string
		reads        map[string]int
	}{
		{name: "admitted by the cache alone", req: creating(newRule("r")), cached: here(), live: here(), reads: map[string]int{}},
		{
			name: "refused after a look", req: creating(newRule("r")), cached: here(sole), live: here(sole), refusals: conflict,
			reads: map[string]int{"get iptables-dnat-rules": 1},
		},
		{
			name: "what stood against it is gone", req: creating(newRule("r")), cached: here(sole), live: here(),
			reads: map[string]int{"get iptables-dnat-rules": 1},
		},
		{
			name: "it is being deleted", req: creating(newRule("r")), cached: here(sole), live: here(deleting(sole.DeepCopy())),
			reads: map[string]int{"get iptables-dnat-rules": 1},
		},
		{
			name: "it has moved to another port", req: creating(newRule("r")), cached: here(sole), live: here(newRule("sole", exclusive, port("81"))),
			reads: map[string]int{"get iptables-dnat-rules": 1},
		},
		{
			name: "behind what is gone there is another", req: creating(newRule("r", exclusive)),
			cached: here(newRule("x", exclusive), newRule("y", exclusive)), live: here(newRule("y", exclusive)),
			refusals: []string{`spec.externalPort: Invalid value: "80": 80/TCP of IptablesEIP eip-a is taken by IptablesDnatRule y of type exclusive`},
			reads:    map[string]int{"get iptables-dnat-rules": 2},
		},
		{
			name: "what is wrong with the object itself needs no look", req: creating(newRule("r", backend("x"))), cached: here(), live: here(),
			refusals: []string{`spec.internalIp: Invalid value: "x": must be an IPv4 address`}, reads: map[string]int{},
		},
		{
			name: "an EIP that the cache has not seen", req: creating(newRule("r")), cached: gateways, live: here(),
			reads: map[string]int{"get iptables-eips": 1},
		},
		{
			name: "an IPv6-only EIP that the cache has not seen", req: creating(newRule("r", onEIP(eip6))), cached: gateways, live: here(six),
			refusals: []string{`spec.eip: Invalid value: "eip-6": has only an IPv6 address: name an IptablesEIP with an IPv4 address`},
			reads:    map[string]int{"get iptables-eips": 1},
		},
		{
			name: "an EIP that is not there", req: creating(newRule("r", onEIP("later"))), cached: here(), live: here(),
			warnings: []string{`IptablesEIP "later" does not exist: the rule waits until it does`},
			reads:    map[string]int{"get iptables-eips": 1},
		},
		{
			name: "a gateway that the cache has not seen", req: creating(newEIP("new", "", gwA)), live: here(),
			reads: map[string]int{"get vpc-nat-gateways": 1},
		},
		{
			name: "an EIP whose thousand rules have just gone", req: removing(a), cached: here(rules...), live: here(),
			reads: map[string]int{"get iptables-dnat-rules": 3, "list iptables-dnat-rules": 1},
		},
		{
			name: "an EIP whose thousand rules are there", req: removing(a), cached: here(rules...), live: here(rules...),
			refusals: []string{"metadata.deletionTimestamp: Forbidden: is used by Service shop/web: remove that first"},
			reads:    map[string]int{"get iptables-dnat-rules": 1},
		},
		{
			name: "a gateway whose EIP has been moved", req: removing(newGateway(gwA)),
			cached: here(newRule("r")), live: []metav1.Object{newEIP(eipA, "203.0.113.10", gwB), newRule("r")},
			reads: map[string]int{"get iptables-eips": 1, "get iptables-dnat-rules": 1},
		},
		{
			name: "a FIP on an EIP whose FIP has gone", req: creating(newFIP("fip", eipA)), cached: here(newFIP("old", eipA)), live: here(),
			reads: map[string]int{"get iptables-fip-rules": 1},
		},
		{
			name: "a Service", req: creating(newService(web)), cached: here(newRule("hand"), newService(api)), live: here(),
			warnings: []string{"port 80/TCP of IptablesEIP eip-a belongs to IptablesDnatRule hand (made by hand)"}, reads: map[string]int{},
		},
		{
			name: "a Service whose EIP the cache has not seen", req: creating(newService(web)), cached: gateways, live: here(),
			reads: map[string]int{"get iptables-eips": 1},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v, server := newValidator(t, tc.cached, tc.live)
			got, err := v.Review(t.Context(), tc.req)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.refusals, texts(got.Refusals)); diff != "" {
				t.Errorf("refusals (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.warnings, got.Warnings); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.reads, reads(server)); diff != "" {
				t.Errorf("live reads (-want +got):\n%s", diff)
			}
		})
	}
}

// TestReviewWithoutAPIServer: when nothing can be read live, the cache is what there is to go by.
func TestReviewWithoutAPIServer(t *testing.T) {
	sole := newRule("sole", exclusive)
	v, server := newValidator(t, []metav1.Object{sole, newEIP(eipA, "203.0.113.10", gwA)}, nil)
	server.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("away")
	})
	got, err := v.Review(t.Context(), creating(newRule("r")))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{`spec.type: Invalid value: "share": 80/TCP of IptablesEIP eip-a is of type exclusive by IptablesDnatRule sole`}
	if diff := cmp.Diff(want, texts(got.Refusals)); diff != "" {
		t.Errorf("refusals (-want +got):\n%s", diff)
	}
	if n := len(server.Actions()); n != 1 {
		t.Errorf("%d reads, though the first failed", n)
	}
}

// TestReviewBeforeSync: no answer is better than one from an empty cache.
func TestReviewBeforeSync(t *testing.T) {
	v, err := New(Options{
		KubeOvnClient:    clienttest.NewClientset(t),
		KubeInformers:    informers.NewSharedInformerFactory(kubefake.NewClientset(), 0),
		KubeOvnInformers: externalversions.NewSharedInformerFactory(clienttest.NewClientset(t), 0),
	})
	if err != nil {
		t.Fatal(err)
	}
	if v.HasSynced() {
		t.Error("caches that were never started are filled")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got, err := v.Review(ctx, creating(newRule("r"))); err == nil {
		t.Errorf("answered %+v", got)
	}
}

// TestCatchUp: caches that are behind are waited for, so that a thousand rules that have just gone cost one read.
func TestCatchUp(t *testing.T) {
	eip := newEIP(eipA, "203.0.113.10", gwA)
	gone := thousand(func(i int) metav1.Object { return newRule(fmt.Sprintf("r%03d", i), owned(api), backend("10.1.0.5")) })
	v, server := newValidator(t, append(gone, eip), []metav1.Object{eip})
	if !v.waitForSync(t.Context()) {
		t.Fatal("not in sync")
	}
	server.PrependReactor("get", "iptables-dnat-rules", func(clienttesting.Action) (bool, runtime.Object, error) {
		// The events arrive while it is read.
		return false, nil, v.rules.GetIndexer().Replace(nil, "2")
	})
	got, err := v.Review(t.Context(), byController(creating(newRule("lb-web", owned(web)))))
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Refusals) > 0 {
		t.Errorf("refused: %v", texts(got.Refusals))
	}
	if diff := cmp.Diff(map[string]int{"get iptables-dnat-rules": 1}, reads(server)); diff != "" {
		t.Errorf("live reads (-want +got):\n%s", diff)
	}
}
