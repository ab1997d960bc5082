// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
)

// Paths at which the kinds are validated.
const (
	PathRule    = "/validate-kubeovn-io-v1-iptablesdnatrule"
	PathFIP     = "/validate-kubeovn-io-v1-iptablesfiprule"
	PathEIP     = "/validate-kubeovn-io-v1-iptableseip"
	PathGateway = "/validate-kubeovn-io-v1-vpcnatgateway"
	PathService = "/validate--v1-service"
)

// Server takes handlers for paths; controller-runtime's webhook.Server is one.
type Server interface {
	Register(path string, hook http.Handler)
}

// Register serves every kind at its path.
func (v *Validator) Register(server Server) {
	for _, hook := range []struct {
		path    string
		handler admission.Handler
	}{
		{PathRule, &handler[kubeovnv1.IptablesDnatRule, *kubeovnv1.IptablesDnatRule]{v, KindRule}},
		{PathFIP, &handler[kubeovnv1.IptablesFIPRule, *kubeovnv1.IptablesFIPRule]{v, KindFIP}},
		{PathEIP, &handler[kubeovnv1.IptablesEIP, *kubeovnv1.IptablesEIP]{v, KindEIP}},
		{PathGateway, &handler[kubeovnv1.VpcNatGateway, *kubeovnv1.VpcNatGateway]{v, KindGateway}},
		{PathService, &handler[corev1.Service, *corev1.Service]{v, KindService}},
	} {
		server.Register(hook.path, &admission.Webhook{Handler: hook.handler})
	}
}

// handler is the thin layer between AdmissionReviews and the Validator, for one kind.
type handler[T any, P object[T]] struct {
	validator *Validator
	kind      Kind
}

// Handle answers one AdmissionRequest.
func (h *handler[T, P]) Handle(ctx context.Context, areq admission.Request) admission.Response {
	op := Operation(areq.Operation)
	if areq.SubResource != "" || op != Create && op != Update && op != Delete {
		return admission.Allowed("")
	}
	req, err := h.decode(areq)
	if err != nil {
		// What cannot be read here cannot be read by the controllers either, whose informers would stand still over it.
		h.validator.Metrics.reviewed(h.kind, op, resultError)
		return admission.Errored(http.StatusBadRequest, err)
	}
	verdict, err := h.validator.Review(ctx, req)
	if err != nil {
		h.validator.Metrics.reviewed(h.kind, op, resultError)
		return admission.Errored(http.StatusServiceUnavailable, err)
	}
	result := resultAllowed
	switch {
	case len(verdict.Refusals) > 0:
		result = resultRefused
		klog.FromContext(ctx).V(2).Info("Refused", "kind", h.kind, "name", areq.Name, "operation", op,
			"user", areq.UserInfo.Username, "why", verdict.Refusals.ToAggregate().Error())
	case len(verdict.Warnings) > 0:
		result = resultWarned
	}
	h.validator.Metrics.reviewed(h.kind, op, result)
	if areq.Name == "" && req.New != nil {
		areq.Name = req.New.GetName() // one that the API server has made up
	}
	return respond(areq, verdict)
}

func (h *handler[T, P]) decode(areq admission.Request) (Request, error) {
	req := Request{Operation: Operation(areq.Operation), User: areq.UserInfo.Username}
	for _, part := range []struct {
		raw  []byte
		to   *metav1.Object
		what string
		need bool
	}{
		{areq.OldObject.Raw, &req.Old, "old object", req.Operation != Create},
		{areq.Object.Raw, &req.New, "object", req.Operation != Delete},
	} {
		if !part.need {
			continue
		}
		obj := P(new(T))
		if len(part.raw) == 0 {
			return req, errors.New("the request has no " + part.what)
		}
		if err := json.Unmarshal(part.raw, obj); err != nil {
			return req, fmt.Errorf("decode %s: %w", part.what, err)
		}
		*part.to = obj
	}
	return req, nil
}

// respond words a verdict as Kubernetes words its own: an object that is not valid is invalid, with the causes by field; one
// that may not go is forbidden.
func respond(areq admission.Request, v Verdict) admission.Response {
	if len(v.Refusals) == 0 {
		return admission.Allowed("").WithWarnings(v.Warnings...)
	}
	var status metav1.Status
	if Operation(areq.Operation) == Delete {
		status = apierrors.NewForbidden(schema.GroupResource{Group: areq.Resource.Group, Resource: areq.Resource.Resource},
			areq.Name, errors.New(details(v.Refusals))).Status()
	} else {
		status = apierrors.NewInvalid(schema.GroupKind{Group: areq.Kind.Group, Kind: areq.Kind.Kind}, areq.Name, v.Refusals).Status()
	}
	response := admission.Denied("")
	response.Result = &status
	return response.WithWarnings(v.Warnings...)
}

func details(list field.ErrorList) string {
	texts := make([]string, len(list))
	for i, err := range list {
		texts[i] = err.Detail
	}
	return strings.Join(texts, "; ")
}
