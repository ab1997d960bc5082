// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// mux is a Server that tests can post to.
type mux map[string]http.Handler

func (m mux) Register(path string, hook http.Handler) { m[path] = hook }

var _ Server = mux{}

func (m mux) post(tb testing.TB, path string, req *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	tb.Helper()
	review := admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "AdmissionReview"}, Request: req,
	}
	body, err := json.Marshal(review)
	if err != nil {
		tb.Fatal(err)
	}
	r := httptest.NewRequestWithContext(tb.Context(), http.MethodPost, path, bytes.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	m[path].ServeHTTP(w, r)
	var answer admissionv1.AdmissionReview
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil {
		tb.Fatalf("answer %q: %v", w.Body, err)
	}
	if answer.Response == nil || answer.Response.UID != req.UID {
		tb.Fatalf("answer %q is to another request", w.Body)
	}
	return answer.Response
}

func raw(tb testing.TB, obj any) runtime.RawExtension {
	tb.Helper()
	if obj == nil {
		return runtime.RawExtension{}
	}
	if text, ok := obj.(string); ok {
		return runtime.RawExtension{Raw: []byte(text)}
	}
	text, err := json.Marshal(obj)
	if err != nil {
		tb.Fatal(err)
	}
	return runtime.RawExtension{Raw: text}
}

func TestHandler(t *testing.T) {
	v, _ := newValidator(t,
		[]metav1.Object{newEIP(eipA, "203.0.113.10", gwA), newRule("hand"), newGateway(gwA)},
		[]metav1.Object{newEIP(eipA, "203.0.113.10", gwA), newRule("hand"), newGateway(gwA)})
	registry := prometheus.NewRegistry()
	v.Metrics = NewMetrics(registry)
	server := mux{}
	v.Register(server)
	const kind = "IptablesDnatRule.kubeovn.io"
	for _, tc := range []struct {
		name, path, resource, subresource string
		op                                admissionv1.Operation
		old, obj                          any
		code                              int32
		reason                            metav1.StatusReason
		message                           string
		causes                            []string
		warnings                          []string
	}{
		{name: "allowed", path: PathRule, op: admissionv1.Create, obj: newRule("r"), code: http.StatusOK},
		{
			name: "invalid, by field", path: PathRule, op: admissionv1.Create, obj: newRule("r", exclusive, port("081")), code: http.StatusUnprocessableEntity,
			reason:  metav1.StatusReasonInvalid,
			message: kind + ` "r" is invalid: spec.externalPort: Invalid value: "081": must be a number from 1 to 65535 without leading zeros`,
			causes:  []string{"spec.externalPort"},
		},
		{
			name: "all problems in one answer", path: PathRule, op: admissionv1.Update, old: newRule("r", port("81")), obj: newRule("r", exclusive, owned(web)),
			code: http.StatusUnprocessableEntity, reason: metav1.StatusReasonInvalid,
			message: kind + ` "r" is invalid: [` + nsLabel + forged + ", " + svcLabel + forged +
				`, spec.externalPort: Invalid value: "80": 80/TCP of IptablesEIP eip-a is owned by IptablesDnatRule hand (made by hand)]`,
			causes:   []string{strings.TrimSuffix(nsLabel, ": "), strings.TrimSuffix(svcLabel, ": "), "spec.externalPort"},
			warnings: []string{"the rule belongs to Service shop/web, whose controller will undo the change"},
		},
		{
			name: "forbidden to delete", path: PathEIP, op: admissionv1.Delete, old: newEIP(eipA, "203.0.113.10", gwA), code: http.StatusForbidden,
			reason:  metav1.StatusReasonForbidden,
			message: `iptables-eips.kubeovn.io "r" is forbidden: is used by IptablesDnatRule hand: remove that first`,
		},
		{name: "status", path: PathRule, op: admissionv1.Update, subresource: "status", old: newRule("r"), obj: newRule("r", port("x")), code: http.StatusOK},
		{name: "connect", path: PathRule, op: admissionv1.Connect, code: http.StatusOK},
		{
			name: "warned", path: PathService, op: admissionv1.Create, obj: newService(web), code: http.StatusOK,
			warnings: []string{"port 80/TCP of IptablesEIP eip-a belongs to IptablesDnatRule hand (made by hand)"},
		},
		{name: "FIP", path: PathFIP, op: admissionv1.Delete, old: newFIP("r", eipA), code: http.StatusOK},
		{
			name: "gateway", path: PathGateway, op: admissionv1.Delete, old: newGateway(gwA), code: http.StatusForbidden, reason: metav1.StatusReasonForbidden,
			message: `vpc-nat-gateways.kubeovn.io "r" is forbidden: carries IptablesEIP eip-a (used by IptablesDnatRule hand): remove what uses it first`,
		},
		{
			name: "not JSON", path: PathRule, op: admissionv1.Create, obj: `{"spec":{"externalPort":80}}`, code: http.StatusBadRequest,
			message: "decode object: json: cannot unmarshal number into Go struct field IptablesDnatRuleSpec.spec.externalPort of type string",
		},
		{name: "no object", path: PathRule, op: admissionv1.Update, old: newRule("r"), code: http.StatusBadRequest, message: "the request has no object"},
		{name: "no old object", path: PathRule, op: admissionv1.Update, obj: newRule("r"), code: http.StatusBadRequest, message: "the request has no old object"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			resources := map[string]string{PathEIP: "iptables-eips", PathGateway: "vpc-nat-gateways"}
			got := server.post(t, tc.path, &admissionv1.AdmissionRequest{
				UID: "1", Name: "r", Operation: tc.op, SubResource: tc.subresource, UserInfo: authenticationv1.UserInfo{Username: alice},
				Kind:     metav1.GroupVersionKind{Group: "kubeovn.io", Version: "v1", Kind: "IptablesDnatRule"},
				Resource: metav1.GroupVersionResource{Group: "kubeovn.io", Version: "v1", Resource: resources[tc.path]},
				Object:   raw(t, tc.obj), OldObject: raw(t, tc.old),
			})
			if allowed := tc.code == http.StatusOK; got.Allowed != allowed {
				t.Errorf("allowed: %v", got.Allowed)
			}
			if got.Result.Code != tc.code || got.Result.Reason != tc.reason {
				t.Errorf("code %d, reason %q; want %d, %q", got.Result.Code, got.Result.Reason, tc.code, tc.reason)
			}
			if diff := cmp.Diff(tc.message, got.Result.Message); diff != "" {
				t.Errorf("message (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.warnings, got.Warnings); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
			var causes []string
			if got.Result.Details != nil {
				for _, cause := range got.Result.Details.Causes {
					causes = append(causes, cause.Field)
				}
			}
			if diff := cmp.Diff(tc.causes, causes); diff != "" {
				t.Errorf("causes (-want +got):\n%s", diff)
			}
		})
	}
	want := map[string]float64{
		"IptablesDnatRule CREATE allowed": 1, "IptablesDnatRule CREATE error": 1, "IptablesDnatRule CREATE refused": 1,
		"IptablesDnatRule UPDATE error": 2, "IptablesDnatRule UPDATE refused": 1,
		"IptablesEIP DELETE refused": 1, "IptablesFIPRule DELETE allowed": 1, "VpcNatGateway DELETE refused": 1, "Service CREATE warned": 1,
	}
	if diff := cmp.Diff(want, counters(t, registry, "kube_ovn_webhook_reviews_total")); diff != "" {
		t.Errorf("reviews (-want +got):\n%s", diff)
	}
}

// counters gives a metric's values by the values of its labels.
func counters(t *testing.T, gatherer prometheus.Gatherer, name string) map[string]float64 {
	t.Helper()
	families, err := gatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			var values []string
			for _, pair := range metric.GetLabel() {
				values = append(values, pair.GetValue())
			}
			if family.GetName() == name {
				out[strings.Join(values, " ")] = metric.GetCounter().GetValue()
			}
		}
	}
	return out
}

// FuzzHandler: whatever the API server sends, there is an answer, and no panic behind it.
func FuzzHandler(f *testing.F) {
	for _, seed := range []string{`{}`, `null`, `[]`, `{"spec":null}`, `{"spec":{"eip":"eip-a","externalPort":"80","protocol":"TCP"}}`, `{"metadata":{"labels":{"a":1}}}`} {
		for path := range uint8(5) {
			f.Add(seed, seed, path, path)
		}
	}
	here := []metav1.Object{newEIP(eipA, "203.0.113.10", gwA), newRule("hand"), newGateway(gwA), newFIP("fip", eipB), newService(api)}
	v, client := newValidator(f, here, here)
	server := mux{}
	v.Register(server)
	paths := []string{PathRule, PathFIP, PathEIP, PathGateway, PathService}
	ops := []admissionv1.Operation{admissionv1.Create, admissionv1.Update, admissionv1.Delete, admissionv1.Connect, "", "PATCH"}
	f.Fuzz(func(t *testing.T, old, obj string, path, op uint8) {
		if !json.Valid([]byte(old)) || !json.Valid([]byte(obj)) {
			return // the API server sends JSON
		}
		client.ClearActions()
		got := server.post(t, paths[int(path)%len(paths)], &admissionv1.AdmissionRequest{
			UID: "1", Operation: ops[int(op)%len(ops)], Object: raw(t, obj), OldObject: raw(t, old), UserInfo: authenticationv1.UserInfo{Username: alice},
		})
		if got.Result == nil || got.Result.Code == http.StatusInternalServerError {
			t.Errorf("answer %+v", got)
		}
	})
}
