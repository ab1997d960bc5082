// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"context"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"

	. "github.com/kubeovn/kube-ovn/test/e2e/framework"
)

// hasReady tells whether an object is an EndpointSlice with a ready endpoint.
func hasReady(obj runtime.Object) bool {
	slice, ok := obj.(*discoveryv1.EndpointSlice)
	if !ok {
		return false
	}
	for i := range slice.Endpoints {
		if ptr.Deref(slice.Endpoints[i].Conditions.Ready, false) {
			return true
		}
	}
	return false
}

// removals sends the time when an identity is taken out of the gateway's map.
func (b *balancer) removals(ctx context.Context, identity Target) <-chan time.Time {
	GinkgoHelper()
	args, err := b.Lab.PodArgs(ctx, b.Gateway.Namespace, b.Gateway.Name, "nft", "-n", "monitor")
	Expect(err).NotTo(HaveOccurred())
	cmd := b.Lab.Command(ctx, args)
	out, err := cmd.StdoutPipe()
	Expect(err).NotTo(HaveOccurred())
	Expect(cmd.Start()).To(Succeed())
	DeferCleanup(func() {
		_ = cmd.Process.Kill() // It may have ended with the gateway.
		_ = cmd.Wait()
	})
	protocol := 6
	if identity.UDP {
		protocol = 17
	}
	element := fmt.Sprintf("service-ips { %s . %d . %d ", identity.Addr(), protocol, identity.Port())
	started, at := make(chan struct{}, 1), make(chan time.Time, 1)
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			line := lines.Text()
			switch {
			case strings.Contains(line, "monitor-is-there"):
				select {
				case started <- struct{}{}:
				default:
				}
			case strings.HasPrefix(line, "delete element") && strings.Contains(line, element):
				at <- time.Now()
				return
			}
		}
	}()
	// It hears nothing before it listens.
	Wait(ctx, func(g Gomega, ctx context.Context) {
		RunIn(ctx, b.Space(ctx, b.Gateway), "nft", "add table ip monitor-is-there; delete table ip monitor-is-there")
		g.Expect(started).To(Receive())
	}).WithPolling(4 * Poll).Should(Succeed())
	return at
}

// firstReady sends the time when a rule of the scene's EIP comes to be ready that was not before.
func (b *balancer) firstReady(ctx context.Context) <-chan time.Time {
	GinkgoHelper()
	rules := b.KubeOvn.KubeovnV1().IptablesDnatRules()
	list, err := rules.List(ctx, metav1.ListOptions{})
	Expect(err).NotTo(HaveOccurred())
	before := map[types.UID]bool{}
	for i := range list.Items {
		before[list.Items[i].UID] = list.Items[i].Status.Ready
	}
	watcher, err := rules.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(watcher.Stop)
	at := make(chan time.Time, 1)
	go func() {
		for event := range watcher.ResultChan() {
			rule, ok := event.Object.(*kubeovnv1.IptablesDnatRule)
			if ok && rule.Spec.EIP == b.EIP && rule.Status.Ready && !before[rule.UID] {
				at <- time.Now()
				return
			}
		}
	}()
	return at
}
