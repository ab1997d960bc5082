// SPDX-License-Identifier: Apache-2.0

package lbservice

import (
	"context"
	"runtime"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// sweepLimit bounds how long the caches may take to show what the sweep has deleted.
const sweepLimit = 5 * time.Second

// Swept is closed once the rules that went stale before Run are being deleted, and the informers show it. Whoever programs rules in
// the same process starts after that: then nothing is reported ready while an address that now is another Pod's still gets
// traffic by a rule of its last owner.
func (c *Controller) Swept() <-chan struct{} { return c.swept }

// sweep passes over every Service that has rules to delete. What fails is tried again by the workers, like anything else.
func (c *Controller) sweep(ctx context.Context) {
	defer close(c.swept)
	var deleted []*kubeovnv1.IptablesDnatRule
	for _, owner := range c.stale(ctx) {
		logger := klog.FromContext(ctx).WithValues("service", klog.KRef(owner.Namespace, owner.Name))
		p, err := c.syncRules(klog.NewContext(ctx, logger), owner)
		if err != nil {
			logger.V(2).Info("Stale rules are left for later", "err", err)
		} else if p != nil {
			deleted = append(deleted, p.changes.Delete...)
		}
	}
	if len(deleted) == 0 {
		return
	}
	seen := func(context.Context) (bool, error) {
		for _, rule := range deleted {
			if now := get[kubeovnv1.IptablesDnatRule](c.in.rules, rule.Name); now != nil && now.UID == rule.UID && now.DeletionTimestamp == nil {
				return false, nil
			}
		}
		return true, nil
	}
	if err := wait.PollUntilContextTimeout(ctx, 5*time.Millisecond, sweepLimit, true, seen); err == nil {
		klog.FromContext(ctx).Info("Deleted stale rules", "rules", len(deleted))
	}
}

// stale lists the Services that have rules to delete. Nobody's rules are programmed before that is known, so all processors look.
func (c *Controller) stale(ctx context.Context) []sharenat.Owner {
	keys := c.in.rules.GetIndexer().ListIndexFuncValues(rulesByOwner)
	slices.Sort(keys)
	owners := make([]sharenat.Owner, len(keys))
	found := make([]bool, len(keys))
	for i, key := range keys {
		namespace, name, _ := strings.Cut(key, "/")
		owners[i] = sharenat.Owner{Namespace: namespace, Name: name}
	}
	workqueue.ParallelizeUntil(ctx, runtime.GOMAXPROCS(0), len(owners), func(i int) {
		snapshot := c.snapshot(owners[i])
		changes, err := Diff(Desired(snapshot).Rules, snapshot.OwnRules)
		found[i] = err == nil && len(changes.Delete) > 0
	})
	var out []sharenat.Owner
	for i, owner := range owners {
		if found[i] {
			out = append(out, owner)
		}
	}
	return out
}
