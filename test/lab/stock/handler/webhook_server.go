// SPDX-License-Identifier: Apache-2.0

package handler

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/test/lab/stockrules"
)

// WebhookConfiguration is the name of the webhook's.
const WebhookConfiguration = "kube-ovn-webhook"

const webhookPath = "/validate"

// ServeWebhook serves the webhook at a port of this host until ctx ends, and tells the API server of it; ready is called then.
func (h *Handler) ServeWebhook(ctx context.Context, port int, ready func()) error {
	const host = "127.0.0.1"
	certificate, key, err := certutil.GenerateSelfSignedCertKey(host, []net.IP{net.ParseIP(host)}, nil)
	if err != nil {
		return fmt.Errorf("make the webhook's certificate: %w", err)
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return err
	}
	hook, err := admission.StandaloneWebhook(&admission.Webhook{Handler: admission.HandlerFunc(h.review)}, admission.StandaloneOptions{})
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle(webhookPath, hook)
	listener, err := tls.Listen("tcp", fmt.Sprintf("%s:%d", host, port), &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12})
	if err != nil {
		return fmt.Errorf("serve the webhook: %w", err)
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := h.register(ctx, fmt.Sprintf("https://%s:%d%s", host, port, webhookPath), certificate); err != nil {
		return errors.Join(err, listener.Close())
	}
	ready()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the webhook: %w", err)
	}
	return nil
}

// register has the API server ask. While nobody answers, as between two runs of this, it lets everything pass.
func (h *Handler) register(ctx context.Context, url string, ca []byte) error {
	rule := func(resource string) admissionregistrationv1.RuleWithOperations {
		return admissionregistrationv1.RuleWithOperations{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update},
			Rule:       admissionregistrationv1.Rule{APIGroups: []string{"kubeovn.io"}, APIVersions: []string{"v1"}, Resources: []string{resource}},
		}
	}
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: WebhookConfiguration},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "validate.kubeovn.io", Rules: []admissionregistrationv1.RuleWithOperations{
				rule("vpcs"), rule("subnets"), rule(gateways), rule(eips), rule(dnats),
			},
			ClientConfig:  admissionregistrationv1.WebhookClientConfig{URL: &url, CABundle: ca},
			FailurePolicy: ptr.To(admissionregistrationv1.Ignore), SideEffects: ptr.To(admissionregistrationv1.SideEffectClassNone),
			AdmissionReviewVersions: []string{"v1"}, TimeoutSeconds: ptr.To[int32](5),
		}},
	}
	client := h.kube.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	if err := client.Delete(ctx, WebhookConfiguration, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	_, err := client.Create(ctx, configuration, metav1.CreateOptions{})
	return err
}

// review answers the API server.
func (h *Handler) review(ctx context.Context, request admission.Request) admission.Response {
	if err := h.judge(ctx, request); err != nil {
		return admission.Denied(err.Error())
	}
	return admission.Allowed("")
}

func (h *Handler) judge(ctx context.Context, request admission.Request) error {
	object, err := decoded[unstructured.Unstructured](request.Object.Raw)
	if err != nil {
		return err
	}
	old, err := decoded[unstructured.Unstructured](request.OldObject.Raw)
	if err != nil || passes(old, object) {
		return err
	}
	in, err := h.surroundings(ctx)
	if err != nil {
		return err
	}
	if err := refuse(old, object, in); err != nil {
		return err
	}
	switch request.Resource.Resource {
	case dnats:
		all, err := h.ovn.KubeovnV1().IptablesDnatRules().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		return reviewed(request, func(_, rule *kubeovnv1.IptablesDnatRule) error { return refuseDNAT(rule, all.Items) })
	case eips:
		return reviewed(request, whereOld(refuseMove))
	case gateways:
		return reviewed(request, whereOld(refuseReplicas))
	}
	return nil
}

// surroundings are what objects are held against, as it is now.
func (h *Handler) surroundings(ctx context.Context) (*stockrules.Cluster, error) {
	in := &stockrules.Cluster{}
	for _, name := range []string{"vpcs", "subnets", gateways, eips} {
		list, err := h.dynamic.Resource(resource(name)).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		for i := range list.Items {
			if err := in.Add(&list.Items[i]); err != nil {
				return nil, err
			}
		}
	}
	return in, nil
}

// whereOld judges changes only.
func whereOld[T any](refuse func(old, object *T) error) func(old, object *T) error {
	return func(old, object *T) error {
		if old == nil {
			return nil
		}
		return refuse(old, object)
	}
}

// reviewed decodes what is asked about.
func reviewed[T any](request admission.Request, refuse func(old, object *T) error) error {
	object, err := decoded[T](request.Object.Raw)
	if err != nil {
		return err
	}
	old, err := decoded[T](request.OldObject.Raw)
	if err != nil {
		return err
	}
	return refuse(old, object)
}

// decoded gives nil for nothing.
func decoded[T any](raw []byte) (*T, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	object := new(T)
	return object, json.Unmarshal(raw, object)
}
