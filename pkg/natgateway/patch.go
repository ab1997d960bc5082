// SPDX-License-Identifier: Apache-2.0

package natgateway

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
)

// patch is a write that names what it changes and nothing else.
type patch struct {
	kind types.PatchType
	data []byte
}

type jsonOp struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// claimPatch adds the finalizer, where it is missing, the labels and annotations that differ, and fields to the spec; nil
// when all is there. A list of finalizers can only be replaced, so such a patch applies to the version that was looked at
// and to no other.
func claimPatch(obj *metav1.ObjectMeta, labels, annotations map[string]string, spec map[string]any) (*patch, error) {
	meta := map[string]any{}
	if diff := missing(obj.Labels, labels); len(diff) > 0 {
		meta["labels"] = diff
	}
	if diff := missing(obj.Annotations, annotations); len(diff) > 0 {
		meta["annotations"] = diff
	}
	if !slices.Contains(obj.Finalizers, finalizer) {
		meta["finalizers"] = append(slices.Clone(obj.Finalizers), finalizer)
		meta["resourceVersion"] = obj.ResourceVersion
	}
	content := map[string]any{}
	if len(meta) > 0 {
		content["metadata"] = meta
	}
	if len(spec) > 0 {
		content["spec"] = spec
	}
	if len(content) == 0 {
		return nil, nil
	}
	return encodePatch(types.MergePatchType, content)
}

func missing(have, want map[string]string) map[string]string {
	diff := map[string]string{}
	for k, v := range want {
		if got, ok := have[k]; !ok || got != v {
			diff[k] = v
		}
	}
	return diff
}

// releasePatch removes the finalizer; nil when it is not there. It does not apply when the list of finalizers has changed.
func releasePatch(obj *metav1.ObjectMeta) (*patch, error) {
	i := slices.Index(obj.Finalizers, finalizer)
	if i < 0 {
		return nil, nil
	}
	path := fmt.Sprintf("/metadata/finalizers/%d", i)
	return encodePatch(types.JSONPatchType, []jsonOp{{"test", path, finalizer}, {"remove", path, nil}})
}

// statusPatch gives the difference between two statuses; nil when there is none. Conditions that were there before are changed one
// by one, field by field, so that those of others, and fields that our types do not have, stay as they are.
func statusPatch(before, after any) (*patch, error) {
	if reflect.DeepEqual(before, after) {
		return nil, nil // by far the most, and their JSON would be alike
	}
	b, err := toMap(before)
	if err != nil {
		return nil, err
	}
	a, err := toMap(after)
	if err != nil {
		return nil, err
	}
	if reflect.DeepEqual(a, b) {
		return nil, nil
	}
	if conditions, _ := b["conditions"].([]any); len(conditions) == 0 {
		return encodePatch(types.MergePatchType, map[string]any{"status": mergeDiff(b, a)})
	}
	ops := fieldOps("/status/", b, a, "conditions")
	return encodePatch(types.JSONPatchType, append(ops, conditionOps(b["conditions"], a["conditions"])...))
}

func mergeDiff(before, after map[string]any) map[string]any {
	diff := map[string]any{}
	for k, v := range after {
		old, had := before[k]
		oldMap, oldIsMap := old.(map[string]any)
		newMap, newIsMap := v.(map[string]any)
		switch {
		case had && reflect.DeepEqual(old, v):
		case oldIsMap && newIsMap:
			diff[k] = mergeDiff(oldMap, newMap)
		default:
			diff[k] = v
		}
	}
	for k := range before {
		if _, kept := after[k]; !kept {
			diff[k] = nil
		}
	}
	return diff
}

// fieldOps compares two objects field by field.
func fieldOps(prefix string, before, after map[string]any, skip string) []jsonOp {
	var ops []jsonOp
	for _, k := range slices.Sorted(maps.Keys(after)) {
		if old, had := before[k]; k != skip && (!had || !reflect.DeepEqual(old, after[k])) {
			ops = append(ops, jsonOp{"add", prefix + escapePointer(k), after[k]})
		}
	}
	for _, k := range slices.Sorted(maps.Keys(before)) {
		if _, kept := after[k]; !kept && k != skip {
			ops = append(ops, jsonOp{"remove", prefix + escapePointer(k), nil})
		}
	}
	return ops
}

func conditionOps(before, after any) []jsonOp {
	old, _ := before.([]any)
	list, _ := after.([]any)
	var ops []jsonOp
	for i, item := range list {
		condition, _ := item.(map[string]any)
		if i >= len(old) {
			ops = append(ops, jsonOp{"add", "/status/conditions/-", condition})
			continue
		}
		was, _ := old[i].(map[string]any)
		prefix := fmt.Sprintf("/status/conditions/%d/", i)
		if changes := fieldOps(prefix, was, condition, "type"); len(changes) > 0 {
			ops = append(ops, jsonOp{"test", prefix + "type", was["type"]})
			ops = append(ops, changes...)
		}
	}
	return ops
}

func escapePointer(s string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(s)
}

func toMap(v any) (map[string]any, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode status: %w", err)
	}
	out := map[string]any{}
	if err := json.Unmarshal(text, &out); err != nil {
		return nil, fmt.Errorf("decode status: %w", err)
	}
	return out, nil
}

func encodePatch(kind types.PatchType, v any) (*patch, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode patch: %w", err)
	}
	return &patch{kind, data}, nil
}

// setReady gives the conditions with Ready as told. Nothing changes, times included, when it says so already.
func setReady(conditions kubeovnv1.Conditions, ready bool, reason, message string, generation int64, now metav1.Time) kubeovnv1.Conditions {
	next := kubeovnv1.Condition{
		Type: kubeovnv1.Ready, Status: corev1.ConditionFalse, Reason: reason, Message: message,
		LastUpdateTime: now, LastTransitionTime: now, ObservedGeneration: generation,
	}
	if ready {
		next.Status = corev1.ConditionTrue
	}
	i := slices.IndexFunc(conditions, func(c kubeovnv1.Condition) bool { return c.Type == kubeovnv1.Ready })
	if i < 0 {
		return append(slices.Clone(conditions), next)
	}
	was := conditions[i]
	if was.Status == next.Status {
		next.LastTransitionTime = was.LastTransitionTime
	}
	unchanged := next
	unchanged.LastUpdateTime = was.LastUpdateTime
	if reflect.DeepEqual(unchanged, was) {
		return conditions
	}
	out := slices.Clone(conditions)
	out[i] = next
	return out
}

// writeLag is how long the cache may take to show a write.
const writeLag = 2 * time.Second

// writtenStore remembers from which cached object each write was made. As long as the cache shows that same object, the write is not
// in it yet, and deciding again would write again.
type writtenStore struct {
	mu    sync.Mutex
	items map[string]written
}

type written struct {
	from metav1.Object
	at   time.Time
}

func (s *writtenStore) note(key string, from metav1.Object, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.items == nil {
		s.items = map[string]written{}
	}
	s.items[key] = written{from, now}
}

// behind says for how long to wait for the event of the last write to this object; not at all when it was seen, or when it
// does not come because the API server found nothing to change.
func (s *writtenStore) behind(key string, cached metav1.Object, now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	w, ok := s.items[key]
	if left := writeLag - now.Sub(w.at); ok && w.from == cached && left > 0 {
		return left
	}
	delete(s.items, key)
	return 0
}

func (s *writtenStore) forget(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.items, key)
}
