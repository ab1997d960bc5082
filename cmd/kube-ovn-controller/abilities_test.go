// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeovn/kube-ovn/pkg/lbservice"
)

func TestAbilitiesOfStock(t *testing.T) {
	deployment := func(namespace, image string, args ...string) *appsv1.Deployment {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: stockName}}
		d.Spec.Template.Spec.Containers = []corev1.Container{{Name: stockName, Image: image, Args: args}}
		return d
	}
	pod := func(phase corev1.PodPhase, image string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: stockNamespace, Name: stockName + "-7d5f9c6b4-abcde"},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: stockName, Image: image}}},
			Status:     corev1.PodStatus{Phase: phase},
		}
	}
	newer := []*appsv1.Deployment{deployment(stockNamespace, "kubeovn/kube-ovn:v1.18.0")}
	var (
		none     = lbservice.Abilities{}
		affinity = lbservice.Abilities{Affinity: true}
	)
	for _, tc := range []struct {
		name        string
		deployments []*appsv1.Deployment
		want        lbservice.Abilities
		pods        []*corev1.Pod
	}{
		{"nobody", nil, none, nil},
		{"upgraded, and a Pod of before still runs", newer, none, []*corev1.Pod{
			pod(corev1.PodRunning, "kubeovn/kube-ovn:v1.18.0"), pod(corev1.PodRunning, "kubeovn/kube-ovn:v1.17.0"),
		}},
		{"upgraded, and the Pods of before have ended", newer, affinity, []*corev1.Pod{
			pod(corev1.PodRunning, "kubeovn/kube-ovn:v1.18.0"), pod(corev1.PodFailed, "kubeovn/kube-ovn:v1.17.0"),
		}},
		{"v1.17", []*appsv1.Deployment{deployment(stockNamespace, "kubeovn/kube-ovn:v1.17.3")}, none, nil},
		{"newer", newer, affinity, nil},
		{"a tag that is no version", []*appsv1.Deployment{deployment(stockNamespace, "kubeovn/kube-ovn:dev")}, none, nil},
		{"the same, with the flag", []*appsv1.Deployment{deployment(stockNamespace, "kubeovn/kube-ovn:dev", "--enable-nftable-lb-svc=false")}, affinity, nil},
		{"two of them", []*appsv1.Deployment{
			deployment(stockNamespace, "kubeovn/kube-ovn:v1.18.0"), deployment("ovn", "kubeovn/kube-ovn:v1.17.0"),
		}, none, nil},
		{"its own", []*appsv1.Deployment{
			deployment("mine", "kubeovn/kube-ovn-controller:v1.17.0"), deployment(stockNamespace, "kubeovn/kube-ovn:v1.18.0"),
		}, affinity, nil},
		{"without a container", []*appsv1.Deployment{{ObjectMeta: metav1.ObjectMeta{Namespace: stockNamespace, Name: stockName}}}, none, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := &stock{deployments: tc.deployments, pods: tc.pods}
			got, ok := s.abilities(identity{"mine", stockName + "-5c9f7d8b6-x2x7k"})
			if got != tc.want || ok != (len(tc.deployments) > 0) {
				t.Errorf("got %v, %v, want %v", got, ok, tc.want)
			}
		})
	}
}

func TestAbilitiesOfFlags(t *testing.T) {
	for _, tc := range []struct {
		name  string
		args  []string
		want  lbservice.Abilities
		known bool
	}{
		{"its own handler", nil, lbservice.AllAbilities, true},
		{"its own handler, whatever is said", []string{"--nat-gw-handler-abilities=none"}, lbservice.AllAbilities, true},
		{"another's", []string{"--enable-nat-gw-handler=false"}, lbservice.Abilities{}, false},
		{
			"another's that is known",
			[]string{"--enable-nat-gw-handler=false", "--nat-gw-handler-abilities=affinity,masquerade"},
			lbservice.Abilities{Affinity: true, Masquerade: true},
			true,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := newOptions()
			if err := o.flags().Parse(tc.args); err != nil {
				t.Fatal(err)
			}
			got, known, err := o.abilitiesOfFlags()
			if err != nil || got != tc.want || known != tc.known {
				t.Errorf("got %v, %v, %v", got, known, err)
			}
		})
	}
	if err := newOptions().parse([]string{"--nat-gw-handler-abilities=magic"}); err == nil {
		t.Error("want an error")
	}
}

// Who follows is told what is, and then what changes.
func TestAbilitiesAreFollowed(t *testing.T) {
	var told []string
	a := &abilities{}
	a.set(lbservice.Abilities{Affinity: true})
	a.follow(func(now lbservice.Abilities) { told = append(told, now.String()) })
	a.set(lbservice.Abilities{Affinity: true})
	a.set(lbservice.AllAbilities)
	if len(told) != 2 || told[0] != "affinity" || told[1] != "all" {
		t.Errorf("told %v", told)
	}
}
