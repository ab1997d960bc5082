// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/kubeovn/kube-ovn/test/lab"
	"github.com/kubeovn/kube-ovn/test/traffic"

	. "github.com/kubeovn/kube-ovn/test/e2e/framework"
)

// lingering is how long a Pod of these specs goes on serving when it is told to end, as one does that drains; in seconds. It is far
// above what programming a gateway takes, also on a machine that does other things.
const lingering = 8

// churnBalancer is a balancer whose Pods drain before they end.
func churnBalancer(ctx context.Context, replicas int, gated bool, ports ...corev1.ServicePort) *balancer {
	GinkgoHelper()
	s := cluster.NewScene(ctx)
	b := &balancer{Scene: s, Net: s.Network(ctx, "a"), Ports: ports}
	b.EIP = b.Net.EIP(ctx, "web")
	w := drainingWorkload("web", replicas, b.Net)
	s.Service(ctx, "web", b.EIP, ports)
	if gated {
		for _, pod := range s.Gated(ctx, w) {
			s.SetGate(ctx, pod.Name, true)
		}
	} else {
		s.Deployment(ctx, w)
	}
	b.Settle(ctx, replicas)
	return b
}

func drainingWorkload(name string, replicas int, net *Network) Workload {
	return Workload{
		Name: name, Replicas: int32(replicas), Annotations: Primary(net.Subnet),
		Args: []string{fmt.Sprintf("--delay-shutdown=%d", lingering)}, Grace: 2 * lingering, Probe: true,
	}
}

// load is constant traffic to web's first port: new connections from one client, long-lived ones from another.
type load struct {
	b       *balancer
	stream  *traffic.Process[traffic.Stream]
	hold    *traffic.Process[traffic.Hold]
	endings *Endings
}

const longLived = 20

func startLoad(ctx context.Context, b *balancer) *load {
	GinkgoHelper()
	return startPatientLoad(ctx, b, traffic.DefaultTimeout)
}

// startPatientLoad is startLoad with clients that give up later.
func startPatientLoad(ctx context.Context, b *balancer, timeout time.Duration) *load {
	GinkgoHelper()
	endpoint := traffic.Endpoint{Target: At(b.Addr, b.Ports[0]).AddrPort.String(), Timeout: timeout}
	l := &load{b: b, endings: b.Endings(ctx)}
	l.hold = StartTraffic[traffic.Hold](ctx, b.Cluster, lab.Clients[1], traffic.HoldOptions{Endpoint: endpoint, Connections: longLived})
	_, err := l.hold.Until(ctx, func(h traffic.Hold) bool { return open(h) == longLived })
	Expect(err).NotTo(HaveOccurred())
	l.stream = StartTraffic[traffic.Stream](ctx, b.Cluster, lab.Clients[0], traffic.StreamOptions{Endpoint: endpoint, Rate: 100})
	l.more(ctx, 50)
	return l
}

// open is the number of connections that stand and whose backend is known.
func open(h traffic.Hold) int {
	n := 0
	for _, count := range h.Open {
		n += count
	}
	return n
}

// more waits for so many new connections.
func (l *load) more(ctx context.Context, count int) {
	GinkgoHelper()
	now, err := l.stream.Now(ctx)
	Expect(err).NotTo(HaveOccurred())
	_, err = l.stream.Until(ctx, func(s traffic.Stream) bool { return s.Attempts >= now.Attempts+count })
	Expect(err).NotTo(HaveOccurred())
}

// stop ends the load, after some more of it, and gives what came of it.
func (l *load) stop(ctx context.Context) (traffic.Stream, traffic.Hold) {
	GinkgoHelper()
	l.more(ctx, 50)
	stream, err := l.stream.Stop(ctx)
	Expect(err).NotTo(HaveOccurred())
	hold, err := l.hold.Stop(ctx)
	Expect(err).NotTo(HaveOccurred())
	return stream, hold
}

// lostNothing ends the load and wants no new connection lost, and no long-lived one cut while its Pod served.
func (l *load) lostNothing(ctx context.Context, scenario string) {
	GinkgoHelper()
	stream, hold := l.stop(ctx)
	var cuts []traffic.Cut
	for _, cut := range hold.Cuts {
		ending, ends := l.endings.Of(cut.Backend)
		// The Pod is told to end a moment after its deletion is seen, and clocks of both are the same.
		if !ends || cut.At.Before(ending.Add((lingering-1)*time.Second)) {
			cuts = append(cuts, cut)
		}
	}
	Measured{What: "churn: " + scenario, Result: fmt.Sprintf(
		"%d new connections, lost: %d; %d long-lived, cut while the Pod lived: %d (ended with their Pods: %d); new ones to %d backends",
		stream.Attempts, stream.Failed, hold.Opened, len(cuts), hold.Cut-len(cuts), len(stream.Backends))}.Report()
	Expect(stream.Failed).To(BeZero(), "new connections lost: %+v, outages %+v", stream.Failures, stream.Outages)
	Expect(cuts).To(BeEmpty(), "long-lived connections cut while their Pods lived")
	Expect(hold.NotOpened.Count()).To(BeZero(), "connections in place of ended ones: %+v", hold.NotOpened)
	Expect(hold.Moved).To(BeZero(), "a connection changed its backend")
}

var _ = Describe("No connection is lost", Lab, func() {
	It("in rolling updates", func(ctx SpecContext) {
		b := churnBalancer(ctx, 4, false, TCP(80))
		l := startLoad(ctx, b)
		for range 2 {
			b.Rollout(ctx, "web")
		}
		b.Settle(ctx, 4)
		l.lostNothing(ctx, "2 rolling updates of 4 Pods")
	})

	It("when scaled up and down", func(ctx SpecContext) {
		b := churnBalancer(ctx, 2, false, TCP(80))
		l := startLoad(ctx, b)
		for _, replicas := range []int{6, 1, 4, 2} {
			b.Scale(ctx, "web", int32(replicas))
			b.Settle(ctx, replicas)
		}
		l.lostNothing(ctx, "scaled 2 → 6 → 1 → 4 → 2")
	})

	It("when backends are ready now and then", func(ctx SpecContext) {
		b := churnBalancer(ctx, 3, true, TCP(80))
		l := startLoad(ctx, b)
		flaps := 0
		for range 3 {
			for i := range b.Pods {
				b.SetGate(ctx, b.Pods[i].Name, false)
				b.SetGate(ctx, b.Pods[(i+1)%3].Name, true)
				flaps++
				if i == 1 { // Once a round it is waited for; the others come as quickly as they can be written.
					ready := slices.Delete(slices.Clone(b.Backends()), i, i+1)
					b.WaitHolds(ctx, b.Gateway, b.Addr, ShareOf(b.Addr, TCP(80), ready))
				}
				b.SetGate(ctx, b.Pods[i].Name, true)
			}
		}
		b.Settle(ctx, 3)
		l.lostNothing(ctx, fmt.Sprintf("readiness of 3 Pods flaps %d times", flaps))
	})

	It("when a node is drained", func(ctx SpecContext) {
		// The lab has one node, so it plays the one that is drained and the one that takes over: the Pods are evicted, as kubectl
		// drain does it, by a budget that lets one be missing, and come back on the same node.
		b := churnBalancer(ctx, 3, false, TCP(80))
		_, err := b.Kube.PolicyV1().PodDisruptionBudgets(b.Namespace).Create(ctx, &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Name: "web"},
			Spec: policyv1.PodDisruptionBudgetSpec{
				Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, MaxUnavailable: ptr.To(intstr.FromInt32(1)),
			},
		}, metav1.CreateOptions{})
		Expect(err).NotTo(HaveOccurred())
		l := startLoad(ctx, b)
		for _, name := range Names(b.Pods) {
			Wait(ctx, func(ctx context.Context) error {
				err := b.Kube.CoreV1().Pods(b.Namespace).EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: b.Namespace, Name: name}})
				if apierrors.IsNotFound(err) {
					return nil
				}
				return err
			}).Should(Succeed(), "evict %s", name)
		}
		before := Names(b.Pods)
		Wait(ctx, func(g Gomega, ctx context.Context) {
			list, err := b.Kube.CoreV1().Pods(b.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(Names(list.Items)).NotTo(ContainElement(BeElementOf(before)))
		}).Should(Succeed())
		b.Settle(ctx, 3)
		l.lostNothing(ctx, "node drained, 3 Pods evicted one by one")
	})

	It("when all backends are exchanged at once, and there is no gap", func(ctx SpecContext) {
		b := churnBalancer(ctx, 3, false, TCP(80))
		b.Deployment(ctx, drainingWorkload("green", 3, b.Net))
		green := b.Scene.Pods(ctx, "green", 3)
		l := startLoad(ctx, b)
		for _, pods := range []struct {
			workload string
			pods     []corev1.Pod
		}{{"green", green}, {"web", b.Pods}, {"green", green}} {
			b.ChangeService(ctx, "web", Selecting(pods.workload))
			b.WaitHolds(ctx, b.Gateway, b.Addr, ShareOf(b.Addr, TCP(80), Addresses(pods.pods, ovn)))
			WaitAnswers(ctx, b.Outside(ctx), At(b.Addr, TCP(80)), Names(pods.pods)...)
		}
		l.lostNothing(ctx, "all 3 backends exchanged for 3 others, 3 times")
	})

	It("when the rewrite of an identity fails: the old one goes on working", func(ctx SpecContext) {
		b := churnBalancer(ctx, 1, false, TCP(80))
		b.wrapNFT(ctx, 2)
		l := startLoad(ctx, b)
		healthy := b.Ruleset(ctx, b.Gateway)
		b.breakNFT(ctx)
		calls := b.Calls(ctx, b.Net.Name)
		b.Scale(ctx, "web", 3)
		pods := b.Scene.Pods(ctx, "web", 3)
		Wait(ctx, func(ctx context.Context) Calls { return b.Calls(ctx, b.Net.Name).Since(calls) }).
			Should(Satisfy(func(c Calls) bool { return c["nft-dnat-map-sync"] >= 3 }), "calls, each of which fails")
		Expect(b.Ruleset(ctx, b.Gateway)).To(Equal(healthy), "the gateway should be as before, to the last rule")
		rules, err := b.Rules(ctx, "web")
		Expect(err).NotTo(HaveOccurred())
		ready := 0
		for i := range rules {
			if rules[i].Status.Ready {
				ready++
			}
		}
		Expect([]int{len(rules), ready}).To(Equal([]int{3, 2}), "rules, and those that are ready")
		l.more(ctx, 100)
		b.repairNFT(ctx)
		b.Settle(ctx, 3)
		Expect(Names(pods)).To(Equal(Names(b.Pods)))
		l.lostNothing(ctx, "rewrites of the identity fail, then succeed")
	})

	It("when the only backend is not ready for a while: long-lived ones go on, and end with their Pod", func(ctx SpecContext) {
		b := churnBalancer(ctx, 1, true, TCP(80), UDP(53))
		to, pod := At(b.Addr, TCP(80)), b.Pods[0]
		hold := StartTraffic[traffic.Hold](ctx, b.Cluster, lab.Clients[1], traffic.HoldOptions{Endpoint: traffic.Endpoint{Target: to.AddrPort.String()}, Connections: longLived})
		_, err := hold.Until(ctx, func(h traffic.Hold) bool { return open(h) == longLived })
		Expect(err).NotTo(HaveOccurred())
		for range 3 {
			b.SetGate(ctx, pod.Name, false)
			b.WaitHolds(ctx, b.Gateway, b.Addr)
			refusedAtOnce(ctx, b.OutsideClients(ctx, 3), to)
			b.SetGate(ctx, pod.Name, true)
			b.Settle(ctx, 1)
		}
		for range 5 {
			b.SetGate(ctx, pod.Name, false)
			b.SetGate(ctx, pod.Name, true)
		}
		b.Settle(ctx, 1)
		b.SetGate(ctx, pod.Name, false)
		b.WaitHolds(ctx, b.Gateway, b.Addr)
		requests, err := hold.Now(ctx)
		Expect(err).NotTo(HaveOccurred())
		// Each has been answered on its old connection since.
		held, err := hold.Until(ctx, func(h traffic.Hold) bool { return h.Requests >= requests.Requests+3*longLived })
		Expect(err).NotTo(HaveOccurred())
		Expect(held.Cuts).To(BeEmpty())
		Expect(held.Opened).To(Equal(longLived))
		Measured{What: "churn: readiness of the only Pod flaps 9 times", Result: fmt.Sprintf("%d long-lived, cut while the Pod lived: %d", held.Opened, held.Cut)}.Report()

		b.DeletePod(ctx, pod.Name, 0)
		Within(ctx, Soon, func(ctx context.Context) []connection { return b.connections(ctx, "tcp", b.Backends()[0]) }).
			Should(BeEmpty(), "conntrack entries of the Pod that has ended")
	})
})

// refuses is there while wrapNFT's nft refuses.
const refuses = "/usr/local/sbin/nft.refuses"

// wrapNFT puts a program in front of nft in the gateway that can be told to have transactions refused as the kernel does: what it is given is
// sent to the kernel, with a rule at its end that the kernel does not take. The next call has begun already, with an nft that waits for
// input: a change makes that one do its work, and be followed by one that is wrapped.
func (b *balancer) wrapNFT(ctx context.Context, replicas int) {
	GinkgoHelper()
	wrapper := `#!/bin/bash
for nft in /usr/sbin/nft /sbin/nft /usr/bin/nft; do [[ -x $nft ]] && break; done
[[ $1 == -f ]] || exec $nft "$@"
input=$(cat "$2" && echo end) || exit
{ printf '%s' "${input%end}"; [[ ! -e ` + refuses + ` ]] || echo "add rule ip kube-ovn no-such-chain accept"; } | exec $nft -f -
`
	_, err := b.Exec(ctx, b.Gateway, strings.NewReader(wrapper), "bash", "-ec", "cat >/usr/local/sbin/nft; chmod +x /usr/local/sbin/nft")
	Expect(err).NotTo(HaveOccurred())
	b.Scale(ctx, "web", int32(replicas))
	b.Settle(ctx, replicas)
}

func (b *balancer) breakNFT(ctx context.Context) {
	GinkgoHelper()
	_, err := b.Exec(ctx, b.Gateway, nil, "touch", refuses)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(b.repairNFT)
}

func (b *balancer) repairNFT(ctx context.Context) {
	GinkgoHelper()
	_, err := b.Exec(ctx, b.Gateway, nil, "rm", "-f", refuses)
	Expect(err).NotTo(HaveOccurred())
}

// refusedAtOnce wants new connections refused, by a reset or a port-unreachable, not by a time-out.
func refusedAtOnce(ctx context.Context, clients []Client, to Target) {
	GinkgoHelper()
	for _, client := range clients {
		began := time.Now()
		_, err := client.Ask(ctx, to, AskHostname, 1)
		took := time.Since(began)
		Expect(err).To(HaveOccurred(), "%s asks %s", client.Name(), to)
		Expect(traffic.KindOf(err)).To(Equal(traffic.Refused), "%v", err)
		// Far less than any time-out, and much more than it takes on a machine that has something else to do.
		Expect(took).To(BeNumerically("<", 500*time.Millisecond), "until %s was refused at %s", client.Name(), to)
	}
}

// connection is a conntrack entry: its number, which stays the same as long as it lives, and its client's port.
type connection struct{ ID, Client string }

// connections are the gateway's conntrack entries to a backend, without those of connections that are over.
func (b *balancer) connections(ctx context.Context, protocol string, backend netip.Addr) []connection {
	GinkgoHelper()
	text := RunIn(ctx, b.Space(ctx, b.Gateway), "conntrack", "-L", "-f", "ipv4", "-p", protocol, "-o", "id", "--orig-dst", b.Addr.String(), "--reply-src", backend.String())
	var found []connection
	for line := range strings.Lines(text) {
		if strings.Contains(line, " TIME_WAIT ") || strings.Contains(line, " CLOSE ") {
			continue
		}
		c := connection{}
		for field := range strings.FieldsSeq(line) {
			key, value, _ := strings.Cut(field, "=")
			switch {
			case key == "id":
				c.ID = value
			case key == "src" && c.Client == "":
				c.Client = value
			case key == "sport" && !strings.Contains(c.Client, ":"):
				c.Client += ":" + value
			}
		}
		found = append(found, c)
	}
	return found
}

var _ = Describe("Without a ready endpoint", Lab, func() {
	It("those that serve while they end take the traffic, and when none is left, clients are refused at once", func(ctx SpecContext) {
		b := churnBalancer(ctx, 2, false, TCP(80), UDP(53))
		ending := b.Backends()
		l := startLoad(ctx, b)
		began := time.Now()
		b.Scale(ctx, "web", 0)
		Wait(ctx, func(g Gomega) {
			for _, pod := range Names(b.Pods) {
				_, ends := l.endings.Of(pod)
				g.Expect(ends).To(BeTrue(), "Pod %s should be on its way out", pod)
			}
		}).Should(Succeed())
		stream, err := l.stream.Until(ctx, func(traffic.Stream) bool { return time.Since(began) > (lingering-1)*time.Second })
		Expect(err).NotTo(HaveOccurred())
		_, err = l.stream.Stop(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(stream.Failed).To(BeZero(), "new connections lost while Pods that end still serve: %+v", stream.Failures)
		Measured{What: "churn: all Pods on their way out", Result: fmt.Sprintf("%d new connections, lost: %d", stream.Attempts, stream.Failed)}.Report()

		Wait(ctx, func(ctx context.Context) ([]corev1.Pod, error) {
			list, err := b.Kube.CoreV1().Pods(b.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
			return list.Items, err
		}).Should(BeEmpty(), "Pods")
		b.Settle(ctx, 0)
		clients := b.OutsideClients(ctx, 3)
		refusedAtOnce(ctx, clients, At(b.Addr, TCP(80)))
		refusedAtOnce(ctx, clients, At(b.Addr, UDP(53)))
		for _, backend := range ending {
			Within(ctx, Soon, func(ctx context.Context) []connection { return b.connections(ctx, "tcp", backend) }).
				Should(BeEmpty(), "conntrack entries of Pods that have ended")
		}
	})
})

// Serial, and judged by the median: a second is a promise about the product, not about a machine that runs other specs beside it.
var _ = Describe("UDP from one source port", Serial, Lab, func() {
	It("reaches a living backend within a second after its own has left, and TCP connections to others are not touched", func(ctx SpecContext) {
		const rounds = 5
		b := newBalancer(ctx, 3, UDP(53), TCP(80))
		hold := StartTraffic[traffic.Hold](ctx, b.Cluster, lab.Clients[1], traffic.HoldOptions{Endpoint: traffic.Endpoint{Target: At(b.Addr, TCP(80)).AddrPort.String()}, Connections: longLived})
		_, err := hold.Until(ctx, func(h traffic.Hold) bool { return open(h) == longLived })
		Expect(err).NotTo(HaveOccurred())
		flow := StartTraffic[traffic.Flow](ctx, b.Cluster, lab.Clients[0], traffic.FlowOptions{
			Endpoint: traffic.Endpoint{Target: At(b.Addr, UDP(53)).AddrPort.String()}, Port: 5353, Interval: 20 * time.Millisecond,
		})
		var times Durations
		// Since when a Pod has been meant by its rules. One that is made anew may get the address of the one that went while the gateway still
		// leads there; such a connection is none of its own, and ends with the old rule.
		meant := map[string]time.Time{}
		note := func() {
			for _, name := range Names(b.Pods) {
				if _, known := meant[name]; !known {
					meant[name] = time.Now()
				}
			}
		}
		note()
		for range rounds {
			now, err := flow.Until(ctx, func(f traffic.Flow) bool { return f.Backend != "" })
			Expect(err).NotTo(HaveOccurred())
			survivors := slices.DeleteFunc(slices.Clone(b.Pods), func(pod corev1.Pod) bool { return pod.Name == now.Backend })
			before := map[string][]connection{}
			for i := range survivors {
				before[survivors[i].Name] = b.connections(ctx, "tcp", Address(&survivors[i], ovn))
			}
			left := time.Now()
			b.DeletePod(ctx, now.Backend, 0)
			after, err := flow.Until(ctx, func(f traffic.Flow) bool { return f.Backend != now.Backend })
			Expect(err).NotTo(HaveOccurred())
			times = append(times, after.Changes[len(after.Changes)-1].At.Sub(left))
			b.Settle(ctx, 3)
			note()
			for i := range survivors {
				Expect(b.connections(ctx, "tcp", Address(&survivors[i], ovn))).To(ContainElements(asAny(before[survivors[i].Name])...), "conntrack entries of %s", survivors[i].Name)
			}
		}
		Measured{What: "UDP from one port: from the deletion of its backend, without grace, to the next answer", Result: times.String()}.Report()
		Expect(times.Median()).To(BeNumerically("<", time.Second), "%v", []time.Duration(times))
		held, err := hold.Stop(ctx)
		Expect(err).NotTo(HaveOccurred())
		present := Names(b.Pods)
		for _, cut := range held.Cuts {
			if since, ok := meant[cut.Backend]; ok && cut.At.After(since) {
				Expect(present).NotTo(ContainElement(cut.Backend), "a connection to a Pod that lives was cut")
			}
		}
	})

	It("reaches the first backend that a Service gets within a second, though it began before", func(ctx SpecContext) {
		b := newBalancer(ctx, 0, UDP(53))
		flow := StartTraffic[traffic.Flow](ctx, b.Cluster, lab.Clients[0], traffic.FlowOptions{
			Endpoint: traffic.Endpoint{Target: At(b.Addr, UDP(53)).AddrPort.String()}, Port: 5354, Interval: 20 * time.Millisecond,
		})
		var times Durations
		for range 3 {
			now, err := flow.Now(ctx)
			Expect(err).NotTo(HaveOccurred())
			_, err = flow.Until(ctx, func(f traffic.Flow) bool { return f.Lost >= now.Lost+10 })
			Expect(err).NotTo(HaveOccurred())
			came := b.firstEndpoint(ctx, "web")
			b.Scale(ctx, "web", 1)
			after, err := flow.Until(ctx, func(f traffic.Flow) bool { return f.Backend != now.Backend })
			Expect(err).NotTo(HaveOccurred())
			var at time.Time
			Eventually(ctx, came).WithTimeout(Timeout).Should(Receive(&at))
			times = append(times, after.Changes[len(after.Changes)-1].At.Sub(at))
			b.Settle(ctx, 1)
			b.Scale(ctx, "web", 0)
			b.Settle(ctx, 0)
		}
		Measured{What: "UDP from one port: from the Service's first endpoint to the first answer", Result: times.String()}.Report()
		Expect(times.Median()).To(BeNumerically("<", time.Second), "%v", []time.Duration(times))
	})
})

func asAny[T any](items []T) []any {
	result := make([]any, len(items))
	for i := range items {
		result[i] = items[i]
	}
	return result
}

// firstEndpoint sends the time when a Service, which has none, has a ready endpoint.
func (b *balancer) firstEndpoint(ctx context.Context, service string) <-chan time.Time {
	GinkgoHelper()
	watcher, err := b.Kube.DiscoveryV1().EndpointSlices(b.Namespace).Watch(ctx, metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=" + service})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(watcher.Stop)
	came := make(chan time.Time, 1)
	go func() {
		for event := range watcher.ResultChan() {
			if hasReady(event.Object) {
				came <- time.Now()
				return
			}
		}
	}()
	return came
}

var _ = Describe("An address that another tenant's Pod gets", Lab, func() {
	// The address is one that nobody gets by himself in these small Subnets.
	const address = "10.1.0.77"
	at := func(net *Network) map[string]string {
		annotations := maps.Clone(Primary(net.Subnet))
		annotations["ovn.kubernetes.io/ip_address"] = address
		return annotations
	}
	// talk is clients that have connections to web and go on.
	type talk struct {
		stream *traffic.Process[traffic.Stream]
		hold   *traffic.Process[traffic.Hold]
		flow   *traffic.Process[traffic.Flow]
	}
	// scene has Service web whose only Pod is "ours".
	scene := func(ctx context.Context) (*balancer, *talk) {
		GinkgoHelper()
		s := cluster.NewScene(ctx)
		b := &balancer{Scene: s, Net: s.Network(ctx, "a"), Ports: []corev1.ServicePort{TCP(80), UDP(53)}}
		b.EIP = b.Net.EIP(ctx, "web")
		b.Pods = []corev1.Pod{*s.Pod(ctx, Workload{Name: "ours", App: "web", Annotations: at(b.Net)})}
		s.Service(ctx, "web", b.EIP, b.Ports)
		b.Addr = b.WaitExternalIP(ctx, "web")
		b.Gateway = b.GatewayPod(ctx, b.Net.Name)
		b.WaitHolds(ctx, b.Gateway, b.Addr, b.Shares()...)
		tcp, udp := traffic.Endpoint{Target: At(b.Addr, TCP(80)).AddrPort.String()}, traffic.Endpoint{Target: At(b.Addr, UDP(53)).AddrPort.String()}
		t := &talk{
			stream: StartTraffic[traffic.Stream](ctx, b.Cluster, lab.Clients[0], traffic.StreamOptions{Endpoint: tcp, Rate: 50}),
			hold:   StartTraffic[traffic.Hold](ctx, b.Cluster, lab.Clients[1], traffic.HoldOptions{Endpoint: tcp, Connections: 10}),
			flow:   StartTraffic[traffic.Flow](ctx, b.Cluster, lab.Clients[2], traffic.FlowOptions{Endpoint: udp, Port: 5355, Interval: 20 * time.Millisecond}),
		}
		_, err := t.hold.Until(ctx, func(h traffic.Hold) bool { return open(h) == 10 })
		Expect(err).NotTo(HaveOccurred())
		_, err = t.flow.Until(ctx, func(f traffic.Flow) bool { return f.Answered > 10 })
		Expect(err).NotTo(HaveOccurred())
		return b, t
	}
	// quiet wants no packet of any client in their Pod for a second and a half, although the clients go on.
	quiet := func(ctx context.Context, b *balancer, t *talk, theirs *corev1.Pod) {
		GinkgoHelper()
		counter := b.CountIn(ctx, theirs, "ip saddr 203.0.113.0/24")
		sent, err := t.flow.Now(ctx)
		Expect(err).NotTo(HaveOccurred())
		_, err = t.flow.Until(ctx, func(f traffic.Flow) bool { return f.Sent >= sent.Sent+75 })
		Expect(err).NotTo(HaveOccurred())
		Expect(counter.Packets(ctx)).To(BeZero(), "packets of clients in another tenant's Pod")
	}

	It("gets it without the traffic of its last owner", func(ctx SpecContext) {
		b, t := scene(ctx)
		b.DeletePod(ctx, "ours")
		b.WaitRules(ctx, "web", nil)
		Wait(ctx, func(ctx context.Context) error {
			_, err := b.Kube.CoreV1().Pods(b.Namespace).Get(ctx, "ours", metav1.GetOptions{})
			return err
		}).Should(MatchError(apierrors.IsNotFound, "NotFound"))
		Within(ctx, Soon, func(ctx context.Context) []connection { return b.connections(ctx, "tcp", netip.MustParseAddr(address)) }).
			Should(BeEmpty(), "conntrack entries of the Pod that has ended")
		theirs := b.Pod(ctx, Workload{Name: "theirs", Annotations: at(b.Net)})
		quiet(ctx, b, t, theirs)
		stream, err := t.stream.Stop(ctx)
		Expect(err).NotTo(HaveOccurred())
		hold, err := t.hold.Stop(ctx)
		Expect(err).NotTo(HaveOccurred())
		flow, err := t.flow.Stop(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(stream.Backends).NotTo(HaveKey("theirs"))
		Expect(flow.Backends).NotTo(HaveKey("theirs"))
		Expect(hold.Open).NotTo(HaveKey("theirs"))
	})

	It("while the controller was down: the stale identity is gone before anything is reported ready", Serial, func(ctx SpecContext) {
		b, t := scene(ctx)
		b.StopController(ctx)
		b.DeletePod(ctx, "ours", 0)
		Wait(ctx, func(ctx context.Context) error {
			_, err := b.Kube.CoreV1().Pods(b.Namespace).Get(ctx, "ours", metav1.GetOptions{})
			return err
		}).Should(MatchError(apierrors.IsNotFound, "NotFound"))
		theirs := b.Pod(ctx, Workload{Name: "theirs", Annotations: at(b.Net)})
		// These come to be ready when the controller runs again.
		b.Service(ctx, "theirs", b.EIP, []corev1.ServicePort{TCP(81)})
		b.Rule(ctx, "byhand", shareRule(b.EIP, 82, netip.MustParseAddr(address)))

		removed := b.removals(ctx, At(b.Addr, TCP(80)))
		ready := b.firstReady(ctx)
		b.StartController(ctx)
		var gone, reported time.Time
		Eventually(ctx, ready).WithTimeout(Timeout).Should(Receive(&reported))
		Eventually(ctx, removed).WithTimeout(Timeout).Should(Receive(&gone))
		Expect(gone).To(BeTemporally("<", reported), "the stale identity should be gone before anything is ready")
		Measured{What: "controller start: first rule reported ready after the stale identity was gone", Result: reported.Sub(gone).Round(time.Millisecond).String()}.Report()
		quiet(ctx, b, t, theirs)
		WaitAnswers(ctx, b.Outside(ctx), At(b.Addr, TCP(81)), "theirs")
		refusedAtOnce(ctx, b.OutsideClients(ctx, 1), At(b.Addr, TCP(80)))
	})
})
