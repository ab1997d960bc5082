// SPDX-License-Identifier: Apache-2.0

package lbservice

import (
	"context"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
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
	for _, key := range c.in.rules.GetIndexer().ListIndexFuncValues(rulesByOwner) {
		namespace, name, _ := strings.Cut(key, "/")
		owner := sharenat.Owner{Namespace: namespace, Name: name}
		snapshot := c.snapshot(owner)
		changes, err := Diff(Desired(snapshot).Rules, snapshot.OwnRules)
		if err != nil || len(changes.Delete) == 0 {
			continue
		}
		logger := klog.FromContext(ctx).WithValues("service", klog.KRef(namespace, name))
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
