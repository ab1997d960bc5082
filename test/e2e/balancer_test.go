// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"net/netip"

	. "github.com/onsi/ginkgo/v2"
	corev1 "k8s.io/api/core/v1"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"

	. "github.com/kubeovn/kube-ovn/test/e2e/framework"
)

// ovn is the provider of a Pod's primary NIC.
const ovn = "ovn"

// balancer is the usual scene: Service "web" on an EIP of a network's gateway, with Pods in the network's Subnet.
type balancer struct {
	*Scene

	Net   *Network
	EIP   string
	Addr  netip.Addr
	Ports []corev1.ServicePort
	// Pods are web's, Gateway the gateway's.
	Pods    []corev1.Pod
	Gateway *corev1.Pod
}

// newBalancer makes a balancer and waits until the gateway holds all of it and every Pod answers.
func newBalancer(ctx context.Context, replicas int, ports ...corev1.ServicePort) *balancer {
	GinkgoHelper()
	s := cluster.NewScene(ctx)
	b := &balancer{Scene: s, Net: s.Network(ctx, "a"), Ports: ports}
	b.EIP = b.Net.EIP(ctx, "web")
	s.Deployment(ctx, Workload{Name: "web", Replicas: int32(replicas), Annotations: Primary(b.Net.Subnet)})
	s.Service(ctx, "web", b.EIP, ports)
	b.Settle(ctx, replicas)
	return b
}

// Settle waits until web has so many Pods, and the gateway holds exactly those.
func (b *balancer) Settle(ctx context.Context, replicas int) {
	GinkgoHelper()
	b.Pods = b.Scene.Pods(ctx, "web", replicas)
	b.Addr = b.WaitExternalIP(ctx, "web")
	b.Gateway = b.GatewayPod(ctx, b.Net.Name)
	b.WaitRules(ctx, "web", b.Backends(), b.Ports...)
	b.WaitHolds(ctx, b.Gateway, b.Addr, b.Shares()...)
	if replicas == 0 {
		return
	}
	for _, port := range b.Ports {
		WaitAnswers(ctx, b.Outside(ctx), At(b.Addr, port), Names(b.Pods)...)
	}
}

// Backends are the addresses of web's Pods.
func (b *balancer) Backends() []netip.Addr { return Addresses(b.Pods, ovn) }

// Shares is what the gateway should hold for web.
func (b *balancer) Shares() []sharenat.Share {
	GinkgoHelper()
	var shares []sharenat.Share
	if len(b.Pods) == 0 {
		return nil
	}
	for _, port := range b.Ports {
		shares = append(shares, ShareOf(b.Addr, port, b.Backends()))
	}
	return shares
}
