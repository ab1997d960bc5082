// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kubeovn/kube-ovn/pkg/lbservice"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
	"github.com/kubeovn/kube-ovn/test/lab/controlplane"

	. "github.com/kubeovn/kube-ovn/test/e2e/framework"
)

// nics counts the new connections that arrive at each address of Pods.
type nics map[string][]*Counter

const primary, attached = "primary", "attached"

// countNICs counts what arrives at the addresses of Pods' NICs, by the NIC's kind.
func countNICs(ctx context.Context, s *Scene, pods []corev1.Pod, providers map[string]string) nics {
	GinkgoHelper()
	counters := nics{}
	for kind, provider := range providers {
		for i := range pods {
			counters[kind] = append(counters[kind], s.CountIn(ctx, &pods[i], fmt.Sprintf("ip daddr %s %s",
				Address(&pods[i], provider), NewConnections(corev1.ServicePort{Port: HTTPPort, Protocol: corev1.ProtocolTCP}))))
		}
	}
	return counters
}

func (n nics) counts(ctx context.Context) map[string]int {
	GinkgoHelper()
	counts := map[string]int{}
	for kind, counters := range n {
		for _, counter := range counters {
			counts[kind] += counter.Packets(ctx)
		}
	}
	return counts
}

// ask has a client make connections, and says how many arrived at each kind of NIC.
func (n nics) ask(ctx context.Context, client Client, to Target, connections int) map[string]int {
	GinkgoHelper()
	before := n.counts(ctx)
	AskAll(ctx, client, to, connections)
	arrived := n.counts(ctx)
	for kind := range arrived {
		arrived[kind] -= before[kind]
	}
	return arrived
}

// sources are the addresses that backends saw of a client.
func sources(ctx context.Context, client Client, to Target, count int) []netip.Addr {
	GinkgoHelper()
	seen, err := trySources(ctx, client, to, count)
	Expect(err).NotTo(HaveOccurred(), "%s", client.Name())
	return seen
}

func trySources(ctx context.Context, client Client, to Target, count int) ([]netip.Addr, error) {
	answers, err := client.Ask(ctx, to, AskClientIP, count)
	var seen []netip.Addr
	for _, answer := range answers {
		seen = append(seen, netip.MustParseAddrPort(answer).Addr())
	}
	slices.SortFunc(seen, netip.Addr.Compare)
	return slices.Compact(seen), err
}

var _ = Describe("The two ways in", Serial, Lab, func() {
	for _, mode := range []string{controlplane.ProxyNFTables, controlplane.ProxyIPTables} {
		It("lead to the NIC that each kind of client reaches, with kube-proxy in mode "+mode, func(ctx SpecContext) {
			const connections = 12
			if mode != controlplane.ProxyNFTables {
				Expect(cluster.Lab.SetProxyMode(ctx, mode)).To(Succeed())
				DeferCleanup(func(ctx context.Context) {
					Expect(cluster.Lab.SetProxyMode(ctx, controlplane.ProxyNFTables)).To(Succeed())
				})
			}
			s := cluster.NewScene(ctx)
			net := s.Network(ctx, "a")
			eip := net.EIP(ctx, "web")
			s.MakeAttachment(ctx, attached)
			s.Deployment(ctx, Workload{Name: "web", Replicas: 2, Annotations: s.Attached(attached, net.Subnet)})
			s.Service(ctx, "web", eip, []corev1.ServicePort{TCP(80)})
			addr, pods := s.WaitExternalIP(ctx, "web"), s.Pods(ctx, "web", 2)
			to := At(addr, TCP(80))
			ipMode := s.GetService(ctx, "web").Status.LoadBalancer.Ingress[0].IPMode
			Expect(ipMode).To(HaveValue(Equal(corev1.LoadBalancerIPModeVIP)), "the Pods' primary addresses are in the default VPC")
			counters := countNICs(ctx, s, pods, map[string]string{primary: ovn, attached: s.Provider(attached)})

			for _, kind := range []struct {
				client Client
				nic    string
			}{
				{s.Outside(ctx), attached},
				{s.ClientIn(ctx, "in-vpc", net.Subnet), attached},
				{s.Node(), primary},
				{s.ClientIn(ctx, "in-default-vpc", DefaultSubnet), primary},
			} {
				WaitAnswers(ctx, kind.client, to, Names(pods)...)
				// Before kube-proxy has heard of the Service, nodes go by the network, and are answered as well.
				Wait(ctx, func(ctx context.Context) map[string]int { return counters.ask(ctx, kind.client, to, 2) }).Should(HaveKeyWithValue(kind.nic, 2))
				arrived := counters.ask(ctx, kind.client, to, connections)
				Expect(arrived).To(Equal(map[string]int{primary: 0, attached: 0, kind.nic: connections}), "connections of %s, by NIC", kind.client.Name())
				seen := sources(ctx, kind.client, to, 4)
				Measured{
					What:   "who answers " + strings.TrimPrefix(kind.client.Name(), "in-") + ", kube-proxy in mode " + mode,
					Result: fmt.Sprintf("%d of %d by the %s NIC; it sees %v", connections, connections, kind.nic, seen),
				}.Report()
			}
		})
	}

	It("are one where the nodes reach no backend: ipMode Proxy, and the black hole is gone", func(ctx SpecContext) {
		b := newBalancer(ctx, 2, TCP(80))
		Wait(ctx, func(ctx context.Context) *corev1.LoadBalancerIPMode {
			return b.GetService(ctx, "web").Status.LoadBalancer.Ingress[0].IPMode
		}).Should(HaveValue(Equal(corev1.LoadBalancerIPModeProxy)))
		for _, client := range []Client{b.Node(), b.ClientIn(ctx, "in-default-vpc", DefaultSubnet), b.Outside(ctx)} {
			WaitAnswers(ctx, client, At(b.Addr, TCP(80)), Names(b.Pods)...)
			AskAll(ctx, client, At(b.Addr, TCP(80)), 20)
		}

		By("what it would be with ipMode VIP: another provider's Service at the same address")
		rule := b.Rule(ctx, "byhand", shareRule(b.EIP, 81, b.Backends()[0]))
		b.WaitRule(ctx, rule.Name)
		WaitAnswers(ctx, b.Node(), At(b.Addr, TCP(81)), b.Pods[0].Name)
		b.Service(ctx, "foreign", "", []corev1.ServicePort{TCP(81)}, Selecting("web"), func(service *corev1.Service) {
			service.Annotations, service.Spec.LoadBalancerClass = nil, ptr.To("example.com/other")
		})
		foreign := b.GetService(ctx, "foreign")
		foreign.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: b.Addr.String(), IPMode: ptr.To(corev1.LoadBalancerIPModeVIP)}}
		_, err := b.Kube.CoreV1().Services(b.Namespace).UpdateStatus(ctx, foreign, metav1.UpdateOptions{})
		Expect(err).NotTo(HaveOccurred())
		silent(ctx, b.Node(), At(b.Addr, TCP(81)))
		AskAll(ctx, b.Outside(ctx), At(b.Addr, TCP(81)), 5)
		AskAll(ctx, b.Node(), At(b.Addr, TCP(80)), 5)
	})
})

var _ = Describe("The client's address", func() {
	It("is kept where answers come back by themselves, and as the Service says", func(ctx SpecContext) {
		b := newBalancer(ctx, 1, TCP(80))
		b.MakeAttachment(ctx, attached)
		b.Pod(ctx, Workload{Name: "dual", Annotations: b.Attached(attached, b.Net.Subnet)})
		b.Service(ctx, "dual", b.EIP, []corev1.ServicePort{TCP(81)})
		outside, inside := b.Outside(ctx), b.ClientIn(ctx, "inside", b.Net.Subnet)
		single, dual := At(b.Addr, TCP(80)), At(b.Addr, TCP(81))
		WaitAnswers(ctx, outside, dual, "dual")
		own := []netip.Addr{clientAddress}
		gateway := []netip.Addr{b.Net.LanIP}
		says := func(service, value string) {
			GinkgoHelper()
			b.ChangeService(ctx, service, func(svc *corev1.Service) { svc.Annotations[sharenat.SourceIPAnnotation] = value })
		}
		becomes := func(to Target, want []netip.Addr) {
			GinkgoHelper()
			Wait(ctx, func(ctx context.Context) ([]netip.Addr, error) { return trySources(ctx, outside, to, 2) }).Should(Equal(want))
		}

		By("auto")
		Expect(sources(ctx, outside, single, 3)).To(Equal(own))
		Expect(sources(ctx, outside, dual, 3)).To(Equal(gateway))
		Expect(sources(ctx, inside, single, 3)).To(Equal([]netip.Addr{b.Addr}), "a VPC client comes back by way of the EIP")
		Expect(sources(ctx, inside, dual, 3)).To(Equal(gateway))
		By("masquerade")
		says("web", "masquerade")
		becomes(single, gateway)
		says("web", "auto")
		becomes(single, own)
		By("preserve, which a NIC without the default route cannot answer")
		says("dual", "preserve")
		silent(ctx, outside, dual)
		By("a value that does not exist counts as auto, and is told")
		says("dual", "presreve")
		becomes(dual, gateway)
		b.WaitEvents(ctx, "dual", lbservice.EventNote, `="presreve" is not auto, preserve or masquerade`)
	})

	It("is a backend's own, or not, and it reaches the Service all the same, itself included", func(ctx SpecContext) {
		b := newBalancer(ctx, 2, TCP(80), UDP(53))
		b.MakeAttachment(ctx, attached)
		annotations := b.Attached(attached, b.Net.Subnet)
		annotations[b.Provider(attached)+".kubernetes.io/default_route"] = "true"
		b.Deployment(ctx, Workload{Name: "dual", Replicas: 2, Annotations: annotations})
		b.Service(ctx, "dual", b.EIP, []corev1.ServicePort{TCP(81)})
		dual := b.Scene.Pods(ctx, "dual", 2)
		for i := range b.Pods {
			for _, port := range b.Ports {
				WaitAnswers(ctx, b.ClientOf(ctx, &b.Pods[i]), At(b.Addr, port), Names(b.Pods)...)
			}
			WaitAnswers(ctx, b.ClientOf(ctx, &dual[i]), At(b.Addr, TCP(81)), Names(dual)...)
		}
	})
})

// clientAddress is the first outside client's in the lab.
var clientAddress = netip.MustParseAddr("203.0.113.101")

var _ = Describe("Fields of a Service that a gateway takes its own way", Lab, func() {
	It("loadBalancerSourceRanges: the gateway lets in who is in them, and says so", func(ctx SpecContext) {
		b := newBalancer(ctx, 1, TCP(80), UDP(53))
		clients := b.OutsideClients(ctx, 2)
		ranges := func(prefixes ...string) {
			b.ChangeService(ctx, "web", func(service *corev1.Service) { service.Spec.LoadBalancerSourceRanges = prefixes })
		}
		ranges(clientAddress.String()+"/32", "2001:db8::/32")
		for _, port := range b.Ports {
			silent(ctx, clients[1], At(b.Addr, port))
			AskAll(ctx, clients[0], At(b.Addr, port), 5)
		}
		b.WaitTold(ctx, "web", lbservice.EventNote, "the gateway lets in clients of "+clientAddress.String()+"/32 only")
		By("only IPv6 ranges let nobody in")
		ranges("2001:db8::/32")
		b.WaitReason(ctx, "web", lbservice.ReasonNoClientAllowed)
		silent(ctx, clients[0], At(b.Addr, TCP(80)))
		b.WaitTold(ctx, "web", lbservice.EventNotServed, "no IPv4 range")
		By("everybody")
		ranges()
		for _, port := range b.Ports {
			WaitAnswers(ctx, clients[1], At(b.Addr, port), Names(b.Pods)...)
		}
	})

	It("externalTrafficPolicy and internalTrafficPolicy Local: every ready backend takes traffic, and one event a field says so", func(ctx SpecContext) {
		b := newBalancer(ctx, 2, TCP(80))
		b.ChangeService(ctx, "web", func(service *corev1.Service) {
			service.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
			service.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
		})
		b.WaitEvents(ctx, "web", lbservice.EventNote, "externalTrafficPolicy Local is served as Cluster", "internalTrafficPolicy Local is served as Cluster")
		b.Scale(ctx, "web", 3)
		b.Settle(ctx, 3)
		b.WaitEvents(ctx, "web", lbservice.EventNote, "externalTrafficPolicy Local is served as Cluster", "internalTrafficPolicy Local is served as Cluster")
		Expect(Condition(b.GetService(ctx, "web"), lbservice.ConditionReady).Message).To(ContainSubstring("Local"))
	})
})
