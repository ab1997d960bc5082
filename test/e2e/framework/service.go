// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"net/netip"
	"slices"
	"strconv"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/lbservice"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// TCP is a Service port that goes to agnhost's HTTP port.
func TCP(port int32) corev1.ServicePort { return servicePort(port, corev1.ProtocolTCP, HTTPPort) }

// UDP is a Service port that goes to agnhost's UDP port.
func UDP(port int32) corev1.ServicePort { return servicePort(port, corev1.ProtocolUDP, UDPPort) }

func servicePort(port int32, protocol corev1.Protocol, target int32) corev1.ServicePort {
	number := strconv.Itoa(int(port))
	name := map[corev1.Protocol]string{corev1.ProtocolTCP: "tcp-", corev1.ProtocolUDP: "udp-"}[protocol] + number
	return corev1.ServicePort{Name: name, Port: port, Protocol: protocol, TargetPort: intstr.FromInt32(target)}
}

// Service makes a LoadBalancer Service on an EIP for the Pods of a workload of the same name. Tweaks may change it first.
func (s *Scene) Service(ctx context.Context, name, eip string, ports []corev1.ServicePort, tweaks ...func(*corev1.Service)) {
	GinkgoHelper()
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{sharenat.EIPAnnotation: eip}},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, Selector: appLabels(name), Ports: ports,
			AllocateLoadBalancerNodePorts: ptr.To(false),
		},
	}
	for _, tweak := range tweaks {
		tweak(service)
	}
	services := s.Kube.CoreV1().Services(s.Namespace)
	_, err := services.Create(ctx, service, metav1.CreateOptions{})
	must(err, "create Service %s", name)
	s.track("Service "+name, deletion(services, name), presence(services, name))
}

// Selecting has a Service select the Pods of another workload.
func Selecting(workload string) func(*corev1.Service) {
	return func(service *corev1.Service) { service.Spec.Selector = appLabels(workload) }
}

// Selectorless has a Service without endpoints but those made by hand.
func Selectorless(service *corev1.Service) { service.Spec.Selector = nil }

// ChangeService changes a Service's spec or metadata.
func (s *Scene) ChangeService(ctx context.Context, name string, change func(*corev1.Service)) {
	GinkgoHelper()
	services := s.Kube.CoreV1().Services(s.Namespace)
	must(retry.RetryOnConflict(retry.DefaultRetry, func() error {
		service, err := services.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(service)
		_, err = services.Update(ctx, service, metav1.UpdateOptions{})
		return err
	}), "change Service %s", name)
}

// GetService reads a Service.
func (s *Scene) GetService(ctx context.Context, name string) *corev1.Service {
	GinkgoHelper()
	service, err := s.Kube.CoreV1().Services(s.Namespace).Get(ctx, name, metav1.GetOptions{})
	must(err, "get Service %s", name)
	return service
}

// ExternalIP is the address that a Service publishes; empty when it publishes none.
func ExternalIP(service *corev1.Service) string {
	if len(service.Status.LoadBalancer.Ingress) == 0 {
		return ""
	}
	return service.Status.LoadBalancer.Ingress[0].IP
}

// WaitExternalIP waits until a Service publishes an address and returns it.
func (s *Scene) WaitExternalIP(ctx context.Context, name string) netip.Addr {
	GinkgoHelper()
	var ip string
	Wait(ctx, func(g Gomega, ctx context.Context) {
		service, err := s.Kube.CoreV1().Services(s.Namespace).Get(ctx, name, metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		ip = ExternalIP(service)
		g.Expect(ip).NotTo(BeEmpty(), "EXTERNAL-IP of Service %s", name)
	}).Should(Succeed())
	addr, err := netip.ParseAddr(ip)
	must(err, "parse EXTERNAL-IP")
	return addr
}

// WaitNoExternalIP waits until a Service publishes no address any more.
func (s *Scene) WaitNoExternalIP(ctx context.Context, name string) {
	GinkgoHelper()
	Wait(ctx, func(ctx context.Context) (string, error) {
		service, err := s.Kube.CoreV1().Services(s.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		return ExternalIP(service), nil
	}).Should(BeEmpty(), "EXTERNAL-IP of Service %s", name)
}

// ReadyReason is the reason of a Service's condition; empty when it has none.
func ReadyReason(service *corev1.Service) string {
	if c := meta.FindStatusCondition(service.Status.Conditions, lbservice.ConditionReady); c != nil {
		return c.Reason
	}
	return ""
}

// WaitReason waits until a Service's condition has a reason.
func (s *Scene) WaitReason(ctx context.Context, name, reason string) {
	GinkgoHelper()
	Wait(ctx, func(ctx context.Context) (string, error) {
		service, err := s.Kube.CoreV1().Services(s.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		return ReadyReason(service), nil
	}).Should(Equal(reason), "condition of Service %s", name)
}

// Owner is a Service of the scene as rules name it.
func (s *Scene) Owner(service string) sharenat.Owner {
	return sharenat.Owner{Namespace: s.Namespace, Name: service}
}

// Rules are the rules of a Service, by name.
func (s *Scene) Rules(ctx context.Context, service string) ([]kubeovnv1.IptablesDnatRule, error) {
	list, err := s.KubeOvn.KubeovnV1().IptablesDnatRules().List(ctx, metav1.ListOptions{
		LabelSelector: sharenat.OwnerNamespaceLabel + "=" + s.Namespace + "," + sharenat.OwnerNameLabel + "=" + service,
	})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// ruleTexts says what rules do, sorted.
func ruleTexts(rules []kubeovnv1.IptablesDnatRule) []string {
	texts := make([]string, len(rules))
	for i := range rules {
		spec := &rules[i].Spec
		texts[i] = ruleText(spec.ExternalPort, spec.Protocol, netip.MustParseAddr(spec.InternalIP), spec.InternalPort)
	}
	slices.Sort(texts)
	return texts
}

func ruleText(externalPort, protocol string, ip netip.Addr, port string) string {
	return externalPort + "/" + protocol + " → " + ip.String() + ":" + port
}

// WaitRules waits until a Service has exactly the rules that its ports and these backends need, all of them ready, and
// returns them.
func (s *Scene) WaitRules(ctx context.Context, service string, backends []netip.Addr, ports ...corev1.ServicePort) []kubeovnv1.IptablesDnatRule {
	GinkgoHelper()
	wanted := []string{}
	for _, port := range ports {
		for _, backend := range backends {
			protocol, err := sharenat.ParseProtocol(string(port.Protocol))
			must(err, "protocol of port %s", port.Name)
			wanted = append(wanted, ruleText(strconv.Itoa(int(port.Port)), string(protocol), backend, port.TargetPort.String()))
		}
	}
	slices.Sort(wanted)
	var rules []kubeovnv1.IptablesDnatRule
	Wait(ctx, func(g Gomega, ctx context.Context) {
		var err error
		rules, err = s.Rules(ctx, service)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(ruleTexts(rules)).To(Equal(wanted), "rules of Service %s", service)
		for i := range rules {
			g.Expect(rules[i].Status.Ready).To(BeTrue(), "rule %s should be ready: %+v", rules[i].Name, rules[i].Status.Conditions)
		}
	}).Should(Succeed())
	return rules
}

// Slice makes an EndpointSlice by hand.
func (s *Scene) Slice(ctx context.Context, name, service string, addrs []netip.Addr, ports ...corev1.ServicePort) {
	GinkgoHelper()
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			discoveryv1.LabelServiceName: service, discoveryv1.LabelManagedBy: "e2e",
		}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   Endpoints(addrs...),
	}
	for _, port := range ports {
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{
			Name: ptr.To(port.Name), Protocol: ptr.To(port.Protocol), Port: ptr.To(port.TargetPort.IntVal),
		})
	}
	_, err := s.Kube.DiscoveryV1().EndpointSlices(s.Namespace).Create(ctx, slice, metav1.CreateOptions{})
	must(err, "create EndpointSlice %s", name)
}

// ChangeSlice changes an EndpointSlice.
func (s *Scene) ChangeSlice(ctx context.Context, name string, change func(*discoveryv1.EndpointSlice)) {
	GinkgoHelper()
	slices := s.Kube.DiscoveryV1().EndpointSlices(s.Namespace)
	must(retry.RetryOnConflict(retry.DefaultRetry, func() error {
		slice, err := slices.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(slice)
		_, err = slices.Update(ctx, slice, metav1.UpdateOptions{})
		return err
	}), "change EndpointSlice %s", name)
}

// Endpoints are ready endpoints.
func Endpoints(addrs ...netip.Addr) []discoveryv1.Endpoint {
	endpoints := []discoveryv1.Endpoint{}
	for _, addr := range addrs {
		endpoints = append(endpoints, discoveryv1.Endpoint{
			Addresses: []string{addr.String()}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)},
		})
	}
	return endpoints
}

// PatchSubnet changes a Subnet by a merge patch.
func (s *Scene) PatchSubnet(ctx context.Context, name, patch string) {
	GinkgoHelper()
	_, err := s.KubeOvn.KubeovnV1().Subnets().Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	must(err, "patch Subnet %s", name)
}
