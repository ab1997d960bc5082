// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	ovnfake "github.com/kubeovn/kube-ovn/pkg/client/clientset/versioned/fake"
	"github.com/kubeovn/kube-ovn/pkg/lbservice"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

func deployment(args ...string) *appsv1.Deployment {
	labels := map[string]string{"app": "controller"}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "controller", ResourceVersion: "3"},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "sidecar"}, {Name: "controller", Args: args}}}},
		},
	}
}

func service(name string, status corev1.ServiceStatus) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, ResourceVersion: "5"}, Status: status}
}

func ingress(addresses ...string) corev1.LoadBalancerStatus {
	var out corev1.LoadBalancerStatus
	for _, a := range addresses {
		out.Ingress = append(out.Ingress, corev1.LoadBalancerIngress{IP: a})
	}
	return out
}

func TestWithdraw(t *testing.T) {
	foreign := metav1.Condition{Type: "example.com/Ready", Status: metav1.ConditionTrue, Reason: "Theirs", Message: "theirs"}
	published := metav1.Condition{Type: sharenat.ConditionIngress, Status: metav1.ConditionTrue, Reason: "Published", Message: "203.0.113.10"}
	ready := metav1.Condition{Type: lbservice.ConditionReady, Status: metav1.ConditionTrue, Reason: lbservice.ReasonProgrammed, Message: "served"}
	kube := fake.NewClientset(
		deployment("--v=2", "--enable-nftable-lb-svc=true", "--enable-nat-gw-handler=true"),
		service("ours", corev1.ServiceStatus{LoadBalancer: ingress("203.0.113.10"), Conditions: []metav1.Condition{published, ready}}),
		service("shared", corev1.ServiceStatus{LoadBalancer: ingress("198.51.100.1", "203.0.113.10"), Conditions: []metav1.Condition{foreign, published, ready}}),
		service("theirs", corev1.ServiceStatus{LoadBalancer: ingress("198.51.100.2"), Conditions: []metav1.Condition{foreign}}),
	)
	owned := &kubeovnv1.IptablesDnatRule{ObjectMeta: metav1.ObjectMeta{Name: "lb-web", UID: "1", Labels: sharenat.Owner{Namespace: "shop", Name: "web"}.Labels()}}
	byHand := &kubeovnv1.IptablesDnatRule{ObjectMeta: metav1.ObjectMeta{Name: "by-hand", UID: "2"}}
	// Made by the client: the fake cannot guess a resource's name from its kind here.
	kubeOvn := ovnfake.NewSimpleClientset()
	for _, rule := range []*kubeovnv1.IptablesDnatRule{owned, byHand} {
		if _, err := kubeOvn.KubeovnV1().IptablesDnatRules().Create(t.Context(), rule, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	w := &withdrawal{kube: kube, kubeOvn: kubeOvn, out: &out, poll: time.Millisecond}
	if err := w.run(t.Context(), "kube-system/controller"); err != nil {
		t.Fatal(err)
	}

	d, err := kube.AppsV1().Deployments("kube-system").Get(t.Context(), "controller", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"--v=2", "--enable-nftable-lb-svc=false", "--enable-nat-gw-handler=true"}
	if diff := cmp.Diff(want, d.Spec.Template.Spec.Containers[1].Args); diff != "" {
		t.Errorf("arguments (-want +got):\n%s", diff)
	}
	rules, err := kubeOvn.KubeovnV1().IptablesDnatRules().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(rules.Items) != 1 || rules.Items[0].Name != "by-hand" {
		t.Errorf("rules that are left: %v", rules.Items)
	}
	for name, want := range map[string]corev1.ServiceStatus{
		"ours":   {},
		"shared": {LoadBalancer: ingress("198.51.100.1"), Conditions: []metav1.Condition{foreign}},
		"theirs": {LoadBalancer: ingress("198.51.100.2"), Conditions: []metav1.Condition{foreign}},
	} {
		svc, err := kube.CoreV1().Services("shop").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(svc.Status.Conditions) == 0 {
			svc.Status.Conditions = nil
		}
		if diff := cmp.Diff(want, svc.Status); diff != "" {
			t.Errorf("status of %s (-want +got):\n%s", name, diff)
		}
	}
	for _, line := range []string{"Deployment kube-system/controller: --enable-nftable-lb-svc=false", "DNAT rules made for Services: 1 to delete", "Service shop/ours: "} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("does not say %q:\n%s", line, out.String())
		}
	}
	if strings.Contains(out.String(), "theirs") {
		t.Errorf("touches another provider's Service:\n%s", out.String())
	}

	t.Run("again", func(t *testing.T) {
		kube.ClearActions()
		kubeOvn.ClearActions()
		if err := w.run(t.Context(), "kube-system/controller"); err != nil {
			t.Fatal(err)
		}
		for _, action := range slices.Concat(kube.Actions(), kubeOvn.Actions()) {
			if verb := action.GetVerb(); verb != "get" && verb != "list" {
				t.Errorf("%s of %s, but there was nothing left to do", verb, action.GetResource().Resource)
			}
		}
	})
}

func TestServePatch(t *testing.T) {
	for _, tc := range []struct {
		name, arg string
		want      bool
	}{
		{"on", "--enable-nftable-lb-svc", true},
		{"on, in words", "--enable-nftable-lb-svc=true", true},
		{"off", "--enable-nftable-lb-svc=false", false},
		{"another flag", "--enable-nftable-lb-svc-else=true", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := servePatch(deployment("--v=2", tc.arg)) != nil; got != tc.want {
				t.Errorf("patched: %v, want %v", got, tc.want)
			}
		})
	}
}

func TestWithdrawWithoutController(t *testing.T) {
	w := &withdrawal{kube: fake.NewClientset(), kubeOvn: ovnfake.NewSimpleClientset(), out: &bytes.Buffer{}, poll: time.Millisecond}
	if err := w.run(t.Context(), "kube-system/controller"); err != nil {
		t.Error(err)
	}
	if err := w.run(t.Context(), "controller"); err == nil {
		t.Error("no error for a Deployment without a namespace")
	}
}

func TestBadCommandLine(t *testing.T) {
	for _, args := range []string{"", "crds", "crd withdraw", "--no-such-flag crd"} {
		if err := run(t.Context(), &bytes.Buffer{}, strings.Fields(args)); err == nil {
			t.Errorf("no error for %q", args)
		}
	}
}

// A thousand rules take seconds: the client does not hold itself back.
func TestWithdrawIsNotThrottled(t *testing.T) {
	w, err := newWithdrawal(&rest.Config{Host: "127.0.0.1:1"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	for name, client := range map[string]rest.Interface{"rules": w.kubeOvn.KubeovnV1().RESTClient(), "Services": w.kube.CoreV1().RESTClient()} {
		if limiter := client.GetRateLimiter(); limiter != nil {
			t.Errorf("%s: at most %g requests a second", name, limiter.QPS())
		}
	}
}
