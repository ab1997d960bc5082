// SPDX-License-Identifier: Apache-2.0

// Command kube-ovn-webhook validates DNAT rules, EIPs, FIP rules and NAT gateways, and warns of Services that will not be served.
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/pflag"
	"sigs.k8s.io/controller-runtime/pkg/manager/signals"

	"github.com/kubeovn/kube-ovn/pkg/version"
)

const webhookName = "kube-ovn-webhook"

func main() {
	o := newOptions()
	if err := o.parse(os.Args[1:]); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return
		}
		fmt.Fprintf(os.Stderr, "%s: %v (see --help)\n", webhookName, err)
		os.Exit(2)
	}
	if o.version {
		fmt.Println(version.String(webhookName))
		return
	}
	if err := run(signals.SetupSignalHandler(), o); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", webhookName, err)
		os.Exit(1)
	}
}
