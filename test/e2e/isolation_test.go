// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/netip"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	. "github.com/kubeovn/kube-ovn/test/e2e/framework"
)

var _ = Describe("Two gateways in two VPCs whose Pods have the same addresses", func() {
	It("never see each other's traffic", Lab, func(ctx SpecContext) {
		const connections = 60
		s := cluster.NewScene(ctx)
		type side struct {
			net     *Network
			eip     string
			addr    netip.Addr
			pods    []corev1.Pod
			gateway *corev1.Pod
			inside  Client
		}
		var sides []*side
		for _, name := range []string{"a", "b"} {
			x := &side{net: s.Network(ctx, name)}
			x.eip = x.net.EIP(ctx, "web")
			s.Deployment(ctx, Workload{Name: name, Replicas: 2, Annotations: Primary(x.net.Subnet)})
			s.Service(ctx, name, x.eip, []corev1.ServicePort{TCP(80), UDP(53)})
			sides = append(sides, x)
		}
		for i, x := range sides {
			name := string('a' + rune(i))
			x.addr, x.pods = s.WaitExternalIP(ctx, name), s.Pods(ctx, name, 2)
			x.gateway = s.GatewayPod(ctx, x.net.Name)
			x.inside = s.ClientIn(ctx, "client-"+name, x.net.Subnet)
			s.WaitRules(ctx, name, Addresses(x.pods, ovn), TCP(80), UDP(53))
			WaitAnswers(ctx, s.Outside(ctx), At(x.addr, TCP(80)), Names(x.pods)...)
			WaitAnswers(ctx, x.inside, At(x.addr, UDP(53)), Names(x.pods)...)
		}
		Expect(Addresses(sides[0].pods, ovn)).To(ConsistOf(Addresses(sides[1].pods, ovn)), "the Pods should have the same addresses")
		Expect(sides[0].addr).NotTo(Equal(sides[1].addr))

		for i, x := range sides {
			other := sides[1-i]
			By("traffic to " + x.net.Name)
			// What arrives where, by what only this side's traffic has: its EIP in the gateways, any new connection in the Pods.
			toEIP := fmt.Sprintf("ip daddr %s", x.addr)
			gateway, otherGateway := s.CountIn(ctx, x.gateway, toEIP+" "+NewConnections(TCP(80))), s.CountIn(ctx, other.gateway, toEIP)
			var pods, otherPods []*Counter
			arriving := NewConnections(corev1.ServicePort{Port: HTTPPort, Protocol: corev1.ProtocolTCP})
			for j := range x.pods {
				pods = append(pods, s.CountIn(ctx, &x.pods[j], arriving))
				otherPods = append(otherPods, s.CountIn(ctx, &other.pods[j], "ip protocol { tcp, udp }"))
			}
			for _, client := range []Client{s.Outside(ctx), x.inside} {
				for _, port := range []corev1.ServicePort{TCP(80), UDP(53)} {
					Expect(AskAll(ctx, client, At(x.addr, port), connections).Who()).To(HaveLen(2))
				}
			}
			Expect(gateway.Packets(ctx)).To(Equal(2*connections), "new TCP connections in the EIP's own gateway")
			Expect(otherGateway.Packets(ctx)).To(BeZero(), "packets to the EIP in the other gateway")
			arrived := 0
			for j := range pods {
				arrived += pods[j].Packets(ctx)
				Expect(otherPods[j].Packets(ctx)).To(BeZero(), "packets in a Pod of the other VPC")
			}
			Expect(arrived).To(Equal(2*connections), "new TCP connections in the Pods")
		}
	})
})

var _ = Describe("Backends with two NICs", func() {
	It("answer by the gateway although their default route is elsewhere", func(ctx SpecContext) {
		s := cluster.NewScene(ctx)
		net := s.Network(ctx, "a")
		eip := net.EIP(ctx, "web")
		s.MakeAttachment(ctx, "attached")
		s.Deployment(ctx, Workload{Name: "web", Replicas: 3, Annotations: s.Attached("attached", net.Subnet)})
		ports := []corev1.ServicePort{TCP(80), UDP(53)}
		s.Service(ctx, "web", eip, ports)
		addr, pods := s.WaitExternalIP(ctx, "web"), s.Pods(ctx, "web", 3)
		backends := Addresses(pods, s.Provider("attached"))
		s.WaitRules(ctx, "web", backends, ports...)
		gateway := s.GatewayPod(ctx, net.Name)
		s.WaitHolds(ctx, gateway, addr, Masqueraded(ShareOf(addr, TCP(80), backends)), Masqueraded(ShareOf(addr, UDP(53), backends)))

		for _, client := range []Client{s.Outside(ctx), s.ClientIn(ctx, "inside", net.Subnet)} {
			for _, port := range ports {
				target := At(addr, port)
				WaitAnswers(ctx, client, target, Names(pods)...)
				ExpectEven(AskAll(ctx, client, target, 90), Names(pods))
				seen, err := client.Ask(ctx, target, AskClientIP, 3)
				Expect(err).NotTo(HaveOccurred())
				for _, source := range seen {
					Expect(netip.MustParseAddrPort(source).Addr()).To(Equal(net.LanIP), "what the backends see of %s", client.Name())
				}
			}
		}
	})

	It("see the client's own address where the NIC in the VPC has the default route", func(ctx SpecContext) {
		s := cluster.NewScene(ctx)
		net := s.Network(ctx, "a")
		eip := net.EIP(ctx, "web")
		s.MakeAttachment(ctx, "attached")
		annotations := s.Attached("attached", net.Subnet)
		annotations[s.Provider("attached")+".kubernetes.io/default_route"] = "true"
		s.Deployment(ctx, Workload{Name: "web", Replicas: 2, Annotations: annotations})
		s.Service(ctx, "web", eip, []corev1.ServicePort{TCP(80)})
		addr, pods := s.WaitExternalIP(ctx, "web"), s.Pods(ctx, "web", 2)
		backends := Addresses(pods, s.Provider("attached"))
		s.WaitHolds(ctx, s.GatewayPod(ctx, net.Name), addr, ShareOf(addr, TCP(80), backends))
		outside := s.Outside(ctx)
		WaitAnswers(ctx, outside, At(addr, TCP(80)), Names(pods)...)
		seen, err := outside.Ask(ctx, At(addr, TCP(80)), AskClientIP, 1)
		Expect(err).NotTo(HaveOccurred())
		Expect(netip.MustParseAddrPort(seen[0]).Addr()).NotTo(Equal(net.LanIP))
	})
})
