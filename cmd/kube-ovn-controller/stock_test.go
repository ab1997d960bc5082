// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	v117 = "docker.io/kubeovn/kube-ovn:v1.17.3"
	v118 = "docker.io/kubeovn/kube-ovn:v1.18.0"
)

// stockContainers are those of a stock kube-ovn-controller.
func stockContainers(image string, args ...string) []corev1.Container {
	return []corev1.Container{{
		Name: "kube-ovn-controller", Image: image,
		Command: []string{"/kube-ovn/start-controller.sh"}, Args: append([]string{"--default-cidr=10.16.0.0/16", "--v=3"}, args...),
	}}
}

func stockDeployment(namespace string, containers []corev1.Container) *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "kube-ovn-controller"},
		Spec:       appsv1.DeploymentSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: containers}}},
	}
}

func stockPod(name string, phase corev1.PodPhase, containers []corev1.Container) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name, Labels: map[string]string{"app": "kube-ovn-controller"}},
		Spec:       corev1.PodSpec{Containers: containers}, Status: corev1.PodStatus{Phase: phase},
	}
}

const rivalLine = "Deployment kube-system/kube-ovn-controller serves the same Services already (on by default in v1.18.0): " +
	"switch it off there with --enable-nftable-lb-svc=false, or here with the same flag"

// beside is this process, installed beside Kube-OVN.
var beside = identity{"kube-system", "kube-ovn-nftable-lb-5c9f7d8b6-x2x7k"}

func TestServesServices(t *testing.T) {
	sidecar := corev1.Container{Name: "proxy", Image: "docker.io/example/proxy:v2.0.0", Args: []string{"--enable-nftable-lb-svc"}}
	for _, tc := range []struct {
		name       string
		containers []corev1.Container
		want       string
	}{
		{"v1.17 does not by default", stockContainers(v117), ""},
		{"v1.17 is told to", stockContainers(v117, "--enable-nftable-lb-svc=true"), "--enable-nftable-lb-svc=true"},
		{"newer ones do by default", stockContainers(v118), "on by default in v1.18.0"},
		{"much newer", stockContainers("kube-ovn:2.0.1"), "on by default in 2.0.1"},
		{"a candidate of a newer one", stockContainers("r.example:5000/kube-ovn:v1.18.0-rc.1@sha256:0123"), "on by default in v1.18.0-rc.1"},
		{"older than by a digit", stockContainers("kube-ovn:v1.9.40"), ""},
		{"told not to", stockContainers(v118, "--enable-nftable-lb-svc=false"), ""},
		{"told not to, in another spelling", stockContainers(v118, "-enable-nftable-lb-svc=F"), ""},
		{"a bare flag", stockContainers(v117, "--enable-nftable-lb-svc"), "--enable-nftable-lb-svc"},
		{"the last one counts: on", stockContainers(v118, "--enable-nftable-lb-svc=false", "--enable-nftable-lb-svc=1"), "--enable-nftable-lb-svc=1"},
		{"the last one counts: off", stockContainers(v118, "--enable-nftable-lb-svc", "--enable-nftable-lb-svc=0"), ""},
		{"what cannot be read counts as on", stockContainers(v117, "--enable-nftable-lb-svc=$(LB)"), "--enable-nftable-lb-svc=$(LB)"},
		{"no load balancing at all", stockContainers(v118, "--enable-nftable-lb-svc", "--enable-lb=false"), ""},
		{"flags that only begin alike", stockContainers(v117, "--enable-nftable-lb-svc-more=true", "enable-nftable-lb-svc=true"), ""},
		{"in the command", []corev1.Container{{Command: []string{"/kube-ovn-controller", "--enable-nftable-lb-svc=true"}}}, "--enable-nftable-lb-svc=true"},
		{"a version that cannot be told", stockContainers("kube-ovn:latest"), ""},
		{"a port is no tag", stockContainers("r.example:1.18.0/kube-ovn"), ""},
		{"only a digest", stockContainers("kube-ovn@sha256:0123"), ""},
		{"a number that is too large", stockContainers("kube-ovn:v99999999999999999999.1.0"), ""},
		{"a sidecar does not count", append([]corev1.Container{sidecar}, stockContainers(v117)...), ""},
		{"another name: the first counts", []corev1.Container{{Name: "main", Image: v118}, {Name: "side", Image: v117}}, "on by default in v1.18.0"},
		{"no containers", nil, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := servesServices(tc.containers); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestStock(t *testing.T) {
	deployment, pod := stockDeployment, stockPod
	on, off := stockContainers(v118), stockContainers(v118, "--enable-nftable-lb-svc=false")
	const line = rivalLine
	for _, tc := range []struct {
		name        string
		self        identity
		deployments []*appsv1.Deployment
		pods        []*corev1.Pod
		wantRival   string
		wantLeaving []string
	}{
		{name: "nobody", self: beside},
		{name: "switched off", self: beside, deployments: []*appsv1.Deployment{deployment("kube-system", off)}, pods: []*corev1.Pod{pod("a", corev1.PodRunning, off)}},
		{name: "switched on", self: beside, deployments: []*appsv1.Deployment{deployment("kube-system", on)}, wantRival: line},
		{
			name: "switched on in one of two namespaces", self: beside,
			deployments: []*appsv1.Deployment{deployment("net", off), deployment("kube-system", on)}, wantRival: line,
		},
		{
			name: "switched off, but its Pods have not ended", self: beside,
			deployments: []*appsv1.Deployment{deployment("kube-system", off)},
			pods: []*corev1.Pod{
				pod("new", corev1.PodRunning, off), pod("old-b", corev1.PodPending, on), pod("old-a", corev1.PodRunning, on),
				pod("done", corev1.PodSucceeded, on), pod("evicted", corev1.PodFailed, on),
			},
			wantLeaving: []string{"kube-system/old-a", "kube-system/old-b"},
		},
		{
			name: "this process is one of its Pods", self: identity{"kube-system", "kube-ovn-controller-7f9c-abcde"},
			deployments: []*appsv1.Deployment{deployment("kube-system", on)}, pods: []*corev1.Pod{pod("kube-ovn-controller-7f9c-fghij", corev1.PodRunning, on)},
		},
		{
			name: "this process is a Pod of that name in another namespace", self: identity{"net", "kube-ovn-controller-7f9c-abcde"},
			deployments: []*appsv1.Deployment{deployment("kube-system", on)}, wantRival: line,
		},
		{
			name: "this process is called almost so", self: identity{"kube-system", "kube-ovn-controller"},
			deployments: []*appsv1.Deployment{deployment("kube-system", on)}, wantRival: line,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := &stock{tc.deployments, slices.Clone(tc.pods)}
			if diff := cmp.Diff(tc.wantRival, s.rival(tc.self)); diff != "" {
				t.Errorf("rival (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.wantLeaving, s.leaving(tc.self)); diff != "" {
				t.Errorf("leaving (-want +got):\n%s", diff)
			}
		})
	}
}
