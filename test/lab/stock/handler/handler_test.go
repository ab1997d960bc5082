// SPDX-License-Identifier: Apache-2.0

package handler

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/client/clienttest"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// record notes the calls, and fails those that it is told to.
type record struct {
	mu    sync.Mutex
	calls []string
	fails map[string]int
}

func (r *record) run(_ context.Context, pod *corev1.Pod, c call) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, pod.Name+": "+c.String())
	if r.fails[c.verb]--; r.fails[c.verb] >= 0 {
		return errors.New("it does not work today")
	}
	return nil
}

// take gives the calls since it was last asked, sorted.
func (r *record) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	calls := slices.Sorted(slices.Values(r.calls))
	r.calls = nil
	return calls
}

// world is a handler at work on fakes.
type world struct {
	*Handler
	t      *testing.T
	record *record
}

func newWorld(t *testing.T, release Release) *world {
	t.Helper()
	data := func(name, key, value string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name}, Data: map[string]string{key: value}}
	}
	w := &world{t: t, record: &record{fails: map[string]int{}}}
	w.Handler = &Handler{
		release: release, namespace: "kube-system", runner: w.record, natListers: map[string]cache.GenericLister{},
		kube: fake.NewClientset(data(imageConfigMap, "image", "img"), data(gateConfigMap, "enable-vpc-nat-gw", "true")),
		ovn: clienttest.NewClientset(t,
			subnet("ovn-vpc-external-network", "", "203.0.113.0/24", "203.0.113.1", "203.0.113.2..203.0.113.9"),
			subnet("a", "v", "10.1.0.0/24", "10.1.0.1"), subnet("b", "v", "10.2.0.0/24", "10.2.0.1"),
			&kubeovnv1.VpcNatGateway{ObjectMeta: metav1.ObjectMeta{Name: "gw"}, Spec: kubeovnv1.VpcNatGatewaySpec{Vpc: "v", Subnet: "a", LanIP: "10.1.0.254"}},
			&kubeovnv1.IptablesEIP{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: kubeovnv1.IptablesEIPSpec{NatGwDp: "gw"}},
		),
		dynamic: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
			resource("iptables-fip-rules"): "IptablesFIPRuleList", resource("iptables-snat-rules"): "IptablesSnatRuleList",
		}),
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[item](time.Millisecond, 10*time.Millisecond)),
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	ready := make(chan struct{})
	go func() { done <- w.Run(ctx, func() { close(ready) }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	<-ready
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// await waits until something is so.
func (w *world) await(what string, so func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatalf("%s never came; calls: %q", what, w.record.take())
		}
	}
}

// called wants these calls, and no others, since it was last asked.
func (w *world) called(what string, want ...string) {
	w.t.Helper()
	if diff := cmp.Diff(want, w.record.take()); diff != "" {
		w.t.Errorf("calls when %s (-want +got):\n%s", what, diff)
	}
}

// pod makes the gateway's pod, as the workload would.
func (w *world) pod(name string) {
	w.t.Helper()
	_, err := w.kube.CoreV1().Pods("kube-system").Create(w.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{gatewayPodLabel: "true"}, Annotations: map[string]string{sharenat.GatewayPodAnnotation: "gw"},
			CreationTimestamp: metav1.Now(),
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}, metav1.CreateOptions{})
	w.must(err)
}

func (w *world) rule(name string) *kubeovnv1.IptablesDnatRule {
	w.t.Helper()
	rule, err := w.ovn.KubeovnV1().IptablesDnatRules().Get(w.t.Context(), name, metav1.GetOptions{})
	w.must(err)
	return rule
}

func (w *world) create(rule *kubeovnv1.IptablesDnatRule) {
	w.t.Helper()
	rule.Status = kubeovnv1.IptablesDnatRuleStatus{}
	_, err := w.ovn.KubeovnV1().IptablesDnatRules().Create(w.t.Context(), rule, metav1.CreateOptions{})
	w.must(err)
	w.await("rule "+rule.Name, func() bool { return w.rule(rule.Name).Status.Ready })
}

// settle waits until the gateway is ready and has its EIP.
func (w *world) settle() {
	w.t.Helper()
	w.await("the EIP", func() bool {
		eip, err := w.ovn.KubeovnV1().IptablesEIPs().Get(w.t.Context(), "web", metav1.GetOptions{})
		w.must(err)
		return eip.Status.Ready && eip.Status.IP == eipAddress && eip.Spec.V4ip == eipAddress && slices.Contains(eip.Finalizers, sharenat.Finalizer)
	})
	w.await("the routes", func() bool {
		pods, err := w.kube.CoreV1().Pods("kube-system").List(w.t.Context(), metav1.ListOptions{})
		w.must(err)
		return slices.ContainsFunc(pods.Items, func(pod corev1.Pod) bool { return pod.Annotations[routesAnnotation] != "" })
	})
}

func TestLifecycle(t *testing.T) {
	w := newWorld(t, V117)
	w.await("the workload", func() bool {
		_, err := w.kube.AppsV1().StatefulSets("kube-system").Get(t.Context(), "vpc-nat-gw-gw", metav1.GetOptions{})
		return err == nil
	})
	w.called("there is no pod")
	w.pod("one")
	w.settle()
	w.called("the pod comes", "one: eip-add 203.0.113.10/24", "one: init eth0,net1", "one: subnet-route-add 10.2.0.0/24,10.1.0.1")

	w.record.fails[verbShareAdd] = 1
	w.create(dnat("a", "share", "10.1.0.5"))
	w.called("the first rule comes, and one call fails", "one: nft-dnat-map-add 203.0.113.10,80,tcp,10.1.0.5:8080", "one: nft-dnat-map-add 203.0.113.10,80,tcp,10.1.0.5:8080")
	w.create(dnat("b", "share", "10.1.0.6"))
	w.called("the second comes", "one: nft-dnat-map-add 203.0.113.10,80,tcp,10.1.0.5:8080@10.1.0.6:8080")
	want := dnat("b", "share", "10.1.0.6", func(r *kubeovnv1.IptablesDnatRule) {
		r.Labels = map[string]string{"ovn.kubernetes.io/vpc-nat-gw-name": "gw", "ovn.kubernetes.io/vpc_dnat_eport": "80", "ovn.kubernetes.io/eip_v4_ip": eipAddress}
		r.Annotations, r.Finalizers = map[string]string{"ovn.kubernetes.io/vpc_eip": "web"}, []string{"kubeovn.io/kube-ovn-controller"}
	})
	if diff := cmp.Diff(want, w.rule("b")); diff != "" {
		t.Errorf("rule (-want +got):\n%s", diff)
	}

	w.patch("a", fields{"spec": fields{"sessionAffinity": "ClientIP", "sessionAffinityTimeoutSeconds": 600}})
	w.patch("b", fields{"spec": fields{"internalPort": "8081"}})
	w.await("the change", func() bool { return w.rule("b").Status.InternalPort == "8081" })
	w.called("affinity changes, and a port", "one: nft-dnat-map-add 203.0.113.10,80,tcp,10.1.0.5:8080", "one: nft-dnat-map-add 203.0.113.10,80,tcp,10.1.0.5:8080@10.1.0.6:8081")

	w.must(w.kube.CoreV1().Pods("kube-system").Delete(t.Context(), "one", metav1.DeleteOptions{}))
	w.pod("two")
	w.await("what is done anew", func() bool {
		a, b := w.rule("a").Status, w.rule("b").Status
		return a.Redo != "" && b.Redo != "" && a.Ready && b.Ready
	})
	w.settle()
	w.called("the pod is another one", "two: eip-add 203.0.113.10/24", "two: init eth0,net1",
		"two: nft-dnat-map-add 203.0.113.10,80,tcp,10.1.0.5:8080@10.1.0.6:8081", "two: nft-dnat-map-add 203.0.113.10,80,tcp,10.1.0.5:8080@10.1.0.6:8081",
		"two: subnet-route-add 10.2.0.0/24,10.1.0.1")
}

func (w *world) patch(rule string, content fields) {
	w.t.Helper()
	w.must(mergePatch(w.t.Context(), w.ovn.KubeovnV1().IptablesDnatRules(), rule, content))
}

func TestSNAT(t *testing.T) {
	w := newWorld(t, Newer)
	w.pod("one")
	w.settle()
	w.record.take()
	kind := natKinds[1]
	_, err := w.natClient(kind).Create(t.Context(), &unstructured.Unstructured{Object: fields{
		"apiVersion": "kubeovn.io/v1", "kind": "IptablesSnatRule", "metadata": fields{"name": "s"}, "spec": fields{"eip": "web", "internalCIDR": "10.1.0.0/24"},
	}}, metav1.CreateOptions{})
	w.must(err)
	w.await("the SNAT rule", func() bool {
		object, err := w.natClient(kind).Get(t.Context(), "s", metav1.GetOptions{})
		w.must(err)
		ready, _, _ := unstructured.NestedBool(object.Object, "status", "ready")
		return ready
	})
	w.called("the rule comes", "one: snat-add 203.0.113.10,10.1.0.0/24")
	w.await("its EIP's use", func() bool {
		eip, err := w.ovn.KubeovnV1().IptablesEIPs().Get(t.Context(), "web", metav1.GetOptions{})
		w.must(err)
		return eip.Status.Nat == "snat"
	})
}
