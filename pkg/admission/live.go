// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/kubeovn/kube-ovn/pkg/client/clientset/versioned"
)

// maxGetRounds is after how many rounds of reading single objects all of their kind are read at once: when a thousand rules have just been
// deleted, each of them would be blamed in turn.
const maxGetRounds = 3

// live reads from the API server what a refusal rests on.
type live struct {
	client  versioned.Interface
	metrics *Metrics

	rounds int
	done   map[Ref]bool
	// whole kinds were read.
	whole  map[Kind]bool
	failed bool
	// outdated are the objects of the last round that the cache has otherwise, with the version that it has.
	outdated map[Ref]string
}

// confirm reads the evidence of refusals that was not read yet into the snapshot. It returns false when there is none, so that the
// verdict stands. So it does when something cannot be read: what the cache says is then the best there is.
func (l *live) confirm(ctx context.Context, s *Snapshot, v Verdict) bool {
	l.outdated = map[Ref]string{}
	if len(v.Refusals) == 0 {
		return false
	}
	var unread []Ref
	for _, ref := range v.Evidence {
		if !l.done[ref] && !l.whole[ref.Kind] {
			unread = append(unread, ref)
		}
	}
	if len(unread) == 0 || l.failed {
		return false
	}
	l.rounds++
	if l.rounds <= maxGetRounds {
		for _, ref := range unread {
			l.read(ctx, s, ref)
		}
		return true
	}
	for _, ref := range unread {
		if !l.whole[ref.Kind] {
			l.readAll(ctx, s, ref.Kind)
		}
	}
	return true
}

// read takes an object over into the snapshot as it is now.
func (l *live) read(ctx context.Context, s *Snapshot, ref Ref) {
	l.done[ref] = true
	api := l.client.KubeovnV1()
	switch ref.Kind {
	case KindRule:
		obj, err := api.IptablesDnatRules().Get(ctx, ref.Name, metav1.GetOptions{})
		replace(ctx, l, &s.Rules, ref, obj, err)
	case KindFIP:
		obj, err := api.IptablesFIPRules().Get(ctx, ref.Name, metav1.GetOptions{})
		replace(ctx, l, &s.FIPs, ref, obj, err)
	case KindEIP:
		obj, err := api.IptablesEIPs().Get(ctx, ref.Name, metav1.GetOptions{})
		replace(ctx, l, &s.EIPs, ref, obj, err)
	case KindGateway:
		obj, err := api.VpcNatGateways().Get(ctx, ref.Name, metav1.GetOptions{})
		replace(ctx, l, &s.Gateways, ref, obj, err)
	case KindService:
		// Nothing is refused for a Service.
	}
}

// readAll takes over all objects of a kind. Those of kinds that are few are never more than can be read one by one.
func (l *live) readAll(ctx context.Context, s *Snapshot, kind Kind) {
	if l.whole == nil {
		l.whole = map[Kind]bool{}
	}
	l.whole[kind] = true
	api := l.client.KubeovnV1()
	switch kind {
	case KindRule:
		all, err := api.IptablesDnatRules().List(ctx, metav1.ListOptions{})
		if l.took(ctx, kind, err) {
			s.Rules = pointers(all.Items)
		}
	case KindFIP:
		all, err := api.IptablesFIPRules().List(ctx, metav1.ListOptions{})
		if l.took(ctx, kind, err) {
			s.FIPs = pointers(all.Items)
		}
	case KindEIP:
		all, err := api.IptablesEIPs().List(ctx, metav1.ListOptions{})
		if l.took(ctx, kind, err) {
			s.EIPs = pointers(all.Items)
		}
	case KindGateway, KindService:
		// Nothing is refused for these.
	}
}

func (l *live) took(ctx context.Context, kind Kind, err error) bool {
	l.metrics.liveRead(err)
	if err != nil {
		l.failed = true
		klog.FromContext(ctx).Info("Cannot read live, going by the cache", "kind", kind, "err", err)
	}
	return err == nil
}

// object is an API object by pointer.
type object[T any] interface {
	*T
	metav1.Object
}

func replace[T any, P object[T]](ctx context.Context, l *live, objects *[]P, ref Ref, obj P, err error) {
	gone := apierrors.IsNotFound(err)
	if gone {
		err = nil
	}
	if !l.took(ctx, ref.Kind, err) {
		return
	}
	if before := find(*objects, ref.Name); before != nil && l.outdated != nil && (gone || obj.GetResourceVersion() != before.GetResourceVersion()) {
		l.outdated[ref] = before.GetResourceVersion()
	}
	*objects = slices.DeleteFunc(*objects, func(o P) bool { return o.GetName() == ref.Name })
	if !gone {
		*objects = append(*objects, obj)
	}
}

func pointers[T any](items []T) []*T {
	out := make([]*T, len(items))
	for i := range items {
		out[i] = &items[i]
	}
	return out
}
