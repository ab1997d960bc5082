// SPDX-License-Identifier: Apache-2.0

package interleave

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/lbservice"
	"github.com/kubeovn/kube-ovn/pkg/natgateway"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// begin looks at one Service as the controller does, and leaves its writes to be made one by one. Passes over one EIP take turns.
func (w *world) begin(key sharenat.Owner, all bool) {
	w.advance(&w.ours, all)
	eip := ""
	if svc := w.at(w.ours).services[key]; svc != nil {
		eip = sharenat.EIPName(svc)
	}
	if len(w.passes[eip]) > 0 {
		return
	}
	s := w.snapshot(key)
	changes, err := lbservice.Diff(lbservice.Desired(s).Rules, s.OwnRules)
	if err != nil {
		w.t.Fatal(err)
	}
	if len(changes.Patch) > 0 {
		w.t.Fatalf("nothing in here needs a patch: %+v", changes.Patch)
	}
	var writes []func()
	for _, rule := range changes.Create {
		writes = append(writes, func() { w.create(rule) })
	}
	for _, rule := range changes.Delete {
		writes = append(writes, func() { w.delete(rule) })
	}
	w.passes[eip] = writes
}

// snapshot is made as the controller makes it: its caches, with its own writes laid over them.
func (w *world) snapshot(key sharenat.Owner) *lbservice.Snapshot {
	seen := w.at(w.ours)
	s := &lbservice.Snapshot{Key: key, Service: seen.services[key]}
	rules := w.overlay(seen.rules)
	for _, rule := range rules {
		if owner, managed, err := sharenat.OwnerOf(rule.Labels); err == nil && managed && owner == key {
			s.OwnRules = append(s.OwnRules, rule)
		}
	}
	if !sharenat.Qualifies(s.Service) {
		return s
	}
	eip := sharenat.EIPName(s.Service)
	s.EIP = seen.eips[eip]
	s.Gateway = &kubeovnv1.VpcNatGateway{ObjectMeta: metav1.ObjectMeta{Name: gatewayOf[eip]}, Status: kubeovnv1.VpcNatGatewayStatus{Ready: true}}
	for _, owner := range owners {
		if svc := seen.services[owner]; svc != nil && sharenat.EIPName(svc) == eip {
			s.Claimants = append(s.Claimants, svc)
		}
	}
	for _, rule := range rules {
		if rule.Spec.EIP == eip {
			s.EIPRules = append(s.EIPRules, rule)
		}
	}
	for _, fip := range seen.fips {
		if fip.Spec.EIP == eip {
			s.FIPs = append(s.FIPs, fip)
		}
	}
	s.Slices = []*discoveryv1.EndpointSlice{slice(key)}
	return s
}

// overlay: what we wrote we know, whether the cache shows it or not; of what others did to it, only what the cache shows.
func (w *world) overlay(seen map[string]*kubeovnv1.IptablesDnatRule) []*kubeovnv1.IptablesDnatRule {
	merged := maps.Clone(seen)
	managed := func(rule *kubeovnv1.IptablesDnatRule) bool { return rule.Labels[sharenat.OwnerNameLabel] != "" }
	for name, rule := range seen {
		if now := w.now().rules[name]; managed(rule) && (now == nil || now.UID != rule.UID) && rule.DeletionTimestamp == nil {
			gone := rule.DeepCopy()
			gone.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
			merged[name] = gone
		}
	}
	for name, rule := range w.now().rules {
		if managed(rule) {
			merged[name] = rule
		}
	}
	return slices.SortedFunc(maps.Values(merged), func(a, b *kubeovnv1.IptablesDnatRule) int { return cmp.Compare(a.Name, b.Name) })
}

func (w *world) create(want lbservice.Rule) {
	if w.now().rules[want.Name] != nil {
		return // refused: the name is taken
	}
	rule := &kubeovnv1.IptablesDnatRule{
		ObjectMeta: metav1.ObjectMeta{
			Name: want.Name, UID: w.uid(), Labels: want.Labels, Annotations: want.Annotations, Finalizers: []string{finalizer},
		},
		Spec: want.Spec,
	}
	w.change(func(o *objects) { o.rules[rule.Name] = rule })
}

// delete is what the API server makes of a deletion, ours or a user's.
func (w *world) delete(rule *kubeovnv1.IptablesDnatRule) {
	now := w.now().rules[rule.Name]
	if now == nil || now.UID != rule.UID || now.DeletionTimestamp != nil {
		return
	}
	w.change(func(o *objects) {
		if len(now.Finalizers) == 0 {
			delete(o.rules, rule.Name)
			return
		}
		going := now.DeepCopy()
		going.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
		o.rules[rule.Name] = going
	})
}

// write makes the next write of a pass.
func (w *world) write(eip string) {
	if writes := w.passes[eip]; len(writes) > 0 {
		w.passes[eip] = writes[1:]
		writes[0]()
	}
}

// look begins a pass of the handler over its gateway's pod.
func (w *world) look(h *handler, all bool) {
	if len(h.todo) > 0 || h.done != nil {
		return
	}
	w.advance(&h.view, all)
	seen := w.at(h.view)
	in := natgateway.Snapshot{Gateway: h.name, Rules: map[natgateway.GroupKey][]*kubeovnv1.IptablesDnatRule{}}
	for _, eip := range eips {
		if gatewayOf[eip] == h.name {
			in.EIPs = append(in.EIPs, natgateway.SnapshotEIP{Name: eip, CIDR: addressOf[eip], FIP: fipOn(seen, eip)})
		}
	}
	var mine []*kubeovnv1.IptablesDnatRule
	for _, rule := range seen.rules {
		if gatewayOf[rule.Spec.EIP] == h.name {
			in.Rules[natgateway.GroupOf(rule)] = append(in.Rules[natgateway.GroupOf(rule)], rule)
			mine = append(mine, rule)
		}
	}
	previous := h.state
	if w.r.IntN(4) == 0 {
		previous = nil
	}
	h.state = natgateway.Desired(in, previous)
	h.todo = natgateway.Plan(h.state, h.content)
	h.done = func() {
		for _, rule := range mine {
			w.conclude(rule)
		}
	}
}

func fipOn(seen objects, eip string) string {
	for name, fip := range seen.fips {
		if fip.Spec.EIP == eip {
			return name
		}
	}
	return ""
}

// conclude is what the handler writes on a rule: its finalizer before it is programmed, and off once it no longer is.
func (w *world) conclude(seen *kubeovnv1.IptablesDnatRule) {
	now := w.now().rules[seen.Name]
	if now == nil || now.UID != seen.UID {
		return
	}
	switch {
	case seen.DeletionTimestamp != nil:
		w.change(func(o *objects) { delete(o.rules, seen.Name) })
	case len(now.Finalizers) == 0 && now.DeletionTimestamp == nil:
		claimed := now.DeepCopy()
		claimed.Finalizers = []string{finalizer}
		w.change(func(o *objects) { o.rules[seen.Name] = claimed })
	}
}

// call makes the next call of a handler's pass.
func (w *world) call(h *handler) {
	if len(h.todo) == 0 {
		if h.done != nil {
			h.done()
			h.done = nil
		}
		return
	}
	action := h.todo[0]
	h.todo = h.todo[1:]
	if action.Full {
		clear(h.shares)
	}
	for _, share := range action.Set {
		h.shares[share.Identity] = share.Share
	}
	for _, id := range action.Remove {
		delete(h.shares, id)
	}
	action.Apply(h.content)
	w.calls++
}

// restart has the pod lose all it had, or the handler all it knew.
func (w *world) restart(h *handler) {
	h.todo, h.done = nil, nil
	listing := &sharenat.Listing{}
	if w.r.IntN(2) == 0 {
		clear(h.shares)
	} else {
		listing.Shares = map[sharenat.Identity]sharenat.Holding{}
		for id, share := range h.shares {
			listing.Shares[id] = sharenat.Holding{Digest: share.Digest(), Backends: len(share.Backends)}
		}
		for id, targets := range h.content.Exclusives {
			for _, target := range targets {
				listing.Exclusives = append(listing.Exclusives, sharenat.Exclusive{Identity: id, Backend: target})
			}
		}
		listing.Initialized = true
	}
	h.content, h.state = natgateway.NewContent(listing), nil
}

// user does something.
func (w *world) user() {
	key, eip, port := owners[w.r.IntN(len(owners))], eips[w.r.IntN(len(eips))], ports[w.r.IntN(len(ports))]
	svc := w.now().services[key]
	switch what := w.r.IntN(10); {
	case svc == nil && what < 7:
		w.change(func(o *objects) { o.services[key] = service(key, eip, port) })
	case what < 7 && svc.DeletionTimestamp != nil:
		w.change(func(o *objects) { delete(o.services, key) })
	case what < 2:
		w.deleteService(key, svc)
	case what < 5:
		w.change(func(o *objects) { o.services[key] = service(key, sharenat.EIPName(svc), port) })
	case what < 7:
		w.change(func(o *objects) { o.services[key] = service(key, eip, svc.Spec.Ports[0].Port) })
	case what < 9:
		w.toggleRule("m-"+eip+"-"+strconv.Itoa(int(port)), eip, port)
	case w.inOrder:
	case w.r.IntN(2) == 0:
		w.toggleFIP(eip)
	default:
		w.change(func(o *objects) {
			changed := o.eips[eip].DeepCopy()
			changed.Annotations = []map[string]string{nil, {sharenat.GrantAnnotation: "x"}, {sharenat.GrantAnnotation: "w, y"}}[w.r.IntN(3)]
			o.eips[eip] = changed
		})
	}
}

func (w *world) deleteService(key sharenat.Owner, svc *corev1.Service) {
	w.change(func(o *objects) {
		if w.r.IntN(2) == 0 {
			delete(o.services, key)
			return
		}
		going := svc.DeepCopy()
		going.Finalizers, going.DeletionTimestamp = []string{holdUpUser}, &metav1.Time{Time: time.Unix(1, 0)}
		o.services[key] = going
	})
}

func (w *world) toggleRule(name, eip string, port int32) {
	if rule := w.now().rules[name]; rule != nil {
		w.delete(rule)
		return
	}
	kind := []string{sharenat.TypeShare, sharenat.TypeExclusive}[w.r.IntN(2)]
	rule := &kubeovnv1.IptablesDnatRule{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: w.uid()},
		Spec: kubeovnv1.IptablesDnatRuleSpec{
			EIP: eip, ExternalPort: strconv.Itoa(int(port)), Protocol: "TCP", Type: kind, InternalIP: "10.9.0.1", InternalPort: "8080",
		},
	}
	w.change(func(o *objects) { o.rules[name] = rule })
}

func (w *world) toggleFIP(eip string) {
	name := "f-" + eip
	w.change(func(o *objects) {
		if o.fips[name] != nil {
			delete(o.fips, name)
			return
		}
		o.fips[name] = &kubeovnv1.IptablesFIPRule{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.IptablesFIPRuleSpec{EIP: eip}}
	})
}
