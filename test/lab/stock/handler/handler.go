// SPDX-License-Identifier: Apache-2.0

package handler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/client/clientset/versioned"
	"github.com/kubeovn/kube-ovn/pkg/client/informers/externalversions"
	listers "github.com/kubeovn/kube-ovn/pkg/client/listers/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

const (
	imageConfigMap = "ovn-vpc-nat-config"
	gateConfigMap  = "ovn-vpc-nat-gw-config"

	workers = 4
	// What fails is tried again, later each time.
	firstRetry, lastRetry = 50 * time.Millisecond, 5 * time.Second
)

// errNotYet: something else has to be there first.
var errNotYet = errors.New("not yet")

// item is an object to look at. Kinds are resources.
type item struct{ kind, name string }

const (
	gateways = "vpc-nat-gateways"
	eips     = "iptables-eips"
	dnats    = "iptables-dnat-rules"
)

// Handler runs the gateways.
type Handler struct {
	release   Release
	namespace string
	kube      kubernetes.Interface
	ovn       versioned.Interface
	dynamic   dynamic.Interface
	runner    runner

	gatewayLister listers.VpcNatGatewayLister
	eipLister     listers.IptablesEIPLister
	dnatLister    listers.IptablesDnatRuleLister
	subnetLister  listers.SubnetLister
	podLister     corelisters.PodLister
	mapLister     corelisters.ConfigMapLister
	natListers    map[string]cache.GenericLister

	queue workqueue.TypedRateLimitingInterface[item]
	// allocating is held while an EIP gets its address, a gateway's lock while something is programmed in it.
	allocating sync.Mutex
	locks      sync.Map
}

// New returns a handler of a release. Its own namespace is where the workloads of its gateways are.
func New(config *rest.Config, release Release, namespace string) (*Handler, error) {
	h := &Handler{release: release, namespace: namespace, natListers: map[string]cache.GenericLister{}}
	var err error
	if h.kube, err = kubernetes.NewForConfig(config); err != nil {
		return nil, err
	}
	if h.ovn, err = versioned.NewForConfig(config); err != nil {
		return nil, err
	}
	if h.dynamic, err = dynamic.NewForConfig(config); err != nil {
		return nil, err
	}
	h.runner = &podRunner{client: h.kube, config: config}
	h.queue = workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[item](firstRetry, lastRetry))
	return h, nil
}

// Run works until ctx ends; ready is called once it begins to.
func (h *Handler) Run(ctx context.Context, ready func()) error {
	if err := h.watch(ctx); err != nil {
		return err
	}
	ready()
	var group sync.WaitGroup
	for range workers {
		group.Go(func() { h.work(ctx) })
	}
	<-ctx.Done()
	h.queue.ShutDown()
	group.Wait()
	return nil
}

// watch fills the caches and has what happens put into the queue.
func (h *Handler) watch(ctx context.Context) error {
	kube := informers.NewSharedInformerFactory(h.kube, 0)
	ovn := externalversions.NewSharedInformerFactory(h.ovn, 0)
	dyn := dynamicinformer.NewDynamicSharedInformerFactory(h.dynamic, 0)
	v1 := ovn.Kubeovn().V1()
	h.gatewayLister, h.eipLister, h.dnatLister = v1.VpcNatGateways().Lister(), v1.IptablesEIPs().Lister(), v1.IptablesDnatRules().Lister()
	h.subnetLister = v1.Subnets().Lister()
	h.podLister, h.mapLister = kube.Core().V1().Pods().Lister(), kube.Core().V1().ConfigMaps().Lister()
	own := func(kind string) func(any) { return func(object any) { h.queue.Add(item{kind, name(object)}) } }
	watched := map[cache.SharedIndexInformer]func(any){
		v1.VpcNatGateways().Informer(): own(gateways),
		v1.IptablesEIPs().Informer():   own(eips),
		v1.IptablesDnatRules().Informer(): func(object any) {
			own(dnats)(object)
			if rule, ok := last(object).(*kubeovnv1.IptablesDnatRule); ok {
				h.queue.Add(item{eips, rule.Spec.EIP}) // its status.nat
			}
		},
		v1.Subnets().Informer():            func(any) { h.allGateways() },
		kube.Core().V1().Pods().Informer(): h.podChanged,
		kube.Core().V1().ConfigMaps().Informer(): func(object any) {
			if n := name(object); n == imageConfigMap || n == gateConfigMap {
				h.allGateways()
			}
		},
	}
	for _, kind := range natKinds {
		informer := dyn.ForResource(kubeovnv1.SchemeGroupVersion.WithResource(kind.resource))
		h.natListers[kind.resource] = informer.Lister()
		watched[informer.Informer()] = func(object any) {
			own(kind.resource)(object)
			if rule, ok := last(object).(*unstructured.Unstructured); ok {
				h.queue.Add(item{eips, text(rule, "spec", "eip")})
			}
		}
	}
	var synced []cache.InformerSynced
	for informer, notify := range watched {
		registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: notify, UpdateFunc: func(_, object any) { notify(object) }, DeleteFunc: notify,
		})
		if err != nil {
			return err
		}
		synced = append(synced, registration.HasSynced)
	}
	kube.Start(ctx.Done())
	ovn.Start(ctx.Done())
	dyn.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return errors.New("the caches were not filled in time")
	}
	return nil
}

// last gives the object of an event, also of a deletion that went unseen.
func last(object any) any {
	if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		return gone.Obj
	}
	return object
}

func name(object any) string {
	if meta, ok := last(object).(metav1.Object); ok {
		return meta.GetName()
	}
	return ""
}

func (h *Handler) allGateways() {
	list, err := h.gatewayLister.List(labels.Everything())
	if err != nil {
		return // a lister's cannot fail
	}
	for _, gw := range list {
		h.queue.Add(item{gateways, gw.Name})
	}
}

func (h *Handler) podChanged(object any) {
	if pod, ok := last(object).(*corev1.Pod); ok && pod.Annotations[sharenat.GatewayPodAnnotation] != "" {
		h.queue.Add(item{gateways, pod.Annotations[sharenat.GatewayPodAnnotation]})
	}
}

func (h *Handler) work(ctx context.Context) {
	for {
		next, shutdown := h.queue.Get()
		if shutdown {
			return
		}
		err := h.sync(ctx, next)
		switch {
		case err == nil:
			h.queue.Forget(next)
		case ctx.Err() == nil:
			klog.FromContext(ctx).Info("Tried again later", "kind", next.kind, "name", next.name, "why", err.Error())
			h.queue.AddRateLimited(next)
		}
		h.queue.Done(next)
	}
}

func (h *Handler) sync(ctx context.Context, next item) error {
	if next.name == "" {
		return nil // of a rule that names no EIP
	}
	var err error
	switch next.kind {
	case gateways:
		err = h.syncGateway(ctx, next.name)
	case eips:
		err = h.syncEIP(ctx, next.name)
	case dnats:
		err = h.syncDNAT(ctx, next.name)
	default:
		i := slices.IndexFunc(natKinds, func(k natKind) bool { return k.resource == next.kind })
		err = h.syncNAT(ctx, natKinds[i], next.name)
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// lock is a gateway's.
func (h *Handler) lock(gateway string) *sync.Mutex {
	lock, _ := h.locks.LoadOrStore(gateway, &sync.Mutex{})
	return lock.(*sync.Mutex)
}

func (h *Handler) settings() settings {
	image, _ := h.mapLister.ConfigMaps(h.namespace).Get(imageConfigMap)
	gates, _ := h.mapLister.ConfigMaps(h.namespace).Get(gateConfigMap)
	return readSettings(image, gates)
}

// podOf gives the pod of a gateway that is programmed; nil while there is none.
func (h *Handler) podOf(gateway string) *corev1.Pod {
	all, err := h.podLister.List(labels.SelectorFromSet(labels.Set{gatewayPodLabel: "true"}))
	if err != nil {
		return nil
	}
	return firstPod(slices.DeleteFunc(slices.Clone(all), func(pod *corev1.Pod) bool {
		return pod.Annotations[sharenat.GatewayPodAnnotation] != gateway
	}))
}

// initialized gives it once init has run in it.
func (h *Handler) initialized(gateway string) (*corev1.Pod, error) {
	if !h.settings().enabled {
		return nil, fmt.Errorf("%w: nat gateways are not enabled", errNotYet)
	}
	pod := h.podOf(gateway)
	if pod == nil || pod.Annotations[sharenat.GatewayInitAnnotation] != "true" {
		return nil, fmt.Errorf("%w: gateway %s has no pod in which init has run", errNotYet, gateway)
	}
	return pod, nil
}

// gone tells whether there is nothing to take something out of: no gateway, or none that is run.
func (h *Handler) gone(gateway string) bool {
	gw, err := h.gatewayLister.Get(gateway)
	return gateway == "" || err != nil || gw.DeletionTimestamp != nil || !h.settings().enabled
}

func (h *Handler) exec(ctx context.Context, pod *corev1.Pod, c call) error {
	klog.FromContext(ctx).Info("Exec", "pod", pod.Name, "call", c.String())
	return h.runner.run(ctx, pod, c)
}

// readyEIP gives an EIP that is in its gateway.
func (h *Handler) readyEIP(name string) (*kubeovnv1.IptablesEIP, error) {
	eip, err := h.eipLister.Get(name)
	if err != nil {
		return nil, fmt.Errorf("%w: no eip %q", errNotYet, name)
	}
	if !eip.Status.Ready || eip.Status.IP == "" {
		return nil, fmt.Errorf("%w: eip %s is not ready", errNotYet, name)
	}
	return eip, nil
}

func (h *Handler) allDNATs() []*kubeovnv1.IptablesDnatRule {
	list, _ := h.dnatLister.List(labels.Everything()) // a lister's cannot fail
	return list
}

// nats are the rules of a kind that this project's types do not have, or not as a rule to be programmed.
func (h *Handler) nats(kind natKind) []*unstructured.Unstructured {
	list, _ := h.natListers[kind.resource].List(labels.Everything())
	var out []*unstructured.Unstructured
	for _, object := range list {
		out = append(out, object.(*unstructured.Unstructured))
	}
	return out
}

func (h *Handler) natClient(kind natKind) dynamic.NamespaceableResourceInterface {
	return h.dynamic.Resource(resource(kind.resource))
}

func resource(name string) schema.GroupVersionResource {
	return kubeovnv1.SchemeGroupVersion.WithResource(name)
}

// uses tells what kinds of NAT an EIP has, sorted.
func (h *Handler) uses(eip string) string {
	var kinds []string
	if slices.ContainsFunc(h.allDNATs(), func(rule *kubeovnv1.IptablesDnatRule) bool { return rule.Spec.EIP == eip }) {
		kinds = append(kinds, "dnat")
	}
	for _, kind := range natKinds {
		if slices.ContainsFunc(h.nats(kind), func(object *unstructured.Unstructured) bool { return text(object, "spec", "eip") == eip }) {
			kinds = append(kinds, kind.nat)
		}
	}
	return strings.Join(kinds, ",")
}

// text gives a string of an object, "" where it is not there.
func text(object *unstructured.Unstructured, path ...string) string {
	value, _, _ := unstructured.NestedString(object.Object, path...)
	return value
}

func equal(a, b any) bool { return equality.Semantic.DeepEqual(a, b) }
