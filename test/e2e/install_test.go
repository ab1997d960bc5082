// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/test/lab"
	"github.com/kubeovn/kube-ovn/test/lab/supervise"

	. "github.com/kubeovn/kube-ovn/test/e2e/framework"
)

// installScript runs install.sh with settings, NAME=value, and options.
func installScript(ctx context.Context, settings []string, options ...string) (string, error) {
	GinkgoHelper()
	cmd := cluster.Lab.Command(ctx, append([]string{"bash", filepath.Join(cluster.Lab.Root(), "install.sh")}, options...))
	cmd.Env = append(cmd.Env, settings...)
	output, err := cmd.CombinedOutput()
	return string(output), err
}

// manifest gives the objects of one of install.sh's manifests, as it would apply them.
func manifest(ctx context.Context, name string) []*unstructured.Unstructured {
	GinkgoHelper()
	script := fmt.Sprintf("source <(sed '$d' %s/install.sh); manifest_%s | fill", cluster.Lab.Root(), name)
	text, err := cluster.Lab.Command(ctx, []string{"bash", "-c", script}).Output()
	Expect(err).NotTo(HaveOccurred())
	decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(string(text)), 4096)
	var objects []*unstructured.Unstructured
	for {
		object := &unstructured.Unstructured{}
		if err := decoder.Decode(&object.Object); err != nil {
			Expect(err).To(MatchError("EOF"))
			Expect(objects).NotTo(BeEmpty(), name)
			return objects
		}
		if len(object.Object) > 0 {
			objects = append(objects, object)
		}
	}
}

// accounts are the kinds that say who may do what.
var accounts = map[string]string{
	"ServiceAccount": "serviceaccounts", "ClusterRole": "clusterroles", "ClusterRoleBinding": "clusterrolebindings", "Role": "roles", "RoleBinding": "rolebindings",
}

// grant makes the accounts of a manifest, and nothing else of it. They go when the spec has ended.
func grant(ctx context.Context, objects []*unstructured.Unstructured) {
	GinkgoHelper()
	for _, object := range objects {
		resource, ok := accounts[object.GetKind()]
		if !ok {
			continue
		}
		client := cluster.Dynamic.Resource(object.GroupVersionKind().GroupVersion().WithResource(resource)).Namespace(object.GetNamespace())
		_, err := client.Apply(ctx, object.GetName(), object, metav1.ApplyOptions{FieldManager: "kube-ovn-e2e", Force: true})
		Expect(err).NotTo(HaveOccurred(), "%s %s", object.GetKind(), object.GetName())
		DeferCleanup(func(ctx context.Context) {
			Expect(client.Delete(ctx, object.GetName(), metav1.DeleteOptions{})).To(Succeed())
		})
	}
}

// kubeconfigOf writes a kubeconfig as the account of a Pod would have it.
func kubeconfigOf(ctx context.Context, account string) string {
	GinkgoHelper()
	token, err := cluster.Kube.CoreV1().ServiceAccounts(SystemNamespace).CreateToken(ctx, account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	config, err := clientcmd.LoadFromFile(cluster.Lab.Kubeconfig())
	Expect(err).NotTo(HaveOccurred())
	for name := range config.AuthInfos {
		config.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	}
	path := filepath.Join(GinkgoT().TempDir(), account+".kubeconfig")
	Expect(clientcmd.WriteToFile(*config, path)).To(Succeed())
	return path
}

// argsOf are the flags of a manifest's controller, but for those that have to be others here.
func argsOf(objects []*unstructured.Unstructured) []string {
	GinkgoHelper()
	for _, object := range objects {
		if object.GetKind() != "Deployment" {
			continue
		}
		deployment := &appsv1.Deployment{}
		Expect(runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, deployment)).To(Succeed())
		return slices.DeleteFunc(deployment.Spec.Template.Spec.Containers[0].Args, func(arg string) bool { return strings.HasPrefix(arg, "--pprof-port=") })
	}
	Fail("no Deployment")
	return nil
}

// forbidden are the lines of a process's log since an offset that say that it may not do something.
func forbidden(process string, offset int64) []string {
	GinkgoHelper()
	data, err := os.ReadFile(cluster.Lab.Log(process))
	Expect(err).NotTo(HaveOccurred())
	var lines []string
	for line := range strings.Lines(string(data[min(offset, int64(len(data))):])) {
		if strings.Contains(line, "forbidden") || strings.Contains(line, "Forbidden") {
			lines = append(lines, line)
		}
	}
	return lines
}

func logSize(process string) int64 {
	info, err := os.Stat(cluster.Lab.Log(process))
	if err != nil {
		return 0 // it has not run yet
	}
	return info.Size()
}

// everyday is what an account has to be enough for: Services and rules that come, change and go, a gateway of one pod
// and one of two, a conflict with its event, addresses that are asked for, pods that are replaced.
func everyday(ctx context.Context) {
	GinkgoHelper()
	b := newBalancer(ctx, 2, TCP(80), UDP(53))
	b.Scale(ctx, "web", 3)
	b.Settle(ctx, 3)
	b.ChangeService(ctx, "web", func(service *corev1.Service) { service.Spec.SessionAffinity = corev1.ServiceAffinityClientIP })
	Wait(ctx, func(g Gomega, ctx context.Context) {
		rules, err := b.Rules(ctx, "web")
		g.Expect(err).NotTo(HaveOccurred())
		for _, rule := range rules {
			g.Expect(rule.Spec.SessionAffinity).To(Equal("ClientIP"))
			g.Expect(rule.Status.Ready).To(BeTrue())
		}
	}).Should(Succeed())
	b.Service(ctx, "zzz", b.EIP, []corev1.ServicePort{TCP(80)}, Selecting("web"))
	b.WaitReason(ctx, "zzz", "PortConflict")
	Wait(ctx, func(ctx context.Context) ([]string, error) {
		events, err := b.Kube.EventsV1().Events(b.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		var reasons []string
		for i := range events.Items {
			reasons = append(reasons, events.Items[i].Reason)
		}
		return reasons, nil
	}).Should(ContainElement("NftableLbSvcConflict"))
	b.Rule(ctx, "ssh", exclusiveRule(b.EIP, 22, b.Backends()[0]))
	b.WaitRule(ctx, b.Name+"-ssh")

	old := b.Gateway.UID
	Expect(b.Kube.CoreV1().Pods(b.Gateway.Namespace).Delete(ctx, b.Gateway.Name, metav1.DeleteOptions{})).To(Succeed())
	Wait(ctx, func(ctx context.Context) (types.UID, error) {
		pod, err := b.Kube.CoreV1().Pods(b.Gateway.Namespace).Get(ctx, b.Gateway.Name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		return pod.UID, nil
	}).ShouldNot(Equal(old))

	By("a gateway of two pods: a Deployment in the StatefulSet's place")
	_, err := b.KubeOvn.KubeovnV1().VpcNatGateways().Patch(ctx, b.Net.Name, types.MergePatchType, []byte(`{"spec":{"replicas":2}}`), metav1.PatchOptions{})
	Expect(err).NotTo(HaveOccurred())
	Wait(ctx, func(g Gomega, ctx context.Context) {
		_, err := b.Kube.AppsV1().Deployments(SystemNamespace).Get(ctx, "vpc-nat-gw-"+b.Net.Name, metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		sets, err := b.Kube.AppsV1().StatefulSets(SystemNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app=vpc-nat-gw-" + b.Net.Name})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(sets.Items).To(BeEmpty())
	}).Should(Succeed())

	By("and back again")
	_, err = b.KubeOvn.KubeovnV1().VpcNatGateways().Patch(ctx, b.Net.Name, types.MergePatchType, []byte(`{"spec":{"replicas":1}}`), metav1.PatchOptions{})
	Expect(err).NotTo(HaveOccurred())
	Wait(ctx, func(ctx context.Context) error {
		_, err := b.Kube.AppsV1().Deployments(SystemNamespace).Get(ctx, "vpc-nat-gw-"+b.Net.Name, metav1.GetOptions{})
		return err
	}).Should(MatchError(apierrors.IsNotFound, "NotFound"))

	By("an image that is not there, and the right one again")
	images := b.Kube.CoreV1().ConfigMaps(SystemNamespace)
	config, err := images.Get(ctx, "ovn-vpc-nat-config", metav1.GetOptions{})
	Expect(err).NotTo(HaveOccurred())
	setImage := func(ctx context.Context, image string) {
		GinkgoHelper()
		patch := fmt.Appendf(nil, `{"data":{"image":%q}}`, image)
		_, err := images.Patch(ctx, config.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		Expect(err).NotTo(HaveOccurred())
	}
	DeferCleanup(setImage, config.Data["image"])
	setImage(ctx, "docker.io/kubeovn/nothing:v0")
	Wait(ctx, func(g Gomega, ctx context.Context) {
		// By its name: for a moment, pods of the Deployment are there as well.
		pod, err := b.Kube.CoreV1().Pods(SystemNamespace).Get(ctx, "vpc-nat-gw-"+b.Net.Name+"-0", metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(pod.Status.ContainerStatuses).NotTo(BeEmpty())
		waiting := pod.Status.ContainerStatuses[0].State.Waiting
		g.Expect(waiting).NotTo(BeNil(), "pod %s should wait for its image", pod.Name)
		g.Expect(waiting.Reason).To(ContainSubstring("ImagePull"))
	}).Should(Succeed())
	setImage(ctx, config.Data["image"])
	b.GatewayPod(ctx, b.Net.Name)

	for _, name := range []string{"zzz", "web"} {
		Expect(b.Kube.CoreV1().Services(b.Namespace).Delete(ctx, name, metav1.DeleteOptions{})).To(Succeed())
	}
	b.WaitRules(ctx, "web", nil)
}

var _ = Describe("Installing", Serial, Lab, func() {
	DescribeTable("makes objects that the API server accepts, each of them", func(ctx SpecContext, settings ...string) {
		output, err := installScript(ctx, settings, "--dry-run")
		Expect(err).NotTo(HaveOccurred(), output)
		Expect(output).To(ContainSubstring("serverside-applied (server dry run)"))
	},
		Entry("beside", "MODE=beside", "ENABLE_NFTABLE_LB_SVC=true", "ENABLE_WEBHOOK=true", "REPLICAS=1"),
		Entry("alone", "MODE=alone", "ENABLE_NFTABLE_LB_SVC=true", "ENABLE_WEBHOOK=true"),
		Entry("alone, the gateways only", "MODE=alone"),
	)

	It("finds that Kube-OVN is there", func(ctx SpecContext) {
		output, err := installScript(ctx, []string{"ENABLE_NFTABLE_LB_SVC=true"}, "--dry-run")
		Expect(err).NotTo(HaveOccurred(), output)
		Expect(output).To(ContainSubstring("mode beside: Kube-OVN was found"))
		Expect(output).NotTo(ContainSubstring("customresourcedefinition"))
		Expect(output).NotTo(ContainSubstring("configmap"))
	})

	It("refuses where another controller serves the same Services, and says how to switch one of the two off", func(ctx SpecContext) {
		const (
			who    = "Deployment kube-system/kube-ovn-controller "
			serves = "): switch it off there with --enable-nftable-lb-svc=false, or here with ENABLE_NFTABLE_LB_SVC=false"
			may    = who + "may serve the same Services (v1.18.0 is newer than v1.17: releases after it may serve them by default, " +
				"and nothing says whether this one does): set --enable-nftable-lb-svc=false there, or STOCK_SERVES=no here"
		)
		tell := stockController(ctx)
		// All cases of the rule are in the tests of the charts.
		for _, tc := range []struct{ args, known, complaint string }{
			{"", "auto", may},
			{"", "yes", who + "serves the same Services already (STOCK_SERVES=yes" + serves},
			{"--enable-nftable-lb-svc=true", "no", who + "serves the same Services already (--enable-nftable-lb-svc=true" + serves},
			{"--enable-nftable-lb-svc=false", "auto", ""},
			{"", "no", ""},
		} {
			tell(ctx, strings.Fields(tc.args)...)
			output, err := installScript(ctx, []string{"ENABLE_NFTABLE_LB_SVC=true", "STOCK_SERVES=" + tc.known}, "--dry-run")
			if tc.complaint == "" {
				Expect(err).NotTo(HaveOccurred(), output)
				continue
			}
			Expect(err).To(HaveOccurred(), output)
			Expect(output).To(HaveSuffix("error: " + tc.complaint + "\n"))
		}
	})

	It("ends with one clear line on a bad setting", func(ctx SpecContext) {
		for setting, complaint := range map[string]string{
			"MODE=both": "MODE", "REPLICAS=0": "REPLICAS", "NAMESPACE=Kube": "NAMESPACE", "REGISTRY=a b": "REGISTRY", "VERSION=v1|": "VERSION",
			"ENABLE_NFTABLE_LB_SVC=yes": "ENABLE_NFTABLE_LB_SVC", "STOCK_SERVES=perhaps": "STOCK_SERVES",
			"NAT_GW_HANDLER_ABILITIES=affinity,flying": "NAT_GW_HANDLER_ABILITIES", "NAMESPACE=nowhere": "namespace nowhere", "KUBECONFIG=/nowhere": "KUBECONFIG",
		} {
			output, err := installScript(ctx, []string{setting})
			Expect(err).To(HaveOccurred(), setting)
			Expect(strings.TrimSpace(output)).To(And(HavePrefix("error: "), ContainSubstring(complaint), Not(ContainSubstring("\n"))))
		}
	})

	It("gives the controller all that it may do, alone", func(ctx SpecContext) {
		objects := manifest(ctx, "alone")
		grant(ctx, objects)
		offset, audited := logSize(lab.Controller), logSize(lab.AuditLog)
		cluster.StopController(ctx)
		forgetLease(ctx, lab.Controller)
		cluster.RestartController(ctx, slices.Concat(argsOf(objects), patientLease, []string{"--kubeconfig=" + kubeconfigOf(ctx, "kube-ovn-nftable-lb")})...)
		everyday(ctx)
		Expect(forbidden(lab.Controller, offset)).To(BeEmpty())
		Expect(unused(objects, "kube-ovn-nftable-lb", audited)).To(BeEmpty())
	})

	It("gives the controller all that it may do, beside one that runs the gateways", func(ctx SpecContext) {
		const beside = "kube-ovn-nftable-lb"
		objects := manifest(ctx, "beside")
		grant(ctx, objects)
		audited := logSize(lab.AuditLog)
		cluster.RestartController(ctx, "--enable-nftable-lb-svc=false")
		forgetLease(ctx, beside)
		DeferCleanup(func(ctx context.Context) {
			Expect(cluster.Lab.Processes().Stop(ctx, beside, 10*time.Second)).To(Succeed())
		})
		// Who runs the gateways is not Kube-OVN's controller here, by whose Deployment it would be known what it does.
		own := []string{"--kubeconfig=" + kubeconfigOf(ctx, beside), "--nat-gw-handler-abilities=all"}
		Expect(cluster.Lab.StartController(ctx, lab.ControllerOptions{
			Name: beside, Port: lab.ControllerPort + 2, Args: slices.Concat(argsOf(objects), patientLease, own),
		})).To(Succeed())
		everyday(ctx)
		Expect(forbidden(beside, 0)).To(BeEmpty())
		Expect(unused(objects, beside, audited)).To(BeEmpty())
	})

	It("gives the webhook all that it may do, and stops nobody when it is dead", func(ctx SpecContext) {
		const name = "kube-ovn-webhook"
		objects := manifest(ctx, "webhook_beside")
		grant(ctx, objects)
		audited := logSize(lab.AuditLog)
		configurations := cluster.Kube.AdmissionregistrationV1().ValidatingWebhookConfigurations()
		resource := cluster.Dynamic.Resource(schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingwebhookconfigurations"})
		for _, object := range objects {
			if object.GetKind() == "ValidatingWebhookConfiguration" {
				_, err := resource.Apply(ctx, name, object, metav1.ApplyOptions{FieldManager: "kube-ovn-e2e", Force: true})
				Expect(err).NotTo(HaveOccurred())
			}
		}
		DeferCleanup(func(ctx context.Context) {
			Expect(configurations.Delete(ctx, name, metav1.DeleteOptions{})).To(Succeed())
			Expect(cluster.Kube.CoreV1().Secrets(SystemNamespace).Delete(ctx, name+"-ca", metav1.DeleteOptions{})).To(Succeed())
		})

		By("nobody is there")
		everyday(ctx)

		By("somebody is there")
		Expect(cluster.Lab.Processes().Start(ctx, supervise.Spec{
			Name: name, Path: filepath.Join(filepath.Dir(cluster.ControllerPath()), name),
			Args: append(argsOf(objects), "--kubeconfig="+kubeconfigOf(ctx, name)),
			Env:  []string{"POD_NAMESPACE=" + SystemNamespace},
		})).To(Succeed())
		DeferCleanup(func(ctx context.Context) {
			Expect(cluster.Lab.Processes().Stop(ctx, name, 10*time.Second)).To(Succeed())
		})
		Expect(cluster.Lab.WaitHTTP(ctx, name, "http://127.0.0.1:8080/readyz")).To(Succeed())
		Wait(ctx, func(g Gomega, ctx context.Context) {
			configuration, err := configurations.Get(ctx, name, metav1.GetOptions{})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(configuration.Webhooks).To(HaveLen(5))
			for i := range configuration.Webhooks {
				g.Expect(configuration.Webhooks[i].ClientConfig.CABundle).NotTo(BeEmpty())
			}
		}).Should(Succeed())
		lead(ctx, name, 443, 8443)
		doubts(ctx)
		Expect(forbidden(name, 0)).To(BeEmpty())
		Expect(unused(objects, name, audited)).To(BeEmpty())
	})

	It("takes back what was published, and leaves what users made", func(ctx SpecContext) {
		objects := manifest(ctx, "job_withdraw")
		grant(ctx, objects)
		audited, serving := logSize(lab.AuditLog), installedController(ctx)
		b := newBalancer(ctx, 2, TCP(80))
		b.Rule(ctx, "ssh", exclusiveRule(b.EIP, 22, b.Backends()[0]))
		b.WaitRule(ctx, b.Name+"-ssh")
		b.RestartController(ctx, "--enable-nftable-lb-svc=false") // as the Job has it restarted

		output, err := setup(ctx, "withdraw", kubeconfigOf(ctx, "kube-ovn-nftable-lb-setup-withdraw"), "--deployment="+SystemNamespace+"/kube-ovn-nftable-lb")
		Expect(err).NotTo(HaveOccurred(), output)
		Expect(output).To(ContainSubstring("Service " + b.Namespace + "/web: taking back its EXTERNAL-IP and conditions"))
		Expect(serving(ctx)).To(Equal([]string{"--enable-nftable-lb-svc=false"}))
		Expect(unused(objects, "kube-ovn-nftable-lb-setup-withdraw", audited)).To(BeEmpty())
		Expect(b.GetService(ctx, "web").Status).To(Equal(corev1.ServiceStatus{}))
		Expect(b.Rules(ctx, "web")).To(BeEmpty())
		b.WaitHolds(ctx, b.Gateway, b.Addr)
		_, err = b.KubeOvn.KubeovnV1().IptablesDnatRules().Get(ctx, b.Name+"-ssh", metav1.GetOptions{})
		Expect(err).NotTo(HaveOccurred())

		By("installing it again")
		b.RestartController(ctx)
		b.Settle(ctx, 2)
	})

	It("gives Kube-OVN's CRD the two fields it lacks, and changes nothing else of it", func(ctx SpecContext) {
		objects := manifest(ctx, "job_crd")
		grant(ctx, objects)
		audited := logSize(lab.AuditLog)
		crds := cluster.Dynamic.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
		const name = "iptables-dnat-rules.kubeovn.io"
		spec := func() map[string]any {
			GinkgoHelper()
			crd, err := crds.Get(ctx, name, metav1.GetOptions{})
			Expect(err).NotTo(HaveOccurred())
			return crd.Object["spec"].(map[string]any)
		}
		want := spec()
		const properties = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/"
		_, err := crds.Patch(ctx, name, types.JSONPatchType,
			[]byte(`[{"op":"remove","path":"`+properties+`sessionAffinity"},{"op":"remove","path":"`+properties+`sessionAffinityTimeoutSeconds"}]`), metav1.PatchOptions{})
		Expect(err).NotTo(HaveOccurred())

		kubeconfig := kubeconfigOf(ctx, "kube-ovn-nftable-lb-setup-crd")
		output, err := setup(ctx, "crd", kubeconfig)
		Expect(err).NotTo(HaveOccurred(), output)
		Expect(output).To(ContainSubstring("added v1.spec.sessionAffinity, v1.spec.sessionAffinityTimeoutSeconds"))
		Expect(spec()).To(Equal(want))
		output, err = setup(ctx, "crd", kubeconfig)
		Expect(err).NotTo(HaveOccurred(), output)
		Expect(output).To(ContainSubstring("has the fields already"))
		Expect(unused(objects, "kube-ovn-nftable-lb-setup-crd", audited)).To(BeEmpty())

		By("a rule with the fields")
		rule := &kubeovnv1.IptablesDnatRule{ObjectMeta: metav1.ObjectMeta{GenerateName: "fields-"}, Spec: kubeovnv1.IptablesDnatRuleSpec{Type: "share", SessionAffinity: "ClientIP"}}
		Wait(ctx, func(g Gomega, ctx context.Context) {
			made, err := cluster.KubeOvn.KubeovnV1().IptablesDnatRules().Create(ctx, rule, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(made.Spec.SessionAffinity).To(BeEquivalentTo("ClientIP"))
		}).Should(Succeed())
	})
})

// patientLease is one that is not lost on a machine that has much else to do: these specs are about permissions.
var patientLease = []string{"--leader-elect-lease-duration=60s", "--leader-elect-renew-deadline=50s"}

// setup runs kube-ovn-setup, which is built beside the controller.
func setup(ctx context.Context, task, kubeconfig string, args ...string) (string, error) {
	GinkgoHelper()
	path := filepath.Join(filepath.Dir(cluster.ControllerPath()), "kube-ovn-setup")
	output, err := cluster.Lab.Command(ctx, append([]string{path, task, "--kubeconfig=" + kubeconfig, "--timeout=1m"}, args...)).CombinedOutput()
	return string(output), err
}
