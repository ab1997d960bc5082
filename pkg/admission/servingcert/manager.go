// SPDX-License-Identifier: Apache-2.0

package servingcert

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

const (
	fieldManager = "kube-ovn-webhook"
	// checkEvery bounds how long a change of the clock, or a missed event, goes unnoticed.
	checkEvery = time.Hour
)

// Options of a Manager.
type Options struct {
	Client kubernetes.Interface
	// Namespace and SecretName say where the authority is kept. A Secret that is not there is made.
	Namespace, SecretName string
	// WebhookConfiguration names the ValidatingWebhookConfiguration whose webhooks get the caBundle; "": none does.
	WebhookConfiguration string
	// Names are those by which API servers call, each a DNS name or an IP address.
	Names []string
	// Lifetimes default to DefaultLifetimes.
	Lifetimes Lifetimes
	// Registerer takes the metrics; it may be nil.
	Registerer prometheus.Registerer
	// Clock defaults to the real one.
	Clock clock.PassiveClock
}

// Manager keeps one replica's serving certificate, and with the other replicas the authority behind it.
type Manager struct {
	Options

	queue   workqueue.TypedRateLimitingInterface[string]
	expires *prometheus.GaugeVec
	serving atomic.Pointer[tls.Certificate]
	// last are the authorities as last seen or written, used by one reconcile at a time.
	last authorities
}

// New makes a Manager. It reads and writes nothing.
func New(opts Options) (*Manager, error) {
	if len(opts.Names) == 0 || opts.Namespace == "" || opts.SecretName == "" {
		return nil, errors.New("serving certificate: names, namespace and Secret must be given")
	}
	if opts.Lifetimes == (Lifetimes{}) {
		opts.Lifetimes = DefaultLifetimes()
	}
	if opts.Clock == nil {
		opts.Clock = clock.RealClock{}
	}
	m := &Manager{
		Options: opts,
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](50*time.Millisecond, time.Minute),
			workqueue.TypedRateLimitingQueueConfig[string]{Name: "serving-certificate"}),
		expires: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "kube_ovn", Subsystem: "webhook", Name: "certificate_expiration_timestamp_seconds",
			Help: "When the webhook's own certificates expire: the authority that all replicas share, and the serving certificate of this one.",
		}, []string{"certificate"}),
	}
	if opts.Registerer != nil {
		if err := opts.Registerer.Register(m.expires); err != nil {
			return nil, fmt.Errorf("serving certificate: %w", err)
		}
	}
	return m, nil
}

// GetCertificate gives the serving certificate, for tls.Config.
func (m *Manager) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if c := m.serving.Load(); c != nil {
		return c, nil
	}
	return nil, errors.New("there is no serving certificate yet")
}

// Ready says that there is a serving certificate.
func (m *Manager) Ready() bool { return m.serving.Load() != nil }

// Run keeps certificates and caBundle until the context ends.
func (m *Manager) Run(ctx context.Context) error {
	logger := klog.FromContext(ctx).WithName("servingcert")
	ctx = klog.NewContext(ctx, logger)
	factories, err := m.watch()
	if err != nil {
		return err
	}
	for _, factory := range factories {
		factory.Start(ctx.Done())
		defer factory.Shutdown()
	}
	m.queue.Add("")
	var wg sync.WaitGroup
	wg.Go(func() {
		for m.process(ctx) {
		}
	})
	<-ctx.Done()
	m.queue.ShutDown()
	wg.Wait()
	return nil
}

// watch looks at the one Secret and the one webhook configuration, and at no others.
func (m *Manager) watch() ([]informers.SharedInformerFactory, error) {
	only := func(name string, more ...informers.SharedInformerOption) informers.SharedInformerFactory {
		return informers.NewSharedInformerFactoryWithOptions(m.Client, 0, append(more, informers.WithTweakListOptions(
			func(o *metav1.ListOptions) { o.FieldSelector = metav1.ObjectNameField + "=" + name }))...)
	}
	secrets := only(m.SecretName, informers.WithNamespace(m.Namespace))
	factories := []informers.SharedInformerFactory{secrets}
	watched := []cache.SharedIndexInformer{secrets.Core().V1().Secrets().Informer()}
	if m.WebhookConfiguration != "" {
		configurations := only(m.WebhookConfiguration)
		factories = append(factories, configurations)
		watched = append(watched, configurations.Admissionregistration().V1().ValidatingWebhookConfigurations().Informer())
	}
	changed := func() { m.queue.Add("") }
	for _, informer := range watched {
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { changed() }, UpdateFunc: func(any, any) { changed() }, DeleteFunc: func(any) { changed() },
		}); err != nil {
			return nil, fmt.Errorf("watch: %w", err)
		}
	}
	return factories, nil
}

func (m *Manager) process(ctx context.Context) bool {
	key, shutdown := m.queue.Get()
	if shutdown {
		return false
	}
	defer m.queue.Done(key)
	until, err := m.reconcile(ctx)
	switch {
	case err == nil:
		m.queue.Forget(key)
		m.queue.AddAfter(key, min(max(until.Sub(m.Clock.Now()), 0), checkEvery))
	case ctx.Err() != nil:
	case apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err):
		// Another replica was first.
		m.queue.AddRateLimited(key)
	default:
		klog.FromContext(ctx).Error(err, "Keeping certificates failed, will retry")
		m.queue.AddRateLimited(key)
	}
	return true
}

// reconcile makes everything as it should be now, and says when there is something to do next. It reads live: what it reads is little, and
// two replicas that go by their caches would undo each other's work.
func (m *Manager) reconcile(ctx context.Context) (until time.Time, err error) {
	now := m.Clock.Now()
	until, err = m.syncAuthorities(ctx, now)
	if err != nil {
		return until, err
	}
	renew, err := m.syncServing(ctx, now)
	if err != nil {
		return until, err
	}
	if renew.Before(until) {
		until = renew
	}
	return until, m.syncBundle(ctx, m.last.bundle())
}

// syncAuthorities brings the Secret up to date.
func (m *Manager) syncAuthorities(ctx context.Context, now time.Time) (until time.Time, err error) {
	secrets := m.Client.CoreV1().Secrets(m.Namespace)
	secret, err := secrets.Get(ctx, m.SecretName, metav1.GetOptions{})
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return until, fmt.Errorf("read authority: %w", err)
	}
	var have authorities
	if !missing {
		have = decode(secret.Data)
	}
	changed := false
	if have.current == nil && m.last.current.valid(now) {
		// Somebody has deleted or emptied the Secret. What API servers trust is still known here.
		have, changed = m.last, true
	}
	for step := true; step; changed = changed || step {
		if step, until, err = have.rotate(now, m.Lifetimes); err != nil {
			return until, err
		}
	}
	if changed {
		if err := m.writeSecret(ctx, secret, missing, &have); err != nil {
			return until, fmt.Errorf("write authority: %w", err)
		}
	}
	m.last = have
	m.expires.WithLabelValues("authority").Set(float64(have.current.cert.NotAfter.Unix()))
	return until, nil
}

func (m *Manager) writeSecret(ctx context.Context, secret *corev1.Secret, missing bool, have *authorities) error {
	data, err := have.encode()
	if err != nil {
		return err
	}
	secrets := m.Client.CoreV1().Secrets(m.Namespace)
	if missing {
		_, err = secrets.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: m.Namespace, Name: m.SecretName},
			Type:       corev1.SecretTypeOpaque, Data: data,
		}, metav1.CreateOptions{FieldManager: fieldManager})
	} else {
		secret = secret.DeepCopy()
		secret.Data = data
		_, err = secrets.Update(ctx, secret, metav1.UpdateOptions{FieldManager: fieldManager})
	}
	if err == nil {
		klog.FromContext(ctx).Info("Wrote certificate authority", "secret", klog.KRef(m.Namespace, m.SecretName),
			"expires", have.current.cert.NotAfter, "next", have.next != nil)
	}
	return err
}

// syncServing signs a new serving certificate where the one there is ages, or is by another authority; it says when it ages.
func (m *Manager) syncServing(ctx context.Context, now time.Time) (renew time.Time, err error) {
	serving := m.serving.Load()
	if serving == nil || !now.Before(lastThird(serving.Leaf)) || serving.Leaf.CheckSignatureFrom(m.last.current.cert) != nil {
		if serving, err = m.last.current.issue(m.Names, now, m.Lifetimes.Serving); err != nil {
			return renew, err
		}
		m.serving.Store(serving)
		m.expires.WithLabelValues("serving").Set(float64(serving.Leaf.NotAfter.Unix()))
		klog.FromContext(ctx).Info("Renewed serving certificate", "names", m.Names, "expires", serving.Leaf.NotAfter)
	}
	return lastThird(serving.Leaf), nil
}

// syncBundle tells API servers whom to trust.
func (m *Manager) syncBundle(ctx context.Context, bundle []byte) error {
	if m.WebhookConfiguration == "" {
		return nil
	}
	configurations := m.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	configuration, err := configurations.Get(ctx, m.WebhookConfiguration, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		klog.FromContext(ctx).V(2).Info("No webhook configuration yet", "name", m.WebhookConfiguration)
		return nil // its coming is an event
	} else if err != nil {
		return fmt.Errorf("read webhook configuration: %w", err)
	}
	patch, err := bundlePatch(configuration, bundle)
	if err != nil || patch == nil {
		return err
	}
	if _, err := configurations.Patch(ctx, configuration.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager}); err != nil {
		return fmt.Errorf("patch webhook configuration: %w", err)
	}
	klog.FromContext(ctx).Info("Wrote caBundle", "configuration", configuration.Name)
	return nil
}

// bundlePatch names the webhooks whose caBundle differs, and nothing else of them; nil when there are none.
func bundlePatch(configuration *admissionv1.ValidatingWebhookConfiguration, bundle []byte) ([]byte, error) {
	type clientConfig struct {
		CABundle []byte `json:"caBundle"`
	}
	type webhook struct {
		Name         string       `json:"name"`
		ClientConfig clientConfig `json:"clientConfig"`
	}
	var webhooks []webhook
	for i := range configuration.Webhooks {
		if w := &configuration.Webhooks[i]; !bytes.Equal(w.ClientConfig.CABundle, bundle) {
			webhooks = append(webhooks, webhook{w.Name, clientConfig{bundle}})
		}
	}
	if len(webhooks) == 0 {
		return nil, nil
	}
	// With the version that was read, so that a webhook which was taken out meanwhile does not come back as a stump.
	metadata := map[string]string{"resourceVersion": configuration.ResourceVersion}
	return json.Marshal(map[string]any{"metadata": metadata, "webhooks": webhooks})
}
