// SPDX-License-Identifier: Apache-2.0

package natgateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	kubeinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/kubeovn/kube-ovn/pkg/client/clientset/versioned"
	"github.com/kubeovn/kube-ovn/pkg/client/informers/externalversions"
	kubeovnlisters "github.com/kubeovn/kube-ovn/pkg/client/listers/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/latency"
)

// Defaults of Options.
const (
	DefaultCheckInterval = 60 * time.Second
	DefaultCallTimeout   = 30 * time.Second
)

// Options of New. All without a default must be set.
type Options struct {
	KubeClient    kubernetes.Interface
	KubeOvnClient versioned.Interface
	// RESTConfig is how pods/exec is reached; not needed with an Executor.
	RESTConfig *rest.Config
	// Executor runs calls in gateway pods. Default: through the API server.
	Executor Executor

	// The factories may be shared with other controllers. The caller starts them after New; the handler needs Pods of the first, all six kinds of the second.
	KubeInformers    kubeinformers.SharedInformerFactory
	KubeOvnInformers externalversions.SharedInformerFactory

	// Namespace is the controller's own: the ConfigMaps are there, and the gateways that name no namespace.
	Namespace string
	Recorder  events.EventRecorder
	// Metrics default to ones that are registered nowhere.
	Metrics *Metrics
	// Latency is told when gateways hold what they should; nil: nobody is.
	Latency *latency.Tracker
	// CheckInterval is how often a pod is asked what it holds, so that a change by hand heals. It varies by a tenth.
	CheckInterval time.Duration
	// CallTimeout bounds one run of the script; one with much to do gets more, by the size of its input.
	CallTimeout time.Duration
	// RuleWorkers is how many rules are written at once. Default: 16.
	RuleWorkers int
	Clock       clock.Clock
}

func (o *Options) complete() error {
	missing := func(name string, isMissing bool) error {
		if isMissing {
			return fmt.Errorf("option %s must be set", name)
		}
		return nil
	}
	if err := errors.Join(
		missing("KubeClient", o.KubeClient == nil), missing("KubeOvnClient", o.KubeOvnClient == nil),
		missing("KubeInformers", o.KubeInformers == nil), missing("KubeOvnInformers", o.KubeOvnInformers == nil),
		missing("Recorder", o.Recorder == nil), missing("Namespace", o.Namespace == ""),
		missing("RESTConfig or Executor", o.RESTConfig == nil && o.Executor == nil),
	); err != nil {
		return err
	}
	if o.Executor == nil {
		o.Executor = NewExecutor(o.KubeClient, o.RESTConfig)
	}
	if o.Metrics == nil {
		o.Metrics, _ = NewMetrics(nil)
	}
	if o.CheckInterval <= 0 {
		o.CheckInterval = DefaultCheckInterval
	}
	if o.CallTimeout <= 0 {
		o.CallTimeout = DefaultCallTimeout
	}
	if o.RuleWorkers <= 0 {
		o.RuleWorkers = 16
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	return nil
}

// Controller runs VPC NAT gateways.
type Controller struct {
	Options

	podIndexer    cache.Indexer
	eipIndexer    cache.Indexer
	ruleIndexer   cache.Indexer
	fipIndexer    cache.Indexer
	podLister     corelisters.PodLister
	gatewayLister kubeovnlisters.VpcNatGatewayLister
	eipLister     kubeovnlisters.IptablesEIPLister
	ruleLister    kubeovnlisters.IptablesDnatRuleLister
	subnetLister  kubeovnlisters.SubnetLister
	vpcLister     kubeovnlisters.VpcLister

	// Informers of our own: narrower than a host would have them.
	own          []kubeinformers.SharedInformerFactory
	imageConfig  corelisters.ConfigMapNamespaceLister
	switchConfig corelisters.ConfigMapNamespaceLister
	setLister    appslisters.StatefulSetLister
	deployLister appslisters.DeploymentLister
	synced       []cache.InformerSynced
	gatewayQueue workqueue.TypedRateLimitingInterface[string]
	eipQueue     workqueue.TypedRateLimitingInterface[string]
	ruleQueue    workqueue.TypedRateLimitingInterface[string]
	podQueue     workqueue.TypedRateLimitingInterface[types.NamespacedName]
	states       stateStore
	programs     programStore
	waits        waitStore
	applied      appliedStore
	problems     problemStore
	outages      outageStore
	notServed    problemStore // fields that this handler does nothing about
	stopped      problemStore // rollouts that a gateway has stopped
	written      writtenStore
	assumed      map[string]assumption // of the one EIP worker
	grace        time.Duration
	burstQuiet   time.Duration
	burstLimit   time.Duration
	burstMemory  time.Duration
}

// New returns a handler and registers what it watches on the given factories. It does no I/O.
func New(opts Options) (*Controller, error) {
	if err := opts.complete(); err != nil {
		return nil, err
	}
	c := &Controller{
		Options:     opts,
		assumed:     map[string]assumption{},
		grace:       10 * time.Second,
		burstQuiet:  20 * time.Millisecond,
		burstLimit:  300 * time.Millisecond,
		burstMemory: 100 * time.Millisecond,
	}
	c.gatewayQueue = newQueue[string]("nat_gateway")
	c.eipQueue = newQueue[string]("nat_gateway_eip")
	c.ruleQueue = newQueue[string]("nat_gateway_rule")
	c.podQueue = newQueue[types.NamespacedName]("nat_gateway_pod")
	if err := c.watch(); err != nil {
		return nil, err
	}
	c.Metrics.show(c)
	c.Latency.SetHandler(c.holds)
	return c, nil
}

func newQueue[T comparable](name string) workqueue.TypedRateLimitingInterface[T] {
	return workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[T](100*time.Millisecond, 30*time.Second),
		workqueue.TypedRateLimitingQueueConfig[T]{Name: name})
}

// HasSynced says that every cache is filled and every object in it was seen.
func (c *Controller) HasSynced() bool {
	for _, synced := range c.synced {
		if !synced() {
			return false
		}
	}
	return true
}

// Run works until the context ends, with so many workers for gateways. It waits for the caches first; the host starts the factories that it has given.
func (c *Controller) Run(ctx context.Context, workers int) error {
	logger := klog.FromContext(ctx).WithName("natgateway")
	ctx = klog.NewContext(ctx, logger)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer c.shutDown()
	for _, factory := range c.own {
		factory.Start(ctx.Done())
	}
	if !cache.WaitForCacheSync(ctx.Done(), c.synced...) {
		return nil // only when the context has ended: a stop like any other
	}
	logger.Info("Starting NAT gateway handler", "workers", workers, "namespace", c.Namespace)
	start := func(n int, work func(context.Context) bool) {
		for range n {
			wg.Go(func() {
				for work(ctx) {
				}
			})
		}
	}
	start(max(workers, 1), func(ctx context.Context) bool { return process(ctx, c.gatewayQueue, "gateway", c.syncGateway) })
	start(1, func(ctx context.Context) bool { return process(ctx, c.eipQueue, "eip", c.syncEIP) })
	start(c.RuleWorkers, func(ctx context.Context) bool { return process(ctx, c.ruleQueue, "rule", c.syncRule) })
	wg.Go(func() { c.dispatchPods(ctx, &wg) })
	<-ctx.Done()
	logger.Info("Stopping NAT gateway handler")
	return nil
}

func (c *Controller) shutDown() {
	c.gatewayQueue.ShutDown()
	c.eipQueue.ShutDown()
	c.ruleQueue.ShutDown()
	c.podQueue.ShutDown()
	if closer, ok := c.Executor.(io.Closer); ok {
		_ = closer.Close() // It only lets go of what was not used.
	}
	for _, factory := range c.own {
		factory.Shutdown()
	}
}

// dispatchPods gives every pod that has work a goroutine of its own. The queue hands a key out once at a time, so there
// are never more of them than gateway pods.
func (c *Controller) dispatchPods(ctx context.Context, wg *sync.WaitGroup) {
	for {
		key, shutdown := c.podQueue.Get()
		if shutdown {
			return
		}
		wg.Go(func() { finish(ctx, c.podQueue, "pod", key, c.syncPod) })
	}
}

func process[T comparable](ctx context.Context, queue workqueue.TypedRateLimitingInterface[T], kind string, sync func(context.Context, T) error) bool {
	key, shutdown := queue.Get()
	if shutdown {
		return false
	}
	finish(ctx, queue, kind, key, sync)
	return true
}

// finish handles one key. What has failed is tried again, later and later, but never dropped.
func finish[T comparable](ctx context.Context, queue workqueue.TypedRateLimitingInterface[T], kind string, key T, sync func(context.Context, T) error) {
	defer queue.Done(key)
	logger := klog.FromContext(ctx).WithValues("kind", kind, "key", key)
	err := sync(klog.NewContext(ctx, logger), key)
	switch {
	case err == nil:
		queue.Forget(key)
		return
	case ctx.Err() != nil:
		return
	case isRace(err):
		logger.V(4).Info("Retrying after a concurrent change", "err", err)
	default:
		logger.Error(err, "Reconciling failed, will retry")
	}
	queue.AddRateLimited(key)
}

// isRace says that another write came first; the next try sees it. A JSON patch whose test of what was there does not hold is answered as
// an invalid one, without a word about a field: what we write names our own fields rightly, so it is always that.
func isRace(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsNotFound(err) || isFailedTest(err)
}

func isFailedTest(err error) bool {
	var status apierrors.APIStatus
	if !apierrors.IsInvalid(err) || !errors.As(err, &status) {
		return false
	}
	details := status.Status().Details
	return details == nil || len(details.Causes) == 0
}

// jitter varies a duration by up to a tenth, so that pods are not checked in step.
func jitter(d time.Duration) time.Duration {
	return wait.Jitter(d*9/10, 0.2)
}

func (c *Controller) now() metav1.Time { return metav1.NewTime(c.Clock.Now()) }
