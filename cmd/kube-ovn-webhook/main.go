// SPDX-License-Identifier: Apache-2.0

// Command kube-ovn-webhook validates DNAT rules, EIPs, FIP rules and NAT gateways, and warns of Services that will not be served.
package main

import (
	"errors"
	"fmt"
	"os"

	"sigs.k8s.io/controller-runtime/pkg/manager/signals"

	"github.com/kubeovn/kube-ovn/cmd/kube-ovn-webhook/app"
)

func main() {
	err := app.Run(signals.SetupSignalHandler(), os.Args[1:], os.Stdout)
	if err == nil {
		return
	}
	fmt.Fprintf(os.Stderr, "%s: %v\n", app.Name, err)
	var usage *app.UsageError
	if errors.As(err, &usage) {
		os.Exit(2)
	}
	os.Exit(1)
}
