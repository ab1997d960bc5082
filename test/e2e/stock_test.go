// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/kubeovn/kube-ovn/test/lab"

	. "github.com/kubeovn/kube-ovn/test/e2e/framework"
)

const stockImage = "docker.io/kubeovn/kube-ovn:v1.18.0"

// stockController makes the Deployment of Kube-OVN's own controller, newer than v1.17, and gives a function that changes its flags.
// No Pod runs in it. The usual controller does not run meanwhile: it would end.
func stockController(ctx context.Context) (tell func(ctx context.Context, args ...string)) {
	GinkgoHelper()
	cluster.StopController(ctx)
	stock := idleDeployment(ctx, "kube-ovn-controller", map[string]string{"app": "kube-ovn-controller"},
		corev1.Container{Name: "kube-ovn-controller", Image: stockImage, Args: []string{"--v=3"}})
	return func(ctx context.Context, args ...string) {
		GinkgoHelper()
		patch, err := json.Marshal([]map[string]any{{"op": "replace", "path": "/spec/template/spec/containers/0/args", "value": append([]string{"--v=3"}, args...)}})
		Expect(err).NotTo(HaveOccurred())
		_, err = cluster.Kube.AppsV1().Deployments(stock.Namespace).Patch(ctx, stock.Name, types.JSONPatchType, patch, metav1.PatchOptions{})
		Expect(err).NotTo(HaveOccurred())
	}
}

// output is what a process has said so far.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(data []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(data)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

func (o *output) lastLine() string {
	text := strings.TrimSpace(o.String())
	return text[strings.LastIndexByte(text, '\n')+1:]
}

var _ = Describe("Beside a kube-ovn-controller that serves the same Services", Serial, Lab, func() {
	const (
		lease = "kube-ovn-e2e-beside"
		who   = "kube-ovn-controller: Deployment kube-system/kube-ovn-controller "
		line  = who + "may serve the same Services (v1.18.0 is newer than v1.17: releases after it may serve them by default, " +
			"and nothing says whether this one does): set --enable-nftable-lb-svc=false there, or --stock-serves=no here"
	)
	// start runs a controller as it is installed beside Kube-OVN. It may end by itself, which the lab's own may not.
	start := func(ctx context.Context, path string, args ...string) (*exec.Cmd, *output) {
		GinkgoHelper()
		cmd := cluster.Lab.Command(ctx, append([]string{
			path, "--kubeconfig=" + cluster.Lab.Kubeconfig(), "--enable-nftable-lb-svc=true", "--enable-nat-gw-handler=false",
			"--leader-elect-resource-name=" + lease, fmt.Sprintf("--pprof-port=%d", lab.ControllerPort+3),
		}, args...))
		cmd.Env = append(cmd.Env, "POD_NAME=kube-ovn-nftable-lb-5c9f7d8b6-x2x7k", "POD_NAMESPACE="+SystemNamespace)
		said := &output{}
		cmd.Stdout, cmd.Stderr = said, said
		Expect(cmd.Start()).To(Succeed())
		return cmd, said
	}
	holder := func(ctx context.Context) (string, error) {
		lease, err := cluster.Kube.CoordinationV1().Leases(SystemNamespace).Get(ctx, lease, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		return ptr.Deref(lease.Spec.HolderIdentity, ""), nil
	}

	It("does not start and says why, waits for Pods that are about to end, and ends when one appears", func(ctx SpecContext) {
		path := cluster.ControllerPath()
		tell := stockController(ctx)
		DeferCleanup(func(ctx context.Context) {
			Expect(cluster.Kube.CoordinationV1().Leases(SystemNamespace).Delete(ctx, lease, metav1.DeleteOptions{})).To(Succeed())
		})
		cmd, said := start(ctx, path)
		Expect(cmd.Wait()).NotTo(Succeed())
		Expect(said.lastLine()).To(Equal(line))
		_, err := holder(ctx)
		Expect(err).To(HaveOccurred(), "it should not have asked for the lease")

		By("switched off there, with a Pod that was told otherwise and has not ended yet")
		tell(ctx, "--enable-nftable-lb-svc=false")
		pods := cluster.Kube.CoreV1().Pods(SystemNamespace)
		old, err := pods.Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "kube-ovn-controller-", Labels: map[string]string{"app": "kube-ovn-controller"}},
			Spec: corev1.PodSpec{
				NodeSelector: map[string]string{"kubernetes.io/hostname": "nowhere"},
				Containers:   []corev1.Container{{Name: "kube-ovn-controller", Image: stockImage}},
			},
		}, metav1.CreateOptions{})
		Expect(err).NotTo(HaveOccurred())
		cmd, said = start(ctx, path)
		Wait(ctx, said.String).Should(And(ContainSubstring("Waiting for Pods to end that still serve the same Services"), ContainSubstring(old.Name)))
		_, err = holder(ctx)
		Expect(err).To(HaveOccurred(), "it should not have asked for the lease")
		Expect(pods.Delete(ctx, old.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})).To(Succeed())
		Wait(ctx, holder).Should(Equal("kube-ovn-nftable-lb-5c9f7d8b6-x2x7k"))

		By("switched on there, as an upgrade does")
		tell(ctx)
		Expect(cmd.Wait()).NotTo(Succeed())
		Expect(said.lastLine()).To(Equal(line))
		Expect(holder(ctx)).To(BeEmpty(), "it should have given the lease back")

		By("told that this release does not serve, until its flag says otherwise")
		cmd, said = start(ctx, path, "--stock-serves=no")
		Wait(ctx, holder).Should(Equal("kube-ovn-nftable-lb-5c9f7d8b6-x2x7k"))
		tell(ctx, "--enable-nftable-lb-svc=true")
		Expect(cmd.Wait()).NotTo(Succeed())
		Expect(said.lastLine()).To(Equal(who + "serves the same Services already (--enable-nftable-lb-svc=true): " +
			"switch it off there with --enable-nftable-lb-svc=false, or here with the same flag"))
	})
})
