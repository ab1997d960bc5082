// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/client/clientset/versioned/fake"
	"github.com/kubeovn/kube-ovn/pkg/lbservice"
	"github.com/kubeovn/kube-ovn/pkg/natgateway"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

const (
	systemNamespace = "kube-system"
	namespace       = "tenant"
	vpc             = "tenant"
	targetPort      = 8080
	servicesPerEIP  = 50
)

// Size of a pretended cluster. Each Service has its own backends.
type Size struct{ Services, Backends, Gateways int }

// Rules there are.
func (s Size) Rules() int { return s.Services * s.Backends }

// Cluster is one in which all is in place: Services with their slices, Pods and rules, gateways that hold them.
type Cluster struct {
	Size

	Kube *kubefake.Clientset
	Ovn  *fake.Clientset

	mu       sync.Mutex
	listings map[types.NamespacedName][]byte
	calls    map[string]int
}

// NewCluster makes one.
func NewCluster(size Size) (*Cluster, error) {
	c := &Cluster{
		Size: size,
		Kube: kubefake.NewClientset(
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: "ovn-vpc-nat-config"}, Data: map[string]string{"image": "gateway"}},
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: "ovn-vpc-nat-gw-config"}, Data: map[string]string{"enable-vpc-nat-gw": "true"}},
		),
		Ovn:      fake.NewSimpleClientset(),
		listings: map[types.NamespacedName][]byte{},
		calls:    map[string]int{},
	}
	if err := c.addNetworks(); err != nil {
		return nil, err
	}
	shares := map[int][]sharenat.Share{}
	for i := range size.Services {
		share, err := c.addService(i)
		if err != nil {
			return nil, err
		}
		gateway := c.gatewayOf(i)
		shares[gateway] = append(shares[gateway], share)
	}
	for i := range size.Gateways {
		if err := c.addGateway(i, shares[i]); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (c *Cluster) eipOf(service int) int     { return service / servicesPerEIP }
func (c *Cluster) gatewayOf(service int) int { return c.eipOf(service) % c.Gateways }
func (c *Cluster) eips() int                 { return (c.Services + servicesPerEIP - 1) / servicesPerEIP }

func eipName(i int) string     { return "eip-" + strconv.Itoa(i) }
func gatewayName(i int) string { return "gw-" + strconv.Itoa(i) }

// address is the i-th of a private network.
func address(network byte, i int) netip.Addr {
	i++
	return netip.AddrFrom4([4]byte{network, byte(i >> 16), byte(i >> 8), byte(i)}) //nolint:gosec // as meant
}

var (
	innerSubnet = &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "inner"}, Spec: kubeovnv1.SubnetSpec{
		Vpc: vpc, Provider: "ovn", CIDRBlock: "10.0.0.0/8", Gateway: "10.255.255.254",
	}}
	outerSubnet = &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: sharenat.DefaultExternalSubnet}, Spec: kubeovnv1.SubnetSpec{
		Provider: "ovn-vpc-external-network.kube-system", CIDRBlock: "100.0.0.0/8", Gateway: "100.255.255.254",
	}}
)

func (c *Cluster) addNetworks() error {
	for _, subnet := range []*kubeovnv1.Subnet{innerSubnet, outerSubnet} {
		if err := c.addOvn("subnets", subnet); err != nil {
			return err
		}
	}
	return c.addOvn("vpcs", &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: vpc}})
}

func (c *Cluster) addOvn(resource string, object runtime.Object) error {
	return c.Ovn.Tracker().Create(kubeovnv1.SchemeGroupVersion.WithResource(resource), object, "")
}

func (c *Cluster) eip(i int) *kubeovnv1.IptablesEIP {
	addr := address(100, i).String()
	return &kubeovnv1.IptablesEIP{
		ObjectMeta: metav1.ObjectMeta{
			Name: eipName(i), UID: types.UID(eipName(i)), Finalizers: []string{sharenat.Finalizer},
			Labels: map[string]string{
				"ovn.kubernetes.io/subnet": sharenat.DefaultExternalSubnet, sharenat.EIPAddressLabel: addr, sharenat.GatewayLabel: gatewayName(i % c.Gateways),
			},
		},
		Spec: kubeovnv1.IptablesEIPSpec{NatGwDp: gatewayName(i % c.Gateways)},
		Status: kubeovnv1.IptablesEIPStatus{
			Ready: true, IP: addr, Nat: "dnat",
			Conditions: kubeovnv1.Conditions{{Type: kubeovnv1.Ready, Status: corev1.ConditionTrue, Reason: natgateway.ReasonAddressAllocated}},
		},
	}
}

func gateway(i int) *kubeovnv1.VpcNatGateway {
	return &kubeovnv1.VpcNatGateway{
		ObjectMeta: metav1.ObjectMeta{Name: gatewayName(i), UID: types.UID(gatewayName(i)), Finalizers: []string{sharenat.Finalizer}},
		Spec:       kubeovnv1.VpcNatGatewaySpec{Vpc: vpc, Subnet: innerSubnet.Name, LanIP: address(10, 1<<22+i).String(), Replicas: 1},
		Status:     kubeovnv1.VpcNatGatewayStatus{Ready: true},
	}
}

// addGateway makes a gateway with its pod and EIPs, which holds these identities.
func (c *Cluster) addGateway(i int, shares []sharenat.Share) error {
	if err := c.addOvn("vpc-nat-gateways", gateway(i)); err != nil {
		return err
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: systemNamespace, Name: "vpc-nat-gw-" + gatewayName(i) + "-0", UID: types.UID("pod-" + gatewayName(i)),
			Annotations: map[string]string{sharenat.GatewayPodAnnotation: gatewayName(i), sharenat.GatewayInitAnnotation: "true"},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{
			Name: "vpc-nat-gw", ContainerID: "pretended://" + strconv.Itoa(i), State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
		}}},
	}
	if err := c.Kube.Tracker().Add(pod); err != nil {
		return err
	}
	listing := bytes.NewBufferString("gateway-state v1\ninit eth0,net1\n")
	for e := i; e < c.eips(); e += c.Gateways {
		if err := c.addOvn("iptables-eips", c.eip(e)); err != nil {
			return err
		}
		fmt.Fprintf(listing, "eip %s/8\n", address(100, e))
	}
	for k := range shares {
		fmt.Fprintf(listing, "identity %s %d %s %s %d\n", shares[k].EIP, shares[k].Port, shares[k].Protocol, shares[k].Digest(), len(shares[k].Backends))
	}
	listing.WriteString("end\n")
	c.listings[types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}] = listing.Bytes()
	return nil
}

// addService makes a Service with all that belongs to it, and tells what its gateway holds of it.
func (c *Cluster) addService(i int) (sharenat.Share, error) {
	s := c.snapshot(i)
	for _, slice := range s.Slices {
		if err := c.Kube.Tracker().Add(slice); err != nil {
			return sharenat.Share{}, err
		}
	}
	outcome := lbservice.Desired(s)
	share := sharenat.Share{Identity: sharenat.Identity{EIP: outcome.Address, Port: uint16(s.Service.Spec.Ports[0].Port), Protocol: "tcp"}} //nolint:gosec // a port
	for k := range outcome.Rules {
		rule := ruleOf(&outcome.Rules[k], s.Gateway.Name)
		parsed, err := sharenat.ParseRule(rule, outcome.Address)
		if err != nil {
			return share, err
		}
		share.Backends = append(share.Backends, parsed.Backend)
		s.OwnRules = append(s.OwnRules, rule)
		if err := c.addOvn("iptables-dnat-rules", rule); err != nil {
			return share, err
		}
	}
	share.Normalize()
	s.EIPRules = s.OwnRules
	status, _ := lbservice.DecideStatus(s, lbservice.Desired(s), metav1.Now())
	s.Service.Status = *status
	return share, c.Kube.Tracker().Add(s.Service)
}

// snapshot is all that there is of a Service before it has rules.
func (c *Cluster) snapshot(i int) *lbservice.Snapshot {
	name := "service-" + strconv.Itoa(i)
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: types.UID(name), Annotations: map[string]string{sharenat.EIPAnnotation: eipName(c.eipOf(i))},
		},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{
			Name: "http", Port: int32(1000 + i%servicesPerEIP), Protocol: corev1.ProtocolTCP, //nolint:gosec // small
		}}},
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: types.UID("slice-" + name), Labels: map[string]string{discoveryv1.LabelServiceName: name},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("http"), Protocol: ptr.To(corev1.ProtocolTCP), Port: ptr.To[int32](targetPort)}},
	}
	s := &lbservice.Snapshot{
		Key: sharenat.OwnerOfService(svc), Service: svc, EIP: c.eip(c.eipOf(i)), Gateway: gateway(c.gatewayOf(i)),
		Claimants: []*corev1.Service{svc}, Slices: []*discoveryv1.EndpointSlice{slice},
		Pods: map[string]lbservice.Pod{}, SubnetVPCs: map[string]string{innerSubnet.Name: vpc},
	}
	for k := range c.Backends {
		pod := c.pod(i*c.Backends + k)
		s.Pods[pod.Name] = lbservice.ParsePod(pod)
		_ = c.Kube.Tracker().Add(pod) // A Pod of that name is a Pod of that kind.
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{pod.Status.PodIP}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: pod.Name, UID: pod.UID},
		})
	}
	return s
}

func (c *Cluster) pod(i int) *corev1.Pod {
	name, addr := "pod-"+strconv.Itoa(i), address(10, i).String()
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name), Annotations: map[string]string{
			"ovn.kubernetes.io/logical_switch": innerSubnet.Name, "ovn.kubernetes.io/ip_address": addr, "ovn.kubernetes.io/allocated": "true",
			"ovn.kubernetes.io/cidr": innerSubnet.Spec.CIDRBlock, "ovn.kubernetes.io/gateway": innerSubnet.Spec.Gateway, "ovn.kubernetes.io/mac_address": "00:00:00:00:00:00",
		}},
		Spec:   corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "registry.k8s.io/pause:3.10"}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: addr, PodIPs: []corev1.PodIP{{IP: addr}}},
	}
}

// ruleOf is a rule as the API server has it once it is programmed.
func ruleOf(want *lbservice.Rule, gateway string) *kubeovnv1.IptablesDnatRule {
	return &kubeovnv1.IptablesDnatRule{
		ObjectMeta: metav1.ObjectMeta{
			Name: want.Name, UID: types.UID(want.Name), Labels: maps.Clone(want.Labels), Annotations: maps.Clone(want.Annotations), Finalizers: []string{sharenat.Finalizer},
		},
		Spec: want.Spec,
		Status: kubeovnv1.IptablesDnatRuleStatus{
			Ready: true, V4ip: want.Labels[sharenat.EIPAddressLabel], NatGwDp: gateway, Protocol: want.Spec.Protocol,
			ExternalPort: want.Spec.ExternalPort, InternalIP: want.Spec.InternalIP, InternalPort: want.Spec.InternalPort,
			Conditions: kubeovnv1.Conditions{{Type: kubeovnv1.Ready, Status: corev1.ConditionTrue, Reason: natgateway.ReasonProgrammed}},
		},
	}
}

// Exec implements natgateway.Executor: gateways say what they hold, and do what they are told without doing anything.
func (c *Cluster) Exec(_ context.Context, call natgateway.Call) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls[call.Verb]++
	if call.Verb == sharenat.ListVerb {
		return c.listings[call.Pod], nil
	}
	return nil, nil
}

var _ natgateway.Executor = (*Cluster)(nil)

// Calls counts those of a verb; of any other when it begins with "!".
func (c *Cluster) Calls() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.calls)
}

// Writes lists what was written since the cluster was made, but for the gateways' own workloads, of which fakes know little.
func (c *Cluster) Writes() []string {
	var out []string
	for _, action := range slices.Concat(c.Kube.Actions(), c.Ovn.Actions()) {
		switch action.GetVerb() {
		case "get", "list", "watch":
			continue
		}
		if resource := action.GetResource().Resource; resource != "statefulsets" && resource != "vpc-nat-gateways" {
			out = append(out, action.GetVerb()+" "+resource)
		}
	}
	return out
}
