// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/kubeovn/kube-ovn/test/lab/stockrules"
)

const (
	// ReasonRefused is the reason of events and conditions about an object that breaks one of stock Kube-OVN's rules.
	ReasonRefused = "ValidateLogicalSwitchFailed"
	// reasonTaken is that of a Subnet that breaks none.
	reasonTaken = "ValidateLogicalSwitchSuccess"
)

// refusal says why an object is not processed.
type refusal struct {
	resource schema.GroupVersionResource
	object   *unstructured.Unstructured
	why      string
}

// admitted is what stock Kube-OVN would have processed of the Vpcs and Subnets: what breaks none of its rules, held
// against what was processed before. What is changed into something that it refuses stays as it was processed last.
type admitted struct {
	vpcs    map[string]*stockrules.Vpc
	subnets map[string]*stockrules.Subnet
}

func newAdmitted() admitted {
	return admitted{vpcs: map[string]*stockrules.Vpc{}, subnets: map[string]*stockrules.Subnet{}}
}

// update looks at the objects there are, until nothing more is let in: what one lets go another may wait for.
func (a *admitted) update(vpcs, subnets []*unstructured.Unstructured) ([]refusal, error) {
	forget(a.vpcs, vpcs)
	forget(a.subnets, subnets)
	byAge(vpcs)
	byAge(subnets)
	for {
		in := &stockrules.Cluster{
			VPCs: slices.Collect(maps.Values(a.vpcs)), Subnets: slices.Collect(maps.Values(a.subnets)),
		}
		refused, changed, err := admit(a.vpcs, vpcs, vpcResource, func(vpc *stockrules.Vpc) error {
			return stockrules.Refused(stockrules.CheckVPC(vpc, in)).ToAggregate()
		}, func(have, want *stockrules.Vpc) bool { return reflect.DeepEqual(have.Spec, want.Spec) })
		if changed {
			continue
		}
		more, changed, otherErr := admit(a.subnets, subnets, subnetResource, func(subnet *stockrules.Subnet) error {
			return stockrules.Refused(stockrules.CheckSubnet(subnet, in)).ToAggregate()
		}, func(have, want *stockrules.Subnet) bool { return reflect.DeepEqual(have.Spec, want.Spec) })
		if !changed {
			return append(refused, more...), errors.Join(err, otherErr)
		}
	}
}

// admit lets in the first object that differs from what was let in, and may be. Who is refused is known once there is
// none.
func admit[T any](have map[string]*T, objects []*unstructured.Unstructured, resource schema.GroupVersionResource,
	check func(*T) error, equal func(have, want *T) bool,
) (refused []refusal, changed bool, err error) {
	var errs []error
	for _, object := range objects {
		wanted, err := stockrules.Decode[T](object)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if err := check(wanted); err != nil {
			refused = append(refused, refusal{resource: resource, object: object, why: err.Error()})
			continue
		}
		if present := have[identify(object)]; present == nil || !equal(present, wanted) {
			have[identify(object)] = wanted
			return nil, true, nil
		}
	}
	return refused, false, errors.Join(errs...)
}

func forget[T any](have map[string]*T, objects []*unstructured.Unstructured) {
	there := map[string]bool{}
	for _, object := range objects {
		there[identify(object)] = true
	}
	maps.DeleteFunc(have, func(id string, _ *T) bool { return !there[id] })
}

// identify names an object so that its namesake, made once it was deleted, is another.
func identify(object *unstructured.Unstructured) string {
	return object.GetKind() + " " + object.GetName() + " " + string(object.GetUID())
}

// byAge sorts objects: who came first has the right.
func byAge(objects []*unstructured.Unstructured) {
	slices.SortFunc(objects, func(a, b *unstructured.Unstructured) int {
		age := a.GetCreationTimestamp().Compare(b.GetCreationTimestamp().Time)
		return cmp.Or(age, cmp.Compare(a.GetName(), b.GetName()))
	})
}

// doomed looks at what others process, kube-ovn-controller above all: stock's would refuse these.
func (f *Fabric) doomed() []refusal {
	in := &stockrules.Cluster{}
	for _, informer := range []cache.SharedIndexInformer{f.vpcs, f.subnets, f.gateways, f.eips} {
		for _, object := range objectsOf(informer) {
			_ = in.Add(object) // what cannot be read is said where it is processed
		}
	}
	var refused []refusal
	for _, kind := range []struct {
		resource schema.GroupVersionResource
		informer cache.SharedIndexInformer
	}{{gwResource, f.gateways}, {eipResource, f.eips}, {ruleResource, f.rules}} {
		for _, object := range objectsOf(kind.informer) {
			faults, err := stockrules.Check(object, in)
			if err == nil {
				err = stockrules.Refused(faults).ToAggregate()
			}
			if err != nil {
				refused = append(refused, refusal{resource: kind.resource, object: object, why: err.Error()})
			}
		}
	}
	return refused
}

// tell says what is refused: in the log and by an event once, and in a Subnet's conditions.
func (f *Fabric) tell(ctx context.Context, refused []refusal) error {
	logger, now := klog.FromContext(ctx), map[string]bool{}
	var errs []error
	for _, r := range refused {
		id := identify(r.object)
		now[id] = true
		if r.resource == subnetResource {
			status := map[string]any{"conditions": conditions(r.object, r.why)}
			errs = append(errs, f.patchStatus(ctx, r.resource, r.object, status))
		}
		if f.told[id] != r.why {
			f.told[id] = r.why
			logger.Error(nil, "Stock Kube-OVN refuses this, so that it would not be processed",
				"kind", r.object.GetKind(), "name", r.object.GetName(), "reason", r.why)
			errs = append(errs, f.warn(ctx, r))
		}
	}
	maps.DeleteFunc(f.told, func(id string, _ string) bool { return !now[id] })
	return errors.Join(errs...)
}

var eventResource = schema.GroupVersionResource{Version: "v1", Resource: "events"}

// warn makes an event about an object.
func (f *Fabric) warn(ctx context.Context, r refusal) error {
	made := time.Now()
	now := made.UTC().Format(time.RFC3339)
	event := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Event",
		"metadata": map[string]any{
			"name": fmt.Sprintf("%s.%x", r.object.GetName(), made.UnixNano()), "namespace": metav1.NamespaceDefault,
		},
		"involvedObject": map[string]any{
			"apiVersion": r.object.GetAPIVersion(), "kind": r.object.GetKind(),
			"name": r.object.GetName(), "uid": string(r.object.GetUID()),
		},
		"type": "Warning", "reason": ReasonRefused, "message": r.why, "source": map[string]any{"component": "lab-fabric"},
		"firstTimestamp": now, "lastTimestamp": now, "count": int64(1),
	}}
	events := f.config.Client.Resource(eventResource).Namespace(metav1.NamespaceDefault)
	_, err := events.Create(ctx, event, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("event about %s %s: %w", r.object.GetKind(), r.object.GetName(), err)
	}
	return nil
}

// conditions are those of a Subnet, as stock has them: those that are there where they say the same.
func conditions(object *unstructured.Unstructured, refused string) []any {
	status, reason := "True", reasonTaken
	if refused != "" {
		status, reason = "False", ReasonRefused
	}
	present, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	now := time.Now().UTC().Format(time.RFC3339)
	var wanted []any
	for _, kind := range []string{"Validated", "Ready"} {
		condition := map[string]any{"type": kind, "status": status, "reason": reason, "message": refused}
		for _, item := range present {
			if says(item, condition) {
				condition = item.(map[string]any)
			}
		}
		if condition["lastTransitionTime"] == nil {
			condition["lastTransitionTime"], condition["lastUpdateTime"] = now, now
		}
		wanted = append(wanted, condition)
	}
	return wanted
}

// says tells whether a condition that is there says what another says.
func says(item any, wanted map[string]any) bool {
	present, ok := item.(map[string]any)
	if !ok {
		return false
	}
	for field, value := range wanted {
		if present[field] != value && (present[field] != nil || value != "") {
			return false
		}
	}
	return true
}
