// SPDX-License-Identifier: Apache-2.0

// Command kube-ovn-stock stands in for Kube-OVN's own kube-ovn-controller in a lab.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/kubeovn/kube-ovn/test/lab/stock/handler"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, pflag.ErrHelp) {
		fmt.Fprintf(os.Stderr, "kube-ovn-stock: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	log.SetLogger(klog.Background())
	flags := pflag.NewFlagSet("kube-ovn-stock", pflag.ContinueOnError)
	kubeconfig := flags.String("kubeconfig", "", "path of a kubeconfig file")
	release := flags.String("release", string(handler.V117), "which of Kube-OVN's releases to play: v1.17 or newer")
	namespace := flags.String("namespace", "kube-system", "Kube-OVN's namespace")
	port := flags.Int("port", 0, "port of /readyz")
	webhook := flags.Int("webhook-port", 0, "port of the webhook; 0: there is none")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if !slices.Contains(handler.Releases, handler.Release(*release)) {
		return fmt.Errorf("--release is one of %v, not %q", handler.Releases, *release)
	}
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	config.UserAgent, config.QPS = "kube-ovn-stock", -1
	h, err := handler.New(config, handler.Release(*release), *namespace)
	if err != nil {
		return err
	}
	// missing are the parts that do not work yet.
	var missing atomic.Int32
	missing.Store(1)
	begun := func() { missing.Add(-1) }
	group, ctx := errgroup.WithContext(ctx)
	if *webhook != 0 {
		missing.Add(1)
		group.Go(func() error { return h.ServeWebhook(ctx, *webhook, begun) })
	}
	group.Go(func() error { return h.Run(ctx, begun) })
	group.Go(func() error { return health(ctx, *port, func() bool { return missing.Load() == 0 }) })
	return group.Wait()
}

// health answers /readyz.
func health(ctx context.Context, port int, ready func() bool) error {
	server := &http.Server{
		Addr: fmt.Sprintf("127.0.0.1:%d", port), ReadHeaderTimeout: 5 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if !ready() {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		}),
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
