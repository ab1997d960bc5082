// SPDX-License-Identifier: Apache-2.0

package lbservice

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// The address plan of the tests.
//
//	EIP eip-a 203.0.113.10 on gateway gw-a, VPC vpc-a; eip-b 203.0.113.20 on gw-b, VPC vpc-b
//	Subnets   ovn-default 10.16.0.0/16 (ovn-cluster), sub-a 10.1.0.0/24 and sub-a2 10.1.1.0/24 (vpc-a), sub-b 10.2.0.0/24 (vpc-b)
//	Pods      single-NIC in sub-a: 10.1.0.x; dual-NIC: primary 10.16.0.x in ovn-default, attached 10.1.0.x by NAD net-a of namespace ns
const (
	testNamespace = "ns"
	testService   = "web"
	eipA, eipB    = "eip-a", "eip-b"
	eipAddrA      = "203.0.113.10"
	eipAddrB      = "203.0.113.20"
	gwA, gwB      = "gw-a", "gw-b"
	vpcA, vpcB    = "vpc-a", "vpc-b"
)

var testOwner = sharenat.Owner{Namespace: testNamespace, Name: testService}

func newService(name string, tweaks ...func(*corev1.Service)) *corev1.Service {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   testNamespace,
			Name:        name,
			UID:         types.UID("uid-svc-" + name),
			Annotations: map[string]string{sharenat.EIPAnnotation: eipA},
		},
		Spec: corev1.ServiceSpec{
			Type:  corev1.ServiceTypeLoadBalancer,
			Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(8080)}},
		},
	}
	if namespace, n, ok := strings.Cut(name, "/"); ok {
		svc.Namespace, svc.Name = namespace, n
	}
	for _, tweak := range tweaks {
		tweak(svc)
	}
	return svc
}

func withEIP(name string) func(*corev1.Service) {
	return func(svc *corev1.Service) { svc.Annotations[sharenat.EIPAnnotation] = name }
}

func withPorts(ports ...corev1.ServicePort) func(*corev1.Service) {
	return func(svc *corev1.Service) { svc.Spec.Ports = ports }
}

func withAnnotation(key, value string) func(*corev1.Service) {
	return func(svc *corev1.Service) { svc.Annotations[key] = value }
}

func withConditions(conditions ...metav1.Condition) func(*corev1.Service) {
	return func(svc *corev1.Service) { svc.Status.Conditions = append(svc.Status.Conditions, conditions...) }
}

func withIngress(ingress ...corev1.LoadBalancerIngress) func(*corev1.Service) {
	return func(svc *corev1.Service) { svc.Status.LoadBalancer.Ingress = ingress }
}

func deleting[T metav1.Object](obj T) T {
	obj.SetDeletionTimestamp(&metav1.Time{Time: testTime.Time})
	obj.SetFinalizers([]string{sharenat.Finalizer})
	return obj
}

func published(address string) metav1.Condition {
	return metav1.Condition{Type: sharenat.ConditionIngress, Status: metav1.ConditionTrue, Reason: reasonPublished, Message: address, LastTransitionTime: testTime}
}

var testTime = metav1.Unix(1700000000, 0)

func tcpPort(name string, port int32) corev1.ServicePort {
	return corev1.ServicePort{Name: name, Port: port, Protocol: corev1.ProtocolTCP}
}

func newEIP(name, address, gateway string, tweaks ...func(*kubeovnv1.IptablesEIP)) *kubeovnv1.IptablesEIP {
	eip := &kubeovnv1.IptablesEIP{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-eip-" + name)},
		Spec:       kubeovnv1.IptablesEIPSpec{NatGwDp: gateway},
		Status:     kubeovnv1.IptablesEIPStatus{Ready: address != "", IP: address},
	}
	for _, tweak := range tweaks {
		tweak(eip)
	}
	return eip
}

func withGrant(namespaces string) func(*kubeovnv1.IptablesEIP) {
	return func(eip *kubeovnv1.IptablesEIP) {
		eip.Annotations = map[string]string{sharenat.GrantAnnotation: namespaces}
	}
}

func newGateway(name, vpc string) *kubeovnv1.VpcNatGateway {
	return &kubeovnv1.VpcNatGateway{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-gw-" + name)},
		Spec:       kubeovnv1.VpcNatGatewaySpec{Vpc: vpc},
		Status:     kubeovnv1.VpcNatGatewayStatus{Ready: true},
	}
}

func newSubnet(name, vpc, provider string) *kubeovnv1.Subnet {
	return &kubeovnv1.Subnet{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-subnet-" + name)},
		Spec:       kubeovnv1.SubnetSpec{Vpc: vpc, Provider: provider},
	}
}

// newPod is a Pod past CNI, with a primary NIC.
func newPod(name, subnet, address string, tweaks ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: name, UID: types.UID("uid-" + name), Annotations: map[string]string{}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIP: strings.Split(address, ",")[0]},
	}
	if subnet != "" {
		withNIC("ovn", subnet, address)(pod)
	}
	for _, tweak := range tweaks {
		tweak(pod)
	}
	return pod
}

// withNIC writes a NIC's annotations as Kube-OVN does.
func withNIC(provider, subnet, address string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Annotations[provider+logicalSwitchSuffix] = subnet
		pod.Annotations[provider+allocatedSuffix] = "true"
		pod.Annotations[provider+ipAddressSuffix] = address
		pod.Annotations[provider+".kubernetes.io/mac_address"] = "00:00:00:00:00:01"
	}
}

func withPodAnnotation(key, value string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Annotations[key] = value }
}

// newDualPod is a Pod with a primary NIC in the default VPC and an attached one in vpc-a.
func newDualPod(name, primary, attached string, tweaks ...func(*corev1.Pod)) *corev1.Pod {
	return newPod(name, "ovn-default", primary, append([]func(*corev1.Pod){
		withPodAnnotation(networksAnnotation, "ns/net-a"), withNIC("net-a.ns.ovn", "sub-a", attached),
	}, tweaks...)...)
}

func slicePort(name string, number int32) discoveryv1.EndpointPort {
	return discoveryv1.EndpointPort{Name: ptr.To(name), Port: ptr.To(number), Protocol: ptr.To(corev1.ProtocolTCP)}
}

func newSlice(name, service string, ports []discoveryv1.EndpointPort, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: testNamespace, Name: name, UID: types.UID("uid-slice-" + name),
			Labels: map[string]string{discoveryv1.LabelServiceName: service},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       ports,
		Endpoints:   endpoints,
	}
}

// unnamed8080 is what the EndpointSlice controller writes for a Service port without a name.
var unnamed8080 = []discoveryv1.EndpointPort{slicePort("", 8080)}

func endpointOf(pod *corev1.Pod, tweaks ...func(*discoveryv1.Endpoint)) discoveryv1.Endpoint {
	ep := discoveryv1.Endpoint{
		Addresses:  []string{pod.Status.PodIP},
		Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true), Terminating: ptr.To(false)},
		TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
	}
	for _, tweak := range tweaks {
		tweak(&ep)
	}
	return ep
}

func notReady(ep *discoveryv1.Endpoint) {
	ep.Conditions = discoveryv1.EndpointConditions{Ready: ptr.To(false), Serving: ptr.To(false), Terminating: ptr.To(false)}
}

func draining(ep *discoveryv1.Endpoint) {
	ep.Conditions = discoveryv1.EndpointConditions{Ready: ptr.To(false), Serving: ptr.To(true), Terminating: ptr.To(true)}
}

// newRule is a rule as the controller makes it.
func newRule(owner sharenat.Owner, eip string, port uint16, backend string, tweaks ...func(*kubeovnv1.IptablesDnatRule)) *kubeovnv1.IptablesDnatRule {
	addr := netip.MustParseAddrPort(backend)
	rule := &kubeovnv1.IptablesDnatRule{
		ObjectMeta: metav1.ObjectMeta{
			Name:        sharenat.RuleName(owner, sharenat.TCP, port, addr),
			Labels:      owner.Labels(),
			Annotations: map[string]string{sharenat.RuleEIPAnnotation: eip, sharenat.SourceIPAnnotation: sharenat.SourceIPPreserve},
			Finalizers:  []string{sharenat.Finalizer},
		},
		Spec: kubeovnv1.IptablesDnatRuleSpec{
			EIP: eip, ExternalPort: strconv.Itoa(int(port)), Protocol: "tcp", Type: sharenat.TypeShare,
			InternalIP: addr.Addr().String(), InternalPort: strconv.Itoa(int(addr.Port())),
		},
	}
	// The Pods of the tests are web-0 at 10.1.0.4, web-1 at 10.1.0.5 and so on.
	if host := addr.Addr().As4(); host[3] >= 4 {
		rule.Annotations[sharenat.PodUIDAnnotation] = fmt.Sprintf("uid-web-%d", host[3]-4)
	}
	rule.UID = types.UID("uid-" + rule.Name)
	rule.Labels[sharenat.ExternalPortLabel] = strconv.Itoa(int(port))
	rule.Labels[sharenat.GatewayLabel] = map[string]string{eipA: gwA, eipB: gwB}[eip]
	rule.Labels[sharenat.EIPAddressLabel] = map[string]string{eipA: eipAddrA, eipB: eipAddrB}[eip]
	for _, tweak := range tweaks {
		tweak(rule)
	}
	return rule
}

func ready(rule *kubeovnv1.IptablesDnatRule) { rule.Status.Ready = true }

// newManualRule is a rule made by hand.
func newManualRule(name, eip, port, protocol, ruleType string) *kubeovnv1.IptablesDnatRule {
	return &kubeovnv1.IptablesDnatRule{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)},
		Spec: kubeovnv1.IptablesDnatRuleSpec{
			EIP: eip, ExternalPort: port, Protocol: protocol, Type: ruleType, InternalIP: "10.1.0.200", InternalPort: "8080",
		},
	}
}

func newFIP(name, eip string) *kubeovnv1.IptablesFIPRule {
	return &kubeovnv1.IptablesFIPRule{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-fip-" + name)},
		Spec:       kubeovnv1.IptablesFIPRuleSpec{EIP: eip, InternalIP: "10.1.0.201"},
	}
}

// subnetVPCs are the Subnets of the address plan.
var subnetVPCs = map[string]string{"ovn-default": sharenat.DefaultVPC, "sub-a": vpcA, "sub-a2": vpcA, "sub-b": vpcB}

// newSnapshot is the Service web with its EIP and gateway, and what the tweaks add.
func newSnapshot(svc *corev1.Service, tweaks ...func(*Snapshot)) *Snapshot {
	s := &Snapshot{
		Key:        sharenat.OwnerOfService(svc),
		Service:    svc,
		EIP:        newEIP(eipA, eipAddrA, gwA),
		Gateway:    newGateway(gwA, vpcA),
		Claimants:  []*corev1.Service{svc},
		Pods:       map[string]Pod{},
		SubnetVPCs: subnetVPCs,
		Abilities:  AllAbilities,
	}
	for _, tweak := range tweaks {
		tweak(s)
	}
	return s
}

func withPods(pods ...*corev1.Pod) func(*Snapshot) {
	return func(s *Snapshot) {
		for _, pod := range pods {
			s.Pods[pod.Name] = ParsePod(pod)
		}
	}
}

func withSlices(in ...*discoveryv1.EndpointSlice) func(*Snapshot) {
	return func(s *Snapshot) { s.Slices = append(s.Slices, in...) }
}

// withBackend adds a ready single-NIC Pod in sub-a, and its slice.
func withBackend(s *Snapshot) {
	pod := newPod("web-0", "sub-a", "10.1.0.4")
	withPods(pod)(s)
	withSlices(newSlice("web-x", testService, unnamed8080, endpointOf(pod)))(s)
}

// backendsIn lists "port/proto ip:port[ m]" of an outcome's rules.
func backendsIn(o *Outcome) []string {
	out := []string{}
	for _, rule := range o.Rules {
		text := fmt.Sprintf("%s/%s %s:%s", rule.Spec.ExternalPort, rule.Spec.Protocol, rule.Spec.InternalIP, rule.Spec.InternalPort)
		if rule.Annotations[sharenat.SourceIPAnnotation] == sharenat.SourceIPMasquerade {
			text += " m"
		}
		out = append(out, text)
	}
	return sorted(out)
}
