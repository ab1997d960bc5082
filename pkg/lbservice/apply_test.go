// SPDX-License-Identifier: Apache-2.0

package lbservice

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/client/clientset/versioned"
)

func TestRemovals(t *testing.T) {
	const dead, living, fresh = "10.1.0.4:8080", "10.1.0.5:8080", "10.1.0.6:8080"
	rule := func(port uint16, backend string) *kubeovnv1.IptablesDnatRule {
		return newRule(testOwner, eipA, port, backend)
	}
	made := func(port uint16, backend string) Rule {
		r := rule(port, backend)
		return Rule{Name: r.Name, Spec: r.Spec}
	}
	gone := deleting(rule(80, living))
	for _, tc := range []struct {
		name       string
		own        []*kubeovnv1.IptablesDnatRule
		create     []Rule
		now, after int
	}{
		{"another one stays", []*kubeovnv1.IptablesDnatRule{rule(80, dead), rule(80, living)}, []Rule{made(80, fresh)}, 1, 0},
		{"all are exchanged", []*kubeovnv1.IptablesDnatRule{rule(80, dead)}, []Rule{made(80, fresh)}, 0, 1},
		{"the other one is going", []*kubeovnv1.IptablesDnatRule{rule(80, dead), gone}, []Rule{made(80, fresh)}, 0, 1},
		{"only another port gets one", []*kubeovnv1.IptablesDnatRule{rule(80, dead)}, []Rule{made(81, fresh)}, 1, 0},
		{"nothing comes", []*kubeovnv1.IptablesDnatRule{rule(80, dead)}, nil, 1, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			changes := Changes{Create: tc.create, Delete: []*kubeovnv1.IptablesDnatRule{tc.own[0]}}
			now, after := changes.removals(tc.own)
			if diff := cmp.Diff([]int{tc.now, tc.after}, []int{len(now), len(after)}); diff != "" {
				t.Errorf("at once, after (-want +got):\n%s", diff)
			}
		})
	}
}

// A dead backend's rule goes while the API server has not answered for any of those that come. Were it to wait for them, this would
// never end.
func TestRemovalsDoNotWait(t *testing.T) {
	removed := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Method {
		case http.MethodPost:
			<-removed
		case http.MethodDelete:
			defer close(removed)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"kind":"IptablesDnatRule","apiVersion":"kubeovn.io/v1"}`)) // who asks sees to it
	}))
	defer server.Close()
	client, err := versioned.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	c := idleController(t)
	c.kubeOvn = client
	pods := []*corev1.Pod{newPod("web-0", "sub-a", "10.1.0.4"), newPod("web-1", "sub-a", "10.1.0.5")}
	desired := Desired(newSnapshot(newService(testService), withPods(pods...),
		withSlices(newSlice("x", testService, unnamed8080, endpointOf(pods[0]), endpointOf(pods[1]))))).Rules
	own := []*kubeovnv1.IptablesDnatRule{newRule(testOwner, eipA, 80, "10.1.0.4:8080"), newRule(testOwner, eipA, 80, "10.1.0.99:8080")}
	changes, err := Diff(desired, own)
	if err != nil || len(changes.Create) != 1 || len(changes.Delete) != 1 {
		t.Fatalf("changes %+v, %v", changes, err)
	}
	if err := c.apply(t.Context(), testOwner, &changes, own); err != nil {
		t.Fatal(err)
	}
}
