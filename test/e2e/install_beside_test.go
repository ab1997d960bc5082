// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/kubeovn/kube-ovn/pkg/lbservice"

	. "github.com/kubeovn/kube-ovn/test/e2e/framework"
)

const dnatRuleCRD = "iptables-dnat-rules.kubeovn.io"

// stockObjects are those of Kube-OVN that installing beside it could touch, without what the API server notes of each write.
func stockObjects(ctx context.Context) map[string]map[string]any {
	GinkgoHelper()
	objects := map[string]map[string]any{}
	for resource, namespace := range map[schema.GroupVersionResource]string{
		{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}: "",
		{Version: "v1", Resource: "configmaps"}:                                               SystemNamespace,
		{Version: "v1", Resource: "serviceaccounts"}:                                          SystemNamespace,
		{Group: "apps", Version: "v1", Resource: "deployments"}:                               SystemNamespace,
	} {
		list, err := cluster.Dynamic.Resource(resource).Namespace(namespace).List(ctx, metav1.ListOptions{})
		Expect(err).NotTo(HaveOccurred())
		for i := range list.Items {
			object := &list.Items[i]
			if strings.HasPrefix(object.GetName(), deployed) {
				continue
			}
			object.SetManagedFields(nil)
			if object.GetName() == dnatRuleCRD {
				object.SetResourceVersion("")
				object.SetGeneration(0)
			}
			objects[resource.Resource+"/"+object.GetName()] = object.Object
		}
	}
	return objects
}

// newFields are those of a rule that its CRD lacks, which are taken out of it.
func newFields(crd map[string]any) map[string]any {
	GinkgoHelper()
	versions, _, err := unstructured.NestedSlice(crd, "spec", "versions")
	Expect(err).NotTo(HaveOccurred())
	Expect(versions).To(HaveLen(1))
	version := versions[0].(map[string]any)
	path := []string{"schema", "openAPIV3Schema", "properties", "spec", "properties"}
	properties, _, err := unstructured.NestedMap(version, path...)
	Expect(err).NotTo(HaveOccurred())
	fields := map[string]any{}
	for _, name := range []string{"sessionAffinity", "sessionAffinityTimeoutSeconds"} {
		if field, ok := properties[name]; ok {
			fields[name] = field
			delete(properties, name)
		}
	}
	Expect(unstructured.SetNestedMap(version, properties, path...)).To(Succeed())
	Expect(unstructured.SetNestedSlice(crd, versions, "spec", "versions")).To(Succeed())
	return fields
}

// applyStock makes the Deployment by which a release of Kube-OVN is known, in the place of the one that the lab has. Who runs the
// gateways is a stand-in, a process of the lab.
func applyStock(ctx context.Context, version string) {
	GinkgoHelper()
	labels := map[string]string{"app": "kube-ovn-controller"}
	deployments := cluster.Kube.AppsV1().Deployments(SystemNamespace)
	err := deployments.Delete(ctx, "kube-ovn-controller", metav1.DeleteOptions{})
	if !apierrors.IsNotFound(err) {
		Expect(err).NotTo(HaveOccurred())
	}
	_, err = deployments.Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "kube-ovn-controller", Labels: labels},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](0), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "kube-ovn-controller", Image: "docker.io/kubeovn/kube-ovn:" + version, Args: []string{"--v=3"}}}},
			},
		},
	}, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	Wait(ctx, func(g Gomega, ctx context.Context) {
		deployment, err := deployments.Get(ctx, "kube-ovn-controller", metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(deployment.Status.ObservedGeneration).To(Equal(deployment.Generation))
		g.Expect(deployment.Status.Conditions).NotTo(BeEmpty())
	}).Should(Succeed())
}

var _ = Describe("Installing beside Kube-OVN", Ordered, Serial, Lab, Beside, func() {
	var (
		before []string
		stock  map[string]map[string]any
		user   *tenant
	)
	// unchanged wants Kube-OVN as it was, but for the fields that its CRD has got.
	unchanged := func(ctx context.Context) {
		GinkgoHelper()
		now := stockObjects(ctx)
		fields, err := json.Marshal(newFields(now["customresourcedefinitions/"+dnatRuleCRD]))
		Expect(err).NotTo(HaveOccurred())
		Expect(fields).To(MatchJSON(`{
			"sessionAffinity": {
				"type": "string", "enum": ["", "ClientIP"],
				"description": "SessionAffinity ClientIP keeps a client on the backend that it first\nreached. All rules of an identity have the same one. Of rules of type share."
			},
			"sessionAffinityTimeoutSeconds": {
				"type": "integer", "format": "int32", "minimum": 0, "maximum": 86400,
				"description": "SessionAffinityTimeoutSeconds is how long after its last new connection\na client is remembered. With ClientIP, 0 stands for 10800."
			}
		}`))
		Expect(now).To(Equal(stock))
	}

	BeforeAll(func(ctx SpecContext) {
		By("too old for it")
		applyStock(ctx, "v1.16.2")
		output, err := installScript(ctx, []string{"ENABLE_NFTABLE_LB_SVC=true"})
		Expect(err).To(HaveOccurred())
		Expect(output).To(HaveSuffix("kube-ovn-controller is of Kube-OVN 1.16, whose gateways do not know share rules: upgrade it to v1.17\n"))

		By("of the last release without the feature")
		applyStock(ctx, "v1.17.0")
		user = newTenant(ctx)
		user.WaitRule(ctx, user.Name+"-hand")
		before, stock = inventory(ctx), stockObjects(ctx)
		Expect(newFields(stock["customresourcedefinitions/"+dnatRuleCRD])).To(BeEmpty())
	})

	It("has objects only that the API server takes, of both charts", func(ctx SpecContext) {
		var manifests strings.Builder
		for _, chart := range []chart{firstChart, secondChart} {
			for _, settings := range [][]string{
				slices.Concat(chart.on(), []string{"--set=installMode=beside,webhook.enabled=true"}),
				slices.Concat(chart.on(), []string{"--set=installMode=alone,webhook.enabled=true"}),
				{"--set=installMode=alone", "--is-upgrade"},
			} {
				output, _ := helm(ctx, slices.Concat([]string{"template", "dry", chart.path(), "--namespace=" + SystemNamespace}, settings)...)
				manifests.WriteString(output)
			}
		}
		cmd := cluster.Lab.Command(ctx, []string{"kubectl", "apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", "-"})
		cmd.Stdin = strings.NewReader(manifests.String())
		output, err := cmd.CombinedOutput()
		Expect(err).NotTo(HaveOccurred(), "%s", output)
		Expect(strings.Count(string(output), "serverside-applied (server dry run)")).To(BeNumerically(">", 100))
		Expect(since(ctx, before)).To(BeEmpty())
	})

	It("by Helm adds two fields to its CRD, and the controller", func(ctx SpecContext) {
		Expect(user.GetService(ctx, "web").Status).To(Equal(corev1.ServiceStatus{}))
		output := release(ctx, "install", "first", slices.Concat([]string{firstChart.path()}, firstChart.on())...)
		Expect(output).To(ContainSubstring("Installed beside Kube-OVN, which was found"))
		Expect(output).To(ContainSubstring("CRD iptables-dnat-rules.kubeovn.io: added v1.spec.sessionAffinity, v1.spec.sessionAffinityTimeoutSeconds"))
		unchanged(ctx)
		user.served(ctx)
		Expect(usersOf("/kube-ovn-controller")).To(HaveExactElements(imageUser(), imageUser()))
	})

	It("by Helm in another way disturbs nobody, nor does the same again", func(ctx SpecContext) {
		user.undisturbed(ctx, "helm upgrade, beside", func() {
			release(ctx, "upgrade", "first", firstChart.path(), "--reuse-values", "--set="+firstChart.verbosity+"=3")
			release(ctx, "upgrade", "first", firstChart.path(), "--reuse-values")
		})
	})

	It("asks for no affinity where its controller knows none, and says so", func(ctx SpecContext) {
		setAffinity := func(affinity corev1.ServiceAffinity, reason string) {
			GinkgoHelper()
			user.ChangeService(ctx, "web", func(service *corev1.Service) { service.Spec.SessionAffinity = affinity })
			Wait(ctx, func(g Gomega, ctx context.Context) {
				rules, err := user.Rules(ctx, "web")
				g.Expect(err).NotTo(HaveOccurred())
				for i := range rules {
					g.Expect(rules[i].Spec.SessionAffinity).To(BeEmpty())
					g.Expect(rules[i].Status.Ready).To(BeTrue())
				}
			}).Should(Succeed())
			user.WaitReason(ctx, "web", reason)
		}
		setAffinity(corev1.ServiceAffinityClientIP, lbservice.ReasonAffinityNotServed)
		Expect(AskAll(ctx, user.Outside(ctx), At(user.Addr, TCP(80)), 40).Who()).To(HaveLen(2), "who answers one client")
		setAffinity(corev1.ServiceAffinityNone, lbservice.ReasonProgrammed)
	})

	It("by Helm is undone by it, but for what is the user's and Kube-OVN's", func(ctx SpecContext) {
		user.withdrawn(ctx, release(ctx, "uninstall", "first"))
		Expect(since(ctx, before)).To(HaveExactElements("lease.coordination.k8s.io/" + deployed))
		unchanged(ctx)
	})

	It("by install.sh does the same, and disturbs nobody when done again", func(ctx SpecContext) {
		run := func(options ...string) string {
			GinkgoHelper()
			output, err := installScript(ctx, []string{"ENABLE_NFTABLE_LB_SVC=true"}, options...)
			Expect(err).NotTo(HaveOccurred(), output)
			return output
		}
		By("installing")
		Expect(run()).To(And(ContainSubstring("mode beside: Kube-OVN was found"), ContainSubstring("are served")))
		user.served(ctx)
		By("again")
		user.undisturbed(ctx, "install.sh again, beside", func() { run() })
		By("uninstalling")
		user.withdrawn(ctx, run("--uninstall"))
		Expect(since(ctx, before)).To(HaveExactElements("lease.coordination.k8s.io/" + deployed))
		unchanged(ctx)
	})

	It("by the second chart works as well, until it is switched off", func(ctx SpecContext) {
		release(ctx, "install", "second", slices.Concat([]string{secondChart.path()}, secondChart.on())...)
		user.served(ctx)
		By("switching it off")
		user.withdrawn(ctx, release(ctx, "upgrade", "second", secondChart.path(), "--set="+secondChart.enabled+"=false"))
		release(ctx, "uninstall", "second")
		unchanged(ctx)
	})
})
