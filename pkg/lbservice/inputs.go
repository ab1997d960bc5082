// SPDX-License-Identifier: Apache-2.0

package lbservice

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
	"github.com/kubeovn/kube-ovn/pkg/vpcnet"
)

// Names of the indexes. The informers may be shared with other controllers, hence the prefix.
const (
	servicesByEIP   = "lbservice-eip"
	servicesByClaim = "lbservice-claim"
	slicesByService = "lbservice-service"
	slicesByPod     = "lbservice-pod"
	podsBySubnet    = "lbservice-subnet"
	eipsByGateway   = "lbservice-gateway"
	rulesByClaim    = "lbservice-claim"
	rulesByOwner    = "lbservice-owner"
	fipsByEIP       = "lbservice-eip"
)

// inputs are the informers of all that a decision depends on.
type inputs struct {
	services, slices, pods               cache.SharedIndexInformer
	subnets, eips, gateways, rules, fips cache.SharedIndexInformer
	registrations                        []cache.ResourceEventHandlerRegistration
}

// checkers are done when everything that was there at the start has been handled.
func (in *inputs) checkers() []cache.DoneChecker {
	out := make([]cache.DoneChecker, len(in.registrations))
	for i, registration := range in.registrations {
		out[i] = registration.HasSyncedChecker()
	}
	return out
}

func indexBy[T any](keys func(*T) []string) cache.IndexFunc {
	return func(obj any) ([]string, error) {
		if object, ok := obj.(*T); ok {
			return keys(object), nil
		}
		return nil, nil
	}
}

func one(key string) []string {
	if key == "" {
		return nil
	}
	return []string{key}
}

func (in *inputs) addIndexes() error {
	for _, index := range []struct {
		informer cache.SharedIndexInformer
		indexers cache.Indexers
	}{
		{in.services, cache.Indexers{
			servicesByEIP:   indexBy(func(svc *corev1.Service) []string { return one(sharenat.EIPName(svc)) }),
			servicesByClaim: indexBy(claimKeys),
		}},
		{in.slices, cache.Indexers{
			slicesByService: indexBy(func(slice *discoveryv1.EndpointSlice) []string { return one(serviceOfSlice(slice)) }),
			slicesByPod:     indexBy(podsOfSlice),
		}},
		{in.pods, cache.Indexers{podsBySubnet: indexBy(subnetsOfPod)}},
		{in.eips, cache.Indexers{eipsByGateway: indexBy(func(eip *kubeovnv1.IptablesEIP) []string { return one(eip.Spec.NatGwDp) })}},
		{in.rules, cache.Indexers{
			rulesByClaim: indexBy(claimKeysOfRule),
			rulesByOwner: indexBy(ownerKeyOfRule),
		}},
		{in.fips, cache.Indexers{fipsByEIP: indexBy(func(fip *kubeovnv1.IptablesFIPRule) []string { return one(fip.Spec.EIP) })}},
	} {
		if err := index.informer.AddIndexers(index.indexers); err != nil {
			return fmt.Errorf("add indexes: %w", err)
		}
	}
	return nil
}

func ownerKeyOfRule(rule *kubeovnv1.IptablesDnatRule) []string {
	if owner, ok := sharenat.LabelledOwner(rule); ok {
		return []string{owner.String()}
	}
	return nil
}

// An EIP may have very many rules and Services, so what matters to one of them is looked up by the ports that it claims.

// claimKey is the index value of a port of an EIP.
func claimKey(eip string, claim sharenat.Claim) string { return claim.String() + "|" + eip }

// claimKeys are those of the ports that a Service claims.
func claimKeys(svc *corev1.Service) []string {
	var keys []string
	for _, claim := range sharenat.ClaimsOf(svc) {
		keys = append(keys, claimKey(sharenat.EIPName(svc), claim))
	}
	return keys
}

// unlabelledKey is that of an EIP's rules which name no owner: made by hand, or made by us and tampered with since.
func unlabelledKey(eip string) string { return "|" + eip }

func claimKeysOfRule(rule *kubeovnv1.IptablesDnatRule) []string {
	var keys []string
	if claim, ok := sharenat.ClaimOfRule(rule); ok {
		keys = append(keys, claimKey(rule.Spec.EIP, claim))
	}
	if _, labelled := sharenat.LabelledOwner(rule); !labelled {
		keys = append(keys, unlabelledKey(rule.Spec.EIP))
	}
	return keys
}

// serviceOfSlice is namespace/name of the Service that a slice belongs to.
func serviceOfSlice(slice *discoveryv1.EndpointSlice) string {
	if name := slice.Labels[discoveryv1.LabelServiceName]; name != "" {
		return slice.Namespace + "/" + name
	}
	return ""
}

func podsOfSlice(slice *discoveryv1.EndpointSlice) []string {
	var out []string
	for i := range slice.Endpoints {
		if ref := slice.Endpoints[i].TargetRef; ref != nil && ref.Kind == "Pod" {
			out = append(out, slice.Namespace+"/"+ref.Name)
		}
	}
	return out
}

func subnetsOfPod(pod *corev1.Pod) []string {
	var out []string
	for key, value := range pod.Annotations {
		if strings.HasSuffix(key, logicalSwitchSuffix) && value != "" {
			out = append(out, value)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// changed makes an event handler of a function that gets an object before and after; nil where there is none.
func changed[T any](f func(before, after *T)) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if after, ok := obj.(*T); ok {
				f(nil, after)
			}
		},
		UpdateFunc: func(old, cur any) {
			before, ok := old.(*T)
			after, ok2 := cur.(*T)
			if ok && ok2 {
				f(before, after)
			}
		},
		DeleteFunc: func(obj any) {
			if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = unknown.Obj
			}
			if before, ok := obj.(*T); ok {
				f(before, nil)
			}
		},
	}
}

func (c *Controller) addHandlers() error {
	for _, h := range []struct {
		informer cache.SharedIndexInformer
		handler  cache.ResourceEventHandler
	}{
		{c.in.services, changed(c.serviceChanged)},
		{c.in.slices, changed(c.sliceChanged)},
		{c.in.pods, changed(c.podChanged)},
		{c.in.subnets, changed(c.subnetChanged)},
		{c.in.eips, changed(c.eipChanged)},
		{c.in.gateways, changed(c.gatewayChanged)},
		{c.in.rules, changed(c.ruleChanged)},
		{c.in.fips, changed(c.fipChanged)},
	} {
		registration, err := h.informer.AddEventHandler(h.handler)
		if err != nil {
			return fmt.Errorf("add event handler: %w", err)
		}
		c.in.registrations = append(c.in.registrations, registration)
	}
	return nil
}

// concerns tells whether a Service is, or was, ours to look at.
func concerns(svc *corev1.Service) bool {
	return svc != nil && (sharenat.EIPName(svc) != "" ||
		meta.FindStatusCondition(svc.Status.Conditions, ConditionReady) != nil ||
		meta.FindStatusCondition(svc.Status.Conditions, sharenat.ConditionIngress) != nil)
}

func (c *Controller) serviceChanged(before, after *corev1.Service) {
	for _, svc := range []*corev1.Service{before, after} {
		if concerns(svc) {
			c.queue.Add(sharenat.OwnerOfService(svc))
		}
	}
	if before != nil && after != nil && sharenat.EIPName(before) == sharenat.EIPName(after) && slices.Equal(sharenat.ClaimsOf(before), sharenat.ClaimsOf(after)) {
		return
	}
	// Only those that claim the same ports can be concerned: an EIP may have very many others.
	for _, svc := range []*corev1.Service{before, after} {
		if svc == nil {
			continue
		}
		for _, claim := range sharenat.ClaimsOf(svc) {
			c.enqueueClaim(sharenat.EIPName(svc), claim)
		}
	}
}

// enqueueEIP enqueues the Services that name an EIP.
func (c *Controller) enqueueEIP(name string) { c.enqueueServices(servicesByEIP, name) }

// enqueueClaim enqueues those that claim a port of it.
func (c *Controller) enqueueClaim(eip string, claim sharenat.Claim) {
	c.enqueueServices(servicesByClaim, claimKey(eip, claim))
}

func (c *Controller) enqueueServices(index, value string) {
	for _, svc := range byIndex[corev1.Service](c.in.services, index, value) {
		c.queue.Add(sharenat.OwnerOfService(svc))
	}
}

func (c *Controller) sliceChanged(before, after *discoveryv1.EndpointSlice) {
	if before != nil && after != nil && serviceOfSlice(before) == serviceOfSlice(after) &&
		before.AddressType == after.AddressType && equality.Semantic.DeepEqual(before.Endpoints, after.Endpoints) && equality.Semantic.DeepEqual(before.Ports, after.Ports) {
		return
	}
	c.noteTrigger(before, after)
	for _, slice := range []*discoveryv1.EndpointSlice{before, after} {
		if slice != nil {
			c.enqueueServiceKey(serviceOfSlice(slice))
		}
	}
}

// enqueueServiceKey enqueues a Service by namespace/name if it concerns us. One that is not there yet is enqueued when it comes.
func (c *Controller) enqueueServiceKey(key string) {
	if key == "" {
		return
	}
	obj, exists, err := c.in.services.GetIndexer().GetByKey(key)
	if err != nil || !exists {
		return
	}
	if svc, ok := obj.(*corev1.Service); ok && concerns(svc) {
		c.queue.Add(sharenat.OwnerOfService(svc))
	}
}

func (c *Controller) podChanged(before, after *corev1.Pod) {
	if before != nil && after != nil {
		if before.UID == after.UID && before.Status.Phase == after.Status.Phase && before.Status.PodIP == after.Status.PodIP &&
			maps.Equal(before.Annotations, after.Annotations) {
			return
		}
		if ParsePod(before).equal(ParsePod(after)) {
			return
		}
	}
	for _, pod := range []*corev1.Pod{before, after} {
		if pod != nil {
			c.enqueuePod(pod)
			return
		}
	}
}

func (c *Controller) enqueuePod(pod *corev1.Pod) {
	for _, slice := range byIndex[discoveryv1.EndpointSlice](c.in.slices, slicesByPod, pod.Namespace+"/"+pod.Name) {
		c.enqueueServiceKey(serviceOfSlice(slice))
	}
}

func (c *Controller) subnetChanged(before, after *kubeovnv1.Subnet) {
	if before != nil && after != nil && vpcnet.SubnetVPC(before) == vpcnet.SubnetVPC(after) {
		return
	}
	for _, pod := range byIndex[corev1.Pod](c.in.pods, podsBySubnet, nameOf(before, after)) {
		c.enqueuePod(pod)
	}
	for _, obj := range c.in.gateways.GetIndexer().List() {
		if gw, ok := obj.(*kubeovnv1.VpcNatGateway); ok && gw.Spec.Vpc == "" && gw.Spec.Subnet == nameOf(before, after) {
			c.gatewayChanged(nil, gw)
		}
	}
}

func (c *Controller) eipChanged(before, after *kubeovnv1.IptablesEIP) {
	if before != nil && after != nil && eipInputsOf(before) == eipInputsOf(after) {
		return
	}
	c.enqueueEIP(nameOf(before, after))
}

// eipInputs are the parts of an EIP that decisions depend on.
type eipInputs struct {
	uid      types.UID
	deleting bool
	spec     kubeovnv1.IptablesEIPSpec
	ip       string
	ready    bool
	grant    string
	granted  bool
	says     string
}

func eipInputsOf(eip *kubeovnv1.IptablesEIP) eipInputs {
	grant, granted := eip.Annotations[sharenat.GrantAnnotation]
	return eipInputs{eip.UID, eip.DeletionTimestamp != nil, eip.Spec, eip.Status.IP, eip.Status.Ready, grant, granted, eipNotReady(eip)}
}

func (c *Controller) gatewayChanged(before, after *kubeovnv1.VpcNatGateway) {
	if before != nil && after != nil && before.Spec.Vpc == after.Spec.Vpc && before.Spec.Subnet == after.Spec.Subnet &&
		before.Spec.Replicas == after.Spec.Replicas && before.Status.Ready == after.Status.Ready {
		return
	}
	if after == nil {
		c.opts.Latency.ForgetGateway(before.Name)
	}
	for _, eip := range byIndex[kubeovnv1.IptablesEIP](c.in.eips, eipsByGateway, nameOf(before, after)) {
		c.enqueueEIP(eip.Name)
	}
}

func (c *Controller) fipChanged(before, after *kubeovnv1.IptablesFIPRule) {
	if before != nil && after != nil && before.Spec.EIP == after.Spec.EIP &&
		(before.DeletionTimestamp == nil) == (after.DeletionTimestamp == nil) {
		return
	}
	for _, fip := range []*kubeovnv1.IptablesFIPRule{before, after} {
		if fip != nil {
			c.enqueueEIP(fip.Spec.EIP)
		}
	}
}

// ruleChanged enqueues the Service that owns the rule, also one that is gone, and when the rule comes, goes or becomes another, those
// that claim the same port.
func (c *Controller) ruleChanged(before, after *kubeovnv1.IptablesDnatRule) {
	c.metrics.ruleChanged(before, after)
	if after != nil {
		c.written.observe(after, false)
	} else {
		c.written.observe(before, true)
	}
	moved := before == nil || after == nil || before.Spec != after.Spec || before.UID != after.UID ||
		(before.DeletionTimestamp == nil) != (after.DeletionTimestamp == nil) ||
		!maps.Equal(before.Labels, after.Labels)
	if !moved && maps.Equal(before.Annotations, after.Annotations) {
		if before.Status.Ready != after.Status.Ready {
			c.enqueueOwner(after, readyDelay)
		}
		return
	}
	for _, rule := range []*kubeovnv1.IptablesDnatRule{before, after} {
		if rule == nil {
			continue
		}
		c.enqueueOwner(rule, 0)
		if claim, ok := sharenat.ClaimOfRule(rule); ok && moved {
			c.enqueueClaim(rule.Spec.EIP, claim)
		}
	}
}

func (c *Controller) enqueueOwner(rule *kubeovnv1.IptablesDnatRule, delay time.Duration) {
	owner, ok := sharenat.LabelledOwner(rule)
	switch {
	case !ok:
	case delay > 0:
		c.queue.AddAfter(owner, delay)
	default: // AddAfter would count it as one more try
		c.queue.Add(owner)
	}
}

// named is an API object by pointer.
type named[T any] interface {
	*T
	metav1.Object
}

// nameOf the object that there is.
func nameOf[T any, P named[T]](before, after P) string {
	if after != nil {
		return after.GetName()
	}
	return before.GetName()
}

// byIndex lists the objects that have one of some index values, each once, by name, so that what is made of them does not depend on the
// index's order.
func byIndex[T any, P named[T]](informer cache.SharedIndexInformer, index string, values ...string) []P {
	var out []P
	for _, value := range values {
		objects, err := informer.GetIndexer().ByIndex(index, value)
		if err != nil {
			// Only for an index that does not exist; addIndexes made them all.
			return nil
		}
		out = slices.Grow(out, len(objects))
		for _, obj := range objects {
			if object, ok := obj.(P); ok {
				out = append(out, object)
			}
		}
	}
	compare := func(a, b P) int {
		if c := strings.Compare(a.GetNamespace(), b.GetNamespace()); c != 0 {
			return c
		}
		return strings.Compare(a.GetName(), b.GetName())
	}
	slices.SortFunc(out, compare)
	return slices.CompactFunc(out, func(a, b P) bool { return compare(a, b) == 0 })
}
