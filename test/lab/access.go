// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Clients are the external network's clients.
var Clients = []string{"client1", "client2", "client3"}

// netnsDir is where iproute2 keeps named network namespaces; a room has its own.
const netnsDir = "/run/netns"

// NetnsArgs returns the command that runs argv in a named network namespace.
func (h *Handle) NetnsArgs(netns string, argv ...string) []string {
	return append([]string{"ip", "netns", "exec", netns}, argv...)
}

// ClientArgs returns the command that runs argv as a client of the external network.
func (h *Handle) ClientArgs(client string, argv ...string) []string {
	return h.NetnsArgs(client, argv...)
}

// PodArgs returns the command that runs argv in a Pod's network namespace, with the
// node's programs and files; kubectl exec has the Pod's own.
func (h *Handle) PodArgs(ctx context.Context, namespace, name string, argv ...string) ([]string, error) {
	clientset, err := kubernetes.NewForConfig(h.config)
	if err != nil {
		return nil, err
	}
	pod, err := clientset.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return h.podArgs(pod, argv)
}

func (h *Handle) podArgs(pod *corev1.Pod, argv []string) ([]string, error) {
	if pod.Spec.HostNetwork {
		return argv, nil
	}
	netns, err := PodNetns(pod)
	if err != nil {
		return nil, err
	}
	return h.NetnsArgs(netns, argv...), nil
}

// GatewayArgs returns the command that runs argv in the first pod of a VpcNatGateway, by name.
func (h *Handle) GatewayArgs(ctx context.Context, gateway string, argv ...string) ([]string, error) {
	pods, err := h.GatewayPods(ctx, gateway)
	if err != nil {
		return nil, err
	}
	if len(pods) == 0 {
		return nil, fmt.Errorf("gateway %s has no pod that runs", gateway)
	}
	return h.podArgs(&pods[0], argv)
}

// GatewayPods returns the running pods of a VpcNatGateway, by name.
func (h *Handle) GatewayPods(ctx context.Context, gateway string) ([]corev1.Pod, error) {
	clientset, err := kubernetes.NewForConfig(h.config)
	if err != nil {
		return nil, err
	}
	list, err := clientset.CoreV1().Pods("").List(ctx, metav1.ListOptions{LabelSelector: "ovn.kubernetes.io/vpc-nat-gw=true"})
	if err != nil {
		return nil, fmt.Errorf("list gateway pods: %w", err)
	}
	pods := slices.DeleteFunc(list.Items, func(pod corev1.Pod) bool {
		return pod.Annotations["ovn.kubernetes.io/vpc_nat_gw"] != gateway ||
			pod.Status.Phase != corev1.PodRunning || pod.DeletionTimestamp != nil
	})
	return pods, nil
}

// Command makes a command of argv, such as the methods above return, with the lab's environment. It is looked for in the
// lab's bin directory first.
func (h *Handle) Command(ctx context.Context, argv []string) *exec.Cmd {
	name := argv[0]
	if own := filepath.Join(h.dir, "bin", name); !strings.Contains(name, "/") {
		if _, err := os.Stat(own); err == nil {
			name = own
		}
	}
	cmd := exec.CommandContext(ctx, name, argv[1:]...)
	cmd.Env = append(os.Environ(), h.Environ()...)
	return cmd
}
