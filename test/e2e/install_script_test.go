// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	. "github.com/kubeovn/kube-ovn/test/e2e/framework"
)

var _ = Describe("install.sh", Lab, func() {
	// refuses runs it with a setting, and wants one line that says what is missing.
	refuses := func(ctx SpecContext, setting, complaint string) {
		GinkgoHelper()
		output, err := installScript(ctx, []string{setting})
		Expect(err).To(HaveOccurred(), output)
		Expect(strings.TrimSpace(output)).To(And(HavePrefix("error: "), ContainSubstring(complaint), Not(ContainSubstring("\n"))))
	}

	It("needs kubectl", func(ctx SpecContext) {
		refuses(ctx, "PATH="+GinkgoT().TempDir(), "kubectl is needed")
	})

	It("needs a Kubernetes that is not too old", func(ctx SpecContext) {
		dir := GinkgoT().TempDir()
		Expect(os.WriteFile(filepath.Join(dir, "kubectl"), []byte("#!/bin/sh\necho '{ \"major\": \"1\", \"minor\": \"28+\" }'\n"), 0o755)).To(Succeed())
		refuses(ctx, "PATH="+dir+":"+os.Getenv("PATH"), "Kubernetes 1.29 or newer is needed, this is 1.28")
	})

	It("needs somebody who may install", func(ctx SpecContext) {
		s := cluster.NewScene(ctx)
		accounts := cluster.Kube.CoreV1().ServiceAccounts(SystemNamespace)
		_, err := accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: s.Name}}, metav1.CreateOptions{})
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func(ctx SpecContext) { Expect(accounts.Delete(ctx, s.Name, metav1.DeleteOptions{})).To(Succeed()) })
		refuses(ctx, "KUBECONFIG="+kubeconfigOf(ctx, s.Name), "may not be read")
	})
})
