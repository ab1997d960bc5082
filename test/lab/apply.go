// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
)

// fieldManager owns what the lab applies.
const fieldManager = "kube-ovn-lab"

// applier applies manifests, as kubectl apply --server-side does.
type applier struct {
	client dynamic.Interface
	mapper *restmapper.DeferredDiscoveryRESTMapper
}

func newApplier(config *rest.Config) (*applier, error) {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	disco, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	return &applier{client: client, mapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(disco))}, nil
}

// files applies every YAML file of a directory, in order of their names, and returns the objects.
func (a *applier) files(ctx context.Context, dir fs.FS, pattern string) ([]*unstructured.Unstructured, error) {
	names, err := fs.Glob(dir, pattern)
	if err != nil {
		return nil, err
	}
	var all []*unstructured.Unstructured
	for _, name := range names {
		data, err := fs.ReadFile(dir, name)
		if err != nil {
			return nil, err
		}
		objects, err := decode(data)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		if err := a.objects(ctx, objects); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, objects...)
	}
	return all, nil
}

// decode reads the documents of a YAML file.
func decode(data []byte) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096)
	for {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(&object.Object)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		if len(object.Object) > 0 {
			objects = append(objects, object)
		}
	}
}

// objects applies objects, in their order.
func (a *applier) objects(ctx context.Context, objects []*unstructured.Unstructured) error {
	for _, object := range objects {
		if err := a.object(ctx, object); err != nil {
			return fmt.Errorf("apply %s: %w", object.GetName(), err)
		}
	}
	return nil
}

// object applies one object.
func (a *applier) object(ctx context.Context, object *unstructured.Unstructured) error {
	resource, err := a.resource(object)
	if err != nil {
		return err
	}
	_, err = resource.Apply(ctx, object.GetName(), object, metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
	return err
}

// resource returns the client for an object's kind.
func (a *applier) resource(object *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	kind := object.GroupVersionKind()
	mapping, err := a.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if meta.IsNoMatchError(err) {
		a.mapper.Reset()
		mapping, err = a.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	}
	if err != nil {
		return nil, err
	}
	resource := a.client.Resource(mapping.Resource)
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		return resource.Namespace(object.GetNamespace()), nil
	}
	return resource, nil
}

// established waits until the API server serves the kinds of CustomResourceDefinitions.
func (a *applier) established(ctx context.Context, crds []*unstructured.Unstructured) error {
	for _, crd := range crds {
		resource, err := a.resource(crd)
		if err != nil {
			return err
		}
		err = wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
			current, err := resource.Get(ctx, crd.GetName(), metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			return conditionTrue(current, "Established"), nil
		})
		if err != nil {
			return fmt.Errorf("wait for %s to be established: %w", crd.GetName(), err)
		}
	}
	a.mapper.Reset()
	return nil
}

// conditionTrue tells whether an object has a condition with status True.
func conditionTrue(object *unstructured.Unstructured, kind string) bool {
	conditions, _, err := unstructured.NestedSlice(object.Object, "status", "conditions")
	if err != nil {
		return false
	}
	for _, c := range conditions {
		condition, ok := c.(map[string]any)
		if ok && condition["type"] == kind && condition["status"] == "True" {
			return true
		}
	}
	return false
}
