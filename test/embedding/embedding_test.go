// SPDX-License-Identifier: Apache-2.0

package embedding

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"

	ovnfake "github.com/kubeovn/kube-ovn/pkg/client/clientset/versioned/fake"
	"github.com/kubeovn/kube-ovn/pkg/client/informers/externalversions"
)

// TestCachesAreShared shows that host and load balancer have one cache of Pods and Services between them.
func TestCachesAreShared(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	kube := fake.NewClientset(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0"}})
	kubeOvn := ovnfake.NewSimpleClientset()
	host := &Host{
		Config: &rest.Config{}, KubeClient: kube, KubeOvnClient: kubeOvn,
		KubeInformers: informers.NewSharedInformerFactory(kube, 0), KubeOvnInformers: externalversions.NewSharedInformerFactory(kubeOvn, 0),
		Recorder: events.NewFakeRecorder(10), Metrics: prometheus.NewRegistry(), Namespace: "kube-system",
	}
	// The host's own informers.
	pods, services := host.KubeInformers.Core().V1().Pods(), host.KubeInformers.Core().V1().Services()
	lists := pods.Lister()
	services.Lister()
	host.Leading = func(ctx context.Context) error {
		defer cancel()
		host.KubeInformers.WaitForCacheSync(ctx.Done())
		if _, err := lists.Pods("shop").Get("web-0"); err != nil {
			t.Errorf("the host's cache: %v", err)
		}
		return nil
	}
	// Ending before all caches are in sync is an error of its own kind.
	if err := Run(ctx, host); err != nil && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	host.KubeInformers.Shutdown()
	watches := map[string]int{}
	for _, action := range kube.Actions() {
		if action.Matches("watch", action.GetResource().Resource) && action.(clienttesting.WatchAction).GetNamespace() == "" {
			watches[action.GetResource().Resource]++
		}
	}
	for _, resource := range []string{"pods", "services"} {
		if watches[resource] != 1 {
			t.Errorf("%d watches of %s, want one for all", watches[resource], resource)
		}
	}
}

// TestDocumentation holds the code in docs/embedding.md against the code that is compiled.
func TestDocumentation(t *testing.T) {
	code, err := os.ReadFile("embedding.go")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../../docs/embedding.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "```go\n")
	shown, _, closed := strings.Cut(rest, "```")
	if !found || !closed || !strings.Contains(string(code), shown) {
		t.Errorf("docs/embedding.md shows code that is not that of embedding.go:\n%s", shown)
	}
}
