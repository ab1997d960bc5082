// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	vknode "github.com/virtual-kubelet/virtual-kubelet/node"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const leaseSeconds = 40

// register makes the Node object and keeps its lease alive; it returns when the node is Ready and takes Pods.
func (n *Node) register(ctx context.Context) error {
	nodes := n.client.CoreV1().Nodes()
	controller, err := vknode.NewNodeController(vknode.NaiveNodeProvider{}, n.object(), nodes,
		vknode.WithNodeEnableLeaseV1(n.client.CoordinationV1().Leases(corev1.NamespaceNodeLease), leaseSeconds))
	if err != nil {
		return fmt.Errorf("make node: %w", err)
	}
	n.background("node object", func() error { return controller.Run(ctx) })
	select {
	case <-controller.Ready():
	case <-controller.Done():
		return fmt.Errorf("register node: %w", controller.Err())
	case <-ctx.Done():
		return ctx.Err()
	}
	return n.removeTaint(ctx)
}

// removeTaint lets Pods onto the node. The API server taints new nodes as not ready, and the controller that takes the
// taint away may not run in the lab.
func (n *Node) removeTaint(ctx context.Context) error {
	nodes := n.client.CoreV1().Nodes()
	node, err := nodes.Get(ctx, n.config.NodeName, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get node: %w", err)
	}
	kept := slices.DeleteFunc(slices.Clone(node.Spec.Taints), func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeNotReady })
	if len(kept) == len(node.Spec.Taints) {
		return nil
	}
	body, err := json.Marshal(map[string]any{"spec": map[string]any{"taints": kept}})
	if err != nil {
		return err
	}
	if _, err := nodes.Patch(ctx, n.config.NodeName, types.MergePatchType, body, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("take the node's taint: %w", err)
	}
	return nil
}

func (n *Node) object() *corev1.Node {
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:              resource.MustParse("1000"),
		corev1.ResourceMemory:           resource.MustParse("4Ti"),
		corev1.ResourceEphemeralStorage: resource.MustParse("4Ti"),
		corev1.ResourcePods:             resource.MustParse("500"),
	}
	now := metav1.Now()
	condition := func(kind corev1.NodeConditionType, status corev1.ConditionStatus, reason, message string) corev1.NodeCondition {
		return corev1.NodeCondition{
			Type: kind, Status: status, Reason: reason, Message: message, LastHeartbeatTime: now, LastTransitionTime: now,
		}
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.config.NodeName, Labels: map[string]string{
			corev1.LabelHostname: n.config.NodeName, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
			"node-role.kubernetes.io/control-plane": "", "kubernetes.io/role": "lab",
		}},
		Status: corev1.NodeStatus{
			Phase: corev1.NodeRunning, Capacity: capacity, Allocatable: capacity,
			Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: n.config.NodeIP.String()},
				{Type: corev1.NodeHostName, Address: n.config.NodeName},
			},
			Conditions: []corev1.NodeCondition{
				condition(corev1.NodeReady, corev1.ConditionTrue, "KubeletReady", "the lab's node is ready"),
				condition(corev1.NodeMemoryPressure, corev1.ConditionFalse, "KubeletHasSufficientMemory", ""),
				condition(corev1.NodeDiskPressure, corev1.ConditionFalse, "KubeletHasNoDiskPressure", ""),
				condition(corev1.NodePIDPressure, corev1.ConditionFalse, "KubeletHasSufficientPID", ""),
				condition(corev1.NodeNetworkUnavailable, corev1.ConditionFalse, "FabricIsUp", ""),
			},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(n.config.KubeletPort)}},
			NodeInfo: corev1.NodeSystemInfo{
				OperatingSystem: "linux", Architecture: "amd64", KubeletVersion: "v1.37.2-lab", ContainerRuntimeVersion: "lab://1",
				OSImage: "lab", KernelVersion: kernelVersion(),
			},
		},
	}
}

func kernelVersion() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return ""
	}
	return unix.ByteSliceToString(name.Release[:])
}
