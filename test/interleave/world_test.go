// SPDX-License-Identifier: Apache-2.0

package interleave

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/natgateway"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// The address plan: two EIPs on one gateway and one on another; Service i of owners has the backends 10.1.i.1 and 10.1.i.2,
// rules made by hand lead to 10.9.0.0/16. So an address tells whose backend it is.
var (
	gatewayOf = map[string]string{"e1": "gw-a", "e2": "gw-a", "e3": "gw-b"}
	addressOf = map[string]netip.Prefix{
		"e1": netip.MustParsePrefix("203.0.113.10/24"), "e2": netip.MustParsePrefix("203.0.113.11/24"), "e3": netip.MustParsePrefix("203.0.113.12/24"),
	}
	eips     = []string{"e1", "e2", "e3"}
	ports    = []int32{80, 81}
	gateways = []string{"gw-a", "gw-b"}
	owners   = []sharenat.Owner{{Namespace: "x", Name: "b"}, {Namespace: "x", Name: "a"}, {Namespace: "y", Name: "a"}, {Namespace: "w", Name: "z"}}
)

const (
	byHand     = "by hand"
	finalizer  = sharenat.Finalizer
	holdUpUser = "example.com/hold"
)

// objects is what the API server has at one revision. It is never changed once made.
type objects struct {
	services map[sharenat.Owner]*corev1.Service
	rules    map[string]*kubeovnv1.IptablesDnatRule
	fips     map[string]*kubeovnv1.IptablesFIPRule
	eips     map[string]*kubeovnv1.IptablesEIP
}

// view is what informers show: each kind at a revision of its own, never going back.
type view struct{ services, rules, fips, eips int }

// world is the API server, both controllers, and what the gateways hold.
type world struct {
	t *testing.T
	r *rand.Rand
	// inOrder: informers of different kinds show things in the order in which they happened. Then one more thing holds: who has never
	// been an identity's rightful owner is never programmed.
	inOrder  bool
	rightful map[sharenat.Identity]map[string]bool

	history []objects
	uids    int
	// ours are the caches of the Service controller, theirs those of the handler, by gateway.
	ours   view
	theirs map[string]*handler
	// passes are the writes that are still to be made by passes under way, by the EIP they work on.
	passes map[string][]func()
	// calls counts what was programmed, to see that a history was worth playing.
	calls int
}

// handler is one gateway's pod and what the handler does about it.
type handler struct {
	name    string
	view    view
	state   *natgateway.State
	content *natgateway.Content
	// todo are the calls of the pass under way; done is what follows them.
	todo []natgateway.Action
	done func()
	// shares is what the kernel has.
	shares map[sharenat.Identity]sharenat.Share
}

func newWorld(t *testing.T, seed uint64) *world {
	t.Helper()
	w := &world{
		t: t, r: rand.New(rand.NewPCG(seed, 2)), inOrder: seed%2 == 0, rightful: map[sharenat.Identity]map[string]bool{},
		theirs: map[string]*handler{}, passes: map[string][]func(){},
	}
	first := objects{
		services: map[sharenat.Owner]*corev1.Service{}, rules: map[string]*kubeovnv1.IptablesDnatRule{},
		fips: map[string]*kubeovnv1.IptablesFIPRule{}, eips: map[string]*kubeovnv1.IptablesEIP{},
	}
	for name, prefix := range addressOf {
		first.eips[name] = &kubeovnv1.IptablesEIP{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.IptablesEIPSpec{NatGwDp: gatewayOf[name]},
			Status: kubeovnv1.IptablesEIPStatus{Ready: true, IP: prefix.Addr().String()},
		}
	}
	w.history = []objects{first}
	for _, name := range gateways {
		w.theirs[name] = &handler{name: name, content: natgateway.NewContent(&sharenat.Listing{}), shares: map[sharenat.Identity]sharenat.Share{}}
	}
	return w
}

func (w *world) now() objects { return w.history[len(w.history)-1] }

// change makes a revision.
func (w *world) change(f func(*objects)) {
	next := w.now()
	next.services, next.rules = maps.Clone(next.services), maps.Clone(next.rules)
	next.fips, next.eips = maps.Clone(next.fips), maps.Clone(next.eips)
	f(&next)
	w.history = append(w.history, next)
	for _, eip := range eips {
		for _, port := range ports {
			if owner := w.owner(eip, port); owner != "" {
				id := identity(eip, port)
				if w.rightful[id] == nil {
					w.rightful[id] = map[string]bool{}
				}
				w.rightful[id][owner] = true
			}
		}
	}
}

func (w *world) uid() types.UID {
	w.uids++
	return types.UID(strconv.Itoa(w.uids))
}

// advance shows an informer a little more, or all there is.
func (w *world) advance(v *view, all bool) {
	last := len(w.history) - 1
	step := func(at int) int {
		if all {
			return last
		}
		return at + w.r.IntN(last-at+1)
	}
	v.rules = step(v.rules)
	if w.inOrder {
		v.services, v.fips, v.eips = v.rules, v.rules, v.rules
		return
	}
	v.services, v.fips, v.eips = step(v.services), step(v.fips), step(v.eips)
}

func (w *world) at(v view) objects {
	return objects{w.history[v.services].services, w.history[v.rules].rules, w.history[v.fips].fips, w.history[v.eips].eips}
}

func identity(eip string, port int32) sharenat.Identity {
	return sharenat.Identity{EIP: addressOf[eip].Addr(), Port: uint16(port), Protocol: sharenat.TCP}
}

// owner is who should have a port of an EIP, in the words of the rule itself; empty for nobody.
func (w *world) owner(eip string, port int32) string {
	now := w.now()
	for _, fip := range now.fips {
		if fip.Spec.EIP == eip && fip.DeletionTimestamp == nil {
			return ""
		}
	}
	for _, rule := range now.rules {
		if len(rule.Labels[sharenat.OwnerNameLabel]) == 0 && rule.DeletionTimestamp == nil && rule.Spec.EIP == eip && rule.Spec.ExternalPort == strconv.Itoa(int(port)) {
			return byHand
		}
	}
	best := ""
	for key, svc := range now.services {
		if svc.DeletionTimestamp == nil && svc.Annotations[sharenat.EIPAnnotation] == eip && svc.Spec.Ports[0].Port == port &&
			sharenat.Granted(now.eips[eip], key.Namespace, false) && (best == "" || key.String() < best) {
			best = key.String()
		}
	}
	return best
}

// ownerOf tells whose backend an address is.
func ownerOf(addr netip.Addr) string {
	b := addr.As4()
	if b[1] == 9 {
		return byHand
	}
	return owners[b[2]].String()
}

func service(key sharenat.Owner, eip string, port int32) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, Annotations: map[string]string{sharenat.EIPAnnotation: eip}},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: port, Protocol: corev1.ProtocolTCP}},
		},
	}
}

func slice(key sharenat.Owner) *discoveryv1.EndpointSlice {
	i := slices.Index(owners, key)
	out := &discoveryv1.EndpointSlice{
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To(""), Port: ptr.To[int32](8080), Protocol: ptr.To(corev1.ProtocolTCP)}},
	}
	for host := range 2 {
		out.Endpoints = append(out.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.1.%d.%d", i, host+1)}})
	}
	return out
}
