// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/events"

	"github.com/kubeovn/kube-ovn/pkg/client/informers/externalversions"
	"github.com/kubeovn/kube-ovn/pkg/lbservice"
	"github.com/kubeovn/kube-ovn/pkg/natgateway"
	"github.com/kubeovn/kube-ovn/test/bench"
)

// Measures are those of this group.
func Measures() []bench.Measure {
	return []bench.Measure{memoryMeasure(1000), memoryMeasure(5000)}
}

const (
	oursHeap    = "ours, all in place"
	objectsHeap = "the objects in the informers, and nothing else"
)

func memoryMeasure(services int) bench.Measure {
	return bench.Measure{
		Name:     fmt.Sprintf("scale/memory-%d", services),
		Title:    fmt.Sprintf("heap of both controllers, with %d pretended Services of 20 backends in memory", services),
		Unit:     "B",
		Rounds:   5,
		NoWarmUp: true,
		Aims:     []bench.Aim{{Of: oursHeap, Over: objectsHeap, Max: 1.5}},
		Prepare: func(_ context.Context, env *bench.Env) ([]bench.Side, func(context.Context) error, error) {
			c, err := NewCluster(Size{Services: env.Scaled(services), Backends: 20, Gateways: 10})
			if err != nil {
				return nil, nil, err
			}
			var cpu, heaps []float64
			sides := []bench.Side{
				{Name: objectsHeap, Sample: func(ctx context.Context) ([]float64, error) {
					grown, err := c.Objects(ctx)
					return []float64{grown}, err
				}},
				{Name: oursHeap, Sample: func(ctx context.Context) ([]float64, error) {
					use, err := c.Settle(ctx)
					cpu, heaps = append(cpu, use.CPU.Seconds()/float64(c.Rules())), append(heaps, use.Heap/float64(c.Rules()))
					return []float64{use.Heap}, err
				}},
			}
			check := func(context.Context) error {
				env.Note("CPU until all is known to be right, for each rule", median(cpu), "s")
				env.Note("heap for each rule", median(heaps), "B")
				return c.untouched()
			}
			return sides, check, nil
		},
	}
}

// untouched: where all is in place nothing may be written, and gateways are only asked.
func (c *Cluster) untouched() error {
	if writes := c.Writes(); len(writes) > 0 {
		return fmt.Errorf("%d writes, the first: %s", len(writes), writes[0])
	}
	for verb, n := range c.Calls() {
		if verb != "nft-dnat-map-list" {
			return fmt.Errorf("%d calls of %s", n, verb)
		}
	}
	return nil
}

// heap is what is in use, once all that is not is gone.
func heap() float64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // What finalizers have kept.
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// processorTime is what this process has used.
func processorTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0 // It cannot fail for the caller itself.
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// caches are the informers of both controllers.
type caches struct {
	kube informers.SharedInformerFactory
	ovn  externalversions.SharedInformerFactory
}

func (c *Cluster) caches() caches {
	return caches{informers.NewSharedInformerFactory(c.Kube, 0), externalversions.NewSharedInformerFactory(c.Ovn, 0)}
}

func (s caches) run(ctx context.Context) (stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	s.kube.Start(ctx.Done())
	s.ovn.Start(ctx.Done())
	stop = func() {
		cancel()
		s.kube.Shutdown()
		s.ovn.Shutdown()
	}
	for kind, ok := range s.kube.WaitForCacheSync(ctx.Done()) {
		if !ok {
			err = errors.Join(err, fmt.Errorf("cache of %s", kind))
		}
	}
	for kind, ok := range s.ovn.WaitForCacheSync(ctx.Done()) {
		if !ok {
			err = errors.Join(err, fmt.Errorf("cache of %s", kind))
		}
	}
	return stop, err
}

// Objects is how much heap the same objects take in informers that nobody has added anything to.
func (c *Cluster) Objects(ctx context.Context) (float64, error) {
	before := heap()
	s := c.caches()
	s.kube.Core().V1().Services().Informer()
	s.kube.Core().V1().Pods().Informer()
	s.kube.Discovery().V1().EndpointSlices().Informer()
	ovn := s.ovn.Kubeovn().V1()
	ovn.Subnets().Informer()
	ovn.Vpcs().Informer()
	ovn.IptablesEIPs().Informer()
	ovn.VpcNatGateways().Informer()
	ovn.IptablesDnatRules().Informer()
	ovn.IptablesFIPRules().Informer()
	stop, err := s.run(ctx)
	defer stop()
	if err != nil {
		return 0, err
	}
	grown := heap() - before
	runtime.KeepAlive(s)
	return grown, nil
}

// Use is what it takes to run.
type Use struct {
	Heap float64
	CPU  time.Duration
}

// Settle starts both controllers, waits until every gateway is known to hold what it should and every rule was looked at, and stops them.
func (c *Cluster) Settle(ctx context.Context) (Use, error) {
	before, cpu := heap(), processorTime()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := c.caches()
	recorder := &events.FakeRecorder{}
	services, err := lbservice.New(lbservice.Options{
		KubeClient: c.Kube, KubeOvnClient: c.Ovn, KubeInformers: s.kube, KubeOvnInformers: s.ovn, Recorder: recorder,
		Abilities: lbservice.AllAbilities,
	})
	if err != nil {
		return Use{}, err
	}
	handler, err := natgateway.New(natgateway.Options{
		KubeClient: c.Kube, KubeOvnClient: c.Ovn, KubeInformers: s.kube, KubeOvnInformers: s.ovn, Recorder: recorder,
		Executor: c, Namespace: systemNamespace,
	})
	if err != nil {
		return Use{}, err
	}
	asked := c.Calls()["nft-dnat-map-list"]
	stop, err := s.run(ctx)
	defer stop()
	if err != nil {
		return Use{}, err
	}
	done := make(chan error, 2)
	go func() { done <- services.Run(ctx, 4) }()
	go func() { done <- handler.Run(ctx, 16) }()
	err = wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		return c.Calls()["nft-dnat-map-list"]-asked >= c.Gateways, nil
	})
	if err == nil {
		err = idle(ctx)
	}
	use := Use{Heap: heap() - before, CPU: processorTime() - cpu}
	runtime.KeepAlive(s)
	cancel()
	return use, errors.Join(err, <-done, <-done)
}

// idle waits until this process has next to nothing to do.
func idle(ctx context.Context) error {
	last := processorTime()
	return wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, time.Minute, false, func(context.Context) (bool, error) {
		now := processorTime()
		used := now - last
		last = now
		return used < 10*time.Millisecond, nil
	})
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}
