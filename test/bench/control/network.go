// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/utils/ptr"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/lbservice"
	"github.com/kubeovn/kube-ovn/pkg/natgateway"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
	"github.com/kubeovn/kube-ovn/test/bench"
	"github.com/kubeovn/kube-ovn/test/lab"
	"github.com/kubeovn/kube-ovn/test/lab/controlplane"
)

const (
	defaultSubnet = "ovn-default"
	agnhost       = "registry.k8s.io/e2e-test-images/agnhost:2.53"
	addressSuffix = ".kubernetes.io/ip_address"
	// realBackends is how many addresses the real backend has.
	realBackends = 250
)

// Where addresses are taken from, away from those that the lab gives out.
var (
	vpcPrefix       = netip.MustParsePrefix("10.1.0.0/16")
	vpcRouter       = netip.MustParseAddr("10.1.0.1")
	gatewayAddress  = netip.MustParseAddr("10.1.0.254")
	vpcBackends     = netip.MustParseAddr("10.1.128.1")
	primaryBackends = netip.MustParseAddr("10.16.128.1")
)

// network is a namespace whose Pods have two NICs, the second in a VPC with a gateway.
type network struct {
	*place

	name    string
	gateway corev1.Pod
	// backend is the real Pod.
	backend *corev1.Pod
	// grounded says that there is what a large cluster stands on, grown is how many of its Services there are.
	grounded bool
	grown    int
	copies   *copies
}

// nth is the address n further on.
func nth(first netip.Addr, n int) netip.Addr {
	b := first.As4()
	v := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	v += uint32(n) //nolint:gosec // small
	return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)})
}

// inVPC and onPrimary are the addresses of the i-th backend.
func inVPC(i int) netip.Addr     { return nth(vpcBackends, i) }
func onPrimary(i int) netip.Addr { return nth(primaryBackends, i) }

// makeNetwork makes a VPC with one gateway, and a Pod in it and in the default VPC that has the addresses of many.
func (p *place) makeNetwork(ctx context.Context, name string) (*network, error) {
	n := &network{place: p, name: name}
	if _, err := p.kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	ovn := p.ovn.KubeovnV1()
	if _, err := ovn.Vpcs().Create(ctx, &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	if _, err := ovn.Subnets().Create(ctx, &kubeovnv1.Subnet{
		ObjectMeta: metav1.ObjectMeta{Name: n.subnet()},
		Spec: kubeovnv1.SubnetSpec{
			Vpc: name, Provider: n.provider(), Protocol: "IPv4", CIDRBlock: vpcPrefix.String(), Gateway: vpcRouter.String(),
			ExcludeIps: []string{vpcRouter.String(), gatewayAddress.String(), inVPC(0).String() + ".." + nth(vpcPrefix.Addr(), 0xfffe).String()},
		},
	}, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	if err := n.makeAttachment(ctx); err != nil {
		return nil, err
	}
	if err := n.makeGateway(ctx, name, gatewayAddress); err != nil {
		return nil, err
	}
	if err := n.makeBackend(ctx); err != nil {
		return nil, err
	}
	pod, err := n.gatewayPod(ctx, name)
	if err == nil {
		n.gateway = *pod
	}
	return n, err
}

func (n *network) provider() string { return "net." + n.name + ".ovn" }

// subnet is the Subnet's name, which may not be the VPC's.
func (n *network) subnet() string { return n.name + "-net" }

func (n *network) makeAttachment(ctx context.Context) error {
	resource := schema.GroupVersionResource{Group: "k8s.cni.cncf.io", Version: "v1", Resource: "network-attachment-definitions"}
	_, err := n.dynamic.Resource(resource).Namespace(n.name).Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
		"metadata": map[string]any{"name": "net"},
		"spec": map[string]any{"config": `{"cniVersion": "0.3.0", "type": "kube-ovn", ` +
			`"server_socket": "/run/openvswitch/kube-ovn-daemon.sock", "provider": "` + n.provider() + `"}`},
	}}, metav1.CreateOptions{})
	return err
}

func (n *network) makeGateway(ctx context.Context, name string, lan netip.Addr) error {
	_, err := n.ovn.KubeovnV1().VpcNatGateways().Create(ctx, &kubeovnv1.VpcNatGateway{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: kubeovnv1.VpcNatGatewaySpec{
			Vpc: n.name, Subnet: n.subnet(), LanIP: lan.String(), ExternalSubnets: []string{sharenat.DefaultExternalSubnet}, Replicas: 1,
			// The gateway's primary NIC is in the VPC.
			Annotations: map[string]string{},
		},
	}, metav1.CreateOptions{})
	return err
}

// gatewayPod waits until a gateway is ready, and gives its pod.
func (p *place) gatewayPod(ctx context.Context, name string) (*corev1.Pod, error) {
	err := until(ctx, "gateway "+name, func(ctx context.Context) (bool, error) {
		gw, err := p.ovn.KubeovnV1().VpcNatGateways().Get(ctx, name, metav1.GetOptions{})
		return err == nil && gw.Status.Ready, err
	})
	if err != nil {
		return nil, err
	}
	return p.podOf(ctx, name)
}

// podOf gives the pod of a gateway as it is now.
func (p *place) podOf(ctx context.Context, gateway string) (*corev1.Pod, error) {
	pods, err := p.lab.GatewayPods(ctx, gateway)
	if err != nil {
		return nil, err
	}
	if len(pods) == 0 {
		return nil, fmt.Errorf("gateway %s has no pod", gateway)
	}
	return &pods[0], nil
}

// makeBackend makes the real Pod, and gives it the addresses of all that are pretended.
func (n *network) makeBackend(ctx context.Context) error {
	pods := n.kube.CoreV1().Pods(n.name)
	err := until(ctx, "service account", func(ctx context.Context) (bool, error) {
		_, err := n.kube.CoreV1().ServiceAccounts(n.name).Get(ctx, "default", metav1.GetOptions{})
		return err == nil, err
	})
	if err != nil {
		return err
	}
	if _, err = pods.Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "backend", Annotations: map[string]string{
			"k8s.v1.cni.cncf.io/networks":                  n.name + "/net",
			n.provider() + ".kubernetes.io/logical_switch": n.subnet(),
		}},
		Spec: corev1.PodSpec{
			Containers:                   []corev1.Container{{Name: "pause", Image: agnhost, Args: []string{"pause"}}},
			AutomountServiceAccountToken: ptr.To(false), TerminationGracePeriodSeconds: ptr.To[int64](0),
		},
	}, metav1.CreateOptions{}); err != nil {
		return err
	}
	err = until(ctx, "the backend", func(ctx context.Context) (bool, error) {
		n.backend, err = pods.Get(ctx, "backend", metav1.GetOptions{})
		return err == nil && n.backend.Status.Phase == corev1.PodRunning && n.backend.Status.PodIP != "", err
	})
	if err != nil {
		return err
	}
	var batch bytes.Buffer
	for i := range realBackends {
		fmt.Fprintf(&batch, "address add %s/32 dev eth0\naddress add %s/32 dev net1\n", onPrimary(i), inVPC(i))
	}
	if err := n.inPod(ctx, n.backend, &batch, "ip", "-batch", "-"); err != nil {
		return err
	}
	namespace, err := lab.PodNetns(n.backend)
	if err != nil {
		return err
	}
	_, err = serveAddresses(namespace)
	return err
}

// inPod runs a command in a Pod's network.
func (p *place) inPod(ctx context.Context, pod *corev1.Pod, stdin *bytes.Buffer, argv ...string) error {
	args, err := p.lab.PodArgs(ctx, pod.Namespace, pod.Name, argv...)
	if err != nil {
		return err
	}
	cmd := p.lab.Command(ctx, args)
	if stdin != nil {
		cmd.Stdin = stdin
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s in %s: %w: %s", strings.Join(argv, " "), pod.Name, err, out)
	}
	return nil
}

// pretend makes the i-th backend as a Pod of the API alone, like the real one but for its addresses.
func (n *network) pretend(ctx context.Context, i int) error {
	annotations := maps.Clone(n.backend.Annotations)
	annotations["ovn"+addressSuffix] = onPrimary(i).String()
	annotations[n.provider()+addressSuffix] = inVPC(i).String()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: backendName(i), Annotations: annotations},
		Spec: corev1.PodSpec{
			Containers: n.backend.Spec.Containers,
			// Nobody is to run it.
			SchedulerName:                "nobody",
			AutomountServiceAccountToken: ptr.To(false),
		},
	}
	made, err := n.kube.CoreV1().Pods(n.name).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	made.Status.Phase = corev1.PodRunning
	made.Status.PodIP = onPrimary(i).String()
	made.Status.PodIPs = []corev1.PodIP{{IP: made.Status.PodIP}}
	_, err = n.kube.CoreV1().Pods(n.name).UpdateStatus(ctx, made, metav1.UpdateOptions{})
	return err
}

func backendName(i int) string { return fmt.Sprintf("backend-%d", i) }

// makeEIP makes an EIP of a gateway and waits for its address.
func (p *place) makeEIP(ctx context.Context, name, gateway string) (netip.Addr, error) {
	eips := p.ovn.KubeovnV1().IptablesEIPs()
	if _, err := eips.Create(ctx, &kubeovnv1.IptablesEIP{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       kubeovnv1.IptablesEIPSpec{NatGwDp: gateway, ExternalSubnet: sharenat.DefaultExternalSubnet},
	}, metav1.CreateOptions{}); err != nil {
		return netip.Addr{}, err
	}
	var addr netip.Addr
	err := until(ctx, "EIP "+name, func(ctx context.Context) (bool, error) {
		eip, err := eips.Get(ctx, name, metav1.GetOptions{})
		if err != nil || !eip.Status.Ready {
			return false, err
		}
		addr, err = netip.ParseAddr(eip.Status.IP)
		return err == nil, err
	})
	return addr, err
}

// makeService makes a Service without a selector on an EIP.
func (n *network) makeService(ctx context.Context, name, eip string, port int32) (*corev1.Service, error) {
	return n.kube.CoreV1().Services(n.name).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{sharenat.EIPAnnotation: eip}},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, AllocateLoadBalancerNodePorts: ptr.To(false),
			Ports: []corev1.ServicePort{{Name: "p", Port: port, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(answerPort)}},
		},
	}, metav1.CreateOptions{})
}

// slice describes the EndpointSlice of a Service with these backends.
func (n *network) slice(service string, backends ...int) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: service, Namespace: n.name, Labels: map[string]string{
			discoveryv1.LabelServiceName: service, discoveryv1.LabelManagedBy: "kube-ovn-bench",
		}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("p"), Protocol: ptr.To(corev1.ProtocolTCP), Port: ptr.To[int32](answerPort)}},
	}
	setBackends(s, backends...)
	return s
}

func setBackends(s *discoveryv1.EndpointSlice, backends ...int) {
	s.Endpoints = make([]discoveryv1.Endpoint, 0, len(backends))
	for _, i := range backends {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{onPrimary(i).String()},
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)},
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: s.Namespace, Name: backendName(i)},
		})
	}
}

func (n *network) writeSlice(ctx context.Context, s *discoveryv1.EndpointSlice) (*discoveryv1.EndpointSlice, error) {
	slices := n.kube.DiscoveryV1().EndpointSlices(n.name)
	if s.ResourceVersion == "" {
		return slices.Create(ctx, s, metav1.CreateOptions{})
	}
	return slices.Update(ctx, s, metav1.UpdateOptions{})
}

// removeService deletes a Service, its slice and the EIP of its name, and waits until its rules are gone.
func (n *network) removeService(ctx context.Context, name string) error {
	if err := n.kube.CoreV1().Services(n.name).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	if err := n.kube.DiscoveryV1().EndpointSlices(n.name).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	if err := n.ovn.KubeovnV1().IptablesEIPs().Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	return until(ctx, "the rules of "+name+" to go", func(ctx context.Context) (bool, error) {
		list, err := n.ovn.KubeovnV1().IptablesDnatRules().List(ctx, metav1.ListOptions{
			LabelSelector: sharenat.OwnerNamespaceLabel + "=" + n.name + "," + sharenat.OwnerNameLabel + "=" + name,
		})
		return err == nil && len(list.Items) == 0, err
	})
}

// ready waits until all rules of a Service are ready, by its own condition.
func (n *network) ready(ctx context.Context, name string) error {
	return until(ctx, "Service "+name, func(ctx context.Context) (bool, error) {
		service, err := n.kube.CoreV1().Services(n.name).Get(ctx, name, metav1.GetOptions{})
		return err == nil && meta.IsStatusConditionTrue(service.Status.Conditions, lbservice.ConditionReady), err
	})
}

// rulesKey is where etcd has the rules.
const rulesKey = "/registry/kubeovn.io/iptables-dnat-rules/"

// plantRules puts rules into the API server at once, status and all.
func (p *place) plantRules(ctx context.Context, rules []*kubeovnv1.IptablesDnatRule) error {
	values := make(map[string][]byte, len(rules))
	for _, rule := range rules {
		rule.TypeMeta = metav1.TypeMeta{APIVersion: kubeovnv1.SchemeGroupVersion.String(), Kind: "IptablesDnatRule"}
		rule.UID, rule.Generation, rule.CreationTimestamp = uuid.NewUUID(), 1, metav1.Now()
		value, err := json.Marshal(rule)
		if err != nil {
			return err
		}
		values[rulesKey+rule.Name] = value
	}
	return controlplane.Plant(ctx, values)
}

// eraseRules removes the rules whose names begin so from the API server at once, finalizers or not.
func (p *place) eraseRules(ctx context.Context, prefix string, count int) error {
	erased, err := controlplane.Erase(ctx, rulesKey+prefix)
	if err == nil && erased != int64(count) {
		err = fmt.Errorf("%d rules %s… were there, not %d", erased, prefix, count)
	}
	return err
}

// call runs the script in a gateway pod.
func (p *place) call(ctx context.Context, pod *corev1.Pod, call natgateway.Call) ([]byte, error) {
	call.Pod = types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	return p.executor.Exec(ctx, call)
}

// listing is what a gateway pod holds.
func (p *place) listing(ctx context.Context, pod *corev1.Pod) (*sharenat.Listing, error) {
	out, err := p.call(ctx, pod, natgateway.Call{Verb: sharenat.ListVerb})
	if err != nil {
		return nil, err
	}
	return sharenat.ParseListing(bytes.NewReader(out))
}

// quiet gives the network of a cluster in which little else is.
func quiet(ctx context.Context, env *bench.Env) (*network, error) {
	p, err := start(ctx, env)
	if err != nil {
		return nil, err
	}
	if p.quiet != nil {
		return p.quiet, nil
	}
	n, err := p.makeNetwork(ctx, "bench")
	if err != nil {
		return nil, fmt.Errorf("make a network: %w", err)
	}
	if err := each(ctx, realBackends, 16, n.pretend); err != nil {
		return nil, fmt.Errorf("make Pods: %w", err)
	}
	p.quiet = n
	return n, nil
}
