// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/klog/v2"
)

// health answers /healthz and /readyz.
type health struct {
	leader *leaderelection.HealthzAdaptor

	mu    sync.Mutex
	ready func() bool
}

// newHealth is the health of a process that has not begun its work. Where that waits for a lease it is ready: it is what it should be.
func newHealth(waitsForLease bool) *health {
	return &health{leader: leaderelection.NewLeaderHealthzAdaptor(20 * time.Second), ready: func() bool { return waitsForLease }}
}

func (h *health) setReady(ready func() bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ready = ready
}

func (h *health) healthz(w http.ResponseWriter, r *http.Request) {
	if err := h.leader.Check(r); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	fmt.Fprintln(w, "ok")
}

func (h *health) readyz(w http.ResponseWriter, _ *http.Request) {
	h.mu.Lock()
	ready := h.ready
	h.mu.Unlock()
	if !ready() {
		http.Error(w, "the caches are not in sync yet", http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}

type server struct {
	listener net.Listener
	http     *http.Server
}

// listen opens the port at once, so that a taken port ends the process with one clear line.
func listen(port int, h *health, metrics prometheus.Gatherer) (*server, error) {
	l, err := net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(port)))
	if err != nil {
		return nil, fmt.Errorf("--pprof-port: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", h.healthz)
	mux.HandleFunc("/readyz", h.readyz)
	mux.Handle("/metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return &server{listener: l, http: &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}}, nil
}

// serve until ctx ends.
func (s *server) serve(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() {
		if err := s.http.Close(); err != nil {
			klog.FromContext(ctx).Error(err, "Close the health and metrics port")
		}
	})()
	if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve health and metrics: %w", err)
	}
	return nil
}
