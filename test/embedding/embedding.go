// SPDX-License-Identifier: Apache-2.0

// Package embedding shows how a controller that has informer factories of its own runs the load balancer in its process;
// docs/embedding.md explains it.
package embedding

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"

	"github.com/kubeovn/kube-ovn/pkg/client/clientset/versioned"
	"github.com/kubeovn/kube-ovn/pkg/client/informers/externalversions"
	"github.com/kubeovn/kube-ovn/pkg/latency"
	"github.com/kubeovn/kube-ovn/pkg/lbservice"
	"github.com/kubeovn/kube-ovn/pkg/natgateway"
)

// Host is what a controller has anyway.
type Host struct {
	Config           *rest.Config
	KubeClient       kubernetes.Interface
	KubeOvnClient    versioned.Interface
	KubeInformers    informers.SharedInformerFactory
	KubeOvnInformers externalversions.SharedInformerFactory
	Recorder         events.EventRecorder
	Metrics          prometheus.Registerer
	// Namespace is the one that the host runs in.
	Namespace string
	// Leading is called once the host leads.
	Leading func(ctx context.Context) error
}

// Run starts the host with the load balancer in it, and ends with ctx.
func Run(ctx context.Context, host *Host) error {
	// First all controllers are made: that is when they ask the factories for the informers they need.
	metrics, err := natgateway.NewMetrics(host.Metrics)
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	tracker, err := latency.NewTracker(host.Metrics)
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	gateways, err := natgateway.New(natgateway.Options{
		KubeClient: host.KubeClient, KubeOvnClient: host.KubeOvnClient, RESTConfig: host.Config,
		KubeInformers: host.KubeInformers, KubeOvnInformers: host.KubeOvnInformers,
		Namespace: host.Namespace, Recorder: host.Recorder, Metrics: metrics, Latency: tracker,
	})
	if err != nil {
		return err
	}
	services, err := lbservice.New(lbservice.Options{
		KubeClient: host.KubeClient, KubeOvnClient: host.KubeOvnClient,
		KubeInformers: host.KubeInformers, KubeOvnInformers: host.KubeOvnInformers,
		Recorder: host.Recorder, Metrics: lbservice.NewMetrics(host.Metrics), Latency: tracker,
		Abilities: lbservice.AllAbilities,
	})
	if err != nil {
		return err
	}

	// Then the factories are started, once for all.
	host.KubeInformers.Start(ctx.Done())
	host.KubeOvnInformers.Start(ctx.Done())

	// And then they run, while the host leads: each waits for its caches by itself.
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return gateways.Run(ctx, 16) })
	g.Go(func() error { return services.Run(ctx, 4) })
	g.Go(func() error { return host.Leading(ctx) })
	return g.Wait()
}
