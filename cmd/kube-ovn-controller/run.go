// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	kubescheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // leader election, requests to the API server, work queues
	"k8s.io/klog/v2"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/client/clientset/versioned"
	"github.com/kubeovn/kube-ovn/pkg/client/informers/externalversions"
	"github.com/kubeovn/kube-ovn/pkg/latency"
	"github.com/kubeovn/kube-ovn/pkg/lbservice"
	"github.com/kubeovn/kube-ovn/pkg/natgateway"
)

const controllerName = "kube-ovn-controller"

// controller is what both rooms offer.
type controller interface {
	Run(ctx context.Context, workers int) error
	HasSynced() bool
}

// run serves until ctx ends, or until the lease is lost, which is an error.
func run(ctx context.Context, o *options) error {
	if err := logsapi.ValidateAndApply(o.logging, nil); err != nil {
		return err
	}
	logger := klog.Background().WithName(controllerName)
	ctx = klog.NewContext(ctx, logger)
	if o.enableNftableLB && !o.enableLB {
		logger.Info("Warning: --enable-nftable-lb-svc does nothing without --enable-lb")
	}

	config, err := restConfig(o.kubeconfig)
	if err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(buildInfo())
	h := newHealth(o.leaderElection.LeaderElect)
	server, err := listen(o.pprofPort, h, prometheus.Gatherers{legacyregistry.DefaultGatherer, registry})
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return server.serve(ctx) })
	g.Go(func() error {
		handler := &abilities{}
		lead := func(ctx context.Context) error { return serve(ctx, o, config, registry, h, handler) }
		if o.serveServices() {
			// Before the lease, which may be the other's as well.
			others, err := watchStock(ctx, o, config, handler)
			if err != nil {
				return err
			}
			g.Go(func() error { return others.guard(ctx) })
		}
		if !o.leaderElection.LeaderElect {
			return lead(ctx)
		}
		return elect(ctx, o, config, h, lead)
	})
	return g.Wait()
}

// watchStock returns once no controller of Kube-OVN's own serves Services. What it does for them as the gateways' handler it tells from
// then on.
func watchStock(ctx context.Context, o *options, config *rest.Config, handler *abilities) (*stockWatch, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	w, err := newStockWatch(client, identity{o.podNamespace, o.podName}, o.stockServes)
	if err != nil {
		return nil, fmt.Errorf("watch for other controllers: %w", err)
	}
	known, ok, err := o.abilitiesOfFlags()
	if err != nil {
		return nil, err
	}
	if handler.set(known); !ok {
		w.seen = func(s *stock) {
			// One that is not there for a moment, as when it is installed anew, has not forgotten anything.
			if now, ok := s.abilities(w.self); ok && handler.set(now) {
				klog.FromContext(ctx).Info("What Kube-OVN's own handler does for Services is known by its Deployment and Pods", "abilities", now)
			}
		}
	}
	return w, w.clear(ctx)
}

// buildInfo is a metric that names the version; its Go and process metrics come with legacyregistry.
func buildInfo() prometheus.Collector { return collectors.NewBuildInfoCollector() }

func restConfig(kubeconfig string) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	config.UserAgent = controllerName
	// The API server's priority and fairness limits us, and fairly; a limit of our own would delay the first backend behind the thousandth.
	config.QPS = -1
	return config, nil
}

// elect runs lead while this process holds the lease, and gives the lease back when ctx ends.
func elect(ctx context.Context, o *options, config *rest.Config, h *health, lead func(context.Context) error) error {
	le := o.leaderElection
	lock, err := resourcelock.NewFromKubeconfig(le.ResourceLock, le.ResourceNamespace, le.ResourceName,
		resourcelock.ResourceLockConfig{Identity: o.podName}, config, le.RenewDeadline.Duration)
	if err != nil {
		return fmt.Errorf("leader election: %w", err)
	}
	// The lease is given back only after lead has returned: two leaders at once could write against each other.
	leading, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var (
		result  error
		started atomic.Bool
		done    = make(chan struct{})
	)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: le.LeaseDuration.Duration, RenewDeadline: le.RenewDeadline.Duration, RetryPeriod: le.RetryPeriod.Duration,
		ReleaseOnCancel: true, Name: controllerName, WatchDog: h.leader,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(held context.Context) {
				started.Store(true)
				defer close(done)
				defer stop()
				work, cancel := context.WithCancel(held)
				defer cancel()
				defer context.AfterFunc(ctx, cancel)()
				result = lead(work)
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("leader election: %w", err)
	}
	// Before leading there is nothing to finish.
	defer context.AfterFunc(ctx, func() {
		if !started.Load() {
			stop()
		}
	})()
	elector.Run(leading)
	if started.Load() {
		<-done
		if result == nil && ctx.Err() == nil {
			return errors.New("lost the leader election lease")
		}
	}
	return result
}

// job is a controller with its number of workers.
type job struct {
	controller
	workers int
	// after, when it is not nil, is closed when the controller may begin.
	after <-chan struct{}
}

func (j *job) run(ctx context.Context) error {
	if j.after != nil {
		select {
		case <-j.after:
		case <-ctx.Done():
			return nil
		}
	}
	return j.Run(ctx, j.workers)
}

// shared is what the controllers have in common: clients, caches, events.
type shared struct {
	config           *rest.Config
	kubeClient       kubernetes.Interface
	kubeOvnClient    versioned.Interface
	kubeInformers    informers.SharedInformerFactory
	kubeOvnInformers externalversions.SharedInformerFactory
	recorder         events.EventRecorder
	handler          *abilities
}

// serve runs the controllers that the flags ask for.
func serve(
	ctx context.Context, o *options, config *rest.Config, registry prometheus.Registerer, h *health, handler *abilities,
) error {
	kubeClient, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	kubeOvnClient, err := versioned.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: kubeClient.EventsV1()})
	defer broadcaster.Shutdown()
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		return fmt.Errorf("events: %w", err)
	}
	kubeInformers := informers.NewSharedInformerFactory(kubeClient, 0)
	kubeOvnInformers := externalversions.NewSharedInformerFactory(kubeOvnClient, 0)
	scheme := runtime.NewScheme()
	if err := errors.Join(kubescheme.AddToScheme(scheme), kubeovnv1.AddToScheme(scheme)); err != nil {
		return fmt.Errorf("events: %w", err)
	}
	jobs, err := jobsOf(o, registry, &shared{
		config: config, kubeClient: kubeClient, kubeOvnClient: kubeOvnClient, kubeInformers: kubeInformers, kubeOvnInformers: kubeOvnInformers,
		recorder: broadcaster.NewRecorder(scheme, controllerName), handler: handler,
	})
	if err != nil {
		return err
	}
	h.setReady(func() bool {
		return !slices.ContainsFunc(jobs, func(j job) bool { return !j.HasSynced() })
	})
	kubeInformers.Start(ctx.Done())
	kubeOvnInformers.Start(ctx.Done())
	defer kubeInformers.Shutdown()
	defer kubeOvnInformers.Shutdown()

	g, ctx := errgroup.WithContext(ctx)
	for _, j := range jobs {
		g.Go(func() error { return j.run(ctx) })
	}
	g.Go(func() error { <-ctx.Done(); return nil }) // with no controller asked for, hold the lease all the same
	return g.Wait()
}

// jobsOf makes the controllers; their informers are registered with the factories, and not started.
func jobsOf(o *options, registry prometheus.Registerer, s *shared) ([]job, error) {
	var jobs []job
	tracker, err := latency.NewTracker(registry)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	if o.enableNatGw {
		metrics, err := natgateway.NewMetrics(registry)
		if err != nil {
			return nil, fmt.Errorf("metrics: %w", err)
		}
		c, err := natgateway.New(natgateway.Options{
			KubeClient: s.kubeClient, KubeOvnClient: s.kubeOvnClient, RESTConfig: s.config,
			KubeInformers: s.kubeInformers, KubeOvnInformers: s.kubeOvnInformers,
			Namespace: o.podNamespace, Recorder: s.recorder, Metrics: metrics, Latency: tracker, CheckInterval: o.gatewayCheck,
		})
		if err != nil {
			return nil, fmt.Errorf("NAT gateway handler: %w", err)
		}
		jobs = append(jobs, job{controller: c, workers: o.gatewayWorkers})
	}
	if o.serveServices() {
		c, err := lbservice.New(lbservice.Options{
			KubeClient: s.kubeClient, KubeOvnClient: s.kubeOvnClient, KubeInformers: s.kubeInformers, KubeOvnInformers: s.kubeOvnInformers,
			Recorder: s.recorder, Metrics: lbservice.NewMetrics(registry), Latency: tracker, RequireEIPGrant: o.requireEIPGrant,
			Abilities: s.handler.get(),
		})
		if err != nil {
			return nil, fmt.Errorf("load balancer Services: %w", err)
		}
		s.handler.follow(c.SetAbilities)
		// Nothing is programmed, and so nothing reported ready, before what went stale meanwhile is on its way out.
		for i := range jobs {
			jobs[i].after = c.Swept()
		}
		jobs = append(jobs, job{controller: c, workers: o.workers})
	}
	return jobs, nil
}
