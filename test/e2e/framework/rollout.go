// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"fmt"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
)

// Gate is the readiness gate of Gated workloads.
const Gate corev1.PodConditionType = "e2e.kube-ovn.io/gate"

// Gated makes a Deployment whose Pods are ready only while SetGate says so, and waits until they run.
func (s *Scene) Gated(ctx context.Context, w Workload) []corev1.Pod {
	GinkgoHelper()
	template := w.template()
	template.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: Gate}}
	deployments := s.Kube.AppsV1().Deployments(s.Namespace)
	_, err := deployments.Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: w.Name, Labels: appLabels(w.Name)},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To(w.Replicas), Selector: &metav1.LabelSelector{MatchLabels: merge(appLabels(w.app()), map[string]string{"workload": w.Name})}, Template: template,
		},
	}, metav1.CreateOptions{})
	must(err, "create Deployment %s", w.Name)
	s.track("Deployment "+w.Name, deletion(deployments, w.Name), nil)
	var pods []corev1.Pod
	Wait(ctx, func(g Gomega, ctx context.Context) {
		list, err := s.Kube.CoreV1().Pods(s.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "workload=" + w.Name})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(list.Items).To(HaveLen(int(w.Replicas)), "Pods of %s", w.Name)
		for i := range list.Items {
			g.Expect(list.Items[i].Status.Phase).To(Equal(corev1.PodRunning), "Pod %s", list.Items[i].Name)
		}
		pods = list.Items
	}).Should(Succeed())
	return pods
}

// SetGate makes a Pod of a Gated workload ready or not.
func (s *Scene) SetGate(ctx context.Context, pod string, open bool) {
	GinkgoHelper()
	status := corev1.ConditionFalse
	if open {
		status = corev1.ConditionTrue
	}
	patch := fmt.Appendf(nil, `{"status":{"conditions":[{"type":%q,"status":%q}]}}`, Gate, status)
	_, err := s.Kube.CoreV1().Pods(s.Namespace).Patch(ctx, pod, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	must(err, "set the gate of Pod %s", pod)
}

// Rollout exchanges the Pods of a Deployment and waits until that is done.
func (s *Scene) Rollout(ctx context.Context, name string) {
	GinkgoHelper()
	deployments := s.Kube.AppsV1().Deployments(s.Namespace)
	patch := fmt.Appendf(nil, `{"spec":{"template":{"metadata":{"annotations":{"rollout":%q}}}}}`, time.Now().Format(time.RFC3339Nano))
	changed, err := deployments.Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	must(err, "change the template of Deployment %s", name)
	Wait(ctx, func(g Gomega, ctx context.Context) {
		d, err := deployments.Get(ctx, name, metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(d.Status.ObservedGeneration).To(BeNumerically(">=", changed.Generation))
		wanted := *d.Spec.Replicas
		g.Expect([]int32{d.Status.UpdatedReplicas, d.Status.AvailableReplicas, d.Status.Replicas}).To(Equal([]int32{wanted, wanted, wanted}), "replicas updated, available, in all")
	}).Should(Succeed())
}

// DeletePod deletes a Pod, with a grace period of its own choice or of so many seconds.
func (s *Scene) DeletePod(ctx context.Context, name string, grace ...int64) {
	GinkgoHelper()
	options := metav1.DeleteOptions{}
	if len(grace) > 0 {
		options.GracePeriodSeconds = &grace[0]
	}
	must(s.Kube.CoreV1().Pods(s.Namespace).Delete(ctx, name, options), "delete Pod %s", name)
}

// Condemn has a Pod be the first to go when its Deployment is scaled down.
func (s *Scene) Condemn(ctx context.Context, name string) {
	GinkgoHelper()
	_, err := s.Kube.CoreV1().Pods(s.Namespace).Patch(ctx, name, types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"controller.kubernetes.io/pod-deletion-cost":"-1000"}}}`), metav1.PatchOptions{})
	must(err, "annotate Pod %s", name)
}

// Endings knows since when Pods are on their way out.
type Endings struct {
	mu sync.Mutex
	at map[string]time.Time
}

// Endings watches the scene's Pods until the spec ends.
func (s *Scene) Endings(ctx context.Context) *Endings {
	GinkgoHelper()
	ctx, cancel := context.WithCancel(ctx)
	watcher, err := s.Kube.CoreV1().Pods(s.Namespace).Watch(ctx, metav1.ListOptions{})
	must(err, "watch Pods")
	e := &Endings{at: map[string]time.Time{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for event := range watcher.ResultChan() {
			pod, ok := event.Object.(*corev1.Pod)
			if ok && (pod.DeletionTimestamp != nil || event.Type == watch.Deleted) {
				e.note(pod.Name)
			}
		}
	}()
	DeferCleanup(func() {
		cancel()
		watcher.Stop()
		<-done
	})
	return e
}

func (e *Endings) note(pod string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, known := e.at[pod]; !known {
		e.at[pod] = time.Now()
	}
}

// Of tells since when a Pod is on its way out, if it is.
func (e *Endings) Of(pod string) (time.Time, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	at, ok := e.at[pod]
	return at, ok
}
