// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	dto "github.com/prometheus/client_model/go"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/kubeovn/kube-ovn/pkg/admission"
	"github.com/kubeovn/kube-ovn/pkg/admission/servingcert"
	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	ovnfake "github.com/kubeovn/kube-ovn/pkg/client/clientset/versioned/fake"
	"github.com/kubeovn/kube-ovn/pkg/client/informers/externalversions"
	"github.com/kubeovn/kube-ovn/pkg/latency"
	"github.com/kubeovn/kube-ovn/pkg/lbservice"
	"github.com/kubeovn/kube-ovn/pkg/natgateway"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// family is one metric as it is served.
type family struct {
	kind string
	// labels has the values of each label.
	labels map[string]map[string]bool
}

// exposed are all metrics by name, those of the controller and those of the webhook.
var exposed = sync.OnceValues(func() (map[string]*family, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	w := &world{controller: prometheus.NewRegistry(), webhook: prometheus.NewRegistry(), families: map[string]*family{}}
	if err := w.run(ctx); err != nil {
		return nil, err
	}
	return w.families, w.gather()
})

func mustExpose(t *testing.T) map[string]*family {
	t.Helper()
	families, err := exposed()
	if err != nil {
		t.Fatal(err)
	}
	return families
}

// world is both commands in one process, on fake API servers.
type world struct {
	kube                *kubefake.Clientset
	ovn                 *ovnfake.Clientset
	controller, webhook *prometheus.Registry
	deaf                atomic.Bool
	families            map[string]*family
}

// Exec implements natgateway.Executor: a script that does all it is told, and lists nothing.
func (w *world) Exec(_ context.Context, call natgateway.Call) ([]byte, error) {
	if w.deaf.Load() {
		return nil, &natgateway.CallError{Pod: call.Pod, Verb: call.Verb, ExitCode: -1, Err: errors.New("no way there")}
	}
	if call.Verb == sharenat.ListVerb {
		return []byte("gateway-state v1\nend\n"), nil
	}
	return nil, nil
}

func (w *world) run(ctx context.Context) error {
	w.kube, w.ovn = kubefake.NewClientset(kubeObjects()...), ovnfake.NewSimpleClientset()
	if err := createOvnObjects(ctx, w.ovn); err != nil {
		return err
	}
	w.controller.MustRegister(collectors.NewBuildInfoCollector())
	w.webhook.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collectors.NewBuildInfoCollector())
	for _, step := range []func(context.Context) error{w.lead, w.request, w.control, w.serveWebhook, w.certify} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// control runs both controllers, changes endpoints, and leaves with one change that cannot reach the gateway.
func (w *world) control(ctx context.Context) error {
	kubeInformers, ovnInformers := informers.NewSharedInformerFactory(w.kube, 0), externalversions.NewSharedInformerFactory(w.ovn, 0)
	metrics, err := natgateway.NewMetrics(w.controller)
	if err != nil {
		return err
	}
	tracker, err := latency.NewTracker(w.controller)
	if err != nil {
		return err
	}
	recorder := events.NewFakeRecorder(10000)
	gateways, err := natgateway.New(natgateway.Options{
		KubeClient: w.kube, KubeOvnClient: w.ovn, Executor: w, KubeInformers: kubeInformers, KubeOvnInformers: ovnInformers,
		Namespace: "kube-system", Recorder: recorder, Metrics: metrics, Latency: tracker, CheckInterval: time.Hour,
	})
	if err != nil {
		return err
	}
	services, err := lbservice.New(lbservice.Options{
		KubeClient: w.kube, KubeOvnClient: w.ovn, KubeInformers: kubeInformers, KubeOvnInformers: ovnInformers,
		Recorder: recorder, Metrics: lbservice.NewMetrics(w.controller), Latency: tracker,
		Abilities: lbservice.AllAbilities,
	})
	if err != nil {
		return err
	}
	kubeInformers.Start(ctx.Done())
	ovnInformers.Start(ctx.Done())
	go func() { _ = gateways.Run(ctx, 1) }()
	go func() { _ = services.Run(ctx, 1) }()
	if err := w.until(ctx, "kube_ovn_nftable_lb_rules", "state", "ready"); err != nil {
		return err
	}
	if err := w.endpoints(ctx, "web-0", "web-1"); err != nil {
		return err
	}
	if err := w.until(ctx, "kube_ovn_nftable_lb_programming_duration_seconds", "gateway", "demo"); err != nil {
		return err
	}
	w.deaf.Store(true)
	if err := w.endpoints(ctx, "web-0"); err != nil {
		return err
	}
	return w.until(ctx, "kube_ovn_nftable_lb_programming_pending_seconds", "gateway", "demo")
}

// endpoints makes these Pods the Service's, as Kubernetes' controller does.
func (w *world) endpoints(ctx context.Context, pods ...string) error {
	_, err := w.kube.DiscoveryV1().EndpointSlices("demo").Update(ctx, slice(time.Now(), pods...), metav1.UpdateOptions{})
	return err
}

// serveWebhook answers one review of each kind.
func (w *world) serveWebhook(ctx context.Context) error {
	kubeInformers, ovnInformers := informers.NewSharedInformerFactory(w.kube, 0), externalversions.NewSharedInformerFactory(w.ovn, 0)
	validator, err := admission.New(admission.Options{
		KubeOvnClient: w.ovn, KubeInformers: kubeInformers, KubeOvnInformers: ovnInformers, Metrics: admission.NewMetrics(w.webhook),
	})
	if err != nil {
		return err
	}
	server := webhook.NewServer(webhook.Options{})
	validator.Register(server)
	kubeInformers.Start(ctx.Done())
	ovnInformers.Start(ctx.Done())
	kubeInformers.WaitForCacheSync(ctx.Done())
	ovnInformers.WaitForCacheSync(ctx.Done())
	rule := func(name string) any { return dnatRule(name, "81") }
	for path, object := range map[string]any{
		admission.PathRule: rule("new"), admission.PathService: service("other"), admission.PathEIP: map[string]any{}, admission.PathFIP: map[string]any{}, admission.PathGateway: map[string]any{},
	} {
		raw, err := json.Marshal(object)
		if err != nil {
			return err
		}
		body, err := json.Marshal(admissionv1.AdmissionReview{
			TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
			Request:  &admissionv1.AdmissionRequest{UID: "1", Operation: admissionv1.Create, Object: runtime.RawExtension{Raw: raw}},
		})
		if err != nil {
			return err
		}
		r := httptest.NewRequestWithContext(ctx, http.MethodPost, path, bytes.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		server.WebhookMux().ServeHTTP(httptest.NewRecorder(), r)
	}
	return nil
}

func (w *world) certify(ctx context.Context) error {
	manager, err := servingcert.New(servingcert.Options{
		Client: w.kube, Namespace: "kube-system", SecretName: "ca", Names: []string{"kube-ovn-webhook.kube-system.svc"}, Registerer: w.webhook,
	})
	if err != nil {
		return err
	}
	go func() { _ = manager.Run(ctx) }()
	return w.until(ctx, "kube_ovn_webhook_certificate_expiration_timestamp_seconds", "certificate", "serving")
}

// lead takes a lease, for the metric of that.
func (w *world) lead(ctx context.Context) error {
	lock, err := resourcelock.New(resourcelock.LeasesResourceLock, "kube-system", "kube-ovn-nftable-lb", w.kube.CoreV1(), w.kube.CoordinationV1(), resourcelock.ResourceLockConfig{Identity: "test"})
	if err != nil {
		return err
	}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, Name: "kube-ovn-nftable-lb", LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
		Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) {}, OnStoppedLeading: func() {}},
	})
	if err != nil {
		return err
	}
	go elector.Run(ctx)
	return nil
}

// request makes one request of client-go's, for its metrics.
func (w *world) request(ctx context.Context) error {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		return err
	}
	if _, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{}); err == nil {
		return errors.New("a list of Pods from a server that has none")
	}
	return nil
}

// until waits for a series other than 0.
func (w *world) until(ctx context.Context, name, label, value string) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		for _, registry := range []*prometheus.Registry{w.controller, w.webhook} {
			families, err := registry.Gather()
			if err != nil {
				return err
			}
			for _, f := range families {
				if f.GetName() == name && slices.ContainsFunc(f.GetMetric(), func(m *dto.Metric) bool {
					return labelsOf(m)[label] == value && (m.GetGauge().GetValue() != 0 || m.GetHistogram().GetSampleCount() > 0)
				}) {
					return nil
				}
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited in vain for %s{%s=%q}", name, label, value)
		case <-tick.C:
		}
	}
}

func labelsOf(m *dto.Metric) map[string]string {
	out := map[string]string{}
	for _, pair := range m.GetLabel() {
		out[pair.GetName()] = pair.GetValue()
	}
	return out
}

// gather collects what is served: by the controller, and by the webhook.
func (w *world) gather() error {
	for _, gatherer := range []prometheus.Gatherer{legacyregistry.DefaultGatherer, w.controller, w.webhook, ctrlmetrics.Registry} {
		families, err := gatherer.Gather()
		if err != nil {
			return err
		}
		for _, f := range families {
			w.add(f)
		}
	}
	return nil
}

func (w *world) add(f *dto.MetricFamily) {
	have := w.families[f.GetName()]
	if have == nil {
		have = &family{kind: strings.ToLower(f.GetType().String()), labels: map[string]map[string]bool{}}
		w.families[f.GetName()] = have
	}
	for _, m := range f.GetMetric() {
		for label, value := range labelsOf(m) {
			if have.labels[label] == nil {
				have.labels[label] = map[string]bool{}
			}
			have.labels[label][value] = true
		}
	}
}

// What is in the API servers: two Services that want the same port of an EIP, whose gateway runs one pod.

func kubeObjects() []runtime.Object {
	config := func(name, key, value string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name}, Data: map[string]string{key: value}}
	}
	return []runtime.Object{
		config("ovn-vpc-nat-config", "image", "gateway:1"), config("ovn-vpc-nat-gw-config", "enable-vpc-nat-gw", "true"),
		pod("web-0", "10.1.0.4"), pod("web-1", "10.1.0.5"), slice(time.Unix(0, 0), "web-0"), service("web"), service("zweb"), gatewayPod(),
	}
}

func service(name string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: name, UID: types.UID(name), Annotations: map[string]string{sharenat.EIPAnnotation: "demo"}},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}}},
	}
}

func pod(name, address string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: name, UID: types.UID(name), Annotations: map[string]string{
			"ovn.kubernetes.io/logical_switch": "demo-net", "ovn.kubernetes.io/allocated": "true", "ovn.kubernetes.io/ip_address": address,
		}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: address},
	}
}

func slice(at time.Time, pods ...string) *discoveryv1.EndpointSlice {
	port, yes := int32(8080), true
	name := ""
	out := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "demo", Name: "web-x", Labels: map[string]string{discoveryv1.LabelServiceName: "web"},
			Annotations: map[string]string{corev1.EndpointsLastChangeTriggerTime: at.Format(time.RFC3339Nano)},
		},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
	}
	for _, pod := range pods {
		out.Endpoints = append(out.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{"10.1.0.4"}, Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "demo", Name: pod, UID: types.UID(pod)},
		})
	}
	return out
}

func gatewayPod() *corev1.Pod {
	out := pod("vpc-nat-gw-demo-0", "10.1.0.254")
	out.Namespace = "kube-system"
	out.Annotations[sharenat.GatewayPodAnnotation] = "demo"
	out.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "vpc-nat-gw", ContainerID: "x", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
	}}
	return out
}

func dnatRule(name, port string) *kubeovnv1.IptablesDnatRule {
	return &kubeovnv1.IptablesDnatRule{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.IptablesDnatRuleSpec{
		EIP: "demo", ExternalPort: port, Protocol: "tcp", InternalIP: "10.1.0.9", InternalPort: "80", Type: sharenat.TypeExclusive,
	}}
}

func createOvnObjects(ctx context.Context, client *ovnfake.Clientset) error {
	v1, opts := client.KubeovnV1(), metav1.CreateOptions{}
	subnet := func(name, cidr, gateway, vpc string) *kubeovnv1.Subnet {
		return &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: cidr, Gateway: gateway, Vpc: vpc, Provider: "ovn"}}
	}
	_, err1 := v1.Subnets().Create(ctx, subnet("demo-net", "10.1.0.0/24", "10.1.0.1", "demo"), opts)
	_, err2 := v1.Subnets().Create(ctx, subnet(sharenat.DefaultExternalSubnet, "203.0.113.0/24", "203.0.113.1", ""), opts)
	_, err3 := v1.VpcNatGateways().Create(ctx, &kubeovnv1.VpcNatGateway{
		ObjectMeta: metav1.ObjectMeta{Name: "demo", UID: "demo"}, Spec: kubeovnv1.VpcNatGatewaySpec{Vpc: "demo", Subnet: "demo-net", LanIP: "10.1.0.254"},
	}, opts)
	_, err4 := v1.IptablesEIPs().Create(ctx, &kubeovnv1.IptablesEIP{ObjectMeta: metav1.ObjectMeta{Name: "demo"}, Spec: kubeovnv1.IptablesEIPSpec{NatGwDp: "demo"}}, opts)
	_, err5 := v1.IptablesDnatRules().Create(ctx, dnatRule("by-hand", "81"), opts)
	return errors.Join(err1, err2, err3, err4, err5)
}
