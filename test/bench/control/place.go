// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kubeovn/kube-ovn/pkg/client/clientset/versioned"
	"github.com/kubeovn/kube-ovn/pkg/natgateway"
	"github.com/kubeovn/kube-ovn/test/bench"
	"github.com/kubeovn/kube-ovn/test/lab"
)

// patience bounds every wait for something that has to come.
const patience = 10 * time.Minute

// place is the lab, and what the measures have built in it so far.
type place struct {
	lab     *lab.Handle
	config  *rest.Config
	kube    kubernetes.Interface
	ovn     versioned.Interface
	dynamic dynamic.Interface
	// executor calls gateways as the controller does.
	executor natgateway.Executor

	quiet *network
}

// there is the one lab of this process.
var there struct {
	sync.Mutex
	place *place
}

// start gives the lab. The first measure that needs it brings it up; it ends with the process.
func start(ctx context.Context, env *bench.Env) (*place, error) {
	there.Lock()
	defer there.Unlock()
	if there.place != nil {
		return there.place, nil
	}
	handle, err := bringUp(ctx, env)
	if err != nil {
		return nil, err
	}
	p := &place{lab: handle, config: handle.Config()}
	p.config.UserAgent = "kube-ovn-bench"
	if p.kube, err = kubernetes.NewForConfig(p.config); err != nil {
		return nil, err
	}
	if p.ovn, err = versioned.NewForConfig(p.config); err != nil {
		return nil, err
	}
	if p.dynamic, err = dynamic.NewForConfig(p.config); err != nil {
		return nil, err
	}
	p.executor = natgateway.NewExecutor(p.kube, p.config)
	there.place = p
	return p, nil
}

func bringUp(ctx context.Context, env *bench.Env) (*lab.Handle, error) {
	if dir := os.Getenv(lab.DirEnv); dir != "" {
		h, err := lab.Attach(dir)
		if err != nil {
			return nil, err
		}
		return h, h.RestartController(ctx, controllerOptions())
	}
	l, err := lab.Start(context.WithoutCancel(ctx), lab.Options{Progress: env.Logf, Controller: controllerOptions()})
	if err != nil {
		return nil, fmt.Errorf("bring up a lab: %w", err)
	}
	return l.Handle, nil
}

// controllerOptions are those of a controller as it is in use: it does not log every object. There is one, so it need not wait for a
// lease, nor give up where a busy machine lets it renew it too late; and it lists a gateway when it has to.
func controllerOptions() lab.ControllerOptions {
	return lab.ControllerOptions{Args: []string{"--v=2", "--leader-elect=false", "--nat-gw-check-interval=1h"}}
}

// How often conditions are looked at: what is cheap to ask often, metrics and listings, which cost those who are measured, not.
const (
	often  = 50 * time.Millisecond
	seldom = 250 * time.Millisecond
)

// until waits for a condition.
func until(ctx context.Context, what string, condition func(context.Context) (bool, error)) error {
	return poll(ctx, often, what, condition)
}

func poll(ctx context.Context, interval time.Duration, what string, condition func(context.Context) (bool, error)) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, interval, patience, true, func(ctx context.Context) (bool, error) {
		ok, err := condition(ctx)
		last = err
		return ok && err == nil, nil
	})
	switch {
	case err == nil:
		return nil
	case last != nil:
		return fmt.Errorf("wait for %s: %w", what, last)
	}
	return fmt.Errorf("wait for %s: %w", what, err)
}

// each calls f with 0 to n-1, some at a time.
func each(ctx context.Context, n, atOnce int, f func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for i := range n {
		group.Go(func() error { return f(ctx, i) })
	}
	return group.Wait()
}
