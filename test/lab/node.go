// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/kubeovn/kube-ovn/test/lab/node"
	"github.com/kubeovn/kube-ovn/test/lab/room"
	"github.com/kubeovn/kube-ovn/test/lab/stock"
)

// startNode makes this room's network the node's, and begins to run Pods.
func (l *Lab) startNode(ctx context.Context) error {
	rest := l.Config()
	// Where Pods find the API server, too: an address that is the node's for everybody.
	rest.Host = l.controlPlane.PublicURL()
	kubelet := l.controlPlane.Kubelet
	scripts := node.Scripts{Own: filepath.Join(l.options.Root, "dist", "images", "vpcnatgateway")}
	if l.options.KubeOVN == StockCRDs {
		scripts.Stock = filepath.Join(l.options.Root, stock.ScriptDir)
	}
	n, err := node.Start(ctx, node.Config{
		REST:            rest,
		NodeName:        NodeName,
		Dir:             filepath.Join(room.Dir, "node"),
		ServingCert:     kubelet.Cert,
		ServingKey:      kubelet.Key,
		ClientCA:        l.controlPlane.CA,
		NodeIP:          nodeIP,
		KubeletPort:     kubeletPort,
		Bin:             filepath.Join(room.Dir, "bin"),
		GatewayScripts:  scripts,
		SystemNamespace: SystemNamespace,
	})
	if err != nil {
		return fmt.Errorf("start the node: %w", err)
	}
	go func() {
		select {
		case err := <-n.Failed():
			l.options.OnFailure(fmt.Errorf("the node: %w", err))
		case <-ctx.Done():
		}
	}()
	return nil
}

// waitUsable waits for what a user needs, beside the control plane, before the first Pod can run: the node.
func (l *Lab) waitUsable(ctx context.Context) error {
	clientset, err := kubernetes.NewForConfig(l.config)
	if err != nil {
		return err
	}
	err = wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		n, err := clientset.CoreV1().Nodes().Get(ctx, NodeName, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		return nodeReady(n), nil
	})
	if err != nil {
		return fmt.Errorf("wait for the node: %w", err)
	}
	return nil
}

func nodeReady(n *corev1.Node) bool {
	for _, condition := range n.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// PodNetns returns the name of a Pod's network namespace.
func PodNetns(pod *corev1.Pod) (string, error) {
	name := fmt.Sprintf("pod-%s-%s", pod.Namespace, pod.Name)
	// With its UID where the name was still in use, by a namesake on its way out.
	for _, candidate := range []string{name + "-" + string(pod.UID), name} {
		if _, err := os.Stat(filepath.Join(netnsDir, candidate)); err == nil {
			return candidate, nil
		}
	}
	return "", fmt.Errorf("pod %s/%s has no network namespace (yet)", pod.Namespace, pod.Name)
}
