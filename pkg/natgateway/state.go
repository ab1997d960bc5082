// SPDX-License-Identifier: Apache-2.0

package natgateway

import (
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
	"github.com/kubeovn/kube-ovn/pkg/vpcnet"
)

// stateStore keeps the desired state of each gateway until something that it is made of changes.
type stateStore struct {
	mu      sync.Mutex
	entries map[string]*stateEntry
}

type stateEntry struct {
	dirtyMu sync.Mutex
	full    bool // all must be looked at again
	dirty   map[GroupKey]struct{}

	mu    sync.Mutex // held while computing
	state *State
}

func (e *stateEntry) mark(keys ...GroupKey) {
	e.dirtyMu.Lock()
	defer e.dirtyMu.Unlock()
	if len(keys) == 0 {
		e.full = true
	}
	if e.dirty == nil {
		e.dirty = map[GroupKey]struct{}{}
	}
	for _, key := range keys {
		e.dirty[key] = struct{}{}
	}
}

// takeMarks gives what was marked since the last take.
func (e *stateEntry) takeMarks() (full bool, dirty map[GroupKey]struct{}) {
	e.dirtyMu.Lock()
	defer e.dirtyMu.Unlock()
	full, dirty = e.full, e.dirty
	e.full, e.dirty = false, nil
	return full, dirty
}

func (s *stateStore) entry(gateway string) *stateEntry {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[gateway]
	if e == nil {
		e = &stateEntry{}
		if s.entries == nil {
			s.entries = map[string]*stateEntry{}
		}
		s.entries[gateway] = e
	}
	return e
}

func (s *stateStore) drop(gateway string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.entries, gateway)
}

// current gives the state as it was last computed; nil when it never was.
func (s *stateStore) current(gateway string) *State {
	s.mu.Lock()
	e := s.entries[gateway]
	s.mu.Unlock()
	if e == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.state
}

// touch says that something that the gateway's desired state is made of has changed.
func (c *Controller) touch(gateway string) {
	if gateway == "" {
		return
	}
	c.states.entry(gateway).mark()
	c.gatewayQueue.Add(gateway)
	c.touchPods(gateway)
}

// touchRules says that rules of these groups have changed, and nothing else.
func (c *Controller) touchRules(gateway string, keys ...GroupKey) {
	if gateway == "" {
		return
	}
	c.states.entry(gateway).mark(keys...)
	c.touchPods(gateway)
}

func (c *Controller) touchPods(gateway string) {
	now := c.Clock.Now()
	for _, pod := range c.podsOf(gateway) {
		key := keyOf(pod)
		c.programs.get(key).markDirty(now)
		c.podQueue.Add(key)
	}
}

// state gives the desired state of a gateway; only what was touched is computed anew. Rules whose verdict changes are enqueued.
func (c *Controller) state(gateway string) *State {
	e := c.states.entry(gateway)
	e.mu.Lock()
	defer e.mu.Unlock()
	full, dirty := e.takeMarks()
	previous := e.state
	switch {
	case previous == nil || full:
		e.state = Desired(c.snapshot(gateway), previous)
		c.enqueueChanges(previous, e.state, maps.Keys(e.state.groups))
	case len(dirty) > 0:
		e.state = Desired(c.changes(gateway, dirty), previous)
		c.enqueueChanges(previous, e.state, maps.Keys(dirty))
	}
	return e.state
}

// changes is the partial snapshot of some groups.
func (c *Controller) changes(gateway string, dirty map[GroupKey]struct{}) Snapshot {
	in := Snapshot{Gateway: gateway, Partial: true, Rules: make(map[GroupKey][]*kubeovnv1.IptablesDnatRule, len(dirty))}
	for key := range dirty {
		in.Rules[key] = listIndex[*kubeovnv1.IptablesDnatRule](c.ruleIndexer, byGroup, key.String())
	}
	return in
}

func (c *Controller) enqueueChanges(before, after *State, keys iter.Seq[GroupKey]) {
	if before == nil {
		before = &State{}
	}
	for key := range keys {
		g := after.groups[key]
		if g == nil {
			continue
		}
		for i, v := range g.verdicts {
			was := before.Verdict(g.rules[i])
			if was != v && (was == nil || was.Outcome != v.Outcome || was.Reason != v.Reason || was.Message != v.Message) {
				c.ruleQueue.Add(g.rules[i].Name)
			}
		}
	}
	for eip, users := range after.Users {
		if (before.Users[eip] == 0) != (users == 0) {
			c.eipQueue.Add(eip)
		}
	}
}

// snapshot collects what the listers have of a gateway.
func (c *Controller) snapshot(gateway string) Snapshot {
	in := Snapshot{Gateway: gateway, Rules: map[GroupKey][]*kubeovnv1.IptablesDnatRule{}}
	gw, err := c.gatewayLister.Get(gateway)
	switch {
	case err != nil || gw.DeletionTimestamp != nil:
		in.Blocked = &Blocked{ReasonGatewayNotFound, "VpcNatGateway " + gateway + " does not exist or is being deleted"}
	case !c.config().Enabled:
		in.Blocked = &Blocked{ReasonGatewayDisabled, "VPC NAT gateways are turned off: ConfigMap " + switchConfigMap + ", key " + switchKey}
	default:
		in.Routes = c.routes(gw)
	}
	for _, eip := range listIndex[*kubeovnv1.IptablesEIP](c.eipIndexer, byGateway, gateway) {
		fips := c.fipsOf(eip.Name)
		item := SnapshotEIP{Name: eip.Name, CIDR: c.cidrOf(eip), FIP: sharenat.FIPOf(fips, eip.Name)}
		rules := listIndex[*kubeovnv1.IptablesDnatRule](c.ruleIndexer, byEIP, eip.Name)
		for _, rule := range rules {
			key := GroupOf(rule)
			in.Rules[key] = append(in.Rules[key], rule)
		}
		item.Gone = eip.DeletionTimestamp != nil && len(rules) == 0 && len(fips) == 0
		in.EIPs = append(in.EIPs, item)
	}
	slices.SortFunc(in.EIPs, func(a, b SnapshotEIP) int { return strings.Compare(a.Name, b.Name) })
	return in
}

// cidrOf gives an EIP's address once it is the EIP's for good: written on it, together with the finalizer.
func (c *Controller) cidrOf(eip *kubeovnv1.IptablesEIP) netip.Prefix {
	addr := allocated(eip)
	if !addr.IsValid() || !slices.Contains(eip.Finalizers, finalizer) ||
		c.outsideOf(eip) != nil || c.objection(eip, addr) != nil {
		return netip.Prefix{}
	}
	subnet, err := c.subnetLister.Get(externalSubnetOf(eip))
	if err != nil {
		return netip.PrefixFrom(addr, 32)
	}
	pool, err := newAddressPool(subnet)
	if err != nil {
		return netip.PrefixFrom(addr, 32)
	}
	return pool.cidr(addr)
}

// fipsOf gives the FIP rules of an EIP. As long as one is there, being deleted or not, it may have state in the gateway.
func (c *Controller) fipsOf(eip string) []*kubeovnv1.IptablesFIPRule {
	return listIndex[*kubeovnv1.IptablesFIPRule](c.fipIndexer, byEIP, eip)
}

func (c *Controller) config() Config {
	data := func(cm *corev1.ConfigMap, err error) map[string]string {
		switch {
		case err != nil:
			return nil
		case cm.Data == nil:
			return map[string]string{}
		}
		return cm.Data
	}
	return newConfig(data(c.imageConfig.Get(imageConfigMap)), data(c.switchConfig.Get(switchConfigMap)))
}

// routes collects where a gateway's pods send traffic by way of their VPC subnet's gateway.
func (c *Controller) routes(gw *kubeovnv1.VpcNatGateway) []sharenat.Route {
	home, err := c.subnetLister.Get(gw.Spec.Subnet)
	if err != nil {
		return nil
	}
	all, err := c.subnetLister.List(labels.Everything())
	if err != nil {
		return nil
	}
	vpc := c.gatewayVPC(gw)
	named := map[string]bool{}
	if v, err := c.vpcLister.Get(vpc); err == nil {
		for _, name := range v.Status.Subnets {
			named[name] = true
		}
	}
	for _, name := range gw.Spec.InternalSubnets {
		named[name] = true
	}
	var inside []*kubeovnv1.Subnet
	for _, subnet := range all {
		if subnet.DeletionTimestamp == nil && (named[subnet.Name] || vpcnet.SubnetVPC(subnet) == vpc) {
			inside = append(inside, subnet)
		}
	}
	return planGatewayRoutes(gw, home, inside, externalSubnetsOf(gw))
}

// gatewayVPC is the VPC of a gateway's backends.
func (c *Controller) gatewayVPC(gw *kubeovnv1.VpcNatGateway) string {
	if gw.Spec.Vpc != "" {
		return gw.Spec.Vpc
	}
	if home, err := c.subnetLister.Get(gw.Spec.Subnet); err == nil {
		return vpcnet.SubnetVPC(home)
	}
	return sharenat.DefaultVPC
}

// planGatewayRoutes gives the routes to the VPC's other subnets, spec.internalCIDRs and spec.routes, the later winning. External
// subnets, which may name the VPC of the nodes, and the subnet that the gateway is in have routes already.
func planGatewayRoutes(gw *kubeovnv1.VpcNatGateway, home *kubeovnv1.Subnet, inside []*kubeovnv1.Subnet, externals []string) []sharenat.Route {
	hops := ipv4s(home.Spec.Gateway)
	if len(hops) == 0 {
		return nil
	}
	routes := map[netip.Prefix]netip.Addr{}
	add := func(cidrs string, hop netip.Addr) {
		for item := range strings.SplitSeq(cidrs, ",") {
			if p, err := netip.ParsePrefix(strings.TrimSpace(item)); err == nil && p.Addr().Is4() {
				routes[p.Masked()] = hop
			}
		}
	}
	for _, subnet := range inside {
		if subnet.Name != home.Name && !slices.Contains(externals, subnet.Name) {
			add(subnet.Spec.CIDRBlock, hops[0])
		}
	}
	for _, cidr := range gw.Spec.InternalCIDRs {
		add(cidr, hops[0])
	}
	for _, route := range gw.Spec.Routes {
		hop := hops[0]
		if route.NextHopIP != "" && route.NextHopIP != "gateway" {
			given := ipv4s(route.NextHopIP)
			if len(given) == 0 {
				continue
			}
			hop = given[0]
		}
		add(route.CIDR, hop)
	}
	out := make([]sharenat.Route, 0, len(routes))
	for _, cidr := range slices.SortedFunc(maps.Keys(routes), comparePrefixes) {
		out = append(out, sharenat.Route{CIDR: cidr, NextHop: routes[cidr]})
	}
	return out
}

// waitStore remembers what waits for a gateway's pods, and since when.
type waitStore struct {
	mu    sync.Mutex
	rules map[string]waiting
	eips  map[string]waiting
	// wakers are the same names by gateway.
	ruleWakers, eipWakers map[string]map[string]struct{}
}

type waiting struct {
	gateway string
	since   time.Time
}

func wait1(m *map[string]waiting, wakers *map[string]map[string]struct{}, name, gateway string, now time.Time) time.Time {
	if *m == nil {
		*m, *wakers = map[string]waiting{}, map[string]map[string]struct{}{}
	}
	w, ok := (*m)[name]
	if !ok {
		w.since = now
	}
	if ok && w.gateway != gateway {
		unwake(*wakers, w.gateway, name)
	}
	w.gateway = gateway
	(*m)[name] = w
	if (*wakers)[gateway] == nil {
		(*wakers)[gateway] = map[string]struct{}{}
	}
	(*wakers)[gateway][name] = struct{}{}
	return w.since
}

func unwait1(m map[string]waiting, wakers map[string]map[string]struct{}, name string) {
	if w, ok := m[name]; ok {
		delete(m, name)
		unwake(wakers, w.gateway, name)
	}
}

func unwake(wakers map[string]map[string]struct{}, gateway, name string) {
	delete(wakers[gateway], name)
	if len(wakers[gateway]) == 0 {
		delete(wakers, gateway)
	}
}

// rule notes that a rule waits, and says since when it does.
func (s *waitStore) rule(name, gateway string, now time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return wait1(&s.rules, &s.ruleWakers, name, gateway, now)
}

func (s *waitStore) ruleDone(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	unwait1(s.rules, s.ruleWakers, name)
}

func (s *waitStore) eip(name, gateway string, now time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return wait1(&s.eips, &s.eipWakers, name, gateway, now)
}

func (s *waitStore) eipDone(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	unwait1(s.eips, s.eipWakers, name)
}

func (s *waitStore) of(gateway string) (rules, eips []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.ruleWakers[gateway])), slices.Collect(maps.Keys(s.eipWakers[gateway]))
}

// wake looks again at everything that waits for the gateway's pods.
func (c *Controller) wake(gateway string) {
	rules, eips := c.waits.of(gateway)
	for _, name := range rules {
		c.ruleQueue.Add(name)
	}
	for _, name := range eips {
		c.eipQueue.Add(name)
	}
}

// podsOf lists the pods of a gateway. Whoever may create Pods somewhere can write the annotation, so only those count that are where the
// gateway's workload is.
func (c *Controller) podsOf(gateway string) []*corev1.Pod {
	gw, err := c.gatewayLister.Get(gateway)
	if err != nil {
		return nil
	}
	namespace := namespaceOf(gw, c.Namespace)
	return slices.DeleteFunc(listIndex[*corev1.Pod](c.podIndexer, podsByGateway, gateway), func(pod *corev1.Pod) bool { return pod.Namespace != namespace })
}

// gatewayOf names the gateway that a Pod is one of; empty when it is none.
func (c *Controller) gatewayOf(pod *corev1.Pod) string {
	name := pod.Annotations[sharenat.GatewayPodAnnotation]
	if gw, err := c.gatewayLister.Get(name); err != nil || namespaceOf(gw, c.Namespace) != pod.Namespace {
		return ""
	}
	return name
}

func keyOf(pod *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}
