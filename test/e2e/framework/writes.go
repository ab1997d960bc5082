// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"maps"
	"strings"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	toolswatch "k8s.io/client-go/tools/watch"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
)

// Writes counts what is written to rules, by their name: their creation is not counted.
type Writes struct {
	mu     sync.Mutex
	counts map[string]int
}

// RuleWrites counts the writes to rules whose name begins so, from now until the spec ends or the rule is ready.
func (c *Cluster) RuleWrites(ctx context.Context, prefix string) *Writes {
	GinkgoHelper()
	rules := c.KubeOvn.KubeovnV1().IptablesDnatRules()
	list, err := rules.List(ctx, metav1.ListOptions{})
	must(err, "list rules")
	// The API server drops a watch whose client is slow; this one takes it up again where it was.
	changes, err := toolswatch.NewRetryWatcherWithContext(ctx, list.ResourceVersion, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return rules.Watch(ctx, options)
		},
	})
	must(err, "watch rules")
	DeferCleanup(changes.Stop)
	w := &Writes{counts: map[string]int{}}
	go func() {
		ready := map[string]bool{}
		for event := range changes.ResultChan() {
			rule, ok := event.Object.(*kubeovnv1.IptablesDnatRule)
			if !ok || !strings.HasPrefix(rule.Name, prefix) || ready[rule.Name] {
				continue
			}
			ready[rule.Name] = rule.Status.Ready
			w.mu.Lock()
			if event.Type == watch.Modified {
				w.counts[rule.Name]++
			}
			w.mu.Unlock()
		}
	}()
	return w
}

// ByRule are the counts so far.
func (w *Writes) ByRule() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.counts)
}
