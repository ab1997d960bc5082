// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	. "github.com/onsi/ginkgo/v2"

	. "github.com/kubeovn/kube-ovn/test/e2e/framework"
)

var _ = Describe("Distribution", func() {
	It("is even over three backends, by TCP and by UDP, from outside and from a VPC client", func(ctx SpecContext) {
		const connections = 300
		b := newBalancer(ctx, 3, TCP(80), UDP(53))
		for _, client := range []Client{b.Outside(ctx), b.ClientIn(ctx, "inside", b.Net.Subnet)} {
			for _, port := range b.Ports {
				target := At(b.Addr, port)
				WaitAnswers(ctx, client, target, Names(b.Pods)...)
				spread := AskAll(ctx, client, target, connections)
				x := ExpectEven(spread, Names(b.Pods))
				GinkgoWriter.Printf("%s to %s: %s; chi-square %.2f\n", client.Name(), target, spread, x)
			}
		}
	})
})
