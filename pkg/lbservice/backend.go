// SPDX-License-Identifier: Apache-2.0

package lbservice

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// Skip is an endpoint that could be a backend, and what it lacks.
type Skip struct {
	// Pod behind it, or else its address.
	Pod string
	UID types.UID
	// Unmasqueraded: it needs the gateway's address in place of the client's, which the handler does not give. Else it has no NIC in the
	// gateway's VPC.
	Unmasqueraded bool
}

// key tells skipped endpoints apart: by Pod, those without one by address.
func (k Skip) key() string { return cmp.Or(string(k.UID), k.Pod) }

// endpoint is one endpoint of one slice, with the address that the gateway reaches it by.
type endpoint struct {
	addr       netip.Addr
	masquerade bool
	// pod behind it, if any.
	pod types.UID
	// ready, or else serving while it terminates.
	ready, draining bool
	ports           []discoveryv1.EndpointPort
}

// endpoints is what a Service's slices come to.
type endpoints struct {
	usable []endpoint
	// skipped endpoints, by name.
	skipped []Skip
	// waiting counts the endpoints that are no backends yet.
	waiting int
	// strays are the Subnets, sorted, of backends that have no way back to the gateway's address.
	strays []string
	// some: there are endpoints; ready: some of them may take traffic.
	some, ready bool
	// nodes says whether kube-proxy on the nodes can deliver to any of them.
	nodes reach
	// living are the addresses of all endpoints whose Pods live, ready or not.
	living map[netip.Addr]bool
}

// resolveEndpoints finds the address of every endpoint of every slice that may take traffic.
func resolveEndpoints(s *Snapshot, vpc string) endpoints {
	var (
		out     = endpoints{living: map[netip.Addr]bool{}}
		skipped = map[string]Skip{}
	)
	for _, slice := range s.Slices {
		if slice.AddressType == discoveryv1.AddressTypeFQDN {
			continue
		}
		for i := range slice.Endpoints {
			ep, decision := resolveEndpoint(s, slice, &slice.Endpoints[i], vpc)
			if ep.addr.IsValid() && slice.Endpoints[i].TargetRef != nil {
				out.living[ep.addr] = true
			}
			out.some = true
			if !ep.ready && !ep.draining {
				continue
			}
			out.ready = true
			if slice.AddressType == discoveryv1.AddressTypeIPv4 {
				out.nodes = combineReach(out.nodes, decision.nodes)
			}
			switch {
			case decision.skip != nil:
				skipped[decision.skip.key()] = *decision.skip
			case decision.wait:
				out.waiting++
			case ep.addr.IsValid():
				out.usable = append(out.usable, ep)
				if decision.stray != "" {
					out.strays = append(out.strays, decision.stray)
				}
			}
		}
	}
	slices.Sort(out.strays)
	out.strays = slices.Compact(out.strays)
	for _, skip := range skipped {
		out.skipped = append(out.skipped, skip)
	}
	slices.SortFunc(out.skipped, func(a, b Skip) int {
		return cmp.Or(cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.UID, b.UID))
	})
	return out
}

// lack is why a port may have no backend, as a message that wants the ports' names; "" where endpoints are ready but something about them
// is missing, which is told of each.
func (e *endpoints) lack() string {
	switch {
	case !e.some:
		return msgNoEndpoint
	case !e.ready:
		return msgNoEndpointReady
	case len(e.usable) > 0:
		return msgNoTargetPort
	}
	return ""
}

// combineReach: one endpoint that the nodes reach is enough; one of which nothing is known yet decides nothing.
func combineReach(a, b reach) reach {
	switch {
	case a == reachable || b == reachable:
		return reachable
	case a == reachUnknown:
		return b
	}
	return a
}

// decision is what became of an endpoint besides its address.
type decision struct {
	skip  *Skip
	wait  bool
	nodes reach
	// stray is the Subnet of a NIC from which answers to the gateway's address leave by another one.
	stray string
}

func resolveEndpoint(s *Snapshot, slice *discoveryv1.EndpointSlice, in *discoveryv1.Endpoint, vpc string) (endpoint, decision) {
	// The API's words: nil ready and serving mean true, nil terminating means false.
	ep := endpoint{
		ready:    ptr.Deref(in.Conditions.Ready, true),
		draining: ptr.Deref(in.Conditions.Serving, true) && ptr.Deref(in.Conditions.Terminating, false),
		ports:    slice.Ports,
	}
	if in.TargetRef == nil || in.TargetRef.Kind != "Pod" {
		ep.addr, ep.masquerade = ownAddress(slice, in), s.Gateway.Spec.Replicas > 1
		return ep, unmasqueraded(s, &ep, Skip{Pod: ep.addr.String()}, decision{nodes: reachable})
	}
	pod, ok := s.Pods[in.TargetRef.Name]
	if !ok || !refersTo(in.TargetRef, s.Key.Namespace, pod.UID) || pod.Ended {
		return ep, decision{wait: true}
	}
	ep.pod = pod.UID
	d := decision{nodes: pod.nodesReach(s.SubnetVPCs)}
	nic, choice := pod.chooseNIC(vpc, s.SubnetVPCs)
	switch choice {
	case nicFound:
		ep.addr = nic.IPv4
		// Of several gateway pods, answers would reach any; only the one that has the connection can take them.
		ep.masquerade = !nic.DefaultRoute || s.Gateway.Spec.Replicas > 1
		if home := s.Gateway.Spec.Subnet; !nic.DefaultRoute && !nic.Routed && home != "" && nic.Subnet != home {
			d.stray = nic.Subnet
		}
	case nicNone:
		ep.addr, ep.masquerade = ownAddress(slice, in), s.Gateway.Spec.Replicas > 1
	case nicNotYet:
		d.wait = true
	case nicElsewhere:
		d.skip = &Skip{Pod: pod.Name, UID: pod.UID}
	}
	return ep, unmasqueraded(s, &ep, Skip{Pod: pod.Name, UID: pod.UID}, d)
}

// unmasqueraded skips an endpoint whose answers would be lost: they come back only if the gateway puts its own address in place of the
// client's, and its handler has it do no such thing.
func unmasqueraded(s *Snapshot, ep *endpoint, skip Skip, d decision) decision {
	override, _ := sourceIPOverride(s.Service)
	if s.Abilities.Masquerade || !ep.addr.IsValid() || d.skip != nil || d.wait ||
		decideSourceIP(override, ep.masquerade) != sharenat.SourceIPMasquerade {
		return d
	}
	skip.Unmasqueraded = true
	d.skip, d.stray = &skip, ""
	return d
}

// refersTo tells whether the reference is to this very Pod. A Pod of the same name that came after it is another, and so is one of
// another namespace, which no Service may name.
func refersTo(ref *corev1.ObjectReference, namespace string, uid types.UID) bool {
	return (ref.Namespace == "" || ref.Namespace == namespace) && (ref.UID == "" || ref.UID == uid)
}

// ownAddress is an endpoint's own IPv4 address. Of several, the first counts, as in kube-proxy.
func ownAddress(slice *discoveryv1.EndpointSlice, in *discoveryv1.Endpoint) netip.Addr {
	if slice.AddressType != discoveryv1.AddressTypeIPv4 || len(in.Addresses) == 0 {
		return netip.Addr{}
	}
	addr, err := sharenat.ParseIPv4(in.Addresses[0])
	if err != nil {
		return netip.Addr{}
	}
	return addr
}

// backendsOf a Service's port, in order: every ready endpoint, or while none is ready, those that still serve while they terminate.
func (e *endpoints) backendsOf(port *corev1.ServicePort) []backend {
	var (
		ready    = map[netip.AddrPort]backend{}
		draining = map[netip.AddrPort]backend{}
	)
	for i := range e.usable {
		ep := &e.usable[i]
		for _, number := range portNumbers(ep.ports, port) {
			chosen := draining
			if ep.ready {
				chosen = ready
			}
			addr := netip.AddrPortFrom(ep.addr, number)
			chosen[addr] = chosen[addr].with(addr, ep)
		}
	}
	chosen := ready
	if len(chosen) == 0 {
		chosen = draining
	}
	return slices.SortedFunc(maps.Values(chosen), func(a, b backend) int { return a.Addr.Compare(b.Addr) })
}

// backend of a Service's port, with the Pod that it is.
type backend struct {
	sharenat.Backend
	pod types.UID
}

// with takes an endpoint at the address in: what any of them needs is done, and of several Pods, which share a node's address, the first by UID
// stands for all.
func (b backend) with(addr netip.AddrPort, ep *endpoint) backend {
	b.Addr = addr
	b.Masquerade = b.Masquerade || ep.masquerade
	if b.pod == "" || ep.pod != "" && ep.pod < b.pod {
		b.pod = ep.pod
	}
	return b
}

// portNumbers are the target ports that a slice has for a Service's port: those of its name and protocol. A port without a name in the
// slice is the Service's port without a name.
func portNumbers(ports []discoveryv1.EndpointPort, port *corev1.ServicePort) []uint16 {
	var out []uint16
	for i := range ports {
		p := &ports[i]
		if ptr.Deref(p.Name, "") != port.Name || protocolOf(ptr.Deref(p.Protocol, "")) != protocolOf(port.Protocol) {
			continue
		}
		if number := ptr.Deref(p.Port, 0); number > 0 && number <= 65535 {
			out = append(out, uint16(number))
		}
	}
	return out
}
