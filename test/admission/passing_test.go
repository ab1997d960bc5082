// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
	"github.com/kubeovn/kube-ovn/test/lab/controlplane"
)

type (
	rule     = kubeovnv1.IptablesDnatRule
	ruleSpec = kubeovnv1.IptablesDnatRuleSpec
)

// TestRightAway: what stood in the way and has been removed does not for a moment longer, however far the webhook's caches are behind; nor does an
// EIP count as missing that was created a moment ago.
func TestRightAway(t *testing.T) {
	aCluster(t)
	ctx := t.Context()
	sole, next := newRule("sole", exclusive), newRule("next")
	for i := range 20 {
		if err := alice().create(ctx, sole, nil); err != nil {
			t.Fatalf("round %d: exclusive rule: %v", i, err)
		}
		if err := alice().remove(ctx, sole, nil); err != nil {
			t.Fatal(err)
		}
		if err := alice().create(ctx, next, nil); err != nil {
			t.Fatalf("round %d: share rule right after: %v", i, err)
		}
		if err := alice().remove(ctx, next, nil); err != nil {
			t.Fatal(err)
		}
		alice().warnings.take()
		eip := newEIP(fmt.Sprintf("young-%d", i), gwA)
		if err := alice().create(ctx, eip, nil); err != nil {
			t.Fatal(err)
		}
		of := newRule("young", onEIP(eip.Name))
		if err := alice().create(ctx, of, nil); err != nil {
			t.Fatal(err)
		}
		if got := alice().warnings.take(); len(got) > 0 {
			t.Errorf("round %d: a rule right after its EIP: %q", i, got)
		}
		if err := alice().remove(ctx, of, nil); err != nil {
			t.Fatal(err)
		}
		if err := alice().remove(ctx, eip, nil); err != nil {
			t.Fatalf("round %d: EIP right after its rule: %v", i, err)
		}
	}
}

// TestAffinityInPlace: a live identity's affinity is changed rule by rule, in any order, by the controller or by hand, and nothing of it is refused.
func TestAffinityInPlace(t *testing.T) {
	t.Run("by the controller", func(t *testing.T) { affinityInPlace(t, controller(), owned("web")) })
	t.Run("by hand", func(t *testing.T) { affinityInPlace(t, alice()) })
}

func affinityInPlace(t *testing.T, as *user, tweaks ...ruleTweak) {
	t.Helper()
	var rules []metav1.Object
	for i := range 8 {
		rules = append(rules, newRule(fmt.Sprintf("lb-web-%d", i), append(slices.Clone(tweaks), backend(fmt.Sprintf("10.1.0.%d", 4+i)))...))
	}
	aCluster(t, rules...)
	r := rand.New(rand.NewPCG(1, 1))
	for _, change := range []map[string]any{
		{"sessionAffinity": "ClientIP", "sessionAffinityTimeoutSeconds": 60},
		{"sessionAffinityTimeoutSeconds": 61},
		{"sessionAffinity": "", "sessionAffinityTimeoutSeconds": 0},
	} {
		r.Shuffle(len(rules), func(i, j int) { rules[i], rules[j] = rules[j], rules[i] })
		for _, obj := range rules {
			if err := as.patch(t.Context(), obj, specOf(change), nil); err != nil {
				t.Fatalf("%v of %s: %v", change, obj.GetName(), err)
			}
		}
	}
}

// TestAway: with the webhook gone, and though every call to it that is made must succeed, finalizers come off and statuses are written.
func TestAway(t *testing.T) {
	ctx := t.Context()
	aCluster(t, newRule("r", finalizer, owned("web")))
	if err := alice().remove(ctx, newRule("r"), nil); err != nil {
		t.Fatal(err)
	}
	stopShared(t)
	if err := controller().patch(ctx, newEIP(eipA, ""), metadataOf("finalizers", []string{sharenat.Finalizer}), nil); err != nil {
		t.Errorf("finalizer onto an EIP: %v", err)
	}
	if err := controller().patch(ctx, newRule("r"), map[string]any{"status": map[string]any{"ready": true}}, nil, "status"); err != nil {
		t.Errorf("status of a rule: %v", err)
	}
	if err := alice().patch(ctx, newRule("r"), metadataOf("finalizers", nil), nil); err != nil {
		t.Errorf("finalizer off a rule that is being deleted: %v", err)
	}
	if err := alice().remove(ctx, newRule("r"), nil); !apierrors.IsNotFound(err) {
		t.Errorf("the rule is not gone: %v", err)
	}
	if err := alice().create(ctx, newRule("new"), dryRun); err == nil || !strings.Contains(err.Error(), "failed calling webhook") {
		t.Errorf("a rule is created: %v", err)
	}
	// These tests' own policy is Fail, so that a call which does not arrive is seen. With Ignore, as in a cluster, nothing waits for the webhook.
	setFailurePolicy(t, admissionv1.Ignore)
	t.Cleanup(func() { setFailurePolicy(t, admissionv1.Fail) })
	for _, obj := range []metav1.Object{newRule("new"), newEIP("new", gwA), newGateway("new"), newFIP("new", eipB), newService("new")} {
		if err := alice().create(ctx, obj, dryRun); err != nil {
			t.Errorf("%T: %v", obj, err)
		}
	}
}

func setFailurePolicy(t *testing.T, policy admissionv1.FailurePolicyType) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	configurations := controller().kube.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	configuration, err := configurations.Get(ctx, "kube-ovn-webhook", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range configuration.Webhooks {
		configuration.Webhooks[i].FailurePolicy = &policy
	}
	if _, err := configurations.Update(ctx, configuration, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	settle(t)
}

// stopShared stops the webhook that all tests use until the test is over.
func stopShared(t *testing.T) {
	t.Helper()
	if err := shared.webhook.stop(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		var err error
		if shared.webhook, err = startWebhook(context.WithoutCancel(t.Context()), 8443, 8080); err != nil {
			t.Fatal(err)
		}
	})
}

// TestCertificates: a lost authority and a lost caBundle are made good, and calls go on.
func TestCertificates(t *testing.T) {
	ctx := t.Context()
	aCluster(t)
	secrets := controller().kube.CoreV1().Secrets("kube-system")
	before, err := secrets.Get(ctx, "kube-ovn-webhook-ca", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// The chart's RBAC has no leave to create Secrets, so it is emptied, not deleted.
	if _, err := secrets.Patch(ctx, before.Name, types.MergePatchType, []byte(`{"data":null}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	err = poll(t.Context(), func() error {
		after, err := secrets.Get(ctx, before.Name, metav1.GetOptions{})
		if err == nil && string(after.Data["ca.crt"]) != string(before.Data["ca.crt"]) {
			err = errors.New("the authority is another, or none")
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	configurations := controller().kube.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	configuration, err := configurations.Get(ctx, "kube-ovn-webhook", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range configuration.Webhooks {
		configuration.Webhooks[i].ClientConfig.CABundle = nil
	}
	if _, err := configurations.Update(ctx, configuration, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	err = poll(ctx, func() error {
		configuration, err := configurations.Get(ctx, "kube-ovn-webhook", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for i := range configuration.Webhooks {
			if len(configuration.Webhooks[i].ClientConfig.CABundle) == 0 {
				return fmt.Errorf("%s has no caBundle", configuration.Webhooks[i].Name)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	settle(t)
	if err := awaitCalls(ctx); err != nil {
		t.Error(err)
	}
}

// settle waits until the API server goes by the webhook configurations as they are now: it takes changes in their order, so once
// it goes by a new one it has seen those before.
func settle(t *testing.T) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	configurations := controller().kube.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	none := admissionv1.SideEffectClassNone
	probe := &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "probe"},
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name: "probe.kubeovn.io", ClientConfig: admissionv1.WebhookClientConfig{URL: ptr.To("https://127.0.0.1:1/")},
			Rules: []admissionv1.RuleWithOperations{{
				Operations: []admissionv1.OperationType{admissionv1.Create},
				Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
			}},
			SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
		}},
	}
	if _, err := configurations.Create(ctx, probe, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	err := poll(ctx, func() error {
		_, err := controller().kube.CoreV1().ConfigMaps("default").Create(ctx,
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "probe"}}, metav1.CreateOptions{DryRun: dryRun})
		if err == nil || !strings.Contains(err.Error(), "failed calling webhook") {
			return fmt.Errorf("the API server does not call the probe: %w", err)
		}
		return nil
	})
	if err := errors.Join(err, configurations.Delete(ctx, probe.Name, metav1.DeleteOptions{})); err != nil {
		t.Fatal(err)
	}
}

// TestFiles: a certificate that somebody else keeps is read again when it changes, without a restart; and no less than TLS 1.3 is spoken if so told.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	pki, err := controlplane.NewPKI(filepath.Join(dir, "pki"))
	if err != nil {
		t.Fatal(err)
	}
	issue := func(name string) {
		pair, err := pki.Issue(name, controlplane.Subject{CommonName: name, Names: []string{name}})
		if err != nil {
			t.Fatal(err)
		}
		for from, to := range map[string]string{pair.Cert: cert, pair.Key: key} {
			data, err := os.ReadFile(from)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(to, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	issue("one")
	w, err := startWebhook(t.Context(), 8444, 8081, "--tls-cert-file="+cert, "--tls-private-key-file="+key, "--tls-min-version=VersionTLS13")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := served(w, tls.VersionTLS13); err != nil || got != "one" {
		t.Errorf("certificate of %q, %v", got, err)
	}
	if _, err := served(w, tls.VersionTLS12); err == nil {
		t.Error("speaks TLS 1.2")
	}
	issue("two")
	err = poll(t.Context(), func() error {
		got, err := served(w, tls.VersionTLS13)
		if err == nil && got != "two" {
			err = fmt.Errorf("certificate of %q", got)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if err := w.stop(); err != nil {
		t.Error(err)
	}
}

// served gives the name on the certificate that a client of at most this version sees.
func served(w *webhook, most uint16) (string, error) {
	config := &tls.Config{InsecureSkipVerify: true, MaxVersion: most} //nolint:gosec // what is looked at is the certificate
	conn, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", w.port), config)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0].Subject.CommonName, nil
}

// TestStop: one that is told to stop says so at once, and answers for a while.
func TestStop(t *testing.T) {
	w, err := startWebhook(t.Context(), 8444, 8081, "--shutdown-delay=1s")
	if err != nil {
		t.Fatal(err)
	}
	w.cancel()
	if err := poll(t.Context(), func() error {
		body, status, err := w.read("/readyz")
		if err == nil && (status != 503 || body != "stopping\n") {
			err = fmt.Errorf("%d %q", status, body)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	if _, err := served(w, tls.VersionTLS13); err != nil {
		t.Errorf("does not answer any more: %v", err)
	}
	if err := w.stop(); err != nil {
		t.Error(err)
	}
	if _, err := served(w, tls.VersionTLS13); err == nil {
		t.Error("answers still")
	}
}

// TestLeave: with the rights of the chart, and no others, everything that the tests before needed could be read.
func TestLeave(t *testing.T) {
	body, _, err := shared.webhook.read("/metrics")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"kube_ovn_webhook_reviews_total", "kube_ovn_webhook_certificate_expiration_timestamp_seconds", "controller_runtime_webhook_requests_total", "go_goroutines"} {
		if !strings.Contains(body, want) {
			t.Errorf("no metric %s", want)
		}
	}
	if strings.Contains(body, `kube_ovn_webhook_live_reads_total{result="error"}`) {
		t.Error("something could not be read live")
	}
}
