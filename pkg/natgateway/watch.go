// SPDX-License-Identifier: Apache-2.0

package natgateway

import (
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	kubeinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// Indexes; the informers may be shared, hence the prefix.
const (
	podsByGateway = "natgateway.gateway"
	podsBySwitch  = "natgateway.switch"
	podsByAddress = "natgateway.address"
	byGateway     = "natgateway.gateway"
	byEIP         = "natgateway.eip"
	byGroup       = "natgateway.group"
	bySubnet      = "natgateway.subnet"
	byAddress     = "natgateway.address"
)

// handler is what one kind of object does to the queues; old is nil when it is new, obj is nil when it is gone.
type handler[T metav1.Object] func(old, obj T)

func (h handler[T]) handlers() cache.ResourceEventHandlerFuncs {
	var none T
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if o, ok := obj.(T); ok {
				h(none, o)
			}
		},
		UpdateFunc: func(old, obj any) {
			o, ok1 := old.(T)
			n, ok2 := obj.(T)
			if ok1 && ok2 {
				h(o, n)
			}
		},
		DeleteFunc: func(obj any) {
			if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = tombstone.Obj
			}
			if o, ok := obj.(T); ok {
				h(o, none)
			}
		},
	}
}

func register[T metav1.Object](c *Controller, informer cache.SharedIndexInformer, indexers cache.Indexers, h handler[T]) error {
	if len(indexers) > 0 {
		if err := informer.AddIndexers(indexers); err != nil {
			return err
		}
	}
	if h == nil {
		c.synced = append(c.synced, informer.HasSynced)
		return nil
	}
	registration, err := informer.AddEventHandler(h.handlers())
	if err != nil {
		return err
	}
	c.synced = append(c.synced, registration.HasSynced)
	return nil
}

func index[T any](keys func(T) []string) cache.IndexFunc {
	return func(obj any) ([]string, error) {
		if o, ok := obj.(T); ok {
			return keys(o), nil
		}
		return nil, nil
	}
}

// watch registers all informers, indexes and handlers.
func (c *Controller) watch() error {
	pods := c.KubeInformers.Core().V1().Pods()
	kinds := c.KubeOvnInformers.Kubeovn().V1()
	gateways, eips, rules := kinds.VpcNatGateways(), kinds.IptablesEIPs(), kinds.IptablesDnatRules()
	fips, subnets, vpcs := kinds.IptablesFIPRules(), kinds.Subnets(), kinds.Vpcs()

	c.podIndexer, c.podLister = pods.Informer().GetIndexer(), pods.Lister()
	c.eipIndexer, c.eipLister = eips.Informer().GetIndexer(), eips.Lister()
	c.ruleIndexer, c.ruleLister = rules.Informer().GetIndexer(), rules.Lister()
	c.fipIndexer = fips.Informer().GetIndexer()
	c.gatewayLister, c.subnetLister, c.vpcLister = gateways.Lister(), subnets.Lister(), vpcs.Lister()

	return errors.Join(
		register(c, pods.Informer(), cache.Indexers{podsByGateway: index(gatewayOfPod), podsBySwitch: index(switchesOfPod), podsByAddress: index(addressesOfPod)}, handler[*corev1.Pod](c.onPod)),
		register(c, gateways.Informer(), nil, handler[*kubeovnv1.VpcNatGateway](c.onGateway)),
		register(c, eips.Informer(), cache.Indexers{
			byGateway: index(func(e *kubeovnv1.IptablesEIP) []string { return []string{e.Spec.NatGwDp} }),
			bySubnet:  index(func(e *kubeovnv1.IptablesEIP) []string { return []string{externalSubnetOf(e)} }),
			byAddress: index(addressesOfEIP),
		}, handler[*kubeovnv1.IptablesEIP](c.onEIP)),
		register(c, rules.Informer(), cache.Indexers{
			byEIP:   index(func(r *kubeovnv1.IptablesDnatRule) []string { return []string{r.Spec.EIP} }),
			byGroup: index(func(r *kubeovnv1.IptablesDnatRule) []string { return []string{GroupOf(r).String()} }),
		}, handler[*kubeovnv1.IptablesDnatRule](c.onRule)),
		register(c, fips.Informer(), cache.Indexers{byEIP: index(func(f *kubeovnv1.IptablesFIPRule) []string { return []string{f.Spec.EIP} })},
			handler[*kubeovnv1.IptablesFIPRule](c.onFIP)),
		register(c, subnets.Informer(), nil, handler[*kubeovnv1.Subnet](c.onSubnet)),
		register(c, vpcs.Informer(), nil, handler[*kubeovnv1.Vpc](c.onVpc)),
		c.watchOwn(),
	)
}

// watchOwn watches the two ConfigMaps and the gateways' workloads, and no others of these kinds.
func (c *Controller) watchOwn() error {
	configMap := func(name string) (corev1Informer cache.SharedIndexInformer, factory kubeinformers.SharedInformerFactory) {
		factory = kubeinformers.NewSharedInformerFactoryWithOptions(c.KubeClient, 0, kubeinformers.WithNamespace(c.Namespace),
			kubeinformers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = metav1.ObjectNameField + "=" + name }))
		c.own = append(c.own, factory)
		return factory.Core().V1().ConfigMaps().Informer(), factory
	}
	imageInformer, imageFactory := configMap(imageConfigMap)
	switchInformer, switchFactory := configMap(switchConfigMap)
	c.imageConfig = imageFactory.Core().V1().ConfigMaps().Lister().ConfigMaps(c.Namespace)
	c.switchConfig = switchFactory.Core().V1().ConfigMaps().Lister().ConfigMaps(c.Namespace)

	workloads := kubeinformers.NewSharedInformerFactoryWithOptions(c.KubeClient, 0,
		kubeinformers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = gatewayPodLabel + "=true" }))
	c.own = append(c.own, workloads)
	sets, deployments := workloads.Apps().V1().StatefulSets(), workloads.Apps().V1().Deployments()
	c.setLister, c.deployLister = sets.Lister(), deployments.Lister()

	onConfig := handler[*corev1.ConfigMap](func(old, obj *corev1.ConfigMap) {
		if old == nil || obj == nil || !maps.Equal(old.Data, obj.Data) {
			c.touchAll()
		}
	})
	onWorkload := handler[metav1.Object](func(old, obj metav1.Object) {
		for _, o := range []metav1.Object{old, obj} {
			if o != nil {
				c.gatewayQueue.Add(ownerGateway(o))
			}
		}
	})
	return errors.Join(
		register(c, imageInformer, nil, onConfig), register(c, switchInformer, nil, onConfig),
		register(c, switchInformer, nil, handler[*corev1.ConfigMap](c.switchChanged)),
		register(c, sets.Informer(), nil, onWorkload), register(c, deployments.Informer(), nil, onWorkload),
	)
}

// switchChanged tells of a word that is neither of the two it may be; the gateways stay as they are.
func (c *Controller) switchChanged(old, obj *corev1.ConfigMap) {
	if obj == nil || old != nil && old.Data[switchKey] == obj.Data[switchKey] {
		return
	}
	switch word := strings.TrimSpace(obj.Data[switchKey]); word {
	case switchOn, switchOff:
	default:
		const text = "%s: %.100q is neither true nor false: the gateways stay switched on"
		klog.Background().Info("ConfigMap has another word than true and false", "configMap", klog.KObj(obj), "key", switchKey, "word", word)
		c.Recorder.Eventf(obj, nil, corev1.EventTypeWarning, ReasonInvalidSwitch, actionReconcile, text, switchKey, word)
	}
}

// ownerGateway names the gateway that a workload belongs to; empty when it belongs to none.
func ownerGateway(obj metav1.Object) string {
	if owner := metav1.GetControllerOf(obj); owner != nil && owner.Kind == "VpcNatGateway" {
		return owner.Name
	}
	return ""
}

func gatewayOfPod(pod *corev1.Pod) []string {
	if name := pod.Annotations[sharenat.GatewayPodAnnotation]; name != "" {
		return []string{name}
	}
	return nil
}

// switchesOfPod names the Subnets that a pod has addresses in.
func switchesOfPod(pod *corev1.Pod) []string {
	var out []string
	for key, value := range pod.Annotations {
		if strings.HasSuffix(key, switchSuffix) && value != "" {
			out = append(out, value)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func externalSubnetOf(eip *kubeovnv1.IptablesEIP) string {
	if eip.Spec.ExternalSubnet == "" {
		return sharenat.DefaultExternalSubnet
	}
	return eip.Spec.ExternalSubnet
}

func (c *Controller) onPod(old, obj *corev1.Pod) {
	if old != nil && (obj == nil || obj.UID != old.UID || ended(obj)) && !ended(old) {
		c.onAddressesLeft(addressesOfPod(old))
	}
	for _, pod := range []*corev1.Pod{old, obj} {
		if pod == nil {
			continue
		}
		if gw := pod.Annotations[sharenat.GatewayPodAnnotation]; gw != "" {
			c.podQueue.Add(types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name})
			c.gatewayQueue.Add(gw)
			c.wake(gw)
		}
	}
}

func (c *Controller) onGateway(old, obj *kubeovnv1.VpcNatGateway) {
	name := either(old, obj).Name
	if old != nil && obj != nil && sameSpec(old, obj) {
		c.gatewayQueue.Add(name)
		return
	}
	c.touch(name)
	for _, eip := range listIndex[*kubeovnv1.IptablesEIP](c.eipIndexer, byGateway, name) {
		c.eipQueue.Add(eip.Name)
	}
}

func (c *Controller) onEIP(old, obj *kubeovnv1.IptablesEIP) {
	eip := either(old, obj)
	c.eipQueue.Add(eip.Name)
	if old != nil && obj != nil && sameSpec(old, obj) && old.Status.IP == obj.Status.IP {
		return
	}
	for _, e := range []*kubeovnv1.IptablesEIP{old, obj} {
		if e != nil {
			c.touch(e.Spec.NatGwDp)
		}
	}
	for _, rule := range listIndex[*kubeovnv1.IptablesDnatRule](c.ruleIndexer, byEIP, eip.Name) {
		c.ruleQueue.Add(rule.Name)
	}
	c.touchRivals(old, obj)
	if obj == nil {
		c.enqueueHungryEIPs(externalSubnetOf(old))
	}
}

func addressesOfEIP(eip *kubeovnv1.IptablesEIP) []string {
	if addr := allocated(eip); addr.IsValid() {
		return []string{addr.String()}
	}
	return nil
}

// touchRivals looks again at the EIPs on which an address is written that this one has, or has had.
func (c *Controller) touchRivals(eips ...*kubeovnv1.IptablesEIP) {
	for _, eip := range eips {
		if eip == nil {
			continue
		}
		for _, address := range addressesOfEIP(eip) {
			for _, other := range listIndex[*kubeovnv1.IptablesEIP](c.eipIndexer, byAddress, address) {
				if other.Name != eip.Name {
					c.touch(other.Spec.NatGwDp)
					c.eipQueue.Add(other.Name)
				}
			}
		}
	}
}

// enqueueHungryEIPs looks again at the EIPs that have no address yet.
func (c *Controller) enqueueHungryEIPs(subnet string) {
	for _, eip := range listIndex[*kubeovnv1.IptablesEIP](c.eipIndexer, bySubnet, subnet) {
		if !allocated(eip).IsValid() {
			c.eipQueue.Add(eip.Name)
		}
	}
}

func (c *Controller) onRule(old, obj *kubeovnv1.IptablesDnatRule) {
	defer c.ruleQueue.Add(either(old, obj).Name)
	if old != nil && obj != nil && sameSpec(old, obj) {
		return
	}
	for _, rule := range []*kubeovnv1.IptablesDnatRule{old, obj} {
		if rule == nil || rule == obj && old != nil && GroupOf(old) == GroupOf(obj) {
			continue
		}
		eip, err := c.eipLister.Get(rule.Spec.EIP)
		if err != nil {
			continue
		}
		if eip.DeletionTimestamp != nil {
			c.touch(eip.Spec.NatGwDp)
			c.eipQueue.Add(eip.Name)
		}
		c.touchRules(eip.Spec.NatGwDp, GroupOf(rule))
	}
}

func (c *Controller) onFIP(old, obj *kubeovnv1.IptablesFIPRule) {
	if old != nil && obj != nil && sameSpec(old, obj) {
		return
	}
	for _, fip := range []*kubeovnv1.IptablesFIPRule{old, obj} {
		if fip == nil {
			continue
		}
		c.eipQueue.Add(fip.Spec.EIP)
		if eip, err := c.eipLister.Get(fip.Spec.EIP); err == nil {
			c.touch(eip.Spec.NatGwDp)
		}
	}
}

func (c *Controller) onSubnet(old, obj *kubeovnv1.Subnet) {
	if old != nil && obj != nil && reflect.DeepEqual(old.Spec, obj.Spec) {
		return
	}
	c.touchAll()
	for _, eip := range listIndex[*kubeovnv1.IptablesEIP](c.eipIndexer, bySubnet, either(old, obj).Name) {
		c.eipQueue.Add(eip.Name)
	}
}

func (c *Controller) onVpc(old, obj *kubeovnv1.Vpc) {
	if old == nil || obj == nil || !slices.Equal(old.Status.Subnets, obj.Status.Subnets) {
		c.touchAll()
	}
}

// either gives the new object, or the old one when it is gone.
func either[T comparable](old, obj T) T {
	var none T
	if obj != none {
		return obj
	}
	return old
}

// sameSpec says that nothing but the status, or somebody's bookkeeping, has changed.
func sameSpec(a, b metav1.Object) bool {
	return a.GetGeneration() == b.GetGeneration() && a.GetUID() == b.GetUID() &&
		(a.GetDeletionTimestamp() == nil) == (b.GetDeletionTimestamp() == nil) &&
		maps.Equal(a.GetLabels(), b.GetLabels()) && maps.Equal(a.GetAnnotations(), b.GetAnnotations()) &&
		slices.Equal(a.GetFinalizers(), b.GetFinalizers()) && sameSpecField(a, b)
}

// sameSpecField compares the specs themselves, for API servers (and fakes) that keep no generation.
func sameSpecField(a, b metav1.Object) bool {
	switch x := a.(type) {
	case *kubeovnv1.IptablesDnatRule:
		y, ok := b.(*kubeovnv1.IptablesDnatRule)
		return ok && x.Spec == y.Spec
	case *kubeovnv1.IptablesEIP:
		y, ok := b.(*kubeovnv1.IptablesEIP)
		return ok && x.Spec == y.Spec
	case *kubeovnv1.IptablesFIPRule:
		y, ok := b.(*kubeovnv1.IptablesFIPRule)
		return ok && x.Spec == y.Spec
	case *kubeovnv1.VpcNatGateway:
		y, ok := b.(*kubeovnv1.VpcNatGateway)
		return ok && reflect.DeepEqual(x.Spec, y.Spec)
	}
	return false
}

func listIndex[T any](indexer cache.Indexer, name, key string) []T {
	objs, err := indexer.ByIndex(name, key)
	if err != nil {
		return nil // only for an index that does not exist
	}
	out := make([]T, 0, len(objs))
	for _, obj := range objs {
		if o, ok := obj.(T); ok {
			out = append(out, o)
		}
	}
	return out
}

// touchAll recomputes every gateway.
func (c *Controller) touchAll() {
	gateways, err := c.gatewayLister.List(labels.Everything())
	if err != nil {
		return // a lister's List has no error
	}
	for _, gw := range gateways {
		c.touch(gw.Name)
	}
}
