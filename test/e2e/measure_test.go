// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	. "github.com/kubeovn/kube-ovn/test/e2e/framework"
)

var _ = Describe("The time", Serial, Lab, Measurement, func() {
	It("from a change of an EndpointSlice to the gateway's first nft event", func(ctx SpecContext) {
		const tries = 20
		b := newBalancer(ctx, 1, TCP(80))
		ports := []corev1.ServicePort{TCP(81)}
		b.Service(ctx, "measured", b.EIP, ports, Selectorless)
		b.Slice(ctx, "measured", "measured", nobody[:2], ports...)
		b.WaitRules(ctx, "measured", nobody[:2], ports...)

		events := watchRuleset(ctx, b.Gateway)
		measure := func(apart time.Duration) Durations {
			GinkgoHelper()
			var times Durations
			for i := range tries {
				backends := [][]netip.Addr{nobody, nobody[:2]}[i%2]
				quiet(ctx, events, apart)
				began := time.Now()
				b.ChangeSlice(ctx, "measured", func(slice *discoveryv1.EndpointSlice) { slice.Endpoints = Endpoints(backends...) })
				var at time.Time
				Eventually(ctx, events).WithTimeout(Timeout).Should(Receive(&at), "nft event")
				times = append(times, at.Sub(began))
			}
			return times
		}
		for _, apart := range []time.Duration{500 * time.Millisecond, 50 * time.Millisecond} {
			Measured{What: fmt.Sprintf("EndpointSlice change to nft event, changes %s apart", apart), Result: measure(apart).String()}.Report()
		}
	})
})

// watchRuleset sends the time of each nft event in a gateway pod.
func watchRuleset(ctx context.Context, pod *corev1.Pod) <-chan time.Time {
	GinkgoHelper()
	args, err := cluster.Lab.PodArgs(ctx, pod.Namespace, pod.Name, "nft", "monitor")
	Expect(err).NotTo(HaveOccurred())
	cmd := exec.Command(args[0], args[1:]...)
	out, err := cmd.StdoutPipe()
	Expect(err).NotTo(HaveOccurred())
	Expect(cmd.Start()).To(Succeed())
	DeferCleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // Killed, it has no status worth a look.
	})
	events := make(chan time.Time, 4096)
	go func() {
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			events <- time.Now()
		}
	}()
	return events
}

// quiet waits until there has been no nft event for a time.
func quiet(ctx context.Context, events <-chan time.Time, span time.Duration) {
	timer := time.NewTimer(span)
	defer timer.Stop()
	for {
		select {
		case <-events:
			timer.Reset(span)
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}
