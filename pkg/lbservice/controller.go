// SPDX-License-Identifier: Apache-2.0

package lbservice

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/client/clientset/versioned"
	"github.com/kubeovn/kube-ovn/pkg/client/informers/externalversions"
	"github.com/kubeovn/kube-ovn/pkg/latency"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
	"github.com/kubeovn/kube-ovn/pkg/vpcnet"
)

const (
	// controllerName names the queue.
	controllerName = "lbservice"
	// fieldManager is what managedFields show for our writes.
	fieldManager = "kube-ovn-nftable-lb-svc"

	defaultParallelWrites = 16
	minBackoff            = 100 * time.Millisecond
	maxBackoff            = 30 * time.Second
	// readyDelay gathers the rules that become ready one after the other. It changes only what the Service's condition says, and for
	// a Service of a thousand backends, each of them would be a pass.
	readyDelay = 50 * time.Millisecond
	// programmingDelay is how long a port of a Service whose rules were all in place may be without any before its condition says so,
	// partDelay how long every port may answer by some of its backends only, or by some that are to go.
	programmingDelay = time.Second
	partDelay        = 5 * time.Second
)

// errBusy: another pass over the EIP is under way. A worker does not wait for it: it may take long, and others need the worker. The
// Service is called when it is its turn.
var errBusy = errors.New("another pass over the EIP is under way")

// Options of a Controller.
type Options struct {
	KubeClient    kubernetes.Interface
	KubeOvnClient versioned.Interface
	// KubeInformers and KubeOvnInformers may be shared with other controllers. Whoever made them starts them, after New.
	KubeInformers    informers.SharedInformerFactory
	KubeOvnInformers externalversions.SharedInformerFactory
	// Recorder of events on Services; nil: none are recorded.
	Recorder events.EventRecorder
	// Metrics; nil: they are counted, but not shown.
	Metrics *Metrics
	// Latency follows changes of endpoints into the gateways; nil: they are not followed.
	Latency *latency.Tracker
	// RequireEIPGrant: only namespaces that an EIP's annotation lists may use it. Otherwise, an EIP without one is for all.
	RequireEIPGrant bool
	// Abilities of whoever programs the rules into the gateways: AllAbilities, where that is pkg/natgateway.
	Abilities Abilities
	// ParallelWrites bounds how many rules of one Service are written at a time; 0: 16.
	ParallelWrites int
}

// Controller keeps the rules and the status of LoadBalancer Services.
type Controller struct {
	kube     kubernetes.Interface
	kubeOvn  versioned.Interface
	recorder events.EventRecorder
	metrics  *Metrics
	opts     Options

	in          inputs
	queue       workqueue.TypedRateLimitingInterface[sharenat.Owner]
	written     *written
	statuses    *statuses
	programming *transition
	told        *told
	now         func() time.Time
	swept       chan struct{}
	turns       *turns
	abilities   atomic.Pointer[Abilities]
	contests    *contests
}

// New makes a controller and registers it on the informers. It does no I/O.
func New(opts Options) (*Controller, error) {
	if opts.KubeClient == nil || opts.KubeOvnClient == nil || opts.KubeInformers == nil || opts.KubeOvnInformers == nil {
		return nil, errors.New("lbservice: clients and informer factories are required")
	}
	if opts.Metrics == nil {
		opts.Metrics = NewMetrics(nil)
	}
	if opts.ParallelWrites <= 0 {
		opts.ParallelWrites = defaultParallelWrites
	}
	core, ovn := opts.KubeInformers.Core().V1(), opts.KubeOvnInformers.Kubeovn().V1()
	c := &Controller{
		kube:        opts.KubeClient,
		kubeOvn:     opts.KubeOvnClient,
		recorder:    opts.Recorder,
		metrics:     opts.Metrics,
		opts:        opts,
		now:         time.Now,
		swept:       make(chan struct{}),
		written:     newWritten(time.Now),
		statuses:    newStatuses(),
		programming: newTransition(),
		told:        newTold(),
		contests:    newContests(),
		in: inputs{
			services: core.Services().Informer(),
			slices:   opts.KubeInformers.Discovery().V1().EndpointSlices().Informer(),
			pods:     core.Pods().Informer(),
			subnets:  ovn.Subnets().Informer(),
			eips:     ovn.IptablesEIPs().Informer(),
			gateways: ovn.VpcNatGateways().Informer(),
			rules:    ovn.IptablesDnatRules().Informer(),
			fips:     ovn.IptablesFIPRules().Informer(),
		},
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[sharenat.Owner](minBackoff, maxBackoff),
			workqueue.TypedRateLimitingQueueConfig[sharenat.Owner]{Name: controllerName},
		),
	}
	c.turns = newTurns(c.queue.Add)
	c.abilities.Store(&opts.Abilities)
	if err := c.in.addIndexes(); err != nil {
		return nil, err
	}
	if err := c.addHandlers(); err != nil {
		return nil, err
	}
	opts.Latency.SetFallback(c.rulesSay)
	return c, nil
}

// SetAbilities says that whoever programs the rules does more, or less, from now on. All Services are decided anew.
func (c *Controller) SetAbilities(abilities Abilities) {
	if *c.abilities.Swap(&abilities) == abilities {
		return
	}
	for _, obj := range c.in.services.GetIndexer().List() {
		if svc, ok := obj.(*corev1.Service); ok && concerns(svc) {
			c.queue.Add(sharenat.OwnerOfService(svc))
		}
	}
}

// HasSynced tells whether the controller has seen everything that was there when it started. It writes nothing before.
func (c *Controller) HasSynced() bool {
	for _, registration := range c.in.registrations {
		if !registration.HasSynced() {
			return false
		}
	}
	return true
}

// Run works until the context ends. It waits for the informers, which the caller has started.
func (c *Controller) Run(ctx context.Context, workers int) error {
	logger := klog.FromContext(ctx).WithName(controllerName)
	ctx = klog.NewContext(ctx, logger)
	defer c.queue.ShutDown()
	if !cache.WaitFor(ctx, "", c.in.checkers()...) {
		return fmt.Errorf("wait for informers: %w", context.Cause(ctx))
	}
	c.sweep(ctx)
	logger.Info("Started", "workers", workers)
	var wg sync.WaitGroup
	for range max(workers, 1) {
		wg.Go(func() {
			for c.next(ctx) {
			}
		})
	}
	<-ctx.Done()
	c.queue.ShutDown()
	wg.Wait()
	logger.Info("Stopped")
	return nil
}

// next handles one key. What fails is tried again with a growing pause, and never given up.
func (c *Controller) next(ctx context.Context) bool {
	key, shutdown := c.queue.Get()
	if shutdown {
		return false
	}
	defer c.queue.Done(key)
	logger := klog.FromContext(ctx).WithValues("service", klog.KRef(key.Namespace, key.Name))
	start := time.Now()
	waiting, err := c.sync(klog.NewContext(ctx, logger), key)
	result := resultSuccess
	switch {
	case ctx.Err() != nil:
		return true
	case errors.Is(err, errBusy):
		result = resultWait
	case isBehind(err):
		result = resultStale
		logger.V(4).Info("Cache is behind", "reason", err.Error())
		c.queue.AddRateLimited(key)
	case err != nil:
		result = resultError
		logger.Error(err, "Sync failed", "failures", c.queue.NumRequeues(key))
		c.queue.AddRateLimited(key)
	default:
		if waiting {
			// The event of what it waits for will enqueue it.
			result = resultWait
		}
		c.queue.Forget(key)
	}
	c.metrics.observeSync(result, start)
	logger.V(4).Info("Synced", "result", result, "duration", time.Since(start))
	return true
}

// sync is one pass: look, decide, write the rules, write the status, tell. waiting means that it cannot finish before something else
// happens, of which there will be an event.
func (c *Controller) sync(ctx context.Context, key sharenat.Owner) (waiting bool, err error) {
	p, err := c.syncRules(ctx, key)
	if p == nil {
		return false, err
	}
	if p.snapshot.Service == nil {
		c.told.forget(key)
		c.statuses.forget(key)
		c.programming.forget(key)
		c.contests.forget(key)
		c.metrics.setReason(key, "")
		c.opts.Latency.Forget(key)
		return false, err
	}
	p.outcome.Refused = refusal(err)
	return len(p.changes.Waiting) > 0, errors.Join(err, c.syncStatus(ctx, p.snapshot, p.outcome))
}

// pass is what one pass saw and decided.
type pass struct {
	snapshot *Snapshot
	outcome  *Outcome
	changes  Changes
}

// syncRules decides and writes the rules. Passes over the same EIP do it one after the other.
func (c *Controller) syncRules(ctx context.Context, key sharenat.Owner) (*pass, error) {
	// Who names none only gives back, and waits for nobody.
	eip := ""
	if svc := c.service(key); svc != nil {
		eip = sharenat.EIPName(svc)
	}
	if eip == "" {
		c.turns.skip(key)
	} else {
		if !c.turns.take(eip, key) {
			return nil, errBusy
		}
		defer c.turns.leave(eip)
	}
	decided := c.opts.Latency.Pass(key)
	snapshot := c.snapshot(key)
	if snapshot.Service != nil && sharenat.EIPName(snapshot.Service) != eip {
		return nil, &behindError{errors.New("the Service was moved to another EIP meanwhile")}
	}
	outcome := Desired(snapshot)
	decided(func() latency.Decision { return decisionOf(snapshot, outcome) })
	changes, err := Diff(outcome.Rules, snapshot.OwnRules)
	if err != nil {
		return nil, fmt.Errorf("compare rules: %w", err)
	}
	changes.holdBack(outcome.Rules, snapshot.OwnRules, outcome.living)
	if snapshot.Abilities.Affinity && !snapshot.Abilities.LiveAffinity {
		changes.recreate(outcome.Rules, snapshot.OwnRules)
	}
	return &pass{snapshot, outcome, changes}, c.apply(ctx, key, &changes, snapshot.OwnRules)
}

func (c *Controller) service(key sharenat.Owner) *corev1.Service {
	return get[corev1.Service](c.in.services, key.String())
}

// get an object from an informer's cache; nil when it is not there.
func get[T any](informer cache.SharedIndexInformer, key string) *T {
	obj, exists, err := informer.GetIndexer().GetByKey(key)
	if err != nil || !exists {
		return nil
	}
	object, _ := obj.(*T)
	return object
}

// listRules reads the cache when it is called.
func (c *Controller) listRules(index string, values ...string) func() []*kubeovnv1.IptablesDnatRule {
	return func() []*kubeovnv1.IptablesDnatRule {
		return byIndex[kubeovnv1.IptablesDnatRule](c.in.rules, index, values...)
	}
}

// snapshot reads everything that the decision about a Service depends on.
func (c *Controller) snapshot(key sharenat.Owner) *Snapshot {
	s := &Snapshot{Key: key, Service: c.service(key), RequireEIPGrant: c.opts.RequireEIPGrant, Abilities: *c.abilities.Load()}
	s.OwnRules = c.written.overlay(c.listRules(rulesByOwner, key.String()),
		func(rule *kubeovnv1.IptablesDnatRule) bool {
			owner, ok := sharenat.LabelledOwner(rule)
			return ok && owner == key
		})
	if !sharenat.Qualifies(s.Service) {
		return s
	}
	s.Rival, s.Contested = c.contests.rival(key, c.now())
	eip := sharenat.EIPName(s.Service)
	s.EIP = get[kubeovnv1.IptablesEIP](c.in.eips, eip)
	if s.EIP != nil {
		s.Gateway = get[kubeovnv1.VpcNatGateway](c.in.gateways, s.EIP.Spec.NatGwDp)
	}
	s.FIPs = byIndex[kubeovnv1.IptablesFIPRule](c.in.fips, fipsByEIP, eip)
	claims := claimKeys(s.Service)
	known := append(slices.Clone(claims), unlabelledKey(eip))
	s.EIPRules = c.written.overlay(c.listRules(rulesByClaim, known...),
		func(rule *kubeovnv1.IptablesDnatRule) bool {
			return rule.Spec.EIP == eip && slices.ContainsFunc(claimKeysOfRule(rule), func(key string) bool { return slices.Contains(known, key) })
		})
	s.Claimants = byIndex[corev1.Service](c.in.services, servicesByClaim, claims...)
	if slices.ContainsFunc(s.EIPRules, sharenat.LostLabels) {
		s.Claimants = byIndex[corev1.Service](c.in.services, servicesByEIP, eip)
	}
	s.adoptUnlabelled()
	s.Slices = byIndex[discoveryv1.EndpointSlice](c.in.slices, slicesByService, key.String())
	c.addPods(s)
	return s
}

// addPods adds the Pods that the slices name, and the VPCs of the Subnets that the gateway and their NICs are in.
func (c *Controller) addPods(s *Snapshot) {
	s.Pods, s.SubnetVPCs = map[string]Pod{}, map[string]string{}
	for _, slice := range s.Slices {
		for i := range slice.Endpoints {
			ref := slice.Endpoints[i].TargetRef
			if ref == nil || ref.Kind != "Pod" {
				continue
			}
			if _, done := s.Pods[ref.Name]; done {
				continue
			}
			if pod := get[corev1.Pod](c.in.pods, s.Key.Namespace+"/"+ref.Name); pod != nil {
				s.Pods[ref.Name] = ParsePod(pod)
			}
		}
	}
	add := func(name string) {
		if subnet := get[kubeovnv1.Subnet](c.in.subnets, name); subnet != nil {
			s.SubnetVPCs[name] = vpcnet.SubnetVPC(subnet)
		}
	}
	if s.Gateway != nil {
		add(s.Gateway.Spec.Subnet)
	}
	for _, pod := range s.Pods {
		for _, nic := range pod.NICs {
			add(nic.Subnet)
		}
	}
}

func (c *Controller) timestamp() metav1.Time { return metav1.NewTime(c.now()) }
