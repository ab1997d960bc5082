// SPDX-License-Identifier: Apache-2.0

package natgateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// assumption is an address that was written, but that the cache may not show yet.
type assumption struct {
	addr   netip.Addr
	subnet string
}

// allocated gives the address that an EIP has, whether or not the gateway has it already. It is written as a label
// together with the finalizer, and as status.ip once the gateway answers for it.
func allocated(eip *kubeovnv1.IptablesEIP) netip.Addr {
	for _, s := range []string{eip.Status.IP, eip.Labels[sharenat.EIPAddressLabel]} {
		if addr, err := netip.ParseAddr(s); err == nil && addr.Is4() {
			return addr
		}
	}
	return netip.Addr{}
}

// eipError is why an EIP cannot get an address.
type eipError struct {
	reason string
	err    error
}

func (e *eipError) Error() string { return e.err.Error() }
func (e *eipError) Unwrap() error { return e.err }

// syncEIP gives an EIP its address, waits until the gateway has it, and says so. There is one worker for all EIPs.
func (c *Controller) syncEIP(ctx context.Context, name string) error {
	eip, err := c.eipLister.Get(name)
	if err != nil {
		delete(c.assumed, name)
		c.waits.eipDone(name)
		c.written.forget("eip/" + name)
		return ignoreNotFound(err)
	}
	if lag := c.written.behind("eip/"+name, eip, c.Clock.Now()); lag > 0 {
		c.eipQueue.AddAfter(name, lag)
		return nil
	}
	if eip.DeletionTimestamp != nil {
		return c.releaseEIP(ctx, eip)
	}
	if a, ok := c.assumed[name]; ok && allocated(eip) == a.addr {
		delete(c.assumed, name)
	}
	addr, err := c.addressFor(eip)
	var problem *eipError
	if errors.As(err, &problem) {
		return c.failEIP(ctx, eip, problem)
	} else if err != nil {
		return err
	}
	if eip.Spec.NatGwDp == "" {
		return c.failEIP(ctx, eip, &eipError{ReasonGatewayNotFound, errors.New("spec.natGwDp names no gateway")})
	}
	var spec map[string]any
	if eip.Spec.V4ip == "" {
		// Kube-OVN writes it too, and its BGP speaker announces what stands there.
		spec = map[string]any{"v4ip": addr.String()}
	}
	p, err := claimPatch(&eip.ObjectMeta, map[string]string{
		subnetLabel:              externalSubnetOf(eip),
		sharenat.EIPAddressLabel: addr.String(),
		sharenat.GatewayLabel:    eip.Spec.NatGwDp,
	}, nil, spec)
	if err != nil {
		return err
	}
	if p != nil {
		if !allocated(eip).IsValid() {
			c.assumed[name] = assumption{addr, externalSubnetOf(eip)}
			klog.FromContext(ctx).Info("Allocated address", "eip", name, "address", addr)
		}
		return c.patchEIP(ctx, eip, p)
	}
	return c.publishEIP(ctx, eip, addr)
}

// addressFor gives the address that an EIP has or should have.
func (c *Controller) addressFor(eip *kubeovnv1.IptablesEIP) (netip.Addr, error) {
	subnet, err := c.subnetLister.Get(externalSubnetOf(eip))
	if err != nil {
		return netip.Addr{}, &eipError{ReasonSubnetNotFound, fmt.Errorf("external subnet %s does not exist", externalSubnetOf(eip))}
	}
	if err := c.outsideOf(eip); err != nil {
		return netip.Addr{}, &eipError{ReasonAddressUnusable, err}
	}
	if addr := allocated(eip); addr.IsValid() && slices.Contains(eip.Finalizers, finalizer) {
		if err := c.objection(eip, addr); err != nil {
			return netip.Addr{}, &eipError{ReasonAddressUnusable, err}
		}
		return addr, nil
	}
	if a, ok := c.assumed[eip.Name]; ok {
		return a.addr, nil
	}
	pool, err := newAddressPool(subnet)
	if err != nil {
		return netip.Addr{}, &eipError{ReasonAddressUnusable, err}
	}
	taken := c.taken(subnet, eip.Name)
	for _, asked := range []string{eip.Status.IP, eip.Spec.V4ip, eip.Labels[sharenat.EIPAddressLabel]} {
		if asked != "" {
			return askedAddress(pool, taken, asked)
		}
	}
	addr, err := pool.lowestFree(taken)
	if err != nil {
		return netip.Addr{}, &eipError{ReasonNoFreeAddress, fmt.Errorf("external subnet %s: %w", subnet.Name, err)}
	}
	return addr, nil
}

// objection says why an EIP may not have the address that is written on it. What its status says is ours; its labels and finalizer
// may have come with it from whoever made it, so until it is published, the address must be one that could be given, and not
// another's.
func (c *Controller) objection(eip *kubeovnv1.IptablesEIP, addr netip.Addr) error {
	if published(eip, addr) {
		return nil
	}
	if subnet, err := c.subnetLister.Get(externalSubnetOf(eip)); err == nil {
		pool, err := newAddressPool(subnet)
		if err != nil {
			return err
		}
		if err := pool.check(addr); err != nil {
			return err
		}
	}
	for _, other := range listIndex[*kubeovnv1.IptablesEIP](c.eipIndexer, byAddress, addr.String()) {
		if other.Name == eip.Name || externalSubnetOf(other) != externalSubnetOf(eip) || !slices.Contains(other.Finalizers, finalizer) {
			continue
		}
		if published(other, addr) || cmp.Or(other.CreationTimestamp.Compare(eip.CreationTimestamp.Time), strings.Compare(other.Name, eip.Name)) < 0 {
			return fmt.Errorf("address %s is taken by EIP %s", addr, other.Name)
		}
	}
	return nil
}

// outsideOf says that an EIP's gateway has no interface in its external Subnet, where an address of it would answer nobody.
func (c *Controller) outsideOf(eip *kubeovnv1.IptablesEIP) error {
	gw, err := c.gatewayLister.Get(eip.Spec.NatGwDp)
	if err != nil {
		return nil //nolint:nilerr // a gateway that is not there is another matter
	}
	if has := externalSubnetsOf(gw); !slices.Contains(has, externalSubnetOf(eip)) {
		return fmt.Errorf("gateway %s has no interface in external subnet %s, only in %s",
			gw.Name, externalSubnetOf(eip), strings.Join(has, ", "))
	}
	return nil
}

func published(eip *kubeovnv1.IptablesEIP, addr netip.Addr) bool {
	return eip.Status.IP == addr.String()
}

func askedAddress(pool *addressPool, taken map[netip.Addr]string, asked string) (netip.Addr, error) {
	addr, err := sharenat.ParseIPv4(asked)
	if err == nil {
		err = pool.check(addr)
	}
	if by, used := taken[addr]; err == nil && used {
		err = fmt.Errorf("address %s is taken by %s", addr, by)
	}
	if err != nil {
		return netip.Addr{}, &eipError{ReasonAddressUnusable, err}
	}
	return addr, nil
}

// taken maps each address of an external subnet that is in use to its user, the EIP that asks excepted. An address that another EIP
// asks for, but does not have yet, is not given away either; it does not stand in the way of who asks for the same.
func (c *Controller) taken(subnet *kubeovnv1.Subnet, asking string) map[netip.Addr]string {
	taken := map[netip.Addr]string{}
	self, _ := c.eipLister.Get(asking)
	for _, eip := range listIndex[*kubeovnv1.IptablesEIP](c.eipIndexer, bySubnet, subnet.Name) {
		if eip.Name == asking {
			continue
		}
		if addr := allocated(eip); addr.IsValid() {
			taken[addr] = "EIP " + eip.Name
		} else if addr, err := netip.ParseAddr(eip.Spec.V4ip); err == nil && (self == nil || self.Spec.V4ip == "") {
			taken[addr] = "EIP " + eip.Name
		}
	}
	for name, a := range c.assumed {
		if name != asking && a.subnet == subnet.Name {
			taken[a.addr] = "EIP " + name
		}
	}
	for _, pod := range listIndex[*corev1.Pod](c.podIndexer, podsBySwitch, subnet.Name) {
		for _, addr := range addressesIn(pod, subnet) {
			taken[addr] = "Pod " + keyOf(pod).String()
		}
	}
	// A gateway pod's net1 has its address from an IPAM that may write no switch beside it.
	for _, pod := range c.allGatewayPods() {
		for _, addr := range ipv4s(pod.Annotations[subnet.Spec.Provider+addressSuffix]) {
			taken[addr] = "Pod " + keyOf(pod).String()
		}
	}
	return taken
}

// addressesIn gives a pod's addresses in one Subnet.
func addressesIn(pod *corev1.Pod, subnet *kubeovnv1.Subnet) []netip.Addr {
	var out []netip.Addr
	for key, value := range pod.Annotations {
		if provider, ok := strings.CutSuffix(key, switchSuffix); ok && value == subnet.Name {
			out = append(out, ipv4s(pod.Annotations[provider+addressSuffix])...)
		}
	}
	return out
}

func (c *Controller) allGatewayPods() []*corev1.Pod {
	var out []*corev1.Pod
	for _, gateway := range c.podIndexer.ListIndexFuncValues(podsByGateway) {
		out = append(out, listIndex[*corev1.Pod](c.podIndexer, podsByGateway, gateway)...)
	}
	return out
}

// publishEIP writes the status once every pod of the gateway that counts has the address. An EIP that was ready stays so
// while pods come and go, unless it was moved to another gateway meanwhile, but not while none of them serves.
func (c *Controller) publishEIP(ctx context.Context, eip *kubeovnv1.IptablesEIP, addr netip.Addr) error {
	gateway := eip.Spec.NatGwDp
	state := c.state(gateway)
	since := c.waits.eip(eip.Name, gateway, c.Clock.Now())
	late := c.Clock.Since(since) >= c.grace
	if state.Blocked != nil {
		if late || eip.Status.Ready {
			return c.writeEIPNotReady(ctx, eip, &eipError{state.Blocked.Reason, errors.New(state.Blocked.Message)})
		}
		c.eipQueue.AddAfter(eip.Name, c.grace)
		return nil
	}
	after := eip.Status
	after.Ready, after.IP = true, addr.String()
	after.Nat = natOf(eip.Status.Nat, state.Users[eip.Name] > 0, len(c.fipsOf(eip.Name)) > 0)
	after.Conditions = setReady(eip.Status.Conditions, true, ReasonAddressAllocated, "", eip.Generation, c.now())
	p, err := statusPatch(eip.Status, after)
	if err != nil {
		return err
	}
	down := c.outages.isDeclared(gateway)
	if p == nil && !down {
		c.waits.eipDone(eip.Name)
		return nil
	}
	cidr := c.cidrOf(eip)
	unsure := down || !eip.Status.Ready || !sameSpecSince(eip)
	if unsure && !c.allHold(gateway, func(have *Content) bool { return have.EIPs[cidr] }) {
		message := "not every pod of gateway " + gateway + " has the address yet"
		if down {
			message = "gateway " + gateway + " has no pod that is ready"
		}
		if late || down {
			return c.writeEIPNotReady(ctx, eip, &eipError{ReasonGatewayNotReady, errors.New(message)})
		}
		c.eipQueue.AddAfter(eip.Name, c.grace)
		return nil
	}
	c.waits.eipDone(eip.Name)
	if p == nil {
		return nil
	}
	return c.patchEIP(ctx, eip, p, "status")
}

// sameSpecSince says that the EIP is as it was when it became ready. Who wrote the condition may not have told what it had seen.
func sameSpecSince(eip *kubeovnv1.IptablesEIP) bool {
	return !slices.ContainsFunc(eip.Status.Conditions, func(c kubeovnv1.Condition) bool {
		return c.Type == kubeovnv1.Ready && c.ObservedGeneration != 0 && c.ObservedGeneration != eip.Generation
	})
}

// allHold says that the gateway has pods that count, and that all of them answer yes.
func (c *Controller) allHold(gateway string, ask func(*Content) bool) bool {
	pods := 0
	for _, pod := range c.podsOf(gateway) {
		if !counts(pod) {
			continue
		}
		pods++
		if !c.programs.get(keyOf(pod)).check(runningContainer(pod), ask) {
			return false
		}
	}
	return pods > 0
}

// natOf lists the kinds of NAT that use an EIP. Kinds that this handler does not know stay.
func natOf(was string, dnat, fip bool) string {
	kinds := slices.DeleteFunc(strings.Split(was, ","), func(s string) bool { return s == "" || s == "dnat" || s == "fip" })
	if dnat {
		kinds = append(kinds, "dnat")
	}
	if fip {
		kinds = append(kinds, "fip")
	}
	slices.Sort(kinds)
	return strings.Join(slices.Compact(kinds), ",")
}

// failEIP says why an EIP cannot get an address. An address that becomes free is an event, others are looked for with patience.
func (c *Controller) failEIP(ctx context.Context, eip *kubeovnv1.IptablesEIP, problem *eipError) error {
	if err := c.writeEIPNotReady(ctx, eip, problem); err != nil {
		return err
	}
	if problem.reason == ReasonNoFreeAddress || problem.reason == ReasonAddressUnusable {
		c.eipQueue.AddAfter(eip.Name, jitter(c.CheckInterval))
	}
	return nil
}

func (c *Controller) writeEIPNotReady(ctx context.Context, eip *kubeovnv1.IptablesEIP, problem *eipError) error {
	after := eip.Status
	after.Ready = false
	after.Conditions = setReady(eip.Status.Conditions, false, problem.reason, problem.Error(), eip.Generation, c.now())
	p, err := statusPatch(eip.Status, after)
	if err != nil || p == nil {
		return err
	}
	if err := c.patchEIP(ctx, eip, p, "status"); err != nil {
		return err
	}
	c.Recorder.Eventf(eip, nil, corev1.EventTypeWarning, problem.reason, sharenat.EventAction(actionAllocate, problem.Error()), "%s", problem.Error())
	return nil
}

// releaseEIP takes the finalizer off once nothing uses the EIP and no pod that counts has its address.
func (c *Controller) releaseEIP(ctx context.Context, eip *kubeovnv1.IptablesEIP) error {
	p, err := releasePatch(&eip.ObjectMeta)
	if err != nil || p == nil {
		return err
	}
	if len(listIndex[*kubeovnv1.IptablesDnatRule](c.ruleIndexer, byEIP, eip.Name)) > 0 || len(c.fipsOf(eip.Name)) > 0 {
		return nil // their going is an event
	}
	gateway, addr := eip.Spec.NatGwDp, allocated(eip)
	if gateway != "" && addr.IsValid() && c.objection(eip, addr) == nil {
		c.waits.eip(eip.Name, gateway, c.Clock.Now())
		state := c.state(gateway)
		if state.Blocked == nil {
			if slices.ContainsFunc(state.EIPs, func(p netip.Prefix) bool { return p.Addr() == addr }) || !c.noneHolds(gateway, addr) {
				return nil
			}
		}
	}
	c.waits.eipDone(eip.Name)
	delete(c.assumed, eip.Name)
	return c.patchEIP(ctx, eip, p)
}

func (c *Controller) noneHolds(gateway string, addr netip.Addr) bool {
	for _, pod := range c.podsOf(gateway) {
		if !counts(pod) {
			continue
		}
		free := c.programs.get(keyOf(pod)).check(runningContainer(pod), func(have *Content) bool {
			for p := range have.EIPs {
				if p.Addr() == addr {
					return false
				}
			}
			return true
		})
		if !free {
			return false
		}
	}
	return true
}

func (c *Controller) patchEIP(ctx context.Context, eip *kubeovnv1.IptablesEIP, p *patch, subresources ...string) error {
	c.written.note("eip/"+eip.Name, eip, c.Clock.Now())
	_, err := c.KubeOvnClient.KubeovnV1().IptablesEIPs().Patch(ctx, eip.Name, p.kind, p.data,
		metav1.PatchOptions{FieldManager: fieldManager}, subresources...)
	if err != nil {
		c.written.forget("eip/" + eip.Name)
		return ignoreNotFound(fmt.Errorf("patch EIP %s: %w", eip.Name, err))
	}
	return nil
}
