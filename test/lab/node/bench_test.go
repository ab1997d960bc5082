// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"strconv"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// BenchmarkDeployment measures how long a Deployment takes until all its Pods are ready, and until they are gone.
func BenchmarkDeployment(b *testing.B) {
	for _, replicas := range []int32{1, 10, 100, 300} {
		b.Run(strconv.Itoa(int(replicas)), func(b *testing.B) {
			var up, down time.Duration
			for range b.N {
				begin := time.Now()
				deploy(b, replicas)
				up += time.Since(begin)
				begin = time.Now()
				undeploy(b)
				down += time.Since(begin)
			}
			b.ReportMetric(up.Seconds()/float64(b.N), "s/up")
			b.ReportMetric(down.Seconds()/float64(b.N), "s/down")
		})
	}
}

func deploy(b *testing.B, replicas int32) {
	b.Helper()
	labels := map[string]string{"app": "bench"}
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "bench"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{TerminationGracePeriodSeconds: ptr.To[int64](1), Containers: []corev1.Container{{
					Name: "main", Image: "agnhost", Args: []string{"netexec", "--http-port=8080"},
					ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(8080)}}},
				}}},
			},
		},
	}
	if _, err := shared.client.AppsV1().Deployments("default").Create(b.Context(), deployment, metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
	settle(b, func(ctx context.Context) (bool, error) {
		now, err := shared.client.AppsV1().Deployments("default").Get(ctx, "bench", metav1.GetOptions{})
		return err == nil && now.Status.ReadyReplicas == replicas, err
	})
}

func undeploy(b *testing.B) {
	b.Helper()
	propagation := metav1.DeletePropagationForeground
	if err := shared.client.AppsV1().Deployments("default").Delete(b.Context(), "bench", metav1.DeleteOptions{PropagationPolicy: &propagation}); err != nil {
		b.Fatal(err)
	}
	settle(b, func(ctx context.Context) (bool, error) {
		pods, err := shared.client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=bench"})
		if err != nil || len(pods.Items) > 0 {
			return false, err
		}
		_, err = shared.client.AppsV1().Deployments("default").Get(ctx, "bench", metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})
}

func settle(b *testing.B, done func(context.Context) (bool, error)) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), 5*time.Minute)
	defer cancel()
	for {
		ok, err := done(ctx)
		if err != nil {
			b.Fatal(err)
		}
		if ok {
			return
		}
		if !wait(ctx, 20*time.Millisecond) {
			b.Fatal("took too long")
		}
	}
}
