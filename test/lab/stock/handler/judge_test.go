// SPDX-License-Identifier: Apache-2.0

package handler

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
)

func TestComplaint(t *testing.T) {
	for said, want := range map[string]string{
		"":                             "",
		"Warning: so what\n":           "",
		"\nWarning: a\nWarning: b":     "",
		"# Warning: iptables-legacy\n": "# Warning: iptables-legacy",
		"Warning: a\nit hurts\nmore":   "it hurts",
	} {
		if got := complaint(said); got != want {
			t.Errorf("%q: %q, want %q", said, got, want)
		}
	}
}

func TestDuplicate(t *testing.T) {
	share, alone := dnat("a", "share", "10.1.0.5"), dnat("b", "exclusive", "10.1.0.6")
	for name, test := range map[string]struct {
		rule, other *kubeovnv1.IptablesDnatRule
		want        bool
	}{
		"itself":            {alone, alone, false},
		"two of a share":    {share, dnat("c", "share", "10.1.0.5"), false},
		"two exclusive":     {alone, dnat("c", "exclusive", "10.1.0.7"), true},
		"one of each":       {share, alone, true},
		"another protocol":  {alone, dnat("c", "exclusive", "10.1.0.7", func(r *kubeovnv1.IptablesDnatRule) { r.Spec.Protocol = "udp" }), false},
		"spelled otherwise": {alone, dnat("c", "exclusive", "10.1.0.7", func(r *kubeovnv1.IptablesDnatRule) { r.Spec.Protocol = "TCP" }), true},
	} {
		t.Run(name, func(t *testing.T) {
			if err := duplicate(test.rule, []*kubeovnv1.IptablesDnatRule{test.other}); (err != nil) != test.want {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestSettings(t *testing.T) {
	gates := func(value string) *corev1.ConfigMap {
		return &corev1.ConfigMap{Data: map[string]string{"enable-vpc-nat-gw": value}}
	}
	for name, test := range map[string]struct {
		gates *corev1.ConfigMap
		want  bool
	}{
		"no ConfigMap":   {nil, false},
		"false":          {gates("false"), false},
		"true":           {gates("true"), true},
		"something else": {gates("off"), true},
		"no key":         {&corev1.ConfigMap{}, true},
	} {
		if got := readSettings(nil, test.gates); got.enabled != test.want || got.namePrefix != "vpc-nat-gw-" {
			t.Errorf("%s: %+v", name, got)
		}
	}
	image := &corev1.ConfigMap{Data: map[string]string{"image": "x", "natGwNamePrefix": "nat-"}}
	if got := readSettings(image, nil); got.image != "x" || got.namePrefix != "nat-" {
		t.Errorf("image and prefix: %+v", got)
	}
}

func TestFirstPod(t *testing.T) {
	pod := func(name string, phase corev1.PodPhase) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.PodStatus{Phase: phase}}
	}
	gone := pod("a", corev1.PodRunning)
	gone.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	got := firstPod([]*corev1.Pod{gone, pod("d", corev1.PodRunning), pod("c", corev1.PodRunning), pod("b", corev1.PodPending)})
	if got == nil || got.Name != "c" {
		t.Errorf("got %v", got)
	}
	if got := firstPod([]*corev1.Pod{gone}); got != nil {
		t.Errorf("got %v", got)
	}
}

func subnet(name, vpc, cidr, gateway string, exclude ...string) *kubeovnv1.Subnet {
	return &kubeovnv1.Subnet{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       kubeovnv1.SubnetSpec{Vpc: vpc, CIDRBlock: cidr, Gateway: gateway, ExcludeIps: exclude, Provider: name + ".kube-system"},
	}
}

func TestAllocate(t *testing.T) {
	external := subnet("ext", "", "203.0.113.0/29,2001:db8::/64", "203.0.113.1,2001:db8::1", "203.0.113.2..203.0.113.3")
	for name, test := range map[string]struct {
		taken map[string]bool
		asked string
		want  string
	}{
		"the lowest":          {nil, "", "203.0.113.4"},
		"the next":            {map[string]bool{"203.0.113.4": true}, "", "203.0.113.5"},
		"none left":           {map[string]bool{"203.0.113.4": true, "203.0.113.5": true, "203.0.113.6": true}, "", ""},
		"asked for":           {nil, "203.0.113.6", "203.0.113.6"},
		"asked for, excluded": {nil, "203.0.113.2", "203.0.113.2"},
		"asked for, taken":    {map[string]bool{"203.0.113.6": true}, "203.0.113.6", ""},
		"asked for elsewhere": {nil, "198.51.100.1", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := allocate(external, test.taken, test.asked)
			if (err != nil) != (test.want == "") || err == nil && got.String() != test.want {
				t.Errorf("got %s, %v", got, err)
			}
		})
	}
}

func TestRoutes(t *testing.T) {
	gw := &kubeovnv1.VpcNatGateway{Spec: kubeovnv1.VpcNatGatewaySpec{Vpc: "v", Subnet: "a"}}
	got := routes(gw, []*kubeovnv1.Subnet{
		subnet("a", "v", "10.1.0.0/24", "10.1.0.1"), subnet("b", "v", "10.2.0.0/24", "10.2.0.1"), subnet("c", "w", "10.3.0.0/24", "10.3.0.1"),
	})
	if diff := cmp.Diff([]string{"10.2.0.0/24,10.1.0.1"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestWorkload(t *testing.T) {
	gw := &kubeovnv1.VpcNatGateway{
		ObjectMeta: metav1.ObjectMeta{Name: "gw"},
		Spec:       kubeovnv1.VpcNatGatewaySpec{Vpc: "v", Subnet: "a", LanIP: "10.1.0.254", Selector: []string{"zone: x"}, Replicas: 1},
	}
	external := subnet("ext", "", "203.0.113.0/24", "203.0.113.1")
	one, err := buildWorkload(gw, external, settings{image: "img", namePrefix: "vpc-nat-gw-"}, "kube-system")
	if err != nil || one.statefulSet == nil {
		t.Fatalf("%+v, %v", one, err)
	}
	set := one.statefulSet
	labels := map[string]string{"app": "vpc-nat-gw-gw", "ovn.kubernetes.io/vpc-nat-gw": "true"}
	if diff := cmp.Diff(metav1.ObjectMeta{Name: "vpc-nat-gw-gw", Namespace: "kube-system", Labels: labels}, set.ObjectMeta); diff != "" {
		t.Errorf("metadata (-want +got):\n%s", diff)
	}
	annotations := map[string]string{
		"ovn.kubernetes.io/vpc_nat_gw": "gw", "ovn.kubernetes.io/logical_switch": "a", "ovn.kubernetes.io/ip_address": "10.1.0.254",
		"k8s.v1.cni.cncf.io/networks": "kube-system/ext",
	}
	if diff := cmp.Diff(metav1.ObjectMeta{Labels: labels, Annotations: annotations}, set.Spec.Template.ObjectMeta); diff != "" {
		t.Errorf("pods (-want +got):\n%s", diff)
	}
	container := set.Spec.Template.Spec.Containers[0]
	env := []corev1.EnvVar{{Name: "GATEWAY_V4", Value: "203.0.113.1"}, {Name: "GATEWAY_V6"}}
	if diff := cmp.Diff(env, container.Env); diff != "" || container.Name != "vpc-nat-gw" || container.Image != "img" || !*container.SecurityContext.Privileged {
		t.Errorf("container %+v (-want +got):\n%s", container, diff)
	}

	gw.Spec.Replicas = 2
	two, err := buildWorkload(gw, external, settings{image: "img", namePrefix: "vpc-nat-gw-"}, "kube-system")
	if err != nil || two.deployment == nil {
		t.Fatalf("%+v, %v", two, err)
	}
	strategy, affinity := two.deployment.Spec.Strategy, two.deployment.Spec.Template.Spec.Affinity
	if strategy.Type != appsv1.RollingUpdateDeploymentStrategyType || strategy.RollingUpdate.MaxUnavailable.IntValue() != 1 || strategy.RollingUpdate.MaxSurge.IntValue() != 0 ||
		len(affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution) != 1 || *two.deployment.Spec.Replicas != 2 {
		t.Errorf("deployment: %+v", two.deployment.Spec)
	}
	if address, ok := two.deployment.Spec.Template.Annotations["ovn.kubernetes.io/ip_address"]; ok {
		t.Errorf("two pods would have the address %s", address)
	}
}
