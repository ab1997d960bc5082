// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
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

const (
	rivalLine = "Deployment kube-system/kube-ovn-controller " + mayServe
	mayServe  = "may serve the same Services (v1.18.0 is newer than v1.17: releases after it may serve them by default, " +
		"and nothing says whether this one does): set --enable-nftable-lb-svc=false there, or --stock-serves=no here"
)

// beside is this process, installed beside Kube-OVN.
var beside = identity{"kube-system", "kube-ovn-nftable-lb-5c9f7d8b6-x2x7k"}

// TestWhoServes runs through the cases that the charts and install.sh are held against as well.
func TestWhoServes(t *testing.T) {
	table, err := os.ReadFile("testdata/who-serves.tsv")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(table)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		row := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		name, image, args, known, want := row[0], row[1], row[2], row[3], row[4]
		t.Run(name, func(t *testing.T) {
			got := servesServices(stockContainers(image, strings.Fields(args)...), known)
			switch {
			case want == "-":
				if !got.none() {
					t.Errorf("it serves (%s), and should not", got.why)
				}
				return
			case strings.HasPrefix(want, "may "):
				want += ": set --enable-nftable-lb-svc=false there, or --stock-serves=no here"
			default:
				want += ": switch it off there with --enable-nftable-lb-svc=false, or here with the same flag"
			}
			want = "It " + strings.ReplaceAll(want, "SETTING", "--stock-serves")
			if diff := gocmp.Diff(want, got.of("It")); diff != "" {
				t.Errorf("claim (-want +got):\n%s", diff)
			}
		})
	}
}

// TestServesServices has the cases that are the controller's alone, and those of more than one container.
func TestServesServices(t *testing.T) {
	sidecar := corev1.Container{Name: "proxy", Image: "docker.io/example/proxy:v2.0.0", Args: []string{"--enable-nftable-lb-svc"}}
	for _, tc := range []struct {
		name       string
		containers []corev1.Container
		want       bool
	}{
		{"in the command", []corev1.Container{{Command: []string{"/kube-ovn-controller", "--enable-nftable-lb-svc=true"}}}, true},
		{"older than by a digit", stockContainers("kube-ovn:v1.9.40"), false},
		{"a number that is too large", stockContainers("kube-ovn:v99999999999999999999.1.0"), false},
		{"a sidecar does not count", append([]corev1.Container{sidecar}, stockContainers(v117)...), false},
		{"another name: the first counts", []corev1.Container{{Name: "main", Image: v118}, {Name: "side", Image: v117}}, true},
		{"no containers", nil, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := servesServices(tc.containers, stockServesAuto); !got.none() != tc.want {
				t.Errorf("got %+v, want %v", got, tc.want)
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
		serves      string // default: auto
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
			name: "known not to: neither Deployment nor Pods stand in the way, but for one that was told to", self: beside, serves: stockServesNo,
			deployments: []*appsv1.Deployment{deployment("kube-system", on)},
			pods: []*corev1.Pod{
				pod("new", corev1.PodRunning, on), pod("told", corev1.PodRunning, stockContainers(v118, "--enable-nftable-lb-svc")),
			},
			wantLeaving: []string{"kube-system/told"},
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
			s := &stock{cmp.Or(tc.serves, stockServesAuto), tc.deployments, tc.pods}
			if diff := gocmp.Diff(tc.wantRival, s.rival(tc.self)); diff != "" {
				t.Errorf("rival (-want +got):\n%s", diff)
			}
			if diff := gocmp.Diff(tc.wantLeaving, slices.Sorted(maps.Keys(s.leaving(tc.self)))); diff != "" {
				t.Errorf("leaving (-want +got):\n%s", diff)
			}
		})
	}
}
