// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

var (
	subnetResource = schema.GroupVersionResource{Group: "kubeovn.io", Version: "v1", Resource: "subnets"}
	vpcResource    = schema.GroupVersionResource{Group: "kubeovn.io", Version: "v1", Resource: "vpcs"}
	eipResource    = schema.GroupVersionResource{Group: "kubeovn.io", Version: "v1", Resource: "iptables-eips"}
	gwResource     = schema.GroupVersionResource{Group: "kubeovn.io", Version: "v1", Resource: "vpc-nat-gateways"}
	ruleResource   = schema.GroupVersionResource{Group: "kubeovn.io", Version: "v1", Resource: "iptables-dnat-rules"}
)

// Join is the network between the node and the default VPC's router.
type Join struct {
	Prefix       netip.Prefix
	Router, Node netip.Addr
}

// External is the network outside.
type External struct {
	Prefix netip.Prefix
	// Gateway is the upstream router, Node the node's address.
	Gateway, Node netip.Addr
	// Clients maps the name of a client's namespace to its address.
	Clients map[string]netip.Addr
}

// Config says what the fabric is made of. Zero fields take Kube-OVN's defaults.
type Config struct {
	// Client talks to the API server; the Subnets, Vpcs and IptablesEIPs are read with it.
	Client        dynamic.Interface
	Join          Join
	External      External
	DefaultPrefix netip.Prefix
}

func (c *Config) defaults() {
	if !c.Join.Prefix.IsValid() {
		c.Join = Join{
			Prefix: netip.MustParsePrefix("100.64.0.0/16"),
			Router: netip.MustParseAddr("100.64.0.1"), Node: netip.MustParseAddr("100.64.0.2"),
		}
	}
	if !c.DefaultPrefix.IsValid() {
		c.DefaultPrefix = netip.MustParsePrefix("10.16.0.0/16")
	}
	if !c.External.Prefix.IsValid() {
		c.External = External{
			Prefix:  netip.MustParsePrefix("203.0.113.0/24"),
			Gateway: netip.MustParseAddr("203.0.113.1"), Node: netip.MustParseAddr("203.0.113.2"),
			Clients: map[string]netip.Addr{
				"client1": netip.MustParseAddr("203.0.113.101"),
				"client2": netip.MustParseAddr("203.0.113.102"),
				"client3": netip.MustParseAddr("203.0.113.103"),
			},
		}
	}
}

// Fabric is a running data plane.
type Fabric struct {
	config Config
	ipam   *IPAM

	mu       sync.Mutex
	node     *space
	fabric   *space
	upstream *space
	clients  map[string]*space
	routers  map[string]*space
	applied  topology
	// attached maps a Pod's UID to its NICs by provider.
	attached  map[string]map[string]NIC
	nodeRules string
	reserved  map[netip.Addr]string

	subnets, vpcs, eips, gateways, rules cache.SharedIndexInformer

	admittedMu sync.Mutex
	admitted   admitted
	// told has the reasons that were told, of each object that is refused. Only Run's goroutine touches it.
	told map[string]string

	dirty chan struct{}
	// whole is the plan that stands completely; nil while something is missing. Only Run's goroutine touches it.
	whole *topology

	changeMu sync.Mutex
	changed  chan struct{}
}

// New builds what stands without any API object: the bridges' namespace, the external network, the node's legs. The
// calling process's network namespace becomes the node's.
func New(ctx context.Context, config Config) (*Fabric, error) {
	config.defaults()
	f := &Fabric{
		config: config, clients: map[string]*space{}, routers: map[string]*space{},
		applied:  topology{Bridges: map[string]string{}, Legs: map[string]leg{}, Routers: map[string][]Route{}},
		attached: map[string]map[string]NIC{}, reserved: map[netip.Addr]string{},
		admitted: newAdmitted(), told: map[string]string{},
		dirty: make(chan struct{}, 1), changed: make(chan struct{}),
	}
	f.ipam = NewIPAM(f.reservedBy)
	if err := f.buildExternal(); err != nil {
		return nil, err
	}
	if err := f.apply(ctx, planTopology(config.External.Prefix, nil, nil)); err != nil {
		return nil, err
	}
	return f, nil
}

// Run follows the API server until the context ends.
func (f *Fabric) Run(ctx context.Context) error {
	if err := f.awaitKinds(ctx); err != nil {
		return err
	}
	if err := f.watch(ctx); err != nil {
		return err
	}
	logger := klog.FromContext(ctx)
	f.poke()
	retry := time.NewTimer(time.Hour)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-retry.C:
		case <-f.dirty:
		}
		if err := f.sync(ctx); err != nil && ctx.Err() == nil {
			logger.V(1).Info("Fabric is not whole yet", "err", err)
			retry.Reset(500 * time.Millisecond)
		}
	}
}

// watch starts the informers, and waits for those whose objects the fabric is made of.
func (f *Fabric) watch(ctx context.Context) error {
	factory := dynamicinformer.NewDynamicSharedInformerFactory(f.config.Client, 0)
	// What a controller makes of Services, thousands perhaps, need not be told to anybody.
	byHand := dynamicinformer.NewFilteredDynamicInformer(f.config.Client, ruleResource, metav1.NamespaceAll, 0, cache.Indexers{},
		func(options *metav1.ListOptions) { options.LabelSelector = "!ovn.kubernetes.io/nftable-lb-svc-name" }).Informer()
	f.mu.Lock()
	f.subnets = factory.ForResource(subnetResource).Informer()
	f.vpcs = factory.ForResource(vpcResource).Informer()
	f.eips = factory.ForResource(eipResource).Informer()
	f.gateways, f.rules = factory.ForResource(gwResource).Informer(), byHand
	f.mu.Unlock()
	always := func(any, any) bool { return true }
	wished := func(old, object any) bool {
		return old.(*unstructured.Unstructured).GetGeneration() != object.(*unstructured.Unstructured).GetGeneration()
	}
	for informer, matters := range map[cache.SharedIndexInformer]func(old, object any) bool{
		f.subnets: always, f.vpcs: always, f.eips: wished, f.gateways: wished, f.rules: wished,
	} {
		_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { f.poke() },
			UpdateFunc: func(old, object any) {
				if matters(old, object) {
					f.poke()
				}
			},
			DeleteFunc: func(any) { f.poke() },
		})
		if err != nil {
			return fmt.Errorf("watch: %w", err)
		}
	}
	factory.Start(ctx.Done())
	go byHand.RunWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), f.subnets.HasSynced, f.vpcs.HasSynced) {
		return ctx.Err()
	}
	return nil
}

// awaitKinds waits until the API server knows what the fabric is made of: somebody may yet have to install it. Informers would
// ask less and less often.
func (f *Fabric) awaitKinds(ctx context.Context) error {
	for _, resource := range []schema.GroupVersionResource{subnetResource, vpcResource, eipResource, gwResource, ruleResource} {
		err := wait.PollUntilContextCancel(ctx, 200*time.Millisecond, true, func(ctx context.Context) (bool, error) {
			_, err := f.config.Client.Resource(resource).List(ctx, metav1.ListOptions{Limit: 1})
			return err == nil, nil
		})
		if err != nil {
			return fmt.Errorf("wait for %s: %w", resource.Resource, err)
		}
	}
	return nil
}

func (f *Fabric) poke() {
	select {
	case f.dirty <- struct{}{}:
	default:
	}
}

// Changed gives a channel that is closed when the topology changes next, or addresses become free.
func (f *Fabric) Changed() <-chan struct{} {
	f.changeMu.Lock()
	defer f.changeMu.Unlock()
	return f.changed
}

func (f *Fabric) broadcast() {
	f.changeMu.Lock()
	defer f.changeMu.Unlock()
	close(f.changed)
	f.changed = make(chan struct{})
}

// view gives what stock Kube-OVN would have processed by now, and what it refuses.
func (f *Fabric) view() (subnets []*Subnet, vpcs []*VPC, refused []refusal, err error) {
	f.mu.Lock()
	subnetInformer, vpcInformer := f.subnets, f.vpcs
	f.mu.Unlock()
	if subnetInformer == nil {
		return nil, nil, nil, nil
	}
	f.admittedMu.Lock()
	defer f.admittedMu.Unlock()
	var errs []error
	refused, err = f.admitted.update(objectsOf(vpcInformer), objectsOf(subnetInformer))
	errs = append(errs, err)
	for _, raw := range f.admitted.subnets {
		subnet, err := subnetFrom(raw)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		subnets = append(subnets, subnet)
	}
	for _, raw := range f.admitted.vpcs {
		vpc, err := vpcFrom(raw)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		vpcs = append(vpcs, vpc)
	}
	slices.SortFunc(subnets, func(a, b *Subnet) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(vpcs, func(a, b *VPC) int { return strings.Compare(a.Name, b.Name) })
	return subnets, vpcs, refused, errors.Join(errs...)
}

func objectsOf(informer cache.SharedIndexInformer) []*unstructured.Unstructured {
	items := informer.GetStore().List()
	objects := make([]*unstructured.Unstructured, 0, len(items))
	for _, item := range items {
		objects = append(objects, item.(*unstructured.Unstructured))
	}
	return objects
}

func (f *Fabric) sync(ctx context.Context) error {
	subnets, vpcs, refused, err := f.view()
	errs := []error{err, f.bootstrap(ctx), f.tell(ctx, append(refused, f.doomed()...))}
	plan := planTopology(f.config.External.Prefix, subnets, vpcs)
	// Most passes are here for the Subnets' usage only.
	if f.whole == nil || !reflect.DeepEqual(*f.whole, plan) {
		f.whole = nil
		err := f.apply(ctx, plan)
		if err == nil {
			f.whole = &plan
		}
		errs = append(errs, err)
		defer f.broadcast()
	}
	for _, subnet := range subnets {
		errs = append(errs, f.writeSubnet(ctx, subnet))
	}
	for _, vpc := range vpcs {
		errs = append(errs, f.writeVPC(ctx, vpc, subnets))
	}
	return errors.Join(errs...)
}

// bootstrap creates what Kube-OVN itself creates when it is installed.
func (f *Fabric) bootstrap(ctx context.Context) error {
	prefix, join := f.config.DefaultPrefix, f.config.Join
	gateway := prefix.Addr().Next()
	var errs []error
	ensure := func(resource schema.GroupVersionResource, informer cache.SharedIndexInformer, kind, name string, spec map[string]any) {
		if _, exists, _ := informer.GetStore().GetByKey(name); exists {
			return
		}
		object := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "kubeovn.io/v1", "kind": kind, "metadata": map[string]any{"name": name}, "spec": spec,
		}}
		_, err := f.config.Client.Resource(resource).Create(ctx, object, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			errs = append(errs, fmt.Errorf("create %s %s: %w", kind, name, err))
		}
	}
	ensure(vpcResource, f.vpcs, "Vpc", DefaultVPC, map[string]any{})
	ensure(subnetResource, f.subnets, "Subnet", DefaultSubnet, map[string]any{
		"vpc": DefaultVPC, "provider": OVNProvider, "protocol": "IPv4", "default": true, "natOutgoing": true, "gatewayType": "distributed",
		"cidrBlock": prefix.String(), "gateway": gateway.String(), "excludeIps": []any{gateway.String()},
	})
	ensure(subnetResource, f.subnets, "Subnet", JoinSubnet, map[string]any{
		"vpc": DefaultVPC, "provider": OVNProvider, "protocol": "IPv4", "gatewayType": "distributed",
		"cidrBlock": join.Prefix.String(), "gateway": join.Router.String(), "excludeIps": []any{join.Router.String()},
	})
	return errors.Join(errs...)
}

// writeSubnet fills in the spec's defaults and the status as Kube-OVN does.
func (f *Fabric) writeSubnet(ctx context.Context, subnet *Subnet) error {
	object := stored(f.subnets, subnet.Name)
	if object == nil {
		return nil
	}
	gateway := joinAddrs(subnet.Gateways)
	defaults := map[string]any{}
	set := func(field string, value any) {
		if current, found, _ := unstructured.NestedFieldNoCopy(object.Object, "spec", field); !found || current == "" {
			defaults[field] = value
		}
	}
	set("gateway", gateway)
	set("provider", subnet.Provider)
	set("protocol", protocolOf(subnet))
	set("excludeIps", strings.Split(gateway, ","))
	if subnet.VPC != "" {
		set("vpc", subnet.VPC)
	}
	if len(defaults) > 0 {
		if err := f.patch(ctx, subnetResource, subnet.Name, map[string]any{"spec": defaults}); err != nil {
			return err
		}
	}
	using, available := map[bool]int64{}, map[bool]int64{}
	for _, prefix := range subnet.Prefixes {
		is6 := prefix.Addr().Is6()
		for _, addr := range f.ipam.Held(subnet.Name) {
			if addr.Is6() == is6 {
				using[is6]++
			}
		}
		available[is6] = free(subnet, prefix) - using[is6]
	}
	status := map[string]any{
		"v4usingIPs": using[false], "v4availableIPs": available[false], "v6usingIPs": using[true], "v6availableIPs": available[true],
	}
	if _, refused := f.told[identify(object)]; !refused {
		status["conditions"] = conditions(object, "")
	}
	return f.patchStatus(ctx, subnetResource, object, status)
}

// free counts the prefix's addresses that a Pod may have. Exclusions that overlap are counted twice: close enough.
func free(subnet *Subnet, prefix netip.Prefix) int64 {
	hostBits := prefix.Addr().BitLen() - prefix.Bits()
	if hostBits > 32 {
		hostBits = 32
	}
	count := int64(1)<<hostBits - 2
	for _, excluded := range subnet.Exclude {
		if !prefix.Contains(excluded.From) {
			continue
		}
		for addr := excluded.From; excluded.Contains(addr) && count > 0; addr = addr.Next() {
			count--
		}
	}
	return max(count, 0)
}

func protocolOf(subnet *Subnet) string {
	switch {
	case len(subnet.Prefixes) > 1:
		return "Dual"
	case subnet.Prefixes[0].Addr().Is6():
		return "IPv6"
	default:
		return "IPv4"
	}
}

func (f *Fabric) writeVPC(ctx context.Context, vpc *VPC, subnets []*Subnet) error {
	object := stored(f.vpcs, vpc.Name)
	if object == nil {
		return nil
	}
	names := []any{}
	defaultSubnet := vpc.DefaultSubnet
	for _, subnet := range subnets {
		if subnet.VPC == vpc.Name {
			names = append(names, subnet.Name)
			if defaultSubnet == "" && subnet.Default {
				defaultSubnet = subnet.Name
			}
		}
	}
	return f.patchStatus(ctx, vpcResource, object, map[string]any{
		"standby": true, "default": vpc.Name == DefaultVPC, "router": vpc.Name, "defaultLogicalSwitch": defaultSubnet, "subnets": names,
	})
}

func stored(informer cache.SharedIndexInformer, name string) *unstructured.Unstructured {
	item, exists, _ := informer.GetStore().GetByKey(name)
	if !exists {
		return nil
	}
	return item.(*unstructured.Unstructured)
}

// patchStatus names only what differs, and writes nothing when nothing does.
func (f *Fabric) patchStatus(ctx context.Context, resource schema.GroupVersionResource, object *unstructured.Unstructured, status map[string]any) error {
	present, _, _ := unstructured.NestedMap(object.Object, "status")
	for field, value := range status {
		current, found := present[field]
		if found && reflect.DeepEqual(current, value) {
			delete(status, field)
		}
	}
	if len(status) == 0 {
		return nil
	}
	return f.patch(ctx, resource, object.GetName(), map[string]any{"status": status}, "status")
}

func (f *Fabric) patch(ctx context.Context, resource schema.GroupVersionResource, name string, change map[string]any, subresources ...string) error {
	body, err := json.Marshal(change)
	if err != nil {
		return err
	}
	_, err = f.config.Client.Resource(resource).Patch(ctx, name, types.MergePatchType, body, metav1.PatchOptions{}, subresources...)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("patch %s %s: %w", resource.Resource, name, err)
	}
	return nil
}

// reservedBy tells who of the external network holds an address: the lab itself or an EIP.
func (f *Fabric) reservedBy(addr netip.Addr) (string, bool) {
	f.mu.Lock()
	by, taken := f.reserved[addr]
	eips := f.eips
	f.mu.Unlock()
	if taken || eips == nil {
		return by, taken
	}
	for _, item := range eips.GetStore().List() {
		eip := item.(*unstructured.Unstructured)
		wanted, _, _ := unstructured.NestedString(eip.Object, "spec", "v4ip")
		given, _, _ := unstructured.NestedString(eip.Object, "status", "ip")
		if wanted == addr.String() || given == addr.String() {
			return "eip " + eip.GetName(), true
		}
	}
	return "", false
}
