// SPDX-License-Identifier: Apache-2.0

package handler

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// fields is a part of an object.
type fields = map[string]any

// patcher is the part of a typed or dynamic client that patches.
type patcher[T any] interface {
	Patch(ctx context.Context, name string, pt types.PatchType, data []byte, options metav1.PatchOptions, subresources ...string) (T, error)
}

func mergePatch[T any](ctx context.Context, client patcher[T], name string, content fields, subresources ...string) error {
	data, err := json.Marshal(content)
	if err != nil {
		return err
	}
	if _, err := client.Patch(ctx, name, types.MergePatchType, data, metav1.PatchOptions{}, subresources...); err != nil {
		return fmt.Errorf("patch %s: %w", name, err)
	}
	return nil
}

// setStatus changes fields of a status.
func setStatus[T any](ctx context.Context, client patcher[T], name string, status fields) error {
	return mergePatch(ctx, client, name, fields{"status": status}, "status")
}

// claim puts the finalizer, labels and annotations on an object that lacks some of them.
func claim[T any](ctx context.Context, client patcher[T], object metav1.Object, labels, annotations map[string]string) error {
	meta := fields{}
	if !contains(object.GetLabels(), labels) {
		meta["labels"] = labels
	}
	if !contains(object.GetAnnotations(), annotations) {
		meta["annotations"] = annotations
	}
	if !slices.Contains(object.GetFinalizers(), sharenat.Finalizer) {
		meta["finalizers"] = append(slices.Clone(object.GetFinalizers()), sharenat.Finalizer)
		meta["resourceVersion"] = object.GetResourceVersion()
	}
	if len(meta) == 0 {
		return nil
	}
	return mergePatch(ctx, client, object.GetName(), fields{"metadata": meta})
}

func contains(have, want map[string]string) bool {
	for key, value := range want {
		if got, ok := have[key]; !ok || got != value {
			return false
		}
	}
	return true
}

// release takes the finalizer off.
func release[T any](ctx context.Context, client patcher[T], object metav1.Object) error {
	left := slices.DeleteFunc(slices.Clone(object.GetFinalizers()), func(f string) bool { return f == sharenat.Finalizer })
	if len(left) == len(object.GetFinalizers()) {
		return nil
	}
	err := mergePatch(ctx, client, object.GetName(), fields{"metadata": fields{"finalizers": left, "resourceVersion": object.GetResourceVersion()}})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// ruleLabels are what a rule is found by.
func ruleLabels(gateway, eip string, more map[string]string) map[string]string {
	labels := map[string]string{sharenat.GatewayLabel: gateway, sharenat.EIPAddressLabel: eip}
	maps.Copy(labels, more)
	return labels
}
