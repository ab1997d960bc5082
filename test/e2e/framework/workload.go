// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// Ports of agnhost netexec, the backend of most specs.
const (
	HTTPPort = 8080
	UDPPort  = 8081
)

// agnhost is the image of backends and clients. E2E_AGNHOST_IMAGE names another.
func agnhost() string {
	if image := os.Getenv("E2E_AGNHOST_IMAGE"); image != "" {
		return image
	}
	return "registry.k8s.io/e2e-test-images/agnhost:2.53"
}

// Workload describes Pods of agnhost netexec.
type Workload struct {
	Name     string
	Replicas int32
	// App is the Pods' label app. Default: Name.
	App string
	// Port is where HTTP is served, under the name "http". Default: HTTPPort.
	Port int32
	// Annotations of the Pods, such as Primary or Attached gives.
	Annotations map[string]string
	// Probe has the Pods probed for readiness, which in custom VPCs not every cluster can.
	Probe bool
	// Args follow netexec's own.
	Args []string
	// Grace is the Pods' termination grace period in seconds.
	Grace int64
}

func (w *Workload) app() string { return cmp.Or(w.App, w.Name) }

func appLabels(name string) map[string]string { return map[string]string{"app": name} }

func (w *Workload) template() corev1.PodTemplateSpec {
	port := cmp.Or(w.Port, HTTPPort)
	container := corev1.Container{
		Name: "netexec", Image: agnhost(),
		Args: append([]string{"netexec", fmt.Sprintf("--http-port=%d", port), fmt.Sprintf("--udp-port=%d", UDPPort)}, w.Args...),
		Ports: []corev1.ContainerPort{
			{Name: "http", ContainerPort: port}, {Name: "udp", ContainerPort: UDPPort, Protocol: corev1.ProtocolUDP},
		},
	}
	if w.Probe {
		container.ReadinessProbe = &corev1.Probe{
			ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(port)}},
			PeriodSeconds: 1,
		}
	}
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: merge(appLabels(w.app()), map[string]string{"workload": w.Name}), Annotations: w.Annotations},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{container}, TerminationGracePeriodSeconds: ptr.To(max(w.Grace, 1)),
			// What is made on one node of many only costs addresses there.
			AutomountServiceAccountToken: ptr.To(false), EnableServiceLinks: ptr.To(false),
		},
	}
}

// Deployment makes a Deployment.
func (s *Scene) Deployment(ctx context.Context, w Workload) {
	GinkgoHelper()
	deployments := s.Kube.AppsV1().Deployments(s.Namespace)
	_, err := deployments.Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: w.Name, Labels: appLabels(w.Name)},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To(w.Replicas), Selector: &metav1.LabelSelector{MatchLabels: merge(appLabels(w.app()), map[string]string{"workload": w.Name})}, Template: w.template(),
		},
	}, metav1.CreateOptions{})
	must(err, "create Deployment %s", w.Name)
	s.track("Deployment "+w.Name, deletion(deployments, w.Name), nil)
}

// Scale changes the number of a Deployment's Pods.
func (s *Scene) Scale(ctx context.Context, name string, replicas int32) {
	GinkgoHelper()
	patch := []byte(`{"spec":{"replicas":` + strconv.Itoa(int(replicas)) + `}}`)
	_, err := s.Kube.AppsV1().Deployments(s.Namespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	must(err, "scale Deployment %s", name)
}

// Pod makes one Pod and waits until it runs.
func (s *Scene) Pod(ctx context.Context, w Workload) *corev1.Pod {
	GinkgoHelper()
	s.StartPod(ctx, w)
	return s.WaitPod(ctx, w.Name)
}

// StartPod makes one Pod.
func (s *Scene) StartPod(ctx context.Context, w Workload) {
	GinkgoHelper()
	template := w.template()
	template.Name = w.Name
	pods := s.Kube.CoreV1().Pods(s.Namespace)
	_, err := pods.Create(ctx, &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}, metav1.CreateOptions{})
	must(err, "create Pod %s", w.Name)
	s.track("Pod "+w.Name, deletion(pods, w.Name), nil)
}

// WaitPod waits until a Pod is ready.
func (s *Scene) WaitPod(ctx context.Context, name string) *corev1.Pod {
	GinkgoHelper()
	var pod *corev1.Pod
	Wait(ctx, func(g Gomega, ctx context.Context) {
		var err error
		pod, err = s.Kube.CoreV1().Pods(s.Namespace).Get(ctx, name, metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(isReady(pod)).To(BeTrue(), "Pod %s should be ready", name)
	}).Should(Succeed())
	return pod
}

// Pods waits until a workload has so many Pods, all ready, and returns them by name.
func (s *Scene) Pods(ctx context.Context, name string, count int) []corev1.Pod {
	GinkgoHelper()
	var pods []corev1.Pod
	Wait(ctx, func(g Gomega, ctx context.Context) {
		list, err := s.Kube.CoreV1().Pods(s.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "workload=" + name})
		g.Expect(err).NotTo(HaveOccurred())
		pods = slices.DeleteFunc(list.Items, func(pod corev1.Pod) bool { return pod.DeletionTimestamp != nil })
		g.Expect(pods).To(HaveLen(count), "Pods of %s", name)
		for i := range pods {
			g.Expect(isReady(&pods[i])).To(BeTrue(), "Pod %s should be ready", pods[i].Name)
		}
	}).Should(Succeed())
	slices.SortFunc(pods, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return pods
}

func isReady(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// Addresses are the addresses of Pods' NICs by their provider.
func Addresses(pods []corev1.Pod, provider string) []netip.Addr {
	addrs := make([]netip.Addr, 0, len(pods))
	for i := range pods {
		addrs = append(addrs, Address(&pods[i], provider))
	}
	return addrs
}

func names[T any, P interface {
	*T
	metav1.Object
}](items []T) []string {
	result := make([]string, len(items))
	for i := range items {
		result[i] = P(&items[i]).GetName()
	}
	slices.Sort(result)
	return result
}

// Names are the names of objects, sorted.
func Names[T any, P interface {
	*T
	metav1.Object
}](items []T) []string {
	return names[T, P](items)
}

// merge puts maps together; later ones win.
func merge(all ...map[string]string) map[string]string {
	result := map[string]string{}
	for _, m := range all {
		maps.Copy(result, m)
	}
	return result
}
