// SPDX-License-Identifier: Apache-2.0

package packets

import (
	"context"
	"strings"
	"testing"

	"github.com/kubeovn/kube-ovn/test/bench"
)

func newEnv(t *testing.T) *bench.Env {
	t.Helper()
	env := bench.NewEnv(1, t.Logf)
	t.Cleanup(env.Close)
	return env
}

// What is timed passes through the gateway, and the check sees where it goes.
func TestWay(t *testing.T) {
	w, err := newWay(newEnv(t), "a gateway", regulars, nil, share(0, 80, 10, none), share(1, 80, 10, clientIP))
	if err != nil {
		t.Fatal(err)
	}
	samples, err := w.sample(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if len(samples) != volleysPerSample || samples[0] <= 0 {
		t.Errorf("samples %v", samples)
	}
	if err := w.check(); err != nil {
		t.Error(err)
	}
	// Rules that lead elsewhere do not pass for the right ones.
	w.shares[0].Backends = w.shares[0].Backends[1:]
	if err := w.check(); err == nil || !strings.Contains(err.Error(), "no backend of it") {
		t.Errorf("other backends: %v", err)
	}
	if _, err := run(w.lane.router.Name, "", "nft", "flush", "chain", "ip", "kube-ovn", "prerouting"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.sample(context.Background()); err == nil || !strings.Contains(err.Error(), "0 came through") {
		t.Errorf("without rules: %v", err)
	}
}

// A kept connection is translated where there is a gateway, and not even tracked where there is none.
func TestExchange(t *testing.T) {
	env := newEnv(t)
	all, err := paths(env, exchangePort)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		e, err := newExchange(env.Cleanup, p)
		if err != nil {
			t.Fatalf("%s: %v", p.name, err)
		}
		for name, sample := range map[string]func(context.Context) ([]float64, error){"round trip": e.roundTrip, "bulk": e.bulk} {
			if s, err := sample(context.Background()); err != nil || len(s) != 1 || s[0] <= 0 {
				t.Errorf("%s, %s: %v %v", p.name, name, s, err)
			}
		}
	}
	if err := translated(all, exchangePort)(context.Background()); err != nil {
		t.Error(err)
	}
}
