// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/kubeovn/kube-ovn/test/lab/stock"
	"github.com/kubeovn/kube-ovn/test/lab/stock/handler"
	"github.com/kubeovn/kube-ovn/test/lab/supervise"
)

// Stock is the stand-in for Kube-OVN's own controller: its executable, its process and its log.
const Stock = "kube-ovn-stock"

const (
	stockPort        = 10661
	stockWebhookPort = 10662
	// stockGrace is how long it may take to end.
	stockGrace = 5 * time.Second
)

// stockDeployments are the containers by which each release is known in a cluster.
var stockDeployments = map[handler.Release]corev1.Container{
	handler.V117:  {Image: "docker.io/kubeovn/kube-ovn:v1.17.0", Args: []string{"--v=3"}},
	handler.Newer: {Image: "docker.io/kubeovn/kube-ovn:v1.18.0", Args: []string{"--v=3", "--enable-nftable-lb-svc=false"}},
}

// startStock makes the Deployment of Kube-OVN's own controller, in which no Pod runs, and starts who stands in for it.
func (l *Lab) startStock(ctx context.Context) error {
	clientset, err := kubernetes.NewForConfig(l.config)
	if err != nil {
		return err
	}
	container := stockDeployments[handler.Release(l.options.StockRelease)]
	container.Name = Controller
	labels := map[string]string{"app": Controller}
	_, err = clientset.AppsV1().Deployments(SystemNamespace).Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: Controller, Labels: labels},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](0), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{container}}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create Deployment %s: %w", Controller, err)
	}
	return l.StartStock(ctx)
}

// StartStock starts the stand-in for Kube-OVN's own controller and waits until it is ready.
func (h *Handle) StartStock(ctx context.Context) error {
	args := []string{
		"--kubeconfig=" + h.state.ControllerKubeconfig, "--namespace=" + SystemNamespace,
		"--release=" + h.state.StockRelease, fmt.Sprintf("--port=%d", stockPort),
	}
	if h.state.StockWebhook {
		args = append(args, fmt.Sprintf("--webhook-port=%d", stockWebhookPort))
	}
	if err := h.processes.Start(ctx, supervise.Spec{Name: Stock, Path: h.state.Stock, Args: args}); err != nil {
		return err
	}
	return h.WaitHTTP(ctx, Stock, fmt.Sprintf("http://127.0.0.1:%d/readyz", stockPort))
}

// StopStock ends it.
func (h *Handle) StopStock(ctx context.Context) error {
	err := h.processes.Stop(ctx, Stock, stockGrace)
	if errors.Is(err, supervise.ErrNotRunning) {
		return nil
	}
	return err
}

// StockRelease says which of Kube-OVN's releases is stood in for; "" for none.
func (h *Handle) StockRelease() string { return h.state.StockRelease }

// BesideStock says that the lab began with this project's controller beside the stand-in.
func (h *Handle) BesideStock() bool { return h.state.BesideStock }

// stockCRDs are those of Kube-OVN. What its release does not know of rules, this project's installers add: they are there where its
// controller is from the start.
func stockCRDs(root string, affinity bool) ([]*unstructured.Unstructured, error) {
	table, err := os.ReadFile(filepath.Join(root, stock.Table))
	if err != nil {
		return nil, err
	}
	crds, err := stock.CRDs(string(table), affinity)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", stock.Table, err)
	}
	objects, err := decode([]byte(stock.SNATRules))
	if err != nil {
		return nil, err
	}
	for _, crd := range crds {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(crd)
		if err != nil {
			return nil, err
		}
		delete(content, "status") // The API server's.
		objects = append(objects, &unstructured.Unstructured{Object: content})
	}
	return objects, nil
}
