// SPDX-License-Identifier: Apache-2.0

// Command kube-ovn-controller makes VPC NAT gateways the load balancers of Services in custom VPCs.
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/pflag"
	"sigs.k8s.io/controller-runtime/pkg/manager/signals"

	"github.com/kubeovn/kube-ovn/pkg/version"
)

func main() {
	o := newOptions()
	if err := o.parse(os.Args[1:]); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return
		}
		fmt.Fprintf(os.Stderr, "kube-ovn-controller: %v (see --help)\n", err)
		os.Exit(2)
	}
	if o.version {
		fmt.Println(version.String(controllerName))
		return
	}
	if err := run(signals.SetupSignalHandler(), o); err != nil {
		fmt.Fprintf(os.Stderr, "kube-ovn-controller: %v\n", err)
		os.Exit(1)
	}
}
