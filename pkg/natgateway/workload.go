// SPDX-License-Identifier: Apache-2.0

package natgateway

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// Kinds of workloads.
const (
	kindStatefulSet = "StatefulSet"
	kindDeployment  = "Deployment"
)

// Config is what the two ConfigMaps say.
type Config struct {
	Enabled    bool
	Image      string
	NamePrefix string
}

// newConfig reads the ConfigMaps' data; a map that is not there is nil. Only "false" and the lack of the ConfigMap switch the gateways off,
// as in Kube-OVN: a slip of the pen must not delete them all.
func newConfig(image, gates map[string]string) Config {
	c := Config{
		Enabled:    gates != nil && strings.TrimSpace(gates[switchKey]) != switchOff,
		Image:      strings.TrimSpace(image[imageKey]),
		NamePrefix: strings.TrimSpace(image[namePrefixKey]),
	}
	if c.NamePrefix == "" {
		c.NamePrefix = defaultNamePrefix
	}
	return c
}

// workloadInput is all that a workload is made of.
type workloadInput struct {
	gateway   *kubeovnv1.VpcNatGateway
	externals []*kubeovnv1.Subnet
	edition   edition
	namespace string // the controller's own
}

// Workload is the description of a gateway's workload; one of the two is set.
type Workload struct {
	StatefulSet *appsv1.StatefulSet
	Deployment  *appsv1.Deployment
}

func (w *Workload) kind() string {
	if w.StatefulSet != nil {
		return kindStatefulSet
	}
	return kindDeployment
}

func (w *Workload) meta() *metav1.ObjectMeta {
	if w.StatefulSet != nil {
		return &w.StatefulSet.ObjectMeta
	}
	return &w.Deployment.ObjectMeta
}

func (w *Workload) template() *corev1.PodTemplateSpec {
	if w.StatefulSet != nil {
		return &w.StatefulSet.Spec.Template
	}
	return &w.Deployment.Spec.Template
}

func (w *Workload) object() runtime.Object {
	if w.StatefulSet != nil {
		return w.StatefulSet
	}
	return w.Deployment
}

// specHash stands for the whole spec, as the API server gave it back.
func (w *Workload) specHash() string {
	var spec any
	if w.StatefulSet != nil {
		spec = w.StatefulSet.Spec
	} else {
		spec = w.Deployment.Spec
	}
	text, err := json.Marshal(spec)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

func (w *Workload) hash() string { return w.meta().Annotations[workloadHashAnnotation] }

// replicasOf gives the number of pods that a gateway asks for.
func replicasOf(gw *kubeovnv1.VpcNatGateway) int32 { return max(gw.Spec.Replicas, 1) }

func namespaceOf(gw *kubeovnv1.VpcNatGateway, own string) string {
	if gw.Spec.Namespace != "" {
		return gw.Spec.Namespace
	}
	return own
}

// externalSubnetsOf names the external subnets of a gateway.
func externalSubnetsOf(gw *kubeovnv1.VpcNatGateway) []string {
	if len(gw.Spec.ExternalSubnets) == 0 {
		return []string{sharenat.DefaultExternalSubnet}
	}
	return gw.Spec.ExternalSubnets
}

// buildWorkload describes a gateway's workload: a StatefulSet for one pod, a Deployment for more.
func buildWorkload(in workloadInput) (*Workload, error) {
	gw := in.gateway
	name := in.edition.namePrefix + gw.Name
	template, err := buildTemplate(in, name)
	if err != nil {
		return nil, err
	}
	meta := metav1.ObjectMeta{
		Name:            name,
		Namespace:       namespaceOf(gw, in.namespace),
		Labels:          workloadLabels(name),
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(gw, kubeovnv1.SchemeGroupVersion.WithKind("VpcNatGateway"))},
	}
	selector := &metav1.LabelSelector{MatchLabels: workloadLabels(name)}
	w := &Workload{}
	if replicas := replicasOf(gw); replicas == 1 {
		w.StatefulSet = &appsv1.StatefulSet{
			TypeMeta:   metav1.TypeMeta{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: kindStatefulSet},
			ObjectMeta: meta,
			Spec: appsv1.StatefulSetSpec{
				Replicas:       ptr.To(replicas),
				Selector:       selector,
				Template:       *template,
				UpdateStrategy: appsv1.StatefulSetUpdateStrategy{Type: appsv1.RollingUpdateStatefulSetStrategyType},
			},
		}
	} else {
		w.Deployment = &appsv1.Deployment{
			TypeMeta:   metav1.TypeMeta{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: kindDeployment},
			ObjectMeta: meta,
			Spec: appsv1.DeploymentSpec{
				Replicas: ptr.To(replicas),
				Selector: selector,
				Template: *template,
				Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType},
			},
		}
	}
	text, err := json.Marshal(w.object())
	if err != nil {
		return nil, fmt.Errorf("encode workload %s: %w", name, err)
	}
	sum := sha256.Sum256(text)
	w.meta().Annotations = map[string]string{
		workloadHashAnnotation: hex.EncodeToString(sum[:8]), workloadImageAnnotation: in.edition.image,
	}
	return w, nil
}

func workloadLabels(name string) map[string]string {
	return map[string]string{appLabel: name, gatewayPodLabel: "true"}
}

func buildTemplate(in workloadInput, name string) (*corev1.PodTemplateSpec, error) {
	gw := in.gateway
	if in.edition.image == "" {
		return nil, fmt.Errorf("ConfigMap %s names no %s", imageConfigMap, imageKey)
	}
	selector, err := nodeSelector(gw.Spec.Selector)
	if err != nil {
		return nil, err
	}
	networks, err := networksOf(in.externals)
	if err != nil {
		return nil, err
	}
	annotations := maps.Clone(gw.Spec.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[sharenat.GatewayPodAnnotation] = gw.Name
	annotations[networksAnnotation] = networks
	annotations[switchAnnotation] = gw.Spec.Subnet
	if gw.Spec.LanIP != "" && replicasOf(gw) == 1 {
		annotations[addressAnnotation] = gw.Spec.LanIP
	}
	affinity := gw.Spec.Affinity.DeepCopy()
	if replicasOf(gw) > 1 {
		spread(affinity, name)
	}
	if *affinity == (corev1.Affinity{}) {
		affinity = nil
	}
	return &corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: workloadLabels(name), Annotations: annotations},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{buildContainer(in)},
			// sleep does not listen to SIGTERM.
			TerminationGracePeriodSeconds: ptr.To[int64](0),
			NodeSelector:                  selector,
			Tolerations:                   gw.Spec.Tolerations,
			Affinity:                      affinity,
		},
	}, nil
}

func buildContainer(in workloadInput) corev1.Container {
	var v4, v6 []string
	for _, subnet := range in.externals {
		v4 = append(v4, addrStrings(ipv4s(subnet.Spec.Gateway))...)
		v6 = append(v6, addrStrings(ipv6s(subnet.Spec.Gateway))...)
	}
	return corev1.Container{
		Name:            containerName,
		Image:           in.edition.image,
		ImagePullPolicy: corev1.PullIfNotPresent,
		Command:         []string{"sleep", "infinity"},
		Env: []corev1.EnvVar{
			{Name: "GATEWAY_V4", Value: first(v4)},
			{Name: "GATEWAY_V6", Value: first(v6)},
		},
		Lifecycle: &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{
			Exec: &corev1.ExecAction{Command: []string{"bash", "-c", "sysctl -w net.ipv4.ip_forward=1"}},
		}},
		SecurityContext: &corev1.SecurityContext{
			Privileged:               ptr.To(true),
			AllowPrivilegeEscalation: ptr.To(true),
		},
	}
}

// first gives the first item or nothing: the default route can only go one way.
func first(items []string) string {
	if len(items) == 0 {
		return ""
	}
	return items[0]
}

func addrStrings(addrs []netip.Addr) []string {
	out := make([]string, len(addrs))
	for i, a := range addrs {
		out[i] = a.String()
	}
	return out
}

// networksOf gives the attachments of the external subnets: provider "<nad>.<namespace>" or "<nad>.<namespace>.ovn"
// is attachment "<namespace>/<nad>".
func networksOf(externals []*kubeovnv1.Subnet) (string, error) {
	var out []string
	for _, subnet := range externals {
		parts := strings.Split(subnet.Spec.Provider, ".")
		if len(parts) < 2 || len(parts) > 3 || parts[0] == "" || parts[1] == "" || len(parts) == 3 && parts[2] != "ovn" {
			return "", fmt.Errorf("external subnet %s: provider %q must be <nad>.<namespace> or <nad>.<namespace>.ovn", subnet.Name, subnet.Spec.Provider)
		}
		out = append(out, parts[1]+"/"+parts[0])
	}
	return strings.Join(out, ","), nil
}

// nodeSelector reads items "key: value".
func nodeSelector(items []string) (map[string]string, error) {
	if len(items) == 0 {
		return nil, nil
	}
	out := make(map[string]string, len(items))
	for _, item := range items {
		key, value, ok := strings.Cut(item, ":")
		if key = strings.TrimSpace(key); !ok || key == "" {
			return nil, fmt.Errorf("selector %q: must be \"key: value\"", item)
		}
		out[key] = strings.Trim(strings.TrimSpace(value), `"`)
	}
	return out, nil
}

// spread prefers a node of its own for every pod of a gateway.
func spread(affinity *corev1.Affinity, name string) {
	if affinity.PodAntiAffinity == nil {
		affinity.PodAntiAffinity = &corev1.PodAntiAffinity{}
	}
	terms := &affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution
	*terms = append(*terms, corev1.WeightedPodAffinityTerm{
		Weight: 100,
		PodAffinityTerm: corev1.PodAffinityTerm{
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{appLabel: name}},
			TopologyKey:   corev1.LabelHostname,
		},
	})
}
