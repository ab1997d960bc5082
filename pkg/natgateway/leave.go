// SPDX-License-Identifier: Apache-2.0

package natgateway

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
	"github.com/kubeovn/kube-ovn/pkg/vpcnet"
)

// Fate is what has become of the Pod behind a backend whose rule goes.
type Fate int

// Fates.
const (
	// Ended: the Pod that the rule names, or where it names none, any that is not younger than the rule, has the address no more.
	Ended Fate = iota
	// Withdrawn: the Pod is ready all the same, so it is for another reason that the rule goes.
	Withdrawn
	// Alive: the Pod is not ready, or on its way out, and keeps the TCP connections that it has.
	Alive
)

// leaving says when a backend came and left, and which Pod it was. Of a rule that does not say so, as a released controller or a
// person writes it, the Pod that it meant is not younger than made.
type leaving struct {
	made, left time.Time
	pod        types.UID
}

// meant tells whether a Pod that has the address is the one that the rule was made for.
func (l leaving) meant(pod *corev1.Pod) bool {
	if l.pod != "" {
		return pod.UID == l.pod
	}
	return !pod.CreationTimestamp.After(l.made)
}

// leavers are the backends that have left their identity while their Pods live.
type leavers map[sharenat.Connections]leaving

// note takes the backends of all rules that are being deleted, and leaves out those that have come back.
func (l leavers) note(want *State) {
	for _, g := range want.leaving {
		for i, v := range g.verdicts {
			if v.Outcome != Deleting || !v.Rule.Share || !canHaveConnections(&v.Rule) {
				continue
			}
			times := leaving{
				made: g.rules[i].CreationTimestamp.Time, left: g.rules[i].DeletionTimestamp.Time,
				pod: types.UID(g.rules[i].Annotations[sharenat.PodUIDAnnotation]),
			}
			if !v.Rule.Managed {
				times.made = times.left // by hand, it may have been there before the Pod
			}
			l[sharenat.Connections{Identity: v.Rule.Identity, Backend: v.Rule.Backend.Addr}] = times
		}
	}
	for connections := range l {
		share := want.Shares[connections.Identity]
		if share != nil && slices.ContainsFunc(share.Backends, func(b sharenat.Backend) bool { return b.Addr == connections.Backend }) {
			delete(l, connections)
		}
	}
}

// canHaveConnections says that a rule, which may be any nonsense, can have been programmed.
func canHaveConnections(rule *sharenat.Rule) bool {
	backend := rule.Backend.Addr
	return rule.EIP.Is4() && rule.Port != 0 && rule.Protocol != "" && backend.Addr().Is4() && backend.Port() != 0
}

// heed adds to the planned calls what is to become of the connections of backends that left. Those whose Pods have ended are
// forgotten. An identity that goes is removed with all connections, unless one of its Pods is Alive.
func (l leavers) heed(actions []Action, fate func(sharenat.Connections, leaving) Fate) []Action {
	going, keep := map[sharenat.Identity]bool{}, map[sharenat.Identity]bool{}
	for i := range actions {
		for _, id := range actions[i].Remove {
			going[id] = true
		}
	}
	fates := make(map[sharenat.Connections]Fate, len(l))
	for connections, times := range l {
		fates[connections] = fate(connections, times)
		if going[connections.Identity] && fates[connections] == Alive {
			keep[connections.Identity] = true
		}
	}
	var forget []sharenat.Connections
	for connections, fate := range fates {
		removed := going[connections.Identity]
		if removed && !keep[connections.Identity] {
			continue // they go with the identity
		}
		if fate == Ended || fate == Withdrawn && removed {
			forget = append(forget, connections)
		}
	}
	slices.SortFunc(forget, sharenat.Connections.Compare)
	for i := range actions {
		if a := &actions[i]; a.Verb == sharenat.SyncVerb && !a.Full {
			a.Keep, a.Forget = keep, forget
			return actions
		}
	}
	if len(forget) > 0 {
		actions = append(actions, Action{Verb: sharenat.SyncVerb, Forget: forget})
	}
	return actions
}

// done leaves out the backends whose connections an action has ended.
func (l leavers) done(a *Action) {
	for _, connections := range a.Forget {
		delete(l, connections)
	}
	for connections := range l {
		if slices.Contains(a.Remove, connections.Identity) && !a.Keep[connections.Identity] {
			delete(l, connections)
		}
	}
}

// heed is the shell around leavers.heed.
func (s *session) heed(actions []Action) []Action {
	if s.p.content.Legacy {
		return actions
	}
	s.p.update(func(p *program) {
		if p.leavers == nil {
			p.leavers = leavers{}
		}
		p.leavers.note(s.want)
		if len(p.leavers) > 0 {
			actions = p.leavers.heed(actions, s.c.fateIn(s.gateway))
		}
	})
	return actions
}

// fateIn looks for the Pods behind backends in the VPC of a gateway.
func (c *Controller) fateIn(gateway string) func(sharenat.Connections, leaving) Fate {
	vpc := sharenat.DefaultVPC
	if gw, err := c.gatewayLister.Get(gateway); err == nil {
		vpc = c.gatewayVPC(gw)
	}
	return func(connections sharenat.Connections, times leaving) Fate {
		address := connections.Backend.Addr()
		fate := Ended
		for _, pod := range listIndex[*corev1.Pod](c.podIndexer, podsByAddress, address.String()) {
			switch {
			case ended(pod) || !times.meant(pod) || !c.hasIn(pod, address, vpc):
			case pod.DeletionTimestamp != nil || !readyBefore(pod, times.left):
				return Alive
			default:
				fate = Withdrawn
			}
		}
		return fate
	}
}

// hasIn says that a Pod has an address in a VPC.
func (c *Controller) hasIn(pod *corev1.Pod, address netip.Addr, vpc string) bool {
	known := false
	for key, value := range pod.Annotations {
		provider, ok := strings.CutSuffix(key, addressSuffix)
		known = known || ok
		if !ok || !slices.Contains(ipv4s(value), address) {
			continue
		}
		subnet, err := c.subnetLister.Get(pod.Annotations[provider+switchSuffix])
		if err != nil || vpcnet.SubnetVPC(subnet) == vpc {
			return true // when in doubt, it is the one that was meant
		}
	}
	return !known
}

// expecting gives the gateway pods that may have connections to backends with these addresses which have left.
func (s *programStore) expecting(addresses []string) []types.NamespacedName {
	s.mu.Lock()
	programs := maps.Clone(s.pods)
	s.mu.Unlock()
	var out []types.NamespacedName
	for key, p := range programs {
		p.update(func(p *program) {
			for connections := range p.leavers {
				if slices.Contains(addresses, connections.Backend.Addr().String()) {
					out = append(out, key)
					return
				}
			}
		})
	}
	return out
}

// onAddressesLeft looks again at the gateway pods that may have connections to these addresses.
func (c *Controller) onAddressesLeft(addresses []string) {
	if len(addresses) > 0 {
		for _, key := range c.programs.expecting(addresses) {
			c.podQueue.Add(key)
		}
	}
}

// addressesOfPod lists the addresses of a Pod's NICs, or its own where it has none of Kube-OVN's.
func addressesOfPod(pod *corev1.Pod) []string {
	var out []string
	for key, value := range pod.Annotations {
		if strings.HasSuffix(key, addressSuffix) {
			out = append(out, addrStrings(ipv4s(value))...)
		}
	}
	if len(out) == 0 {
		for _, ip := range pod.Status.PodIPs {
			out = append(out, ip.IP)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// readyBefore says that a Pod is ready, and was so when its rule was deleted: else that may well have been for its not being
// ready, and it is ready again. The API tells both times to the second.
func readyBefore(pod *corev1.Pod, deleted time.Time) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue && c.LastTransitionTime.Add(time.Second).Before(deleted)
	})
}
