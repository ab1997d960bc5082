// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// newTestWatch is a watch of a cluster with these objects, whose end the test waits for.
func newTestWatch(t *testing.T, objects ...runtime.Object) (*stockWatch, *fake.Clientset, context.Context) {
	t.Helper()
	client := fake.NewClientset(objects...)
	w, err := newStockWatch(client, beside, stockServesAuto)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(func() {
		cancel()
		for _, f := range w.factories {
			f.Shutdown()
		}
	})
	return w, client, ctx
}

// in runs a step in the background and gives its result.
func in(ctx context.Context, step func(context.Context) error) <-chan error {
	result := make(chan error, 1)
	go func() { result <- step(ctx) }()
	return result
}

func TestStockWatch(t *testing.T) {
	on, off := stockContainers(v118), stockContainers(v118, "--enable-nftable-lb-svc=false")
	t.Run("refuses", func(t *testing.T) {
		w, _, ctx := newTestWatch(t, stockDeployment("kube-system", on))
		if err := w.clear(ctx); err == nil || err.Error() != rivalLine {
			t.Errorf("error %v, want %q", err, rivalLine)
		}
	})
	t.Run("waits for Pods to end, then guards", func(t *testing.T) {
		old := stockPod("old", corev1.PodRunning, on)
		w, client, ctx := newTestWatch(t, stockDeployment("kube-system", off), old)
		cleared := in(ctx, w.clear)
		pods := client.CoreV1().Pods("kube-system")
		// It has looked as soon as it watches, and goes on looking.
		for !watches(client, "pods") {
			if ctx.Err() != nil {
				t.Fatal("it does not watch Pods")
			}
		}
		select {
		case err := <-cleared:
			t.Fatalf("went on beside Pod old: %v", err)
		default:
		}
		if err := pods.Delete(ctx, old.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := <-cleared; err != nil {
			t.Fatal(err)
		}
		guarded := in(ctx, w.guard)
		if _, err := client.AppsV1().Deployments("kube-system").Update(ctx, stockDeployment("kube-system", on), metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := <-guarded; err == nil || err.Error() != rivalLine {
			t.Errorf("error %v, want %q", err, rivalLine)
		}
	})
	t.Run("a Pod appears", func(t *testing.T) {
		w, client, ctx := newTestWatch(t)
		if err := w.clear(ctx); err != nil {
			t.Fatal(err)
		}
		guarded := in(ctx, w.guard)
		if _, err := client.CoreV1().Pods("kube-system").Create(ctx, stockPod("new", corev1.PodPending, on), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := <-guarded; err == nil || err.Error() != "Pod kube-system/new "+mayServe {
			t.Errorf("error %v", err)
		}
	})
	t.Run("may not look", func(t *testing.T) {
		w, client, ctx := newTestWatch(t)
		client.PrependReactor("list", "deployments", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Group: "apps", Resource: "deployments"}, "", nil)
		})
		if err := w.clear(ctx); !apierrors.IsForbidden(err) || !strings.HasPrefix(err.Error(), "look for another kube-ovn-controller") {
			t.Errorf("error %v", err)
		}
	})
	t.Run("ends", func(t *testing.T) {
		w, _, ctx := newTestWatch(t, stockPod("old", corev1.PodRunning, on))
		ctx, cancel := context.WithCancel(ctx)
		cleared := in(ctx, w.clear)
		cancel()
		if err := <-cleared; err != nil {
			t.Error(err)
		}
	})
}

func watches(client *fake.Clientset, resource string) bool {
	for _, action := range client.Actions() {
		if action.Matches("watch", resource) {
			return true
		}
	}
	return false
}
