// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeovn/kube-ovn/test/bench"
	"github.com/kubeovn/kube-ovn/test/lab/controlplane"
	"github.com/kubeovn/kube-ovn/test/lab/supervise"
)

// The large cluster.
const (
	bigServices = 1000
	bigBackends = 20
	// bigPods are shared by twenty Services each.
	bigPods = 1000
	// bigEIPs are spread over bigGateways.
	bigEIPs     = 20
	bigGateways = 4

	proxyGrace = 10 * time.Second
)

// batch is some of the large cluster's Services, which come together.
type batch struct {
	*network

	first, services int
	eips            []string
}

func (b *batch) rules() int { return b.services * bigBackends }

// make makes the Services and their slices. Each has twenty of the large cluster's Pods, and a port of its own at an EIP of several.
func (b *batch) make(ctx context.Context) error {
	return each(ctx, b.services, 16, func(ctx context.Context, i int) error {
		i += b.first
		name, eip := fmt.Sprintf("big-%d", i), b.eips[i%len(b.eips)]
		if _, err := b.makeService(ctx, name, eip, int32(1000+i/len(b.eips))); err != nil { //nolint:gosec // small
			return err
		}
		backends := make([]int, bigBackends)
		for k := range backends {
			backends[k] = realBackends + (i*bigBackends+k)%bigPods
		}
		_, err := b.writeSlice(ctx, b.slice(name, backends...))
		return err
	})
}

// coldStart starts the controller, which finds these Services and none of their rules, and waits until all are programmed. It
// returns how long that took, from the start of the process.
func (b *batch) coldStart(ctx context.Context, served int) (time.Duration, error) {
	began := time.Now()
	options := controllerOptions()
	options.NoWait = true
	if err := b.lab.StartController(ctx, options); err != nil {
		return 0, err
	}
	// Where there is much to count, it would itself be something that is measured.
	interval := max(seldom, time.Duration(b.services)*time.Millisecond)
	err := poll(ctx, interval, "all Services to be programmed", func(ctx context.Context) (bool, error) {
		m, err := b.controllerMetrics(ctx)
		if err != nil {
			return false, nil //nolint:nilerr // it has not begun to listen yet
		}
		return m.sum("kube_ovn_nftable_lb_services", with("reason", "Programmed")) >= float64(served), nil
	})
	return time.Since(began), err
}

// withoutProxy ends kube-proxy: on a machine of few cores, what it makes of the same Services at the same time would count.
func (p *place) withoutProxy(ctx context.Context) error {
	if err := p.lab.Processes().Stop(ctx, controlplane.Proxy, proxyGrace); err != nil && !errors.Is(err, supervise.ErrNotRunning) {
		return err
	}
	return nil
}

// withProxy starts it again.
func (p *place) withProxy(ctx context.Context) error {
	return p.lab.SetProxyMode(ctx, controlplane.ProxyNFTables)
}

// verifyBig looks whether every rule is there, ready, and as often in the gateways as it should be.
func (n *network) verifyBig(ctx context.Context) error {
	list, err := n.ovn.KubeovnV1().IptablesDnatRules().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return err
	}
	ready := 0
	ports := map[string]bool{}
	for i := range list.Items {
		rule := &list.Items[i]
		if rule.Status.Ready && len(rule.Labels) > 0 {
			ready++
			ports[rule.Status.V4ip+" "+rule.Spec.ExternalPort] = true
		}
	}
	if ready < n.grown*bigBackends {
		return fmt.Errorf("%d rules are ready, not %d", ready, n.grown*bigBackends)
	}
	held := 0
	for _, gateway := range n.gateways() {
		pod, err := n.podOf(ctx, gateway)
		if err != nil {
			return err
		}
		listing, err := n.listing(ctx, pod)
		if err != nil {
			return err
		}
		for id, holding := range listing.Shares {
			if ports[id.EIP.String()+" "+strconv.Itoa(int(id.Port))] && holding.Backends == bigBackends {
				held++
			}
		}
	}
	if held < n.grown {
		return fmt.Errorf("gateways hold %d whole identities, not %d", held, n.grown)
	}
	return nil
}

// gateways are those that the large cluster's EIPs are spread over: the network's own, and some more.
func (n *network) gateways() []string {
	names := []string{n.name}
	for i := 1; i < bigGateways; i++ {
		names = append(names, fmt.Sprintf("%s-%d", n.name, i))
	}
	return names
}

// ground makes what a large cluster stands on: Pods, gateways and EIPs.
func (n *network) ground(ctx context.Context) ([]string, error) {
	var eips []string
	for i := range bigEIPs {
		eips = append(eips, fmt.Sprintf("big-%d", i))
	}
	if n.grounded {
		return eips, nil
	}
	n.grounded = true
	gateways := n.gateways()
	for i := 1; i < len(gateways); i++ {
		if err := n.makeGateway(ctx, gateways[i], nth(gatewayAddress, 100+i)); err != nil {
			return nil, err
		}
	}
	for _, gateway := range gateways {
		if _, err := n.gatewayPod(ctx, gateway); err != nil {
			return nil, err
		}
	}
	if err := each(ctx, bigPods, 16, func(ctx context.Context, i int) error { return n.pretend(ctx, realBackends+i) }); err != nil {
		return nil, fmt.Errorf("make Pods: %w", err)
	}
	return eips, each(ctx, bigEIPs, 4, func(ctx context.Context, i int) error {
		_, err := n.makeEIP(ctx, eips[i], gateways[i%len(gateways)])
		return err
	})
}

// growth is a start of the controller in a cluster with Services that have no rules yet.
type growth struct {
	batch

	took time.Duration
	cpu  cpu
	// writes for each rule.
	writes float64
}

// growBy makes the next of the large cluster's Services while no controller runs, then starts it, and waits until all of their rules are
// ready.
func (n *network) growBy(ctx context.Context, env *bench.Env, services int) (*growth, error) {
	eips, err := n.ground(ctx)
	if err != nil {
		return nil, err
	}
	g := &growth{batch: batch{network: n, first: n.grown, services: services, eips: eips}}
	served, err := n.served(ctx)
	if err != nil {
		return nil, err
	}
	if err := n.lab.StopController(ctx); err != nil {
		return nil, err
	}
	if err := g.make(ctx); err != nil {
		return nil, fmt.Errorf("make %d Services: %w", services, err)
	}
	env.Logf("made %d Services of %d backends; kube-ovn-controller starts", services, bigBackends)
	before, err := n.writes(ctx, "iptables-dnat-rules")
	if err != nil {
		return nil, err
	}
	idle, err := n.cpu(ctx)
	if err != nil {
		return nil, err
	}
	if g.took, err = g.coldStart(ctx, served+services); err != nil {
		return nil, err
	}
	done, err := n.cpu(ctx)
	if err != nil {
		return nil, err
	}
	after, err := n.writes(ctx, "iptables-dnat-rules")
	if err != nil {
		return nil, err
	}
	n.grown += services
	g.cpu, g.writes = done.since(idle), (after-before)/float64(g.rules())
	env.Logf("%d rules are ready after %s", g.rules(), g.took)
	return g, nil
}

// grow makes the cluster a large one, as far as it is not.
func grow(ctx context.Context, env *bench.Env) (err error) {
	n, err := quiet(ctx, env)
	if err != nil {
		return err
	}
	rest := env.Scaled(bigServices) - n.grown
	if rest <= 0 {
		return nil
	}
	if err := n.withoutProxy(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.withProxy(ctx)) }()
	if _, err := n.growBy(ctx, env, rest); err != nil {
		return err
	}
	return n.verifyBig(ctx)
}

// served counts the Services that are programmed now.
func (n *network) served(ctx context.Context) (int, error) {
	m, err := n.controllerMetrics(ctx)
	return int(m.sum("kube_ovn_nftable_lb_services", with("reason", "Programmed"))), err
}
