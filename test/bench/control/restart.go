// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"fmt"
	"time"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
	"github.com/kubeovn/kube-ovn/test/bench"
	"github.com/kubeovn/kube-ovn/test/lab"
)

const (
	restartChecked = "from caches in sync until every gateway is known to be right"
	restartSynced  = "from the start of the process until its caches are in sync"
	restartLists   = "listings of each gateway"
)

func restartMeasure() bench.Measure {
	return bench.Measure{
		Name:     "control/restart",
		Title:    fmt.Sprintf("kube-ovn-controller starts, and of %d Services of %d backends all is in place", bigServices, bigBackends),
		Unit:     "s",
		Rounds:   5,
		NoWarmUp: true,
		Aims:     []bench.Aim{{Of: restartChecked, Max: 3}, {Of: restartLists, Max: 1}},
		Prepare: func(ctx context.Context, env *bench.Env) ([]bench.Side, func(context.Context) error, error) {
			if err := grow(ctx, env); err != nil {
				return nil, nil, err
			}
			n, err := quiet(ctx, env)
			if err != nil {
				return nil, nil, err
			}
			r := &restarts{network: n}
			all := &joint{round: r.round}
			sides := []bench.Side{all.side(restartChecked, ""), all.side(restartSynced, ""), all.side(restartLists, "calls")}
			return sides, r.check, nil
		},
	}
}

type restarts struct {
	*network

	made          int
	writes, calls float64
}

func (r *restarts) round(ctx context.Context) (map[string][]float64, error) {
	gateways, err := r.knownGateways(ctx)
	if err != nil {
		return nil, err
	}
	if err := r.settle(ctx); err != nil {
		return nil, err
	}
	if err := r.lab.StopController(ctx); err != nil {
		return nil, err
	}
	before, err := r.network.writes(ctx, written...)
	if err != nil {
		return nil, err
	}
	options := controllerOptions()
	options.NoWait = true
	began := time.Now()
	if err := r.lab.StartController(ctx, options); err != nil {
		return nil, err
	}
	if err := r.lab.WaitHTTP(ctx, lab.Controller, fmt.Sprintf("http://127.0.0.1:%d/readyz", lab.ControllerPort)); err != nil {
		return nil, err
	}
	synced := time.Now()
	err = until(ctx, "every gateway to be right", func(ctx context.Context) (bool, error) {
		m, err := r.controllerMetrics(ctx)
		return m.sum("kube_ovn_nat_gateway_last_success_timestamp_seconds", func(map[string]string) bool { return true }) > 0 &&
			len(m["kube_ovn_nat_gateway_last_success_timestamp_seconds"].GetMetric()) >= gateways, err
	})
	if err != nil {
		return nil, err
	}
	checked := time.Now()
	lists, err := r.network.calls(ctx, sharenat.ListVerb)
	if err != nil {
		return nil, err
	}
	all, err := r.network.calls(ctx, "")
	if err != nil {
		return nil, err
	}
	after, err := r.network.writes(ctx, written...)
	if err != nil {
		return nil, err
	}
	r.writes += after - before
	r.calls += all - lists
	r.made++
	return map[string][]float64{
		restartChecked: {checked.Sub(synced).Seconds()}, restartSynced: {synced.Sub(began).Seconds()}, restartLists: {lists / float64(gateways)},
	}, nil
}

// settle waits until the controller neither writes nor calls any more: what it was at belongs to what was before.
func (r *restarts) settle(ctx context.Context) error {
	last := -1.0
	return poll(ctx, time.Second, "the controller to be idle", func(ctx context.Context) (bool, error) {
		writes, err := r.network.writes(ctx, written...)
		if err != nil {
			return false, err
		}
		calls, err := r.network.calls(ctx, "")
		if err != nil {
			return false, err
		}
		idle := writes+calls == last
		last = writes + calls
		return idle, nil
	})
}

// knownGateways counts the gateways that the running controller has checked.
func (r *restarts) knownGateways(ctx context.Context) (int, error) {
	m, err := r.controllerMetrics(ctx)
	n := len(m["kube_ovn_nat_gateway_last_success_timestamp_seconds"].GetMetric())
	if err == nil && n < bigGateways {
		err = fmt.Errorf("%d gateways are known, not %d", n, bigGateways)
	}
	return n, err
}

// check: nothing may be written, and nobody called but to list.
func (r *restarts) check(context.Context) error {
	if r.writes != 0 || r.calls != 0 {
		return fmt.Errorf("%d restarts with all in place have written %v times and made %v calls besides listing", r.made, r.writes, r.calls)
	}
	return nil
}
