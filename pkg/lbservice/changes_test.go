// SPDX-License-Identifier: Apache-2.0

package lbservice

import (
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

func TestDiff(t *testing.T) {
	edit := func(f func(*kubeovnv1.IptablesDnatRule)) *kubeovnv1.IptablesDnatRule {
		return newRule(testOwner, eipA, 80, "10.1.0.4:8080", f)
	}
	name := edit(ready).Name
	other := newRule(testOwner, eipA, 80, "10.1.0.5:8080")
	uid := `"uid":"uid-` + name + `"`
	for _, tc := range []struct {
		name                    string
		held                    bool
		have                    []*kubeovnv1.IptablesDnatRule
		create, patch, del, all []string
	}{
		{name: "there", have: []*kubeovnv1.IptablesDnatRule{edit(ready)}},
		{name: "missing", create: []string{name}},
		{name: "missing, held back", held: true, all: []string{name}},
		{name: "there, held back", held: true, have: []*kubeovnv1.IptablesDnatRule{edit(ready)}},
		{name: "one more", have: []*kubeovnv1.IptablesDnatRule{edit(ready), other}, del: []string{other.Name}},
		{name: "one more, being deleted", have: []*kubeovnv1.IptablesDnatRule{edit(ready), deleting(other.DeepCopy())}},
		{name: "being deleted does not count as there", have: []*kubeovnv1.IptablesDnatRule{deleting(edit(ready))}, all: []string{name}},
		{
			name: "affinity", have: []*kubeovnv1.IptablesDnatRule{edit(func(r *kubeovnv1.IptablesDnatRule) {
				r.Spec.SessionAffinity, r.Spec.SessionAffinityTimeoutSeconds = "ClientIP", 5
			})},
			patch: []string{`{"metadata":{` + uid + `},"spec":{"sessionAffinity":"","sessionAffinityTimeoutSeconds":0}}`},
		},
		{
			name: "spec edited", have: []*kubeovnv1.IptablesDnatRule{edit(func(r *kubeovnv1.IptablesDnatRule) { r.Spec.InternalIP = "10.1.0.66" })},
			patch: []string{`{"metadata":{` + uid + `},"spec":{"internalIp":"10.1.0.4"}}`},
		},
		{
			name: "EIP edited", have: []*kubeovnv1.IptablesDnatRule{edit(func(r *kubeovnv1.IptablesDnatRule) { r.Spec.EIP = eipB })},
			patch: []string{`{"metadata":{` + uid + `},"spec":{"eip":"eip-a"}}`},
		},
		{
			name: "made for another EIP", have: []*kubeovnv1.IptablesDnatRule{newRule(testOwner, eipB, 80, "10.1.0.4:8080")},
			del: []string{name}, all: []string{name},
		},
		{
			name: "labels lost", have: []*kubeovnv1.IptablesDnatRule{edit(func(r *kubeovnv1.IptablesDnatRule) {
				delete(r.Labels, sharenat.OwnerNameLabel)
				r.Labels[sharenat.GatewayLabel] = "x"
				r.Labels["mine"] = "kept"
			})},
			patch: []string{`{"metadata":{"labels":{"ovn.kubernetes.io/nftable-lb-svc-name":"web","ovn.kubernetes.io/vpc-nat-gw-name":"gw-a"},` + uid + `}}`},
		},
		{
			name: "return path and ranges", have: []*kubeovnv1.IptablesDnatRule{edit(func(r *kubeovnv1.IptablesDnatRule) {
				r.Annotations[sharenat.SourceIPAnnotation] = "masquerade"
				r.Annotations[sharenat.SourceRangesAnnotation] = "10.0.0.0/8"
				r.Annotations["mine"] = "kept"
			})},
			patch: []string{`{"metadata":{"annotations":{"ovn.kubernetes.io/nftable-lb-svc-source-ip":"preserve","ovn.kubernetes.io/nftable-lb-svc-source-ranges":null},` + uid + `}}`},
		},
		{name: "upper case protocol", have: []*kubeovnv1.IptablesDnatRule{edit(func(r *kubeovnv1.IptablesDnatRule) { r.Spec.Protocol = "TCP" })}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			desired := Desired(newSnapshot(newService(testService), withBackend)).Rules
			desired[0].Held = tc.held
			changes, err := Diff(desired, tc.have)
			if err != nil {
				t.Fatal(err)
			}
			var create, patch, del []string
			for _, rule := range changes.Create {
				create = append(create, rule.Name)
			}
			for _, p := range changes.Patch {
				patch = append(patch, string(p.Patch))
			}
			for _, rule := range changes.Delete {
				del = append(del, rule.Name)
			}
			if diff := cmp.Diff([][]string{tc.create, tc.patch, tc.del, tc.all}, [][]string{create, patch, del, changes.Waiting}); diff != "" {
				t.Errorf("create, patch, delete, waiting (-want +got):\n%s", diff)
			}
		})
	}
}

// A patch leaves what our types do not know as it is.
func TestPatchKeepsUnknownFields(t *testing.T) {
	rule := newRule(testOwner, eipA, 80, "10.1.0.4:8080", func(r *kubeovnv1.IptablesDnatRule) { r.Spec.SessionAffinity = "ClientIP" })
	raw, err := json.Marshal(rule)
	if err != nil {
		t.Fatal(err)
	}
	raw, err = jsonpatch.MergePatch(raw, []byte(`{"spec":{"newField":{"a":[1]}},"status":{"newStatus":true},"metadata":{"annotations":{"x":"y"}}}`))
	if err != nil {
		t.Fatal(err)
	}
	changes, err := Diff(Desired(newSnapshot(newService(testService), withBackend)).Rules, []*kubeovnv1.IptablesDnatRule{rule})
	if err != nil || len(changes.Patch) != 1 {
		t.Fatalf("want one patch, got %+v, %v", changes, err)
	}
	after, err := jsonpatch.MergePatch(raw, changes.Patch[0].Patch)
	if err != nil {
		t.Fatal(err)
	}
	// Only the affinity differs.
	want, err := jsonpatch.MergePatch(raw, []byte(`{"spec":{"sessionAffinity":""}}`))
	if err != nil {
		t.Fatal(err)
	}
	var got, expected any
	if json.Unmarshal(after, &got) != nil || json.Unmarshal(want, &expected) != nil {
		t.Fatal("unreadable")
	}
	if diff := cmp.Diff(expected, got); diff != "" {
		t.Errorf("rule (-want +got):\n%s", diff)
	}
}

// While what is wanted waits for its predecessor to be gone, what lives is not taken away as well.
func TestHoldBack(t *testing.T) {
	const flapping, leaving, other = "10.1.0.4:8080", "10.1.0.5:8080", "10.1.0.6:8080"
	tests := []struct {
		name             string
		wanted           []string
		deleting, others []string // that there are
		living           []string
		want             []string // to delete
	}{
		{name: "all that is wanted waits", wanted: []string{flapping}, deleting: []string{flapping}, others: []string{leaving}, living: []string{leaving}},
		{name: "what leaves has ended", wanted: []string{flapping}, deleting: []string{flapping}, others: []string{leaving}, want: []string{leaving}},
		{name: "another is there", wanted: []string{flapping, other}, deleting: []string{flapping}, others: []string{leaving, other}, living: []string{leaving}, want: []string{leaving}},
		{name: "another is made", wanted: []string{flapping, other}, deleting: []string{flapping}, others: []string{leaving}, living: []string{leaving}, want: []string{leaving}},
		{name: "nothing is wanted", deleting: []string{flapping}, others: []string{leaving}, living: []string{leaving}, want: []string{leaving}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var own []*kubeovnv1.IptablesDnatRule
			for _, backend := range tt.deleting {
				own = append(own, deleting(newRule(testOwner, eipA, 80, backend)))
			}
			for _, backend := range tt.others {
				own = append(own, newRule(testOwner, eipA, 80, backend))
			}
			var desired []Rule
			for _, backend := range tt.wanted {
				rule := newRule(testOwner, eipA, 80, backend)
				desired = append(desired, Rule{Name: rule.Name, Labels: rule.Labels, Annotations: rule.Annotations, Spec: rule.Spec})
			}
			living := map[netip.Addr]bool{}
			for _, backend := range tt.living {
				living[netip.MustParseAddrPort(backend).Addr()] = true
			}
			changes, err := Diff(desired, own)
			if err != nil {
				t.Fatal(err)
			}
			changes.holdBack(desired, own, living)
			var got []string
			for _, rule := range changes.Delete {
				got = append(got, rule.Spec.InternalIP+":"+rule.Spec.InternalPort)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("deleted (-want +got):\n%s", diff)
			}
		})
	}
}
