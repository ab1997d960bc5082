// SPDX-License-Identifier: Apache-2.0

package handler

import (
	"fmt"
	"maps"
	"net/netip"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

const (
	containerName   = "vpc-nat-gw"
	gatewayPodLabel = "ovn.kubernetes.io/vpc-nat-gw"
)

// workload is a gateway's: a StatefulSet for one pod, a Deployment for more.
type workload struct {
	statefulSet *appsv1.StatefulSet
	deployment  *appsv1.Deployment
}

func externalSubnetsOf(gw *kubeovnv1.VpcNatGateway) []string {
	if len(gw.Spec.ExternalSubnets) == 0 {
		return []string{sharenat.DefaultExternalSubnet}
	}
	return gw.Spec.ExternalSubnets
}

// buildWorkload describes a gateway's workload.
func buildWorkload(gw *kubeovnv1.VpcNatGateway, external *kubeovnv1.Subnet, s settings, namespace string) (workload, error) {
	name := s.namePrefix + gw.Name
	labels := map[string]string{"app": name, gatewayPodLabel: "true"}
	template, err := buildTemplate(gw, external, s, labels)
	if err != nil {
		return workload{}, err
	}
	meta := metav1.ObjectMeta{Name: name, Namespace: namespaceOf(gw, namespace), Labels: labels}
	selector := &metav1.LabelSelector{MatchLabels: labels}
	if gw.Spec.Replicas <= 1 {
		return workload{statefulSet: &appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{
			Replicas: ptr.To[int32](1), Selector: selector, Template: template,
			UpdateStrategy: appsv1.StatefulSetUpdateStrategy{Type: appsv1.RollingUpdateStatefulSetStrategyType},
		}}}, nil
	}
	template.Spec.Affinity.PodAntiAffinity = &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
		LabelSelector: selector, TopologyKey: corev1.LabelHostname,
	}}}
	return workload{deployment: &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{
		Replicas: ptr.To(gw.Spec.Replicas), Selector: selector, Template: template,
		Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{
			MaxUnavailable: ptr.To(intstr.FromInt32(1)), MaxSurge: ptr.To(intstr.FromInt32(0)),
		}},
	}}}, nil
}

func namespaceOf(gw *kubeovnv1.VpcNatGateway, own string) string {
	if gw.Spec.Namespace != "" {
		return gw.Spec.Namespace
	}
	return own
}

func buildTemplate(gw *kubeovnv1.VpcNatGateway, external *kubeovnv1.Subnet, s settings, labels map[string]string) (corev1.PodTemplateSpec, error) {
	provider := strings.Split(external.Spec.Provider, ".")
	if len(provider) < 2 {
		return corev1.PodTemplateSpec{}, fmt.Errorf("subnet %s: provider %q names no network attachment", external.Name, external.Spec.Provider)
	}
	annotations := map[string]string{
		sharenat.GatewayPodAnnotation:      gw.Name,
		"k8s.v1.cni.cncf.io/networks":      provider[1] + "/" + provider[0],
		"ovn.kubernetes.io/logical_switch": gw.Spec.Subnet,
	}
	if gw.Spec.Replicas <= 1 {
		annotations["ovn.kubernetes.io/ip_address"] = gw.Spec.LanIP
	}
	maps.Copy(annotations, gw.Spec.Annotations)
	selector := map[string]string{}
	for _, item := range gw.Spec.Selector {
		key, value, _ := strings.Cut(item, ":")
		selector[strings.TrimSpace(key)] = strings.Trim(strings.TrimSpace(value), `"`)
	}
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: annotations},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: ptr.To[int64](0),
			NodeSelector:                  selector,
			Tolerations:                   gw.Spec.Tolerations,
			Affinity:                      gw.Spec.Affinity.DeepCopy(),
			Containers: []corev1.Container{{
				Name: containerName, Image: s.image, ImagePullPolicy: corev1.PullIfNotPresent, Command: []string{"sleep", "infinity"},
				Env: []corev1.EnvVar{
					{Name: "GATEWAY_V4", Value: gatewayOf(external, netip.Addr.Is4)},
					{Name: "GATEWAY_V6", Value: gatewayOf(external, netip.Addr.Is6)},
				},
				Lifecycle: &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{
					Command: []string{"bash", "-c", "sysctl -w net.ipv4.ip_forward=1"},
				}}},
				SecurityContext: &corev1.SecurityContext{Privileged: ptr.To(true), AllowPrivilegeEscalation: ptr.To(true)},
			}},
		},
	}, nil
}

// stale tells whether a gateway asks for another workload than was made of it. The image is not compared.
func stale(gw *kubeovnv1.VpcNatGateway) bool {
	return gw.Status.LanIP != gw.Spec.LanIP || !equal(gw.Status.Selector, gw.Spec.Selector) || !equal(gw.Status.Tolerations, gw.Spec.Tolerations) ||
		!equal(gw.Status.Affinity, gw.Spec.Affinity) || !equal(gw.Status.ExternalSubnets, externalSubnetsOf(gw))
}
