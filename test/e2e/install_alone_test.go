// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"slices"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	. "github.com/kubeovn/kube-ovn/test/e2e/framework"
)

const (
	// deployed is the controller's Deployment, and the webhook's.
	deployed        = "kube-ovn-nftable-lb"
	deployedWebhook = "kube-ovn-webhook"
)

var _ = Describe("Installing where there is no Kube-OVN", Ordered, Serial, Lab, Alone, func() {
	var (
		before []string
		user   *tenant
	)
	// What stays on purpose: the CRDs, who was at work last, and the authority that the webhook has made.
	left := []string{
		"customresourcedefinition.apiextensions.k8s.io/iptables-dnat-rules.kubeovn.io",
		"customresourcedefinition.apiextensions.k8s.io/iptables-eips.kubeovn.io",
		"customresourcedefinition.apiextensions.k8s.io/iptables-fip-rules.kubeovn.io",
		"customresourcedefinition.apiextensions.k8s.io/subnets.kubeovn.io",
		"customresourcedefinition.apiextensions.k8s.io/vpc-nat-gateways.kubeovn.io",
		"customresourcedefinition.apiextensions.k8s.io/vpcs.kubeovn.io",
		"lease.coordination.k8s.io/kube-ovn-controller",
		"secret/kube-ovn-webhook-ca",
	}

	BeforeAll(func(ctx SpecContext) {
		before = inventory(ctx)

		By("to be told that there is none")
		output, err := installScript(ctx, []string{"ENABLE_NFTABLE_LB_SVC=true", "MODE=beside"})
		Expect(err).To(HaveOccurred())
		Expect(output).To(HaveSuffix("error: there is no CRD iptables-dnat-rules.kubeovn.io: install Kube-OVN first, or set MODE=alone\n"))
		Expect(since(ctx, before)).To(BeEmpty())

		output = release(ctx, "install", "first", slices.Concat([]string{firstChart.path(), "--set=webhook.enabled=true"}, firstChart.on())...)
		Expect(output).To(ContainSubstring("Installed alone, as no Kube-OVN was found"))
		Expect(cluster.Lab.MakeNetworks(ctx)).To(Succeed())
		user = newTenant(ctx)
	})

	It("by Helm brings it all, as Pods that may little", func(ctx SpecContext) {
		user.served(ctx)
		refusesNonsense(ctx, user.EIP)
		for _, program := range []string{"/kube-ovn-controller", "/kube-ovn-webhook"} {
			Expect(usersOf(program)).To(HaveExactElements(imageUser(), imageUser()), "users that run %s", program)
		}
	})

	It("by Helm in another way disturbs nobody, nor does the same again", func(ctx SpecContext) {
		user.undisturbed(ctx, "helm upgrade", func() {
			release(ctx, "upgrade", "first", firstChart.path(), "--reuse-values", "--set="+firstChart.verbosity+"=3")
			release(ctx, "upgrade", "first", firstChart.path(), "--reuse-values")
		})
	})

	It("by Helm is undone by it, but for what is the user's", func(ctx SpecContext) {
		user.withdrawn(ctx, release(ctx, "uninstall", "first"))
		Expect(since(ctx, before)).To(Equal(left))
	})

	It("by install.sh works after that, disturbs nobody when done again, and is undone by it", func(ctx SpecContext) {
		settings := []string{"ENABLE_NFTABLE_LB_SVC=true", "ENABLE_WEBHOOK=true"}
		run := func(options ...string) string {
			GinkgoHelper()
			output, err := installScript(ctx, settings, options...)
			Expect(err).NotTo(HaveOccurred(), output)
			return output
		}
		By("a dry run")
		Expect(run("--dry-run")).To(And(HavePrefix("mode alone: the CRDs are of an earlier installation\n"), HaveSuffix("a dry run: nothing has changed\n")))
		Expect(since(ctx, before)).To(Equal(left), "after a dry run")
		By("installing")
		Expect(run()).To(ContainSubstring("are served"))
		user.served(ctx)
		refusesNonsense(ctx, user.EIP)

		generation := func() int64 {
			GinkgoHelper()
			deployment, err := cluster.Kube.AppsV1().Deployments(SystemNamespace).Get(ctx, deployed, metav1.GetOptions{})
			Expect(err).NotTo(HaveOccurred())
			return deployment.Generation
		}
		By("again")
		was := generation()
		user.undisturbed(ctx, "install.sh again", func() { run() })
		Expect(generation()).To(Equal(was), "the Deployment should not have changed")

		By("uninstalling")
		output := run("--uninstall", "--dry-run")
		Expect(output).To(HaveSuffix("a dry run: nothing has changed\n"))
		for name := range user.ruleUIDs(ctx) {
			Expect(output).To(ContainSubstring(name))
		}
		user.served(ctx)
		user.withdrawn(ctx, run("--uninstall"))
		Expect(since(ctx, before)).To(Equal(left[:len(left)-1]), "it takes the Secret with it")
	})

	It("by the second chart works as well, and takes the CRDs over where it is told to", func(ctx SpecContext) {
		release(ctx, "install", "second", slices.Concat([]string{secondChart.path(), "--take-ownership"}, secondChart.on())...)
		user.served(ctx)
	})
})
