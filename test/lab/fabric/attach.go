// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

func netFamily(addr netip.Addr) int {
	if addr.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// Resolve decides the Pod's NICs as far as they can be decided by now, and holds their addresses for it. It may be called
// again at any time: what the Pod has it keeps.
func (f *Fabric) Resolve(pod *corev1.Pod) (Resolution, error) {
	attachments, err := Attachments(pod)
	if err != nil {
		return Resolution{}, err
	}
	subnets, vpcs, refused, _ := f.view() // one bad Subnet does not hold up the Pods of others
	before := f.ipam.Changes()
	found, waiting := chooseSubnets(pod, attachments, subnets, vpcs)
	resolution, err := assign(pod, found, f.ipam)
	if err != nil {
		return Resolution{}, err
	}
	for name, reason := range waiting {
		for _, r := range refused {
			if reason == noSubnet(r.object.GetName()) {
				reason += ", since stock Kube-OVN refuses it: " + r.why
			}
		}
		resolution.Waiting[name] = reason
	}
	placeDefaultRoute(pod, resolution.NICs)
	if f.ipam.Changes() != before {
		f.poke() // the Subnets' usage
	}
	return resolution, nil
}

// PodNamespace creates the network namespace of a Pod, without NICs yet.
func (f *Fabric) PodNamespace(name string) (Namespace, error) {
	s, err := newSpace(name, hostSysctls)
	if err != nil {
		return Namespace{}, err
	}
	s.close()
	return Namespace{Name: name}, nil
}

// Attach plugs the NIC into its Subnet. An old one of the same Pod and provider is replaced.
func (f *Fabric) Attach(podUID string, ns Namespace, nic NIC) error {
	f.mu.Lock()
	bridge, stands := f.applied.Bridges[nic.Subnet]
	f.mu.Unlock()
	if !stands {
		return &WaitError{Reason: fmt.Sprintf("subnet %s has no bridge yet", nic.Subnet)}
	}
	pod, err := openSpace(ns.Name, ns.Path())
	if err != nil {
		return err
	}
	defer pod.close()
	c := cable{
		name: portName(podUID, nic), alias: ns.Name + " " + nic.Interface, bridge: bridge,
		peer: pod, peerName: nic.Interface, peerMAC: nic.MAC,
	}
	if err := f.fabric.plug(c); err != nil {
		return err
	}
	if nic.Overlay {
		// OVN answers for its ports at once; a bridge has to be told.
		notify := Sysctl{Path: filepath.Join("net/ipv4/conf", nic.Interface, "arp_notify"), Value: "1"}
		if err := ns.Do(func() error { return writeSysctls([]Sysctl{notify}) }); err != nil {
			return err
		}
	}
	routes := nic.Routes
	if nic.DefaultRoute {
		for _, gateway := range nic.Gateways {
			routes = append([]Route{{Dst: anywhere(gateway), Via: []netip.Addr{gateway}}}, routes...)
		}
	}
	if err := pod.address(nic.Interface, nic.Addrs, routes...); err != nil {
		return err
	}
	if err := f.fabric.waitUp(c); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.attached[podUID] == nil {
		f.attached[podUID] = map[string]NIC{}
	}
	f.attached[podUID][nic.Provider] = nic
	return f.announce(nic)
}

func portName(podUID string, nic NIC) string {
	return interfaceName("p", podUID+"/"+nic.Provider)
}

// announce tells the Subnet's router where the NIC's addresses live. The fabric's lock is held.
func (f *Fabric) announce(nic NIC) error {
	l, stands := f.applied.Legs[nic.Subnet]
	if !stands {
		return nil
	}
	var errs []error
	for _, addr := range nic.Addrs {
		errs = append(errs, f.routers[l.VPC].neighbour(interfaceName("s-", nic.Subnet), addr.Addr(), nic.MAC))
	}
	return errors.Join(errs...)
}

// Attached gives the Pod's NICs as they are plugged in.
func (f *Fabric) Attached(podUID string) map[string]NIC {
	f.mu.Lock()
	defer f.mu.Unlock()
	nics := map[string]NIC{}
	for provider, nic := range f.attached[podUID] {
		nics[provider] = nic
	}
	return nics
}

// Detach unplugs all NICs of the Pod; its addresses stay its own until Release.
func (f *Fabric) Detach(podUID string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for _, nic := range f.attached[podUID] {
		errs = append(errs, f.fabric.unplug(portName(podUID, nic)))
		if l, stands := f.applied.Legs[nic.Subnet]; stands {
			for _, addr := range nic.Addrs {
				f.routers[l.VPC].forgetNeighbour(interfaceName("s-", nic.Subnet), addr.Addr())
			}
		}
	}
	delete(f.attached, podUID)
	return errors.Join(errs...)
}

// Release gives the Pod's addresses back.
func (f *Fabric) Release(podUID string) {
	f.ipam.Release(podUID)
	f.poke()
	f.broadcast() // somebody may wait for them
}
