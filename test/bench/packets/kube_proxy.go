// SPDX-License-Identifier: Apache-2.0

package packets

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
	"github.com/kubeovn/kube-ovn/test/bench"
	"github.com/kubeovn/kube-ovn/test/lab/controlplane"
	"github.com/kubeovn/kube-ovn/test/lab/supervise"
)

const (
	namespace = "default"
	nodeName  = "bench"
	// patience bounds the waits for what has to come.
	patience = 2 * time.Minute
)

// service is a Service, as kube-proxy is given it; each of its ports is an identity of a gateway.
type service struct {
	name     string
	addr     netip.Addr
	affinity sharenat.Affinity
	ports    int
	backends int
}

// port is the number of the i-th port.
func (s service) port(i int) uint16 { return uint16(1000 + i) }

// shares are the identities that a gateway has for it.
func (s service) shares() []sharenat.Share {
	out := make([]sharenat.Share, s.ports)
	for i := range out {
		out[i] = sharenat.Share{
			Identity: sharenat.Identity{EIP: s.addr, Port: s.port(i), Protocol: sharenat.TCP},
			Affinity: s.affinity, Backends: backends(s.backends),
		}
	}
	return out
}

// objects are the Service and its EndpointSlice. Their clients are in the cluster, which is the shortest way kube-proxy has.
func (s service) objects() (*corev1.Service, *discoveryv1.EndpointSlice) {
	meta := metav1.ObjectMeta{Name: s.name, Labels: map[string]string{discoveryv1.LabelServiceName: s.name}}
	svc := &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{ClusterIP: s.addr.String()}}
	if s.affinity.ClientIP {
		svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		svc.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &s.affinity.TimeoutSeconds}}
	}
	slice := &discoveryv1.EndpointSlice{ObjectMeta: meta, AddressType: discoveryv1.AddressTypeIPv4}
	for i := range s.ports {
		name := fmt.Sprintf("p%d", i)
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: name, Port: int32(s.port(i)), Protocol: corev1.ProtocolTCP})
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &name, Port: ptr.To[int32](backendPort), Protocol: ptr.To(corev1.ProtocolTCP)})
	}
	for _, b := range backends(s.backends) {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{b.Addr.Addr().String()}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)},
		})
	}
	return svc, slice
}

// newProxy builds a lane whose router is a node with a real kube-proxy, in nftables mode, of a cluster with these Services.
func newProxy(ctx context.Context, env *bench.Env, services []service) (*lane, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	l, err := newLane(env.Cleanup)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "packets-")
	if err != nil {
		return nil, err
	}
	env.Cleanup(func() { _ = os.RemoveAll(dir) })
	processes := supervise.New(dir, func(d *supervise.DeathError) { env.Logf("%v", d) })
	env.Cleanup(processes.KillAll)
	plane, err := controlplane.Start(ctx, controlplane.Config{
		Dir: dir, Tool: controlplane.DefaultPath().Find, Supervisor: processes,
		NodeName: nodeName, NodeIP: netip.MustParseAddr(routerAddr), ClusterCIDR: clientNet,
	})
	if err != nil {
		return nil, fmt.Errorf("start an API server: %w", err)
	}
	client, err := kubernetes.NewForConfig(plane.Admin)
	if err != nil {
		return nil, err
	}
	if err := create(ctx, client, services); err != nil {
		return nil, err
	}
	if err := l.relay(env.Cleanup, strings.TrimPrefix(plane.Admin.Host, "https://")); err != nil {
		return nil, err
	}
	spec, err := plane.ProxySpec(controlplane.ProxyNFTables)
	if err != nil {
		return nil, err
	}
	spec.Path, spec.Args = "/bin/sh", append([]string{"-c", `exec ip netns exec "$0" "$@"`, l.router.Name, spec.Path}, spec.Args...)
	if err := processes.Start(spec); err != nil {
		return nil, err
	}
	if err := l.awaitProxy(ctx, services); err != nil {
		return nil, fmt.Errorf("wait for kube-proxy's rules: %w; its log ends:\n%s", err, supervise.Tail(filepath.Join(dir, controlplane.Proxy+".log"), 20))
	}
	return l, nil
}

// create creates the node and the Services.
func create(ctx context.Context, client kubernetes.Interface, services []service) error {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: routerAddr}}},
	}
	if _, err := client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		return err
	}
	// The API server makes it at its start, a moment after it is ready.
	err := wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		_, err := client.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
		return err == nil, nil
	})
	if err != nil {
		return fmt.Errorf("wait for namespace %s: %w", namespace, err)
	}
	for _, s := range services {
		svc, slice := s.objects()
		if _, err := client.CoreV1().Services(namespace).Create(ctx, svc, metav1.CreateOptions{}); err != nil {
			return err
		}
		if _, err := client.DiscoveryV1().EndpointSlices(namespace).Create(ctx, slice, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// relay makes an address of this namespace reachable in the router's, at the same address.
func (l *lane) relay(undo func(func()), address string) error {
	var listener net.Listener
	err := l.router.Do(func() (err error) {
		listener, err = net.Listen("tcp", address)
		return err
	})
	if err != nil {
		return err
	}
	undo(func() { _ = listener.Close() })
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			go join(near, address)
		}
	}()
	return nil
}

// join copies between a connection and a new one until both have ended.
func join(near net.Conn, address string) {
	defer near.Close()
	far, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer far.Close()
	var both errgroup.Group
	for _, way := range [][2]net.Conn{{near, far}, {far, near}} {
		both.Go(func() error {
			_, err := io.Copy(way[0], way[1])
			way[0].Close()
			return err
		})
	}
	_ = both.Wait() // Whatever ended it: kube-proxy connects again.
}

// awaitProxy waits until all endpoints of all ports are in kube-proxy's rules.
func (l *lane) awaitProxy(ctx context.Context, services []service) error {
	want := 0
	for _, s := range services {
		if s.backends > 1 || s.affinity.ClientIP { // else there is nothing to draw
			want += s.ports * s.backends
		}
	}
	got, last := 0, error(nil)
	err := wait.PollUntilContextCancel(ctx, 200*time.Millisecond, true, func(context.Context) (bool, error) {
		var out string
		out, last = run(l.router.Name, "", "nft", "list", "table", "ip", "kube-proxy") // It is not there at first.
		got = drawn(out)
		return got == want, nil
	})
	if err != nil {
		return fmt.Errorf("%d endpoints of %d: %w", got, want, errors.Join(err, last))
	}
	return nil
}

// drawn counts what the rules of a table draw lots among.
func drawn(table string) (n int) {
	for line := range strings.Lines(table) {
		if _, lots, ok := strings.Cut(line, "numgen random mod "); ok {
			n += strings.Count(lots, " : ")
		}
	}
	return n
}
