// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// stockWatch keeps this process from serving Services while Kube-OVN's own controller does.
type stockWatch struct {
	self      identity
	serves    string
	factories []informers.SharedInformerFactory
	informers []cache.SharedIndexInformer
	changed   chan struct{}
	blind     chan error
	// seen is called with what is there, at first and at each change; nil: nobody asks.
	seen func(*stock)
}

// newStockWatch looks in the namespace of this process, and where Kube-OVN usually is. What serves means, stock says.
func newStockWatch(client kubernetes.Interface, self identity, serves string) (*stockWatch, error) {
	w := &stockWatch{self: self, serves: serves, changed: make(chan struct{}, 1), blind: make(chan error, 1)}
	for _, namespace := range slices.Compact([]string{self.namespace, stockNamespace}) {
		selected := func(tweak func(*metav1.ListOptions)) informers.SharedInformerFactory {
			f := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace), informers.WithTweakListOptions(tweak))
			w.factories = append(w.factories, f)
			return f
		}
		w.informers = append(w.informers,
			selected(func(o *metav1.ListOptions) {
				o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, stockName).String()
			}).Apps().V1().Deployments().Informer(),
			selected(func(o *metav1.ListOptions) {
				o.LabelSelector = labels.Set{"app": stockName}.String()
			}).Core().V1().Pods().Informer(),
		)
	}
	var errs []error
	for _, informer := range w.informers {
		_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { w.notify() },
			UpdateFunc: func(any, any) { w.notify() },
			DeleteFunc: func(any) { w.notify() },
		})
		errs = append(errs, err, informer.SetWatchErrorHandlerWithContext(w.failed))
	}
	return w, errors.Join(errs...)
}

func (w *stockWatch) notify() {
	select {
	case w.changed <- struct{}{}:
	default: // there is one to be seen already
	}
}

// failed ends the waiting of a process that may not look, and so would wait forever.
func (w *stockWatch) failed(ctx context.Context, r *cache.Reflector, err error) {
	if apierrors.IsForbidden(err) {
		select {
		case w.blind <- err:
		default:
		}
	}
	cache.DefaultWatchErrorHandler(ctx, r, err)
}

// clear returns once nobody else serves Services. A controller that is told to is an error; one that is about to end is waited for.
func (w *stockWatch) clear(ctx context.Context) error {
	for _, f := range w.factories {
		f.Start(ctx.Done())
	}
	if err := w.sync(ctx); err != nil {
		return err
	}
	told := ""
	for {
		now := w.look()
		if line := now.rival(w.self); line != "" {
			return errors.New(line)
		}
		leaving := strings.Join(slices.Sorted(maps.Keys(now.leaving(w.self))), ", ")
		if leaving == "" {
			return nil
		}
		if leaving != told {
			klog.FromContext(ctx).Info("Waiting for Pods to end that still serve the same Services", "pods", leaving)
			told = leaving
		}
		if !w.next(ctx) {
			return nil
		}
	}
}

// guard returns when ctx ends, or with an error as soon as somebody else is about to serve Services.
func (w *stockWatch) guard(ctx context.Context) error {
	for {
		now := w.look()
		line := now.rival(w.self)
		if pods := now.leaving(w.self); line == "" && len(pods) > 0 {
			first := slices.Min(slices.Collect(maps.Keys(pods)))
			line = pods[first].of("Pod " + first)
		}
		if line != "" {
			return errors.New(line)
		}
		if !w.next(ctx) {
			return nil
		}
	}
}

// sync waits until everything was seen that is there.
func (w *stockWatch) sync(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var checkers []cache.DoneChecker
	for _, informer := range w.informers {
		checkers = append(checkers, informer.HasSyncedChecker())
	}
	seen := make(chan struct{})
	go func() {
		defer close(seen)
		cache.WaitFor(ctx, "", checkers...)
	}()
	select {
	case <-seen:
		return nil
	case err := <-w.blind:
		return fmt.Errorf("look for another kube-ovn-controller that serves the same Services: %w", err)
	}
}

// next waits for a change; false: ctx has ended.
func (w *stockWatch) next(ctx context.Context) bool {
	select {
	case <-w.changed:
		return true
	case <-ctx.Done():
		return false
	}
}

func (w *stockWatch) look() *stock {
	s := &stock{serves: w.serves}
	for _, informer := range w.informers {
		for _, obj := range informer.GetStore().List() {
			switch o := obj.(type) {
			case *appsv1.Deployment:
				s.deployments = append(s.deployments, o)
			case *corev1.Pod:
				s.pods = append(s.pods, o)
			}
		}
	}
	if w.seen != nil {
		w.seen(s)
	}
	return s
}
