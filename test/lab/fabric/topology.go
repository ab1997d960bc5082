// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os/exec"
	"slices"
	"strings"

	"k8s.io/klog/v2"
)

const (
	externalBridge = "ext"
	nodeJoin       = "ovn0"
	nodeExternal   = "ext0"
	routerJoin     = "join"
)

// leg is a router's interface in a Subnet.
type leg struct {
	Subnet string
	VPC    string
	Addrs  []netip.Prefix
}

func (l leg) equal(other leg) bool {
	return l.Subnet == other.Subnet && l.VPC == other.VPC && slices.Equal(l.Addrs, other.Addrs)
}

// topology is what should stand.
type topology struct {
	// Bridges maps a Subnet to the bridge its NICs are plugged into.
	Bridges map[string]string
	Legs    map[string]leg
	// Routers maps a VPC to its static routes.
	Routers map[string][]Route
	// NodeRoutes are the default VPC's prefixes, which the node reaches through its router.
	NodeRoutes []netip.Prefix
	// NATSources are those whose traffic leaves the node with the node's address.
	NATSources []netip.Prefix
}

// planTopology decides what should stand. Pure. An address that two Subnets of one VPC claim goes to the one with the
// smaller name, the other's leg is left out.
func planTopology(external netip.Prefix, subnets []*Subnet, vpcs []*VPC) topology {
	plan := topology{Bridges: map[string]string{}, Legs: map[string]leg{}, Routers: map[string][]Route{DefaultVPC: nil}}
	for _, vpc := range vpcs {
		plan.Routers[vpc.Name] = vpc.Routes
	}
	taken := map[string]bool{}
	for _, subnet := range slices.SortedFunc(slices.Values(subnets), func(a, b *Subnet) int { return strings.Compare(a.Name, b.Name) }) {
		if subnet.Name == JoinSubnet {
			continue
		}
		plan.Bridges[subnet.Name] = interfaceName("b-", subnet.Name)
		if !subnet.Overlay() {
			if subnet.Prefixes[0].Overlaps(external) {
				plan.Bridges[subnet.Name] = externalBridge
			}
			continue
		}
		if _, exists := plan.Routers[subnet.VPC]; !exists {
			continue
		}
		l := leg{Subnet: subnet.Name, VPC: subnet.VPC}
		for i, prefix := range subnet.Prefixes {
			key := subnet.VPC + " " + subnet.Gateways[i].String()
			if !taken[key] {
				taken[key] = true
				l.Addrs = append(l.Addrs, netip.PrefixFrom(subnet.Gateways[i], prefix.Bits()))
			}
		}
		plan.Legs[subnet.Name] = l
		if subnet.VPC == DefaultVPC {
			plan.NodeRoutes = append(plan.NodeRoutes, subnet.Prefixes...)
			if subnet.NATOutgoing {
				plan.NATSources = append(plan.NATSources, subnet.Prefixes...)
			}
		}
	}
	return plan
}

// apply makes the plan stand. Whatever cannot be done yet is reported; the rest is done.
func (f *Fabric) apply(ctx context.Context, plan topology) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	note := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	for _, subnet := range slices.Sorted(maps.Keys(plan.Bridges)) {
		note(f.fabric.ensureBridge(plan.Bridges[subnet], "subnet "+subnet))
	}
	for _, vpc := range slices.Sorted(maps.Keys(plan.Routers)) {
		note(f.ensureRouter(vpc))
	}
	for _, subnet := range slices.Sorted(maps.Keys(f.applied.Legs)) {
		if current := f.applied.Legs[subnet]; !current.equal(plan.Legs[subnet]) {
			note(f.fabric.unplug(legName(subnet)))
			delete(f.applied.Legs, subnet)
		}
	}
	for _, subnet := range slices.Sorted(maps.Keys(plan.Legs)) {
		if _, stands := f.applied.Legs[subnet]; !stands {
			note(f.addLeg(plan.Legs[subnet], plan.Bridges[subnet]))
		}
	}
	for _, vpc := range slices.Sorted(maps.Keys(plan.Routers)) {
		if router := f.routers[vpc]; router != nil {
			note(router.setRoutes(f.routerRoutes(vpc, plan)))
		}
	}
	note(f.node.setNodeRoutes(f.config.Join, plan.NodeRoutes))
	note(f.ensureNodeNAT(ctx, plan))
	f.removeStale(plan)
	f.applied.Bridges, f.applied.Routers = plan.Bridges, plan.Routers
	return errors.Join(errs...)
}

// routerRoutes are the VPC's static routes; the default VPC's router also sends everything else to the node.
func (f *Fabric) routerRoutes(vpc string, plan topology) []Route {
	routes := slices.Clone(plan.Routers[vpc])
	hasDefault := slices.ContainsFunc(routes, func(r Route) bool { return r.Dst == anywhere(f.config.Join.Node) })
	if vpc == DefaultVPC && !hasDefault {
		routes = append(routes, Route{Dst: anywhere(f.config.Join.Node), Via: []netip.Addr{f.config.Join.Node}})
	}
	return routes
}

func legName(subnet string) string { return interfaceName("r-", subnet) }

func (f *Fabric) ensureRouter(vpc string) error {
	if f.routers[vpc] != nil {
		return nil
	}
	router, err := newSpace(routerNamespace(vpc), routerSysctls)
	if err != nil {
		return fmt.Errorf("router of vpc %s: %w", vpc, err)
	}
	f.routers[vpc] = router
	if vpc != DefaultVPC {
		return nil
	}
	join := f.config.Join
	err = router.plug(cable{
		name: routerJoin, alias: "to the node", peer: f.node, peerName: nodeJoin, peerMAC: macFor("join", join.Node.String()),
	})
	if err != nil {
		return err
	}
	err = errors.Join(
		router.address(routerJoin, []netip.Prefix{netip.PrefixFrom(join.Router, join.Prefix.Bits())}),
		f.node.address(nodeJoin, []netip.Prefix{netip.PrefixFrom(join.Node, join.Prefix.Bits())}),
	)
	return err
}

func (f *Fabric) addLeg(l leg, bridge string) error {
	router := f.routers[l.VPC]
	if router == nil {
		return fmt.Errorf("subnet %s: vpc %s has no router", l.Subnet, l.VPC)
	}
	name := interfaceName("s-", l.Subnet)
	mac := macFor("gateway", l.Subnet)
	c := cable{name: legName(l.Subnet), alias: "router " + l.VPC, bridge: bridge, peer: router, peerName: name, peerMAC: mac}
	if err := f.fabric.plug(c); err != nil {
		return err
	}
	if err := router.address(name, l.Addrs); err != nil {
		return err
	}
	if err := f.fabric.waitUp(c); err != nil {
		return err
	}
	f.applied.Legs[l.Subnet] = l
	var errs []error
	for _, nics := range f.attached {
		for _, nic := range nics {
			if nic.Subnet == l.Subnet {
				errs = append(errs, f.announce(nic))
			}
		}
	}
	return errors.Join(errs...)
}

// removeStale takes down bridges and routers nobody asks for any more.
func (f *Fabric) removeStale(plan topology) {
	for subnet, bridge := range f.applied.Bridges {
		if _, wanted := plan.Bridges[subnet]; !wanted && bridge != externalBridge {
			if err := f.fabric.unplug(bridge); err != nil {
				klog.Background().Error(err, "Remove bridge", "subnet", subnet)
			}
		}
	}
	for vpc, router := range f.routers {
		if _, wanted := plan.Routers[vpc]; !wanted {
			router.close()
			delete(f.routers, vpc)
			if err := (Namespace{Name: router.name}).Delete(); err != nil {
				klog.Background().Error(err, "Remove router", "vpc", vpc)
			}
		}
	}
}

// setNodeRoutes leads the default VPC's prefixes to its router. Routes of other makers (kube-proxy makes none, the lab's
// default route is on another interface) stay.
func (s *space) setNodeRoutes(join Join, prefixes []netip.Prefix) error {
	link, err := s.link(nodeJoin)
	if err != nil {
		return err
	}
	present, err := s.handle.RouteList(link, netFamily(join.Router))
	if err != nil {
		return fmt.Errorf("list routes of the node: %w", err)
	}
	for _, entry := range present {
		isWanted := func(p netip.Prefix) bool { return entry.Dst != nil && entry.Dst.String() == ipNet(p).String() }
		if entry.Gw != nil && !slices.ContainsFunc(prefixes, isWanted) {
			if err := s.handle.RouteDel(&entry); err != nil {
				return fmt.Errorf("remove route %s from the node: %w", entry.Dst, err)
			}
		}
	}
	for _, prefix := range prefixes {
		if prefix.Addr().BitLen() != join.Router.BitLen() {
			continue // nodes have one family in the lab
		}
		if err := s.route(Route{Dst: prefix, Via: []netip.Addr{join.Router}}, link.Attrs().Index); err != nil {
			return err
		}
	}
	return nil
}

// ensureNodeNAT masquerades what natOutgoing Subnets send past the default VPC, and what kube-proxy on the node sends
// back into it: else the backend would answer its neighbour directly, with an address that one never asked.
func (f *Fabric) ensureNodeNAT(ctx context.Context, plan topology) error {
	ruleset := nodeRuleset(f.config.Join.Prefix, plan)
	if ruleset == f.nodeRules {
		return nil
	}
	command := exec.CommandContext(ctx, "nft", "-f", "-")
	command.Stdin = strings.NewReader(ruleset)
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("set the node's nat rules: %w: %s", err, output)
	}
	f.nodeRules = ruleset
	return nil
}

func nodeRuleset(join netip.Prefix, plan topology) string {
	elements := func(prefixes []netip.Prefix) string {
		var items []string
		for _, prefix := range prefixes {
			if prefix.Addr().Is4() {
				items = append(items, prefix.String())
			}
		}
		slices.Sort(items)
		if items = slices.Compact(items); len(items) == 0 {
			return ""
		}
		return "elements = { " + strings.Join(items, ", ") + " }"
	}
	return fmt.Sprintf(`table ip kube-ovn-fabric
delete table ip kube-ovn-fabric
table ip kube-ovn-fabric {
	set overlay { type ipv4_addr; flags interval; auto-merge; %s; }
	set nat { type ipv4_addr; flags interval; auto-merge; %s; }
	chain postrouting {
		type nat hook postrouting priority 90; policy accept;
		ip saddr @overlay oifname "%s" ct status dnat masquerade
		ip saddr @nat ip daddr != @overlay masquerade
	}
}
`, elements(append([]netip.Prefix{join}, plan.NodeRoutes...)), elements(plan.NATSources), nodeJoin)
}
