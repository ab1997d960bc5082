// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
	"k8s.io/client-go/util/workqueue"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/client/clientset/versioned"
	"github.com/kubeovn/kube-ovn/pkg/lbservice"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

const (
	serveFlag   = "--enable-nftable-lb-svc"
	serveOff    = serveFlag + "=false"
	ownerFilter = sharenat.OwnerNameLabel

	// parallelDeletions is how many rules are deleted at a time.
	parallelDeletions = 16
)

// withdrawal takes back what the Service controller has made. What it does it says first.
type withdrawal struct {
	kube    kubernetes.Interface
	kubeOvn versioned.Interface
	out     io.Writer
	poll    time.Duration
}

func (w *withdrawal) run(ctx context.Context, deployment string) error {
	if deployment != "" {
		namespace, name, ok := strings.Cut(deployment, "/")
		if !ok || namespace == "" || name == "" {
			return fmt.Errorf("--deployment: %q is not NAMESPACE/NAME", deployment)
		}
		if err := w.stopServing(ctx, namespace, name); err != nil {
			return err
		}
	}
	// The addresses first, so that nobody is sent to one that nothing is behind.
	return errors.Join(w.services(ctx), w.rules(ctx))
}

// stopServing has the controller leave Services alone, and go on with the gateways, which have to let go of the rules.
func (w *withdrawal) stopServing(ctx context.Context, namespace, name string) error {
	var selector string
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		d, err := w.kube.AppsV1().Deployments(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		selector = metav1.FormatLabelSelector(d.Spec.Selector)
		patch := servePatch(d)
		if patch == nil {
			return nil
		}
		fmt.Fprintf(w.out, "Deployment %s/%s: %s\n", namespace, name, serveOff)
		data, err := json.Marshal(patch)
		if err != nil {
			return err
		}
		_, err = w.kube.AppsV1().Deployments(namespace).Patch(ctx, name, types.JSONPatchType, data, metav1.PatchOptions{FieldManager: program})
		return err
	})
	if apierrors.IsNotFound(err) {
		fmt.Fprintf(w.out, "Deployment %s/%s is not there\n", namespace, name)
		return nil
	}
	if err != nil {
		return fmt.Errorf("stop serving Services: %w", err)
	}
	// A Pod that is on its way out may still be at work.
	err = wait.PollUntilContextCancel(ctx, w.poll, true, func(ctx context.Context) (bool, error) {
		pods, err := w.kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			return false, err
		}
		return !slices.ContainsFunc(pods.Items, func(pod corev1.Pod) bool { return serves(pod.Spec.Containers) }), nil
	})
	if err != nil {
		return fmt.Errorf("wait for the Pods of Deployment %s/%s to stop serving Services: %w", namespace, name, err)
	}
	return nil
}

// serves tells whether one of the containers is told to serve Services.
func serves(containers []corev1.Container) bool {
	return slices.ContainsFunc(containers, func(c corev1.Container) bool {
		return slices.ContainsFunc(c.Args, func(arg string) bool {
			return arg == serveFlag || strings.HasPrefix(arg, serveFlag+"=") && arg != serveOff
		})
	})
}

// servePatch switches the flag off in a Deployment, nil where it is not on.
func servePatch(d *appsv1.Deployment) []operation {
	containers := d.Spec.Template.Spec.Containers
	if !serves(containers) {
		return nil
	}
	patch := []operation{{"test", "/metadata/resourceVersion", d.ResourceVersion}}
	for i := range containers {
		for j, arg := range containers[i].Args {
			if arg == serveFlag || strings.HasPrefix(arg, serveFlag+"=") {
				patch = append(patch, operation{"replace", fmt.Sprintf("/spec/template/spec/containers/%d/args/%d", i, j), serveOff})
			}
		}
	}
	return patch
}

// rules deletes the rules that were made for Services, and waits until the gateways have let go of them.
func (w *withdrawal) rules(ctx context.Context) error {
	rules, err := w.owned(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(w.out, "DNAT rules made for Services: %d to delete\n", len(rules))
	errs := make([]error, len(rules))
	workqueue.ParallelizeUntil(ctx, parallelDeletions, len(rules), func(i int) {
		opts := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &rules[i].UID}}
		err := w.kubeOvn.KubeovnV1().IptablesDnatRules().Delete(ctx, rules[i].Name, opts)
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			errs[i] = fmt.Errorf("delete rule %s: %w", rules[i].Name, err)
		}
	})
	if err := errors.Join(errs...); err != nil {
		return err
	}
	left := len(rules)
	err = wait.PollUntilContextCancel(ctx, w.poll, true, func(ctx context.Context) (bool, error) {
		rules, err := w.owned(ctx)
		if err == nil && len(rules) > 0 && len(rules) < left {
			fmt.Fprintf(w.out, "DNAT rules made for Services: %d are left\n", len(rules))
		}
		left = len(rules)
		return left == 0, err
	})
	if err != nil {
		return fmt.Errorf("wait for the gateways to let go of the rules, %d are left: %w", left, err)
	}
	return nil
}

// owned lists the rules that belong to a Service; those made by hand do not.
func (w *withdrawal) owned(ctx context.Context) ([]kubeovnv1.IptablesDnatRule, error) {
	list, err := w.kubeOvn.KubeovnV1().IptablesDnatRules().List(ctx, metav1.ListOptions{LabelSelector: ownerFilter})
	if err != nil {
		return nil, fmt.Errorf("list rules: %w", err)
	}
	return list.Items, nil
}

// services takes back the addresses and the conditions that were published.
func (w *withdrawal) services(ctx context.Context) error {
	list, err := w.kube.CoreV1().Services("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list Services: %w", err)
	}
	var errs []error
	for i := range list.Items {
		svc := &list.Items[i]
		patch, err := withdrawn(svc)
		if err == nil && patch == nil {
			continue
		}
		if err == nil {
			fmt.Fprintf(w.out, "Service %s/%s: taking back its EXTERNAL-IP and conditions\n", svc.Namespace, svc.Name)
			_, err = w.kube.CoreV1().Services(svc.Namespace).Patch(ctx, svc.Name, types.StrategicMergePatchType, patch,
				metav1.PatchOptions{FieldManager: program}, "status")
		}
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("service %s/%s: %w", svc.Namespace, svc.Name, err))
		}
	}
	return errors.Join(errs...)
}

// withdrawn gives the patch of a Service's status without what was published, nil when nothing was. It is decided by the
// controller's own function for a Service that is not, or no longer, to be served.
func withdrawn(svc *corev1.Service) ([]byte, error) {
	status, _ := lbservice.DecideStatus(&lbservice.Snapshot{Service: svc}, &lbservice.Outcome{}, metav1.Time{})
	if equality.Semantic.DeepEqual(&svc.Status, status) {
		return nil, nil
	}
	before, err := json.Marshal(corev1.Service{Status: svc.Status})
	if err != nil {
		return nil, err
	}
	after, err := json.Marshal(corev1.Service{Status: *status})
	if err != nil {
		return nil, err
	}
	raw, err := strategicpatch.CreateTwoWayMergePatch(before, after, corev1.Service{})
	if err != nil {
		return nil, err
	}
	patch := map[string]any{}
	if err := json.Unmarshal(raw, &patch); err != nil {
		return nil, err
	}
	// Only for the Service as it was read: what another provider writes meanwhile is not overwritten.
	patch["metadata"] = map[string]any{"resourceVersion": svc.ResourceVersion}
	return json.Marshal(patch)
}
