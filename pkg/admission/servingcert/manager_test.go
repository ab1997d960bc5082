// SPDX-License-Identifier: Apache-2.0

package servingcert

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"
)

const (
	namespace = "kube-system"
	secret    = "kube-ovn-webhook-ca"
	webhooks  = "kube-ovn-webhook"
	name      = "kube-ovn-webhook.kube-system.svc"
)

var begin = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// newCluster has an empty Secret, as the chart makes it, and a configuration of two webhooks.
func newCluster(objects ...runtime.Object) *fake.Clientset {
	url, fail := "https://127.0.0.1/", admissionv1.Ignore
	hook := func(name string) admissionv1.ValidatingWebhook {
		return admissionv1.ValidatingWebhook{Name: name, ClientConfig: admissionv1.WebhookClientConfig{URL: &url}, FailurePolicy: &fail}
	}
	return fake.NewClientset(append(objects,
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: secret, Labels: map[string]string{"app": "x"}}},
		&admissionv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: webhooks}, Webhooks: []admissionv1.ValidatingWebhook{hook("a.kubeovn.io"), hook("b.kubeovn.io")},
		})...)
}

func newManager(t *testing.T, client *fake.Clientset, clock *clocktesting.FakePassiveClock) *Manager {
	t.Helper()
	opts := Options{
		Client: client, Namespace: namespace, SecretName: secret, WebhookConfiguration: webhooks, Names: []string{name, "127.0.0.1"},
		Lifetimes: Lifetimes{Authority: 9 * 24 * time.Hour, Overlap: 2 * time.Hour, Serving: 24 * time.Hour},
	}
	if clock != nil {
		opts.Clock = clock
	}
	m, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// apiServer is what an API server remembers: whom to trust.
func apiServer(t *testing.T, client *fake.Clientset) *x509.CertPool {
	t.Helper()
	configuration, err := client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(t.Context(), webhooks, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	for i, w := range configuration.Webhooks {
		if string(w.ClientConfig.CABundle) != string(configuration.Webhooks[0].ClientConfig.CABundle) {
			t.Errorf("webhook %d trusts others than the first", i)
		}
		if w.ClientConfig.URL == nil || w.FailurePolicy == nil {
			t.Errorf("webhook %d has lost its other fields", i)
		}
		if !pool.AppendCertsFromPEM(w.ClientConfig.CABundle) {
			t.Fatalf("webhook %d has caBundle %q", i, w.ClientConfig.CABundle)
		}
	}
	return pool
}

// verify says whether a replica that an API server calls now is trusted.
func verify(m *Manager, pool *x509.CertPool, now time.Time) error {
	c, err := m.GetCertificate(&tls.ClientHelloInfo{})
	if err != nil {
		return err
	}
	for _, host := range []string{name, "127.0.0.1"} {
		if _, err := c.Leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: host, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}); err != nil {
			return fmt.Errorf("as %s: %w", host, err)
		}
	}
	return nil
}

// TestRotation runs two replicas for sixty days. Whatever the order in which they act, and though API servers go by what they read
// an hour ago, every call is trusted.
func TestRotation(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(begin)
	client := newCluster()
	replicas := []*Manager{newManager(t, client, clock), newManager(t, client, clock)}
	for _, m := range replicas {
		if _, err := m.reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	authorities := map[string]bool{}
	pool := apiServer(t, client)
	for hour := range 60 * 24 {
		clock.SetTime(begin.Add(time.Duration(hour) * time.Hour))
		m := replicas[hour%2] // the other one sleeps for an hour
		if _, err := m.reconcile(t.Context()); err != nil {
			t.Fatalf("%s: %v", clock.Now(), err)
		}
		for i, m := range replicas {
			if err := verify(m, pool, clock.Now()); err != nil {
				t.Fatalf("%s: replica %d: %v", clock.Now(), i, err)
			}
		}
		authorities[string(m.last.current.cert.Raw)] = true
		pool = apiServer(t, client)
	}
	// A new one takes over two hours after two thirds of nine days.
	if n := len(authorities); n < 9 || n > 11 {
		t.Errorf("%d authorities in sixty days, want about 10", n)
	}
	writes := 0
	for _, action := range client.Actions() {
		if action.GetVerb() == "update" || action.GetVerb() == "patch" {
			writes++
		}
	}
	if most := 6 * len(authorities); writes > most {
		t.Errorf("%d writes for %d authorities, want at most %d", writes, len(authorities), most)
	}
}

func TestReconcile(t *testing.T) {
	get := func(t *testing.T, client *fake.Clientset) *corev1.Secret {
		t.Helper()
		s, err := client.CoreV1().Secrets(namespace).Get(t.Context(), secret, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	update := func(t *testing.T, client *fake.Clientset, change func(*corev1.Secret)) {
		t.Helper()
		s := get(t, client).DeepCopy()
		change(s)
		if _, err := client.CoreV1().Secrets(namespace).Update(t.Context(), s, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		name string
		// change happens to a cluster in which a replica runs; another has started since.
		change func(t *testing.T, client *fake.Clientset, clock *clocktesting.FakePassiveClock)
		// sameAuthority stays.
		sameAuthority bool
	}{
		{"nothing", func(*testing.T, *fake.Clientset, *clocktesting.FakePassiveClock) {}, true},
		{"the Secret is deleted", func(t *testing.T, client *fake.Clientset, _ *clocktesting.FakePassiveClock) {
			t.Helper()
			if err := client.CoreV1().Secrets(namespace).Delete(t.Context(), secret, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}, true},
		{"the Secret is emptied", func(t *testing.T, client *fake.Clientset, _ *clocktesting.FakePassiveClock) {
			t.Helper()
			update(t, client, func(s *corev1.Secret) { s.Data = nil })
		}, true},
		{"the key is another's", func(t *testing.T, client *fake.Clientset, _ *clocktesting.FakePassiveClock) {
			t.Helper()
			other, err := newAuthority(begin, time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			data, err := (&authorities{current: other}).encode()
			if err != nil {
				t.Fatal(err)
			}
			update(t, client, func(s *corev1.Secret) { s.Data[currentKey] = data[currentKey] })
		}, true},
		{"the caBundle is emptied", func(t *testing.T, client *fake.Clientset, _ *clocktesting.FakePassiveClock) {
			t.Helper()
			c, err := client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(t.Context(), webhooks, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			c = c.DeepCopy()
			c.Webhooks[1].ClientConfig.CABundle = nil
			if _, err := client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Update(t.Context(), c, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}, true},
		{"all slept until everything had expired", func(_ *testing.T, _ *fake.Clientset, clock *clocktesting.FakePassiveClock) {
			clock.SetTime(begin.Add(10 * 365 * 24 * time.Hour))
		}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			clock := clocktesting.NewFakePassiveClock(begin)
			client := newCluster()
			m := newManager(t, client, clock)
			if m.Ready() {
				t.Error("ready without a certificate")
			}
			if _, err := m.reconcile(t.Context()); err != nil {
				t.Fatal(err)
			}
			before := m.last.current.cert
			tc.change(t, client, clock)
			late := newManager(t, client, clock)
			for _, replica := range []*Manager{m, late} {
				if _, err := replica.reconcile(t.Context()); err != nil {
					t.Fatal(err)
				}
				if err := verify(replica, apiServer(t, client), clock.Now()); err != nil {
					t.Error(err)
				}
				if !replica.last.current.cert.Equal(before) == tc.sameAuthority {
					t.Errorf("the authority stayed: %v", !tc.sameAuthority)
				}
			}
			client.ClearActions()
			if until, err := m.reconcile(t.Context()); err != nil || !until.After(clock.Now()) {
				t.Errorf("next at %s, %v", until, err)
			}
			var verbs []string
			for _, action := range client.Actions() {
				verbs = append(verbs, action.GetVerb())
			}
			if diff := cmp.Diff([]string{"get", "get"}, verbs); diff != "" {
				t.Errorf("calls when all is well (-want +got):\n%s", diff)
			}
		})
	}
}

// TestConflict: of two replicas that start at once, the second takes over what the first wrote.
func TestConflict(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(begin)
	client := newCluster()
	first, second := newManager(t, client, clock), newManager(t, client, clock)
	before, err := client.CoreV1().Secrets(namespace).Get(t.Context(), secret, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := first.reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	read, written := false, false
	client.PrependReactor("get", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
		behind := !read
		read = true
		return behind, before, nil
	})
	client.PrependReactor("update", "secrets", func(action clienttesting.Action) (bool, runtime.Object, error) {
		lost := !written
		written = true
		return lost, nil, apierrors.NewConflict(schema.GroupResource{Resource: action.GetResource().Resource}, secret, errors.New("somebody was first"))
	})
	if _, err := second.reconcile(t.Context()); !apierrors.IsConflict(err) {
		t.Fatalf("error %v", err)
	}
	if _, err := second.reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !second.last.current.cert.Equal(first.last.current.cert) {
		t.Error("two authorities")
	}
}

// TestRun: a change of the Secret or of the configuration is noticed by its event.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newCluster()
		m := newManager(t, client, nil)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- m.Run(ctx) }()
		synctest.Wait()
		if !m.Ready() {
			t.Fatal("not ready")
		}
		if err := verify(m, apiServer(t, client), time.Now()); err != nil {
			t.Error(err)
		}
		if err := client.CoreV1().Secrets(namespace).Delete(ctx, secret, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if _, err := client.CoreV1().Secrets(namespace).Get(ctx, secret, metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestNewNeedsNames(t *testing.T) {
	if _, err := New(Options{Namespace: namespace, SecretName: secret}); err == nil {
		t.Error("made without names")
	}
}
