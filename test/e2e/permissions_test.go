// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"net/netip"
	"slices"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/test/lab"

	. "github.com/kubeovn/kube-ovn/test/e2e/framework"
)

// rare are the permissions that no day in the lab is long enough to need.
var rare = []string{
	// An event that is sent again within minutes becomes a series.
	"patch events.k8s.io/events",
	// The certificate authority is replaced after years.
	"update /secrets in kube-system of kube-ovn-webhook-ca",
}

// unused are the permissions of a manifest that its account has not used since an offset of the audit log, the rare ones apart.
func unused(objects []*unstructured.Unstructured, account string, offset int64) []string {
	GinkgoHelper()
	return slices.DeleteFunc(cluster.Unused(Granted(objects), account, offset), func(p string) bool { return slices.Contains(rare, p) })
}

// forgetLease has the next controller make its lease, as the first one in a cluster does.
func forgetLease(ctx context.Context, name string) {
	GinkgoHelper()
	err := cluster.Kube.CoordinationV1().Leases(SystemNamespace).Delete(ctx, name, metav1.DeleteOptions{})
	if !apierrors.IsNotFound(err) {
		Expect(err).NotTo(HaveOccurred())
	}
}

// idleDeployment makes a Deployment in the system's namespace that is there to be looked at: none of its Pods runs. It goes with the spec.
func idleDeployment(ctx context.Context, name string, labels map[string]string, container corev1.Container) *appsv1.Deployment {
	GinkgoHelper()
	deployments := cluster.Kube.AppsV1().Deployments(SystemNamespace)
	made, err := deployments.Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](0),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{container}},
			},
		},
	}, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx context.Context) {
		Expect(deployments.Delete(ctx, name, metav1.DeleteOptions{})).To(Succeed())
	})
	return made
}

// installedController makes the Deployment of an installation that serves Services, without Pods, and gives a function that reads its flags.
func installedController(ctx context.Context) (args func(context.Context) []string) {
	GinkgoHelper()
	made := idleDeployment(ctx, "kube-ovn-nftable-lb", map[string]string{"app.kubernetes.io/name": "kube-ovn-nftable-lb"},
		corev1.Container{Name: "main", Image: "none", Args: []string{"--enable-nftable-lb-svc=true"}})
	return func(ctx context.Context) []string {
		GinkgoHelper()
		now, err := cluster.Kube.AppsV1().Deployments(made.Namespace).Get(ctx, made.Name, metav1.GetOptions{})
		Expect(err).NotTo(HaveOccurred())
		return now.Spec.Template.Spec.Containers[0].Args
	}
}

// lead has a Service of the system's namespace lead to a process of the lab.
func lead(ctx context.Context, service string, port, target int32) {
	GinkgoHelper()
	node, err := cluster.Kube.CoreV1().Nodes().Get(ctx, lab.NodeName, metav1.GetOptions{})
	Expect(err).NotTo(HaveOccurred())
	address, err := netip.ParseAddr(node.Status.Addresses[0].Address)
	Expect(err).NotTo(HaveOccurred())
	services := cluster.Kube.CoreV1().Services(SystemNamespace)
	made, err := services.Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: service},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "main", Port: port, TargetPort: intstr.FromInt32(target)}}},
	}, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	// What a Service's slices are is gone with it.
	DeferCleanup(func(ctx context.Context) {
		Expect(services.Delete(ctx, service, metav1.DeleteOptions{})).To(Succeed())
	})
	_, err = cluster.Kube.DiscoveryV1().EndpointSlices(SystemNamespace).Create(ctx, &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: service + "-", Labels: map[string]string{discoveryv1.LabelServiceName: service, discoveryv1.LabelManagedBy: "e2e"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: made.Name, UID: made.UID}},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   Endpoints(address),
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("main"), Port: ptr.To(target)}},
	}, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
}

// vpcAddress is one in a scene's VPC that nobody has.
var vpcAddress = netip.MustParseAddr("10.1.0.77")

// doubts gives the webhook what it has to look up live: an EIP and a gateway that its cache does not have, and a rule and a FIP that
// stand in the way.
func doubts(ctx context.Context) {
	GinkgoHelper()
	s := cluster.NewScene(ctx)
	eip := s.Network(ctx, "a").EIP(ctx, "web")
	rule := s.Rule(ctx, "first", exclusiveRule(eip, 80, vpcAddress))
	api, dryRun := s.KubeOvn.KubeovnV1(), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	meta := metav1.ObjectMeta{Name: s.Name + "-doubt"}

	_, err := api.IptablesEIPs().Create(ctx, &kubeovnv1.IptablesEIP{ObjectMeta: meta, Spec: kubeovnv1.IptablesEIPSpec{NatGwDp: s.Name + "-nowhere"}}, dryRun)
	Expect(err).NotTo(HaveOccurred())
	_, err = api.IptablesDnatRules().Create(ctx, &kubeovnv1.IptablesDnatRule{ObjectMeta: meta, Spec: exclusiveRule(s.Name+"-nowhere", 80, vpcAddress)}, dryRun)
	Expect(err).NotTo(HaveOccurred())
	second := &kubeovnv1.IptablesDnatRule{ObjectMeta: meta, Spec: exclusiveRule(eip, 80, vpcAddress)}
	Wait(ctx, func(ctx context.Context) error {
		_, err := api.IptablesDnatRules().Create(ctx, second, dryRun)
		return err
	}).Should(MatchError(ContainSubstring("is taken by IptablesDnatRule " + rule.Name)))

	free := kubeovnv1.IptablesFIPRuleSpec{EIP: s.Name + "-fip", InternalIP: vpcAddress.String()}
	fip, err := api.IptablesFIPRules().Create(ctx, &kubeovnv1.IptablesFIPRule{ObjectMeta: meta, Spec: free}, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx context.Context) {
		Expect(api.IptablesFIPRules().Delete(ctx, fip.Name, metav1.DeleteOptions{})).To(Succeed())
	})
	second.Spec.EIP = free.EIP
	Wait(ctx, func(ctx context.Context) error {
		_, err := api.IptablesDnatRules().Create(ctx, second, dryRun)
		return err
	}).Should(MatchError(ContainSubstring("belongs to IptablesFIPRule " + fip.Name)))
}
