// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// Names of the namespaces that always stand.
const (
	FabricNamespace   = "fabric"
	UpstreamNamespace = "upstream"
)

// UpstreamHost is an address behind the upstream router: a host far away.
var UpstreamHost = netip.MustParseAddr("198.51.100.1")

// buildExternal makes the external network: its bridge, the upstream router, the clients, the node's leg.
func (f *Fabric) buildExternal() error {
	external := f.config.External
	var err error
	if err = InThread(func() error { return writeSysctls(routerSysctls) }); err != nil {
		return fmt.Errorf("prepare the node: %w", err)
	}
	if f.node, err = openSpace("node", "/proc/self/ns/net"); err != nil {
		return err
	}
	if f.fabric, err = newSpace(FabricNamespace, switchSysctls); err != nil {
		return err
	}
	if err = f.fabric.ensureBridge(externalBridge, "external network"); err != nil {
		return err
	}
	if f.upstream, err = newSpace(UpstreamNamespace, routerSysctls); err != nil {
		return err
	}
	if err = f.plugExternal(f.upstream, UpstreamNamespace, "eth0", external.Gateway); err != nil {
		return err
	}
	if err = f.upstream.address("lo", []netip.Prefix{netip.PrefixFrom(UpstreamHost, 32)}); err != nil {
		return err
	}
	toUpstream := Route{Dst: anywhere(external.Gateway), Via: []netip.Addr{external.Gateway}}
	for _, name := range slices.Sorted(maps.Keys(external.Clients)) {
		client, err := newSpace(name, hostSysctls)
		if err != nil {
			return err
		}
		f.clients[name] = client
		if err := f.plugExternal(client, name, "eth0", external.Clients[name], toUpstream); err != nil {
			return err
		}
	}
	return errors.Join(
		f.node.up("lo"),
		f.plugExternal(f.node, "node", nodeExternal, external.Node, toUpstream),
	)
}

func (f *Fabric) plugExternal(peer *space, name, peerName string, addr netip.Addr, routes ...Route) error {
	err := f.fabric.plug(cable{
		name: interfaceName("x-", name), alias: name, bridge: externalBridge, peer: peer, peerName: peerName,
		peerMAC: macFor("external", name),
	})
	if err != nil {
		return err
	}
	f.reserved[addr] = name
	return peer.address(peerName, []netip.Prefix{netip.PrefixFrom(addr, f.config.External.Prefix.Bits())}, routes...)
}

// AddClientAddress gives a client of the external network one more address.
func (f *Fabric) AddClientAddress(client string, addr netip.Addr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	peer := f.clients[client]
	if peer == nil {
		return fmt.Errorf("no client %q", client)
	}
	if !f.config.External.Prefix.Contains(addr) {
		return fmt.Errorf("%s is not in the external network %s", addr, f.config.External.Prefix)
	}
	f.reserved[addr] = client
	return peer.address("eth0", []netip.Prefix{netip.PrefixFrom(addr, f.config.External.Prefix.Bits())})
}

// Clients lists the external clients' namespaces, sorted.
func (f *Fabric) Clients() []string { return slices.Sorted(maps.Keys(f.config.External.Clients)) }

// AddNodeAddress makes sure that the node has the address, on its loopback where it has it nowhere.
func (f *Fabric) AddNodeAddress(addr netip.Addr) error {
	addrs, err := f.node.handle.AddrList(nil, netFamily(addr))
	if err != nil {
		return fmt.Errorf("list the node's addresses: %w", err)
	}
	for _, present := range addrs {
		if present.IP.Equal(addr.AsSlice()) {
			return nil
		}
	}
	return f.node.address("lo", []netip.Prefix{netip.PrefixFrom(addr, addr.BitLen())})
}
