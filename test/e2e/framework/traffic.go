// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"

	. "github.com/onsi/ginkgo/v2"

	"github.com/kubeovn/kube-ovn/test/traffic"
)

// StartTraffic starts traffic, options of package traffic, from a network namespace of the lab. It ends with the spec.
func StartTraffic[T traffic.Report](ctx context.Context, c *Cluster, space string, options interface{ Argv() []string }) *traffic.Process[T] {
	GinkgoHelper()
	argv := append(options.Argv(), "--report=100ms")
	p, err := traffic.Start[T](c.Lab.Command(ctx, c.Lab.NetnsArgs(space, argv...)))
	must(err, "start traffic from %s", space)
	return p
}
