// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeovn/kube-ovn/test/lab"
	"github.com/kubeovn/kube-ovn/test/lab/fabric"
)

// holdScript takes nat-gateway.sh's lock, says so, and keeps it as long as its input lasts.
const (
	heldFile   = "/tmp/held-by-a-spec"
	holdScript = `dir=/run; [[ -d /etc/kube-ovn && -w /etc/kube-ovn ]] && dir=/etc/kube-ovn
exec 9>"$dir/nat-gateway.lock"; flock 9; touch ` + heldFile + `; cat; rm ` + heldFile
)

// multipathGroup is the id of the nexthop group in an outside client; its members come after it.
const multipathGroup = 100

// Multipath plays the router before a gateway of several pods: in the outside clients, a route to an EIP over the pods'
// addresses in the external network, as a router has it that learns the EIP from each pod's BGP speaker. Connections are spread by
// the client's address alone, and stay where they are when another pod goes (a resilient group).
type Multipath struct {
	c    *Cluster
	eip  netip.Addr
	pods map[string]int
	all  []string
}

// Multipath routes an EIP over gateway pods.
func (c *Cluster) Multipath(ctx context.Context, eip netip.Addr, pods []corev1.Pod) *Multipath {
	GinkgoHelper()
	m := &Multipath{c: c, eip: eip, pods: map[string]int{}}
	DeferCleanup(m.remove)
	for _, client := range lab.Clients {
		RunIn(ctx, fabric.Namespace{Name: client}, "sysctl", "-qw", "net.ipv4.fib_multipath_hash_policy=0")
	}
	for i := range pods {
		m.add(ctx, &pods[i])
	}
	m.route(ctx)
	for _, client := range lab.Clients {
		RunIn(ctx, fabric.Namespace{Name: client}, "ip", "route", "replace", eip.String()+"/32", "nhid", strconv.Itoa(multipathGroup))
	}
	return m
}

// ExternalAddress is a gateway pod's own address in the external network.
func ExternalAddress(pod *corev1.Pod) netip.Addr {
	GinkgoHelper()
	addr := Address(pod, ExternalSubnet+"."+SystemNamespace)
	Expect(addr.IsValid()).To(BeTrue(), "address of gateway pod %s in the external network", pod.Name)
	return addr
}

func (m *Multipath) add(ctx context.Context, pod *corev1.Pod) {
	GinkgoHelper()
	id := multipathGroup + 1 + len(m.all)
	m.pods[pod.Name] = id
	m.all = append(m.all, pod.Name)
	for _, client := range lab.Clients {
		// An interface of a real network announces its address when it comes up; a neighbour may still know the one that had it before.
		RunIn(ctx, fabric.Namespace{Name: client}, "ip", "neigh", "flush", "to", ExternalAddress(pod).String())
		RunIn(ctx, fabric.Namespace{Name: client}, "ip", "nexthop", "replace", "id", strconv.Itoa(id), "via", ExternalAddress(pod).String(), "dev", "eth0")
	}
}

func (m *Multipath) route(ctx context.Context) {
	GinkgoHelper()
	var members []string
	for _, name := range m.all {
		if id, ok := m.pods[name]; ok {
			members = append(members, strconv.Itoa(id))
		}
	}
	for _, client := range lab.Clients {
		RunIn(ctx, fabric.Namespace{Name: client}, "ip", "nexthop", "replace", "id", strconv.Itoa(multipathGroup),
			"group", strings.Join(members, "/"), "type", "resilient", "buckets", "64", "idle_timer", "120")
	}
}

// Withdraw takes a pod's route away, as the router does when it is told, or finds out, that the pod is gone.
func (m *Multipath) Withdraw(ctx context.Context, pod string) {
	GinkgoHelper()
	delete(m.pods, pod)
	m.route(ctx)
}

// Announce adds a pod's route.
func (m *Multipath) Announce(ctx context.Context, pod *corev1.Pod) {
	GinkgoHelper()
	m.add(ctx, pod)
	m.route(ctx)
}

func (m *Multipath) remove(ctx context.Context) {
	for _, client := range lab.Clients {
		RunIn(ctx, fabric.Namespace{Name: client}, "ip", "nexthop", "flush")
	}
}

// AddClientAddresses gives an outside client more addresses, for the time of the spec.
func (c *Cluster) AddClientAddresses(ctx context.Context, client string, addrs ...netip.Addr) {
	GinkgoHelper()
	for _, addr := range addrs {
		RunIn(ctx, fabric.Namespace{Name: client}, "ip", "address", "add", addr.String()+"/24", "dev", "eth0")
		DeferCleanup(func(ctx context.Context) {
			RunIn(ctx, fabric.Namespace{Name: client}, "ip", "address", "del", addr.String()+"/24", "dev", "eth0")
		})
	}
}

// MakeSeveral makes the network's gateway of several pods, waits for them, and has the VPC route to all of them.
func (n *Network) MakeSeveral(ctx context.Context, replicas int) []corev1.Pod {
	GinkgoHelper()
	n.MakeGateway(ctx, int32(replicas))
	pods := n.s.GatewayPods(ctx, n.Name, replicas)
	n.RouteTo(ctx, pods)
	return pods
}

// RouteTo sends what leaves the VPC to gateway pods, to each a part.
func (n *Network) RouteTo(ctx context.Context, pods []corev1.Pod) {
	GinkgoHelper()
	var routes []string
	for i := range pods {
		routes = append(routes, fmt.Sprintf(`{"policy":"policyDst","cidr":"0.0.0.0/0","nextHopIP":%q}`, Address(&pods[i], "ovn")))
	}
	_, err := n.s.KubeOvn.KubeovnV1().Vpcs().Patch(ctx, n.Name, types.MergePatchType,
		[]byte(`{"spec":{"staticRoutes":[`+strings.Join(routes, ",")+`]}}`), metav1.PatchOptions{})
	must(err, "route VPC %s to its gateway's pods", n.Name)
}

// HoldLock keeps nat-gateway.sh in a gateway pod waiting, as a slow machine would, until the function that it returns is called.
func (c *Cluster) HoldLock(ctx context.Context, pod *corev1.Pod) (release func()) {
	GinkgoHelper()
	stdin, hold := io.Pipe()
	done := make(chan error, 1)
	go func() {
		_, err := c.Exec(ctx, pod, stdin, "bash", "-c", holdScript)
		done <- err
	}()
	Wait(ctx, func(ctx context.Context) error {
		_, err := c.Exec(ctx, pod, nil, "test", "-e", heldFile)
		return err
	}).Should(Succeed(), "the lock of gateway pod %s should be held", pod.Name)
	var once sync.Once
	release = func() {
		GinkgoHelper()
		once.Do(func() {
			_ = hold.Close() // A pipe's end closes without an error.
			must(<-done, "let go of the lock of gateway pod %s", pod.Name)
		})
	}
	DeferCleanup(release)
	return release
}
