// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/kubeovn/kube-ovn/pkg/admission"
	"github.com/kubeovn/kube-ovn/pkg/admission/servingcert"
	"github.com/kubeovn/kube-ovn/pkg/client/clientset/versioned"
	"github.com/kubeovn/kube-ovn/pkg/client/informers/externalversions"
	"github.com/kubeovn/kube-ovn/pkg/version"
)

// certificates is a source of the serving certificate.
type certificates interface {
	GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error)
	Run(ctx context.Context) error
	Ready() bool
}

// Name of the command.
const Name = "kube-ovn-webhook"

// UsageError is a mistake in the arguments.
type UsageError struct{ Err error }

func (e *UsageError) Error() string { return e.Err.Error() + " (see --help)" }
func (e *UsageError) Unwrap() error { return e.Err }

// Run serves as the arguments say, until ctx ends.
func Run(ctx context.Context, args []string, out io.Writer) error {
	o := newOptions()
	switch err := o.parse(args); {
	case errors.Is(err, pflag.ErrHelp):
		return nil
	case err != nil:
		return &UsageError{err}
	case o.version:
		_, err := fmt.Fprintln(out, version.String(Name))
		return err
	}
	return run(ctx, o)
}

func run(ctx context.Context, o *options) error {
	if err := logsapi.ValidateAndApply(o.logging, nil); err != nil {
		return err
	}
	logger := klog.Background().WithName(Name)
	log.SetLogger(logger)
	ctx = klog.NewContext(ctx, logger)

	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	config.UserAgent, config.QPS = Name, -1 // the API server's priority and fairness limits us
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collectors.NewBuildInfoCollector())
	w, err := newWebhook(o, config, registry)
	if err != nil {
		return err
	}
	return w.serve(ctx, o.shutdownDelay)
}

// process is everything that runs.
type process struct {
	validator        *admission.Validator
	certificates     certificates
	server           webhook.Server
	health           net.Listener
	gatherer         prometheus.Gatherer
	kubeInformers    informers.SharedInformerFactory
	kubeOvnInformers externalversions.SharedInformerFactory
	draining         atomic.Bool
}

func newWebhook(o *options, config *rest.Config, registry *prometheus.Registry) (*process, error) {
	kubeClient, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	kubeOvnClient, err := versioned.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	w := &process{
		gatherer:         prometheus.Gatherers{registry, metrics.Registry},
		kubeInformers:    informers.NewSharedInformerFactoryWithOptions(kubeClient, 0, informers.WithTransform(dropManagedFields)),
		kubeOvnInformers: externalversions.NewSharedInformerFactoryWithOptions(kubeOvnClient, 0, externalversions.WithTransform(dropManagedFields)),
	}
	w.validator, err = admission.New(admission.Options{
		Policy:        admission.Policy{Controllers: o.controllers, RequireEIPGrant: o.requireEIPGrant},
		KubeOvnClient: kubeOvnClient, KubeInformers: w.kubeInformers, KubeOvnInformers: w.kubeOvnInformers,
		Metrics: admission.NewMetrics(registry), LiveReadTimeout: o.liveReadTimeout,
	})
	if err != nil {
		return nil, fmt.Errorf("validator: %w", err)
	}
	if w.certificates, err = newCertificates(o, kubeClient, registry); err != nil {
		return nil, err
	}
	tlsOptions, err := o.tlsOptions()
	if err != nil {
		return nil, err
	}
	w.server = webhook.NewServer(webhook.Options{Host: o.bindAddress, Port: o.port, TLSOpts: []func(*tls.Config){
		tlsOptions, func(c *tls.Config) { c.GetCertificate = w.certificates.GetCertificate },
	}})
	w.validator.Register(w.server)
	if w.health, err = net.Listen("tcp", net.JoinHostPort(o.bindAddress, strconv.Itoa(o.healthPort))); err != nil {
		return nil, fmt.Errorf("--health-port: %w", err)
	}
	return w, nil
}

// dropManagedFields takes out of the caches what nobody here looks at, and what is often most of an object.
func dropManagedFields(obj any) (any, error) {
	if o, err := meta.Accessor(obj); err == nil {
		o.SetManagedFields(nil)
	}
	return obj, nil
}

// files serves a certificate that somebody else keeps.
type files struct{ *certwatcher.CertWatcher }

func (f files) Run(ctx context.Context) error { return f.Start(ctx) }
func (f files) Ready() bool                   { return true }

func newCertificates(o *options, client kubernetes.Interface, registry prometheus.Registerer) (certificates, error) {
	if o.certFile != "" {
		watcher, err := certwatcher.New(o.certFile, o.keyFile)
		if err != nil {
			return nil, fmt.Errorf("--tls-cert-file: %w", err)
		}
		return files{watcher}, nil
	}
	return servingcert.New(servingcert.Options{
		Client: client, Namespace: o.podNamespace, SecretName: o.secretName, WebhookConfiguration: o.configuration, Names: o.names(), Registerer: registry,
	})
}

// serve until ctx ends and the delay after it is over.
func (w *process) serve(ctx context.Context, delay time.Duration) error {
	g, serving := errgroup.WithContext(context.WithoutCancel(ctx))
	serving, stop := context.WithCancel(serving)
	defer stop()
	g.Go(func() error {
		defer stop()
		select {
		case <-serving.Done():
			return nil
		case <-ctx.Done():
		}
		w.draining.Store(true)
		klog.FromContext(ctx).Info("Stopping", "delay", delay)
		select {
		case <-serving.Done():
		case <-time.After(delay):
		}
		return nil
	})
	g.Go(func() error { return w.serveHealth(serving) })
	g.Go(func() error { return w.certificates.Run(serving) })
	g.Go(func() error {
		if err := w.server.Start(serving); err != nil {
			return fmt.Errorf("--port: %w", err)
		}
		return nil
	})
	w.kubeInformers.Start(serving.Done())
	w.kubeOvnInformers.Start(serving.Done())
	err := g.Wait()
	stop()
	w.kubeInformers.Shutdown()
	w.kubeOvnInformers.Shutdown()
	return err
}

// ready says why this replica should not be called; nil when it should.
func (w *process) ready() error {
	switch {
	case w.draining.Load():
		return errors.New("stopping")
	case !w.validator.HasSynced():
		return errors.New("the caches are not in sync yet")
	case !w.certificates.Ready():
		return errors.New("there is no serving certificate yet")
	}
	return nil
}

func (w *process) serveHealth(ctx context.Context) error {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(rw http.ResponseWriter, _ *http.Request) { fmt.Fprintln(rw, "ok") })
	mux.HandleFunc("/readyz", func(rw http.ResponseWriter, _ *http.Request) {
		if err := w.ready(); err != nil {
			http.Error(rw, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(rw, "ok")
	})
	mux.Handle("/metrics", promhttp.HandlerFor(w.gatherer, promhttp.HandlerOpts{}))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	defer context.AfterFunc(ctx, func() {
		if err := server.Close(); err != nil {
			klog.FromContext(ctx).Error(err, "Close the health port")
		}
	})()
	if err := server.Serve(w.health); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve health and metrics: %w", err)
	}
	return nil
}
