// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"net/netip"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
)

// Every VPC of the specs uses these: addresses in different VPCs may be the same, and most specs prove it by the way.
var (
	vpcPrefix  = netip.MustParsePrefix("10.1.0.0/24")
	vpcGateway = netip.MustParseAddr("10.1.0.1")
	lanAddress = netip.MustParseAddr("10.1.0.254")
)

// Network is a VPC with one Subnet and a NAT gateway.
type Network struct {
	s *Scene
	// Name is the VPC's and the gateway's.
	Name string
	// Subnet is the Subnet's name: Kube-OVN takes no Subnet with the name of a VPC.
	Subnet string
	// Prefix is the Subnet's, LanIP the gateway's address in it.
	Prefix netip.Prefix
	LanIP  netip.Addr
}

// Network makes a VPC with a Subnet and a NAT gateway.
func (s *Scene) Network(ctx context.Context, suffix string) *Network {
	GinkgoHelper()
	n := s.NetworkWithoutGateway(ctx, suffix)
	n.MakeGateway(ctx, 1)
	return n
}

// NetworkWithoutGateway makes a VPC with a Subnet.
func (s *Scene) NetworkWithoutGateway(ctx context.Context, suffix string) *Network {
	GinkgoHelper()
	name := s.Name + "-" + suffix
	n := &Network{s: s, Name: name, Subnet: name + "-net", Prefix: vpcPrefix, LanIP: lanAddress}
	vpcs := s.KubeOvn.KubeovnV1().Vpcs()
	_, err := vpcs.Create(ctx, &kubeovnv1.Vpc{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name},
		Spec: kubeovnv1.VpcSpec{
			// What the VPC's Pods send elsewhere, their answers included, goes by way of the gateway.
			StaticRoutes: []*kubeovnv1.StaticRoute{{Policy: "policyDst", CIDR: "0.0.0.0/0", NextHopIP: n.LanIP.String()}},
		},
	}, metav1.CreateOptions{})
	must(err, "create VPC %s", n.Name)
	s.track("VPC "+n.Name, deletion(vpcs, n.Name), nil)
	s.MakeSubnet(ctx, n.Subnet, n.Name, n.Prefix, vpcGateway)
	return n
}

// MakeSubnet makes a Subnet of a VPC. The NAT gateway's address is kept free where it is the Subnet's.
func (s *Scene) MakeSubnet(ctx context.Context, name, vpc string, prefix netip.Prefix, gateway netip.Addr) {
	GinkgoHelper()
	subnets := s.KubeOvn.KubeovnV1().Subnets()
	exclude := []string{gateway.String()}
	if prefix.Contains(lanAddress) {
		exclude = append(exclude, lanAddress.String())
	}
	_, err := subnets.Create(ctx, &kubeovnv1.Subnet{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: kubeovnv1.SubnetSpec{
			Vpc: vpc, Provider: "ovn", Protocol: "IPv4", CIDRBlock: prefix.String(), Gateway: gateway.String(),
			ExcludeIps: exclude,
		},
	}, metav1.CreateOptions{})
	must(err, "create Subnet %s", name)
	s.track("Subnet "+name, deletion(subnets, name), nil)
}

// MakeGateway makes the network's NAT gateway.
func (n *Network) MakeGateway(ctx context.Context, replicas int32) {
	GinkgoHelper()
	gateways := n.s.KubeOvn.KubeovnV1().VpcNatGateways()
	gateway := &kubeovnv1.VpcNatGateway{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name},
		Spec: kubeovnv1.VpcNatGatewaySpec{
			Vpc: n.Name, Subnet: n.Subnet, LanIP: n.LanIP.String(), ExternalSubnets: []string{ExternalSubnet}, Replicas: replicas,
		},
	}
	_, err := gateways.Create(ctx, gateway, metav1.CreateOptions{})
	must(err, "create VpcNatGateway %s", n.Name)
	n.s.track("VpcNatGateway "+n.Name, deletion(gateways, n.Name), presence(gateways, n.Name))
}

// WaitGateway waits until the network's gateway is ready.
func (n *Network) WaitGateway(ctx context.Context) {
	GinkgoHelper()
	Wait(ctx, func(g Gomega, ctx context.Context) {
		gateway, err := n.s.KubeOvn.KubeovnV1().VpcNatGateways().Get(ctx, n.Name, metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(gateway.Status.Ready).To(BeTrue(), "VpcNatGateway %s should be ready", n.Name)
	}).Should(Succeed())
}

// EIP makes an IptablesEIP on the network's gateway, without waiting for its address, and returns its name.
func (n *Network) EIP(ctx context.Context, suffix string) string {
	GinkgoHelper()
	name := n.Name + "-" + suffix
	eips := n.s.KubeOvn.KubeovnV1().IptablesEIPs()
	_, err := eips.Create(ctx, &kubeovnv1.IptablesEIP{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       kubeovnv1.IptablesEIPSpec{NatGwDp: n.Name, ExternalSubnet: ExternalSubnet},
	}, metav1.CreateOptions{})
	must(err, "create IptablesEIP %s", name)
	n.s.track("IptablesEIP "+name, deletion(eips, name), presence(eips, name))
	return name
}

// EIPAddress waits until an EIP is ready and returns its address.
func (s *Scene) EIPAddress(ctx context.Context, name string) netip.Addr {
	GinkgoHelper()
	var addr netip.Addr
	Wait(ctx, func(g Gomega, ctx context.Context) {
		eip, err := s.KubeOvn.KubeovnV1().IptablesEIPs().Get(ctx, name, metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(eip.Status.Ready).To(BeTrue(), "IptablesEIP %s should be ready", name)
		addr, err = netip.ParseAddr(eip.Status.IP)
		g.Expect(err).NotTo(HaveOccurred())
	}).Should(Succeed())
	return addr
}

// Rule makes a DNAT rule by hand.
func (s *Scene) Rule(ctx context.Context, name string, spec kubeovnv1.IptablesDnatRuleSpec) *kubeovnv1.IptablesDnatRule {
	GinkgoHelper()
	rules := s.KubeOvn.KubeovnV1().IptablesDnatRules()
	rule, err := rules.Create(ctx, &kubeovnv1.IptablesDnatRule{
		ObjectMeta: metav1.ObjectMeta{Name: s.Name + "-" + name}, Spec: spec,
	}, metav1.CreateOptions{})
	must(err, "create rule %s", name)
	s.track("rule "+rule.Name, deletion(rules, rule.Name), presence(rules, rule.Name))
	return rule
}

var networkAttachments = schema.GroupVersionResource{Group: "k8s.cni.cncf.io", Version: "v1", Resource: "network-attachment-definitions"}

// MakeAttachment makes a NetworkAttachmentDefinition of Kube-OVN's in the scene's namespace.
func (s *Scene) MakeAttachment(ctx context.Context, name string) {
	GinkgoHelper()
	_, err := s.Dynamic.Resource(networkAttachments).Namespace(s.Namespace).Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
		"metadata": map[string]any{"name": name},
		"spec": map[string]any{"config": `{"cniVersion": "0.3.0", "type": "kube-ovn", ` +
			`"server_socket": "/run/openvswitch/kube-ovn-daemon.sock", "provider": "` + s.Provider(name) + `"}`},
	}}, metav1.CreateOptions{})
	must(err, "create NetworkAttachmentDefinition %s", name)
}

// Provider is how the annotations of a NIC begin that is attached by a NetworkAttachmentDefinition of the scene.
func (s *Scene) Provider(attachment string) string { return attachment + "." + s.Namespace + ".ovn" }

// Attached are the annotations of a Pod with a second NIC in a Subnet.
func (s *Scene) Attached(attachment, subnet string) map[string]string {
	return map[string]string{
		"k8s.v1.cni.cncf.io/networks":                            s.Namespace + "/" + attachment,
		s.Provider(attachment) + ".kubernetes.io/logical_switch": subnet,
	}
}

// Primary are the annotations of a Pod whose only NIC is in a Subnet.
func Primary(subnet string) map[string]string {
	return map[string]string{"ovn.kubernetes.io/logical_switch": subnet}
}

// Address is the address of a Pod's NIC by its provider; invalid while it has none.
func Address(pod *corev1.Pod, provider string) netip.Addr {
	addr, err := netip.ParseAddr(pod.Annotations[provider+".kubernetes.io/ip_address"])
	if err != nil {
		return netip.Addr{}
	}
	return addr
}

// PatchRule changes a rule by a merge patch.
func (s *Scene) PatchRule(ctx context.Context, name, patch string) {
	GinkgoHelper()
	_, err := s.KubeOvn.KubeovnV1().IptablesDnatRules().Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	must(err, "patch rule %s", name)
}

// WaitRule waits until a rule is ready and returns it.
func (s *Scene) WaitRule(ctx context.Context, name string) *kubeovnv1.IptablesDnatRule {
	GinkgoHelper()
	var rule *kubeovnv1.IptablesDnatRule
	Wait(ctx, func(g Gomega, ctx context.Context) {
		var err error
		rule, err = s.KubeOvn.KubeovnV1().IptablesDnatRules().Get(ctx, name, metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(rule.Status.Ready).To(BeTrue(), "rule %s should be ready: %+v", name, rule.Status.Conditions)
	}).Should(Succeed())
	return rule
}
