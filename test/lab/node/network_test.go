// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeovn/kube-ovn/test/lab/fabric"
)

func apply(t *testing.T, kind, resource, name string, spec map[string]any) {
	t.Helper()
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "kubeovn.io/v1", "kind": kind, "metadata": map[string]any{"name": name}, "spec": spec,
	}}
	client := shared.dynamic.Resource(schema.GroupVersionResource{Group: "kubeovn.io", Version: "v1", Resource: resource})
	if _, err := client.Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func get(t *testing.T, resource, name string) *unstructured.Unstructured {
	t.Helper()
	client := shared.dynamic.Resource(schema.GroupVersionResource{Group: "kubeovn.io", Version: "v1", Resource: resource})
	object, err := client.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return object
}

func annotated(pairs ...string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		for i := 0; i < len(pairs); i += 2 {
			pod.Annotations[pairs[i]] = pairs[i+1]
		}
	}
}

func annotate(t *testing.T, name string, annotations map[string]any) {
	t.Helper()
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := shared.client.CoreV1().Pods("default").Patch(t.Context(), name, types.MergePatchType, body, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// curl asks a Pod who it is, from a network namespace.
func curl(t *testing.T, network, address, path string) string {
	t.Helper()
	stdout, _, err := ExecIn(t.Context(), network, "curl", "-s", "-m", "2", "http://"+address+":8080/"+path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(stdout)
}

// TestNetwork walks the way a VPC with a gateway goes: the Pods come first and wait for their Subnet.
func TestNetwork(t *testing.T) {
	create(t, "vpc-client", annotated("ovn.kubernetes.io/logical_switch", "net-1"))
	create(t, "gateway", annotated(
		"ovn.kubernetes.io/logical_switch", "net-1", "ovn.kubernetes.io/ip_address", "10.5.0.254",
		"k8s.v1.cni.cncf.io/networks", "kube-system/ext", "ext.kube-system.kubernetes.io/default_route", "true",
	), command("sh", "-c", "sysctl -w net.ipv4.ip_forward=1; exec sleep 1000"))
	create(t, "dual", annotated("k8s.v1.cni.cncf.io/networks", `[{"name":"net-1","namespace":"default","interface":"vpc0"}]`))
	waiting := await(t, "vpc-client", "scheduled", func(pod *corev1.Pod) bool { return conditionOf(pod, corev1.PodScheduled) == corev1.ConditionTrue })
	if waiting.Status.PodIP != "" {
		t.Errorf("the pod has an address before its subnet is there: %s", waiting.Status.PodIP)
	}
	dual := await(t, "dual", "ready", isReady)
	if _, there := dual.Annotations["net-1.default.ovn.kubernetes.io/ip_address"]; there {
		t.Error("the second NIC has an address before its subnet is there")
	}

	apply(t, "Vpc", "vpcs", "vpc-1", map[string]any{"staticRoutes": []any{
		map[string]any{"policy": "policyDst", "cidr": "0.0.0.0/0", "nextHopIP": "10.5.0.254"},
	}})
	apply(t, "Subnet", "subnets", "net-1", map[string]any{"vpc": "vpc-1", "cidrBlock": "10.5.0.0/24", "provider": "net-1.default.ovn"})
	apply(t, "Subnet", "subnets", "ext", map[string]any{"provider": "ext.kube-system", "cidrBlock": "203.0.113.0/24", "gateway": "203.0.113.1"})
	client := await(t, "vpc-client", "ready", isReady)
	gateway := await(t, "gateway", "ready with both NICs", func(pod *corev1.Pod) bool {
		return isReady(pod) && pod.Annotations["ext.kube-system.kubernetes.io/ip_address"] != ""
	})
	dual = await(t, "dual", "attached", func(pod *corev1.Pod) bool { return pod.Annotations["net-1.default.ovn.kubernetes.io/ip_address"] != "" })
	if client.Status.PodIP != client.Annotations["ovn.kubernetes.io/ip_address"] || !strings.HasPrefix(client.Status.PodIP, "10.5.0.") {
		t.Errorf("client's address %q, annotations %v", client.Status.PodIP, client.Annotations)
	}
	if gateway.Status.PodIP != "10.5.0.254" {
		t.Errorf("gateway's address %q, want the one it asked for", gateway.Status.PodIP)
	}
	clientNetwork, err := shared.node.PodNamespace("default", "vpc-client")
	if err != nil {
		t.Fatal(err)
	}
	second := dual.Annotations["net-1.default.ovn.kubernetes.io/ip_address"]
	eventually(t, "client reaches the dual pod's second NIC", func() bool { return curl(t, clientNetwork, second, "hostname") == "dual" })
	if got := curl(t, "client1", second, "hostname"); got != "" {
		t.Errorf("the outside reaches into the VPC: %q", got)
	}

	// The packets' way out: VPC router → gateway pod → external network, with SNAT in the gateway.
	if _, stderr, code := execute(t, "gateway", "", "sh", "-c",
		"nft add table ip n && nft 'add chain ip n p { type nat hook postrouting priority 100; }' && nft add rule ip n p oifname net1 masquerade"); code != 0 {
		t.Fatal(stderr)
	}
	if external := gateway.Annotations["ext.kube-system.kubernetes.io/ip_address"]; external != "203.0.113.254" {
		t.Errorf("gateway's external address %q", external)
	}
	eventually(t, "the client gets out through the gateway", func() bool {
		stdout, _, _ := ExecIn(t.Context(), clientNetwork, "curl", "-sk", "-m", "2", "-o", "/dev/null", "-w", "%{time_connect}", "https://203.0.113.2:10250/")
		return !strings.HasPrefix(stdout, "0.000000")
	})

	eventually(t, "the vpc and the subnet say what they have", func() bool {
		vpc, subnet := get(t, "vpcs", "vpc-1"), get(t, "subnets", "net-1")
		names, _, _ := unstructured.NestedStringSlice(vpc.Object, "status", "subnets")
		standby, _, _ := unstructured.NestedBool(vpc.Object, "status", "standby")
		using, _, _ := unstructured.NestedInt64(subnet.Object, "status", "v4usingIPs")
		gatewayIP, _, _ := unstructured.NestedString(subnet.Object, "spec", "gateway")
		return slices.Equal(names, []string{"net-1"}) && standby && using == 3 && gatewayIP == "10.5.0.1"
	})
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for begin := time.Now(); !holds(); {
		if time.Since(begin) > patience {
			t.Fatalf("not so: %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func TestHeldNIC(t *testing.T) {
	apply(t, "Subnet", "subnets", "net-2", map[string]any{"vpc": "ovn-cluster", "cidrBlock": "10.6.0.0/24", "provider": "net-2.default.ovn"})
	create(t, "held", annotated("k8s.v1.cni.cncf.io/networks", "net-2@extra", fabric.AnnotationHoldNIC, "net-2.default.ovn"))
	pod := await(t, "held", "ready", isReady)
	if _, there := pod.Annotations["net-2.default.ovn.kubernetes.io/ip_address"]; there {
		t.Error("annotated although held")
	}
	annotate(t, "held", map[string]any{fabric.AnnotationHoldNIC: nil})
	pod = await(t, "held", "annotated", func(pod *corev1.Pod) bool {
		return pod.Annotations["net-2.default.ovn.kubernetes.io/allocated"] == "true"
	})
	address := pod.Annotations["net-2.default.ovn.kubernetes.io/ip_address"]
	eventually(t, "the NIC is there", func() bool {
		stdout, _, code := execute(t, "held", "", "ip", "-4", "-br", "addr", "show", "extra")
		return code == 0 && strings.Contains(stdout, address+"/24")
	})
}

func TestNamesakeGetsFreeAddress(t *testing.T) {
	ask := annotated("ovn.kubernetes.io/ip_address", "10.16.9.9")
	create(t, "fixed", ask, command("sleep", "1000"))
	first := await(t, "fixed", "ready", isReady)
	for range 3 {
		if err := shared.client.CoreV1().Pods("default").Delete(t.Context(), "fixed", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
			t.Fatal(err)
		}
		gone(t, "fixed")
		begin := time.Now()
		create(t, "fixed", ask, command("sleep", "1000"))
		second := await(t, "fixed", "ready", isReady)
		t.Logf("re-created in %v", time.Since(begin).Round(time.Millisecond))
		if second.UID == first.UID || second.Status.PodIP != "10.16.9.9" {
			t.Errorf("address %s", second.Status.PodIP)
		}
	}
}
