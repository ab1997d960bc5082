// SPDX-License-Identifier: Apache-2.0

// Command demo shows on a lab what the product does, step by step, in the commands a user would type: a Service in a
// VPC of its own gets an EXTERNAL-IP, clients outside and inside are spread over its Pods, it is scaled under traffic,
// its gateway is replaced, and all is cleaned up. It ends with 0 only if all of it held.
//
//	kube-ovn-lab run -- demo
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/kubeovn/kube-ovn/test/lab"
	"github.com/kubeovn/kube-ovn/test/traffic"
)

// deadline bounds the whole demo: one that takes this long hangs.
const deadline = 10 * time.Minute

func main() {
	traffic.Init()
	os.Exit(run())
}

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()

	began := time.Now()
	console := newConsole(os.Stdout)
	handle, err := lab.Attach("")
	if err != nil {
		fmt.Fprintf(os.Stderr, "error: %v\n", err)
		return 1
	}
	d, err := newDemo(handle, console)
	if err != nil {
		fmt.Fprintf(os.Stderr, "error: %v\n", err)
		return 1
	}
	if err := d.run(ctx); err != nil {
		console.block(red, "\nnot ok: "+err.Error())
		// The demo's own context may be what went wrong.
		d.explain(context.Background())
		return 1
	}
	d.summary()
	console.good("all of it held; it took %s", seconds(time.Since(began)))
	return 0
}
