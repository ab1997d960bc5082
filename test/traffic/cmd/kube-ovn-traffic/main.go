// SPDX-License-Identifier: Apache-2.0

// Command kube-ovn-traffic measures what the users of a Service would notice; see package traffic.
package main

import (
	"os"

	"github.com/kubeovn/kube-ovn/test/traffic"
)

func main() {
	os.Exit(traffic.Main(os.Args[1:], os.Stdout, os.Stderr))
}
