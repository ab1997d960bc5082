// SPDX-License-Identifier: Apache-2.0

package charts

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"helm.sh/helm/v4/pkg/chart/common/util"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	sigsyaml "sigs.k8s.io/yaml"
)

const (
	stockCRD  = "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: iptables-dnat-rules.kubeovn.io}}"
	ownCRD    = `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: iptables-dnat-rules.kubeovn.io, annotations: {kubeovn.io/installed-by: kube-ovn-nftable-lb}}}`
	ownImage  = `{apiVersion: v1, kind: ConfigMap, metadata: {name: ovn-vpc-nat-config, namespace: kube-system, annotations: {meta.helm.sh/release-name: lb, meta.helm.sh/release-namespace: kube-system}}}`
	userImage = `{apiVersion: v1, kind: ConfigMap, metadata: {name: ovn-vpc-nat-config, namespace: kube-system}}`
)

func stockController(image string, args ...string) string {
	return "{apiVersion: apps/v1, kind: Deployment, metadata: {name: kube-ovn-controller, namespace: kube-system}, spec: {template: {spec: {containers: [{name: kube-ovn-controller, image: '" +
		image + "', args: [" + strings.Join(args, ",") + "]}]}}}}"
}

var (
	controller = []string{
		"ClusterRole//kube-ovn-nftable-lb", "ClusterRoleBinding//kube-ovn-nftable-lb",
		"Deployment/kube-system/kube-ovn-nftable-lb", "PodDisruptionBudget/kube-system/kube-ovn-nftable-lb",
		"Role/kube-system/kube-ovn-nftable-lb", "RoleBinding/kube-system/kube-ovn-nftable-lb", "ServiceAccount/kube-system/kube-ovn-nftable-lb",
	}
	gatewayConfig = []string{"ConfigMap/kube-system/ovn-vpc-nat-config", "ConfigMap/kube-system/ovn-vpc-nat-gw-config"}
	before        = map[string]string{"kube-ovn-nftable-lb-setup-crd": "pre-install,pre-upgrade", "kube-ovn-nftable-lb-setup-withdraw": "pre-delete"}
	after         = map[string]string{"kube-ovn-nftable-lb-setup-withdraw": "pre-delete"}
	off           = map[string]string{"kube-ovn-nftable-lb-setup-withdraw": "post-upgrade"}
)

func TestMain(m *testing.M) {
	// Helm tells at every loading that the library is a link.
	slog.SetLogLoggerLevel(slog.LevelWarn)
	os.Exit(m.Run())
}

func TestWhatIsInstalled(t *testing.T) {
	for _, l := range layouts {
		t.Run(l.chart, func(t *testing.T) {
			for _, tc := range []struct {
				name      string
				values    map[string]any
				upgrade   bool
				cluster   []string // nil: none to look at
				want      []string
				wantHooks map[string]string
				wantCRDs  int
				wantNotes string
			}{
				{name: "beside, switched off: nothing", cluster: []string{stockCRD}, wantNotes: "are not served"},
				{
					name: "beside, switched on", values: set(l.enabled, true), cluster: []string{stockCRD},
					want: controller, wantHooks: before, wantNotes: "beside Kube-OVN, which was found",
				},
				{name: "beside, load balancing switched off as a whole", values: set(l.enabled, true, l.lb, false), cluster: []string{stockCRD}},
				{
					name: "beside, switched off later", upgrade: true, cluster: []string{stockCRD}, wantHooks: off,
				},
				{name: "beside, switched off for a handover", values: set(l.withdraw, false), upgrade: true, cluster: []string{stockCRD}},
				{
					name: "alone", values: set(l.enabled, true), cluster: []string{},
					want: slices.Concat(controller, gatewayConfig), wantHooks: after, wantCRDs: 6, wantNotes: "alone, as no Kube-OVN was found",
				},
				{name: "alone, switched off: the gateways", cluster: []string{}, want: slices.Concat(controller, gatewayConfig), wantCRDs: 6},
				{
					name: "alone, upgraded", values: set(l.enabled, true), upgrade: true, cluster: []string{ownCRD, ownImage},
					want: slices.Concat(controller, gatewayConfig), wantHooks: after, wantCRDs: 6, wantNotes: "alone, as no Kube-OVN was found",
				},
				{
					name: "alone, with a ConfigMap that the user made", values: set(l.enabled, true), cluster: []string{userImage},
					want: slices.Concat(controller, gatewayConfig[1:]), wantHooks: after, wantCRDs: 6,
				},
				{name: "no cluster to look at", values: set(l.enabled, true), want: controller, wantHooks: before},
				{
					name: "alone, as the user says", values: set(l.enabled, true, l.mode, "alone"), cluster: []string{stockCRD},
					want: slices.Concat(controller, gatewayConfig), wantHooks: after, wantCRDs: 6, wantNotes: "Installed alone:",
				},
				{name: "beside, as the user says", values: set(l.enabled, true, l.mode, "beside"), cluster: []string{ownCRD}, want: controller, wantHooks: before},
				{
					name: "one replica is not kept from being evicted", values: set(l.enabled, true, l.replicas, int64(1)), cluster: []string{stockCRD},
					want: slices.DeleteFunc(slices.Clone(controller), func(s string) bool { return strings.HasPrefix(s, "PodDisruption") }), wantHooks: before,
				},
				{
					name: "gateways in other namespaces", values: set(l.enabled, true, l.namespaces, []any{"edge", "kube-system"}), cluster: []string{},
					want: slices.Concat(controller, gatewayConfig, []string{"Role/edge/kube-ovn-nftable-lb", "RoleBinding/edge/kube-ovn-nftable-lb"}), wantHooks: after, wantCRDs: 6,
				},
			} {
				t.Run(tc.name, func(t *testing.T) {
					r := request{values: tc.values, upgrade: tc.upgrade}
					if tc.cluster != nil {
						r.cluster = cluster(t, tc.cluster...)
					}
					got := mustRender(t, l.chart, r)
					want := slices.Sorted(slices.Values(tc.want))
					if diff := gocmp.Diff(want, got.names()); diff != "" {
						t.Errorf("objects (-want +got):\n%s", diff)
					}
					if diff := gocmp.Diff(orEmpty(tc.wantHooks), got.hooks()); diff != "" {
						t.Errorf("hooks (-want +got):\n%s", diff)
					}
					if len(got.crds()) != tc.wantCRDs {
						t.Errorf("CRDs %v, want %d", got.crds(), tc.wantCRDs)
					}
					if !strings.Contains(got.notes, tc.wantNotes) {
						t.Errorf("the notes do not say %q:\n%s", tc.wantNotes, got.notes)
					}
				})
			}
		})
	}
}

func orEmpty(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}

// Kube-OVN's gateways are told to take its own image with this project's script laid over it, and how; in mode alone the complete one is set.
func TestGatewayImage(t *testing.T) {
	for _, l := range layouts {
		t.Run(l.chart, func(t *testing.T) {
			version := load(t, l.chart).AppVersion()
			beside := mustRender(t, l.chart, request{values: set(l.enabled, true, l.mode, "beside")})
			image := "docker.io/kubeovn/vpc-nat-gateway-beside:" + version
			for _, want := range []string{
				`kubectl -n kube-system patch configmap ovn-vpc-nat-config --type=merge -p '{"data":{"image":"` + image + `"}}'`,
				"kubectl -n kube-system set image statefulset/vpc-nat-gw-GATEWAY vpc-nat-gw=" + image,
				"kubectl -n kube-system rollout status statefulset/vpc-nat-gw-GATEWAY",
			} {
				if !strings.Contains(beside.notes, "\n  "+want+"\n") {
					t.Errorf("the notes do not say %s:\n%s", want, beside.notes)
				}
			}
			for want, values := range map[string]map[string]any{
				"docker.io/kubeovn/vpc-nat-gateway-alone:" + version: set(l.mode, "alone"),
				"docker.io/kubeovn/mine:" + version:                  set(l.mode, "alone", l.gatewayRepository, "mine"),
			} {
				alone := mustRender(t, l.chart, request{values: values})
				got, _, err := unstructured.NestedString(alone.objects["ConfigMap/kube-system/ovn-vpc-nat-config"].Object, "data", "image")
				if err != nil || got != want {
					t.Errorf("image %q, %v; want %q", got, err, want)
				}
				if strings.Contains(alone.notes, "set image") {
					t.Errorf("the notes tell to set an image that is set:\n%s", alone.notes)
				}
			}
		})
	}
}

func TestRefusesToServeTwice(t *testing.T) {
	newer := stockController("docker.io/kubeovn/kube-ovn:v1.18.0")
	for _, l := range layouts {
		t.Run(l.chart, func(t *testing.T) {
			for _, tc := range []struct {
				name, controller string
				values           map[string]any
				want             string
			}{
				{
					name:       "what runs beside it does not count",
					controller: strings.Replace(stockController("kube-ovn:v1.17.0"), "containers: [", "containers: [{name: proxy, image: 'proxy:v2.0.0', args: [--enable-nftable-lb-svc]}, ", 1),
					values:     set(l.enabled, true),
				},
				{name: "switched off here", controller: newer, values: set(l.enabled, false)},
				{name: "a no that YAML takes for a boolean", controller: newer, values: set(l.enabled, true, "stockServes", false)},
				{name: "a yes that YAML takes for a boolean", controller: newer, values: set(l.enabled, true, "stockServes", true), want: "(stockServes=yes)"},
				{name: "something else", values: set(l.enabled, true, "stockServes", "perhaps"), want: "'auto', 'yes', 'no'"},
			} {
				t.Run(tc.name, func(t *testing.T) {
					objects := []string{stockCRD}
					if tc.controller != "" {
						objects = append(objects, tc.controller)
					}
					_, err := render(t, l.chart, request{values: tc.values, cluster: cluster(t, objects...)})
					switch {
					case tc.want == "" && err != nil:
						t.Fatal(err)
					case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
						t.Errorf("error %v, want one with %q", err, tc.want)
					}
				})
			}
		})
	}
}

func TestRefusesWhatCannotWork(t *testing.T) {
	for _, l := range layouts {
		t.Run(l.chart, func(t *testing.T) {
			for _, tc := range []struct {
				name    string
				values  map[string]any
				cluster []string
				want    string
			}{
				{
					name: "beside no Kube-OVN", values: set(l.enabled, true, l.mode, "beside"), cluster: []string{},
					want: "there is no CRD iptables-dnat-rules.kubeovn.io: install Kube-OVN first, or install with --set " + l.mode + "=alone",
				},
				{
					name: "beside an old one", values: set(l.enabled, true), cluster: []string{stockCRD, stockController("kube-ovn:v1.16.2")},
					want: "kube-ovn-controller is of Kube-OVN 1.16.2, whose gateways do not know share rules: upgrade it to v1.17",
				},
				{name: "beside a candidate", values: set(l.enabled, true), cluster: []string{stockCRD, stockController("kube-ovn:v1.17.0-rc.1")}},
			} {
				t.Run(tc.name, func(t *testing.T) {
					_, err := render(t, l.chart, request{values: tc.values, cluster: cluster(t, tc.cluster...)})
					if (err != nil) != (tc.want != "") || err != nil && !strings.Contains(err.Error(), tc.want) {
						t.Errorf("error %v, want %q", err, tc.want)
					}
				})
			}
		})
	}
}

func TestSchemaRefuses(t *testing.T) {
	for _, l := range layouts {
		t.Run(l.chart, func(t *testing.T) {
			for name, values := range map[string]map[string]any{
				"a misspelt value":          set("installmode", "alone"),
				"a misspelt feature":        set(l.enabled+"S", true),
				"a mode there is not":       set(l.mode, "both"),
				"a word for a boolean":      set(l.enabled, "yes"),
				"no replicas":               set(l.replicas, int64(0)),
				"a namespace with capitals": set(l.namespaces, []any{"Edge"}),
			} {
				t.Run(name, func(t *testing.T) {
					if _, err := render(t, l.chart, request{values: values}); err == nil {
						t.Error("no error")
					}
				})
			}
		})
	}
}

func TestWebhook(t *testing.T) {
	for _, l := range layouts {
		t.Run(l.chart, func(t *testing.T) {
			own := []string{
				"ClusterRole//kube-ovn-webhook", "ClusterRoleBinding//kube-ovn-webhook", "Deployment/kube-system/kube-ovn-webhook",
				"NetworkPolicy/kube-system/kube-ovn-webhook", "PodDisruptionBudget/kube-system/kube-ovn-webhook", "Service/kube-system/kube-ovn-webhook",
				"ServiceAccount/kube-system/kube-ovn-webhook", "ValidatingWebhookConfiguration//kube-ovn-webhook",
			}
			reads := []string{
				"get kubeovn.io/iptables-dnat-rules", "get kubeovn.io/iptables-eips", "get kubeovn.io/iptables-fip-rules", "get kubeovn.io/vpc-nat-gateways",
				"list core/services", "list kubeovn.io/iptables-dnat-rules", "list kubeovn.io/iptables-eips", "list kubeovn.io/iptables-fip-rules", "list kubeovn.io/vpc-nat-gateways",
				"watch core/services", "watch kubeovn.io/iptables-dnat-rules", "watch kubeovn.io/iptables-eips", "watch kubeovn.io/iptables-fip-rules", "watch kubeovn.io/vpc-nat-gateways",
			}
			const configuration = " admissionregistration.k8s.io/validatingwebhookconfigurations/kube-ovn-webhook!"
			const secret = " core/secrets/kube-ovn-webhook-ca!"
			for _, tc := range []struct {
				name     string
				values   map[string]any
				cluster  []string
				want     []string
				wantArgs []string
				wantMay  []string
				wantOwn  []string
			}{
				{
					name: "its own certificate, beside", values: set("webhook.enabled", true), cluster: []string{stockCRD},
					want: slices.Concat(own, []string{"Role/kube-system/kube-ovn-webhook", "RoleBinding/kube-system/kube-ovn-webhook"}),
					wantArgs: []string{
						"--controller-username=system:serviceaccount:kube-system:kube-ovn-nftable-lb", "--controller-username=system:serviceaccount:kube-system:ovn",
						"--webhook-configuration=kube-ovn-webhook", "--cert-secret-name=kube-ovn-webhook-ca", "--tls-min-version=VersionTLS12",
					},
					wantMay: slices.Concat(reads, []string{"get" + configuration, "list" + configuration, "patch" + configuration, "watch" + configuration}),
					wantOwn: []string{"create core/secrets", "get" + secret, "list" + secret, "update" + secret, "watch" + secret},
				},
				{
					name: "cert-manager's certificate", values: set("webhook.enabled", true, "webhook.certManager", true, "webhook.tlsMinVersion", "VersionTLS13"), cluster: []string{stockCRD},
					want:     slices.Concat(own, []string{"Certificate/kube-system/kube-ovn-webhook", "Issuer/kube-system/kube-ovn-webhook"}),
					wantArgs: []string{"--webhook-configuration=", "--tls-cert-file=/etc/kube-ovn-webhook/tls.crt", "--tls-private-key-file=/etc/kube-ovn-webhook/tls.key", "--tls-min-version=VersionTLS13"},
					wantMay:  reads,
				},
			} {
				t.Run(tc.name, func(t *testing.T) {
					out := mustRender(t, l.chart, request{values: tc.values, cluster: cluster(t, tc.cluster...)})
					if diff := gocmp.Diff(unique(tc.want), out.names()); diff != "" {
						t.Errorf("objects (-want +got):\n%s", diff)
					}
					args := podSpecs(t, out.sorted())["kube-ovn-webhook"].Containers[0].Args
					for _, want := range tc.wantArgs {
						if !slices.Contains(args, want) {
							t.Errorf("arguments %v, want %s", args, want)
						}
					}
					for key, want := range map[string][]string{"ClusterRole//kube-ovn-webhook": tc.wantMay, "Role/kube-system/kube-ovn-webhook": tc.wantOwn} {
						if diff := gocmp.Diff(unique(want), verbs(t, out.objects[key])); diff != "" {
							t.Errorf("%s (-want +got):\n%s", key, diff)
						}
					}
					hooks, _, err := unstructured.NestedSlice(out.objects["ValidatingWebhookConfiguration//kube-ovn-webhook"].Object, "webhooks")
					if err != nil || len(hooks) != 5 {
						t.Fatalf("%d webhooks, %v", len(hooks), err)
					}
					for _, hook := range hooks {
						h := hook.(map[string]any)
						if h["failurePolicy"] != "Ignore" || fmt.Sprint(h["timeoutSeconds"]) != "3" {
							t.Errorf("%s: a dead webhook holds the cluster up: %v, %v s", h["name"], h["failurePolicy"], h["timeoutSeconds"])
						}
					}
				})
			}
		})
	}
}

// known are the types that objects are held against, besides those of client-go's scheme.
func known(t *testing.T) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, apiextensionsv1.AddToScheme} {
		if err := add(s); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// everything renders all there is in both charts.
func everything(t *testing.T, l layout) []*unstructured.Unstructured {
	t.Helper()
	on := set(l.enabled, true, l.namespaces, []any{"edge"}, "webhook.enabled", true)
	var out []*unstructured.Unstructured
	for _, r := range []request{
		{values: on, cluster: cluster(t)}, {values: on, cluster: cluster(t, stockCRD)}, {upgrade: true, cluster: cluster(t, stockCRD)},
	} {
		out = append(out, mustRender(t, l.chart, r).sorted()...)
	}
	return out
}

func TestEveryFieldIsKnown(t *testing.T) {
	s := known(t)
	for _, l := range layouts {
		t.Run(l.chart, func(t *testing.T) {
			for _, object := range everything(t, l) {
				text, err := sigsyaml.Marshal(object.Object)
				if err != nil {
					t.Fatal(err)
				}
				typed, err := s.New(object.GroupVersionKind())
				if err != nil {
					t.Errorf("%s %s: %v", object.GetKind(), object.GetName(), err)
					continue
				}
				if err := sigsyaml.UnmarshalStrict(text, typed); err != nil {
					t.Errorf("%s %s: %v", object.GetKind(), object.GetName(), err)
				}
			}
		})
	}
}

// podSpecs are those of Deployments and Jobs.
func podSpecs(t *testing.T, objects []*unstructured.Unstructured) map[string]*corev1.PodSpec {
	t.Helper()
	out := map[string]*corev1.PodSpec{}
	for _, object := range objects {
		var err error
		switch object.GetKind() {
		case "Deployment":
			d := &appsv1.Deployment{}
			err = runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, d)
			out[object.GetName()] = &d.Spec.Template.Spec
		case "Job":
			j := &batchv1.Job{}
			err = runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, j)
			out[object.GetName()] = &j.Spec.Template.Spec
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func TestPodsAreRestricted(t *testing.T) {
	for _, l := range layouts {
		t.Run(l.chart, func(t *testing.T) {
			specs := podSpecs(t, everything(t, l))
			if len(specs) < 3 {
				t.Fatalf("Pods of %d kinds", len(specs))
			}
			for name, spec := range specs {
				pod := spec.SecurityContext
				if pod == nil || pod.RunAsNonRoot == nil || !*pod.RunAsNonRoot || pod.SeccompProfile == nil || pod.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
					t.Errorf("%s: security context %v", name, pod)
				}
				if spec.HostNetwork || spec.HostPID || spec.HostIPC || len(spec.Volumes) > 0 {
					t.Errorf("%s: shares something with its node", name)
				}
				for _, c := range spec.Containers {
					sc := c.SecurityContext
					if sc == nil || sc.ReadOnlyRootFilesystem == nil || !*sc.ReadOnlyRootFilesystem || sc.AllowPrivilegeEscalation == nil || *sc.AllowPrivilegeEscalation ||
						sc.Capabilities == nil || !slices.Equal(sc.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(sc.Capabilities.Add) > 0 {
						t.Errorf("%s: security context %v", name, sc)
					}
					if c.Resources.Requests.Cpu().IsZero() || c.Resources.Requests.Memory().IsZero() || c.Resources.Limits.Memory().IsZero() {
						t.Errorf("%s: resources %v", name, c.Resources)
					}
				}
			}
			d := specs["kube-ovn-nftable-lb"]
			c := d.Containers[0]
			if c.LivenessProbe == nil || c.ReadinessProbe == nil || c.StartupProbe == nil || d.PriorityClassName == "" || d.Affinity == nil || d.Affinity.PodAntiAffinity == nil {
				t.Errorf("the controller lacks a probe, a priority or affinity: %+v", d)
			}
		})
	}
}

func TestFlags(t *testing.T) {
	for _, l := range layouts {
		t.Run(l.chart, func(t *testing.T) {
			for _, tc := range []struct {
				name    string
				values  map[string]any
				cluster []string
				want    []string
			}{
				{"beside", set(l.enabled, true), []string{stockCRD}, []string{"--enable-nftable-lb-svc=true", "--enable-nat-gw-handler=false", "--leader-elect-resource-name=kube-ovn-nftable-lb"}},
				{"alone", set(l.enabled, true), nil, []string{"--enable-nftable-lb-svc=true", "--enable-nat-gw-handler=true", "--leader-elect-resource-name=kube-ovn-controller"}},
				{"alone, switched off", nil, nil, []string{"--enable-nftable-lb-svc=false", "--enable-nat-gw-handler=true"}},
				{"beside, with the gateways", set(l.enabled, true, l.handler, true), []string{stockCRD}, []string{"--enable-nat-gw-handler=true", "--leader-elect-resource-name=kube-ovn-nftable-lb"}},
				{"alone, without the gateways", set(l.enabled, true, l.handler, "false"), nil, []string{"--enable-nat-gw-handler=false"}},
				{"nothing known of who else serves", set(l.enabled, true), []string{stockCRD}, []string{"--stock-serves=auto"}},
				{"known of who else serves", set(l.enabled, true, "stockServes", "no"), []string{stockCRD}, []string{"--stock-serves=no"}},
				{
					"what the gateways' handler beside can do", set(l.enabled, true, l.abilities, "affinity,masquerade"), []string{stockCRD},
					[]string{"--nat-gw-handler-abilities=affinity,masquerade"},
				},
				{"that it is looked for", set(l.enabled, true, l.abilities, "auto"), []string{stockCRD}, []string{"no --nat-gw-handler-abilities"}},
				{"that it is this one, alone", set(l.enabled, true, l.abilities, "all"), nil, []string{"no --nat-gw-handler-abilities"}},
			} {
				t.Run(tc.name, func(t *testing.T) {
					out := mustRender(t, l.chart, request{values: tc.values, cluster: cluster(t, tc.cluster...)})
					args := podSpecs(t, out.sorted())["kube-ovn-nftable-lb"].Containers[0].Args
					for _, want := range tc.want {
						flag, unwanted := strings.CutPrefix(want, "no ")
						is := func(arg string) bool { return arg == want || unwanted && strings.HasPrefix(arg, flag+"=") }
						if slices.ContainsFunc(args, is) == unwanted {
							t.Errorf("arguments %v, want %s", args, want)
						}
					}
				})
			}
		})
	}
}

// TestLeastPrivilege holds what each account may do against what its code does. The spec of the lab shows that it is enough.
func TestLeastPrivilege(t *testing.T) {
	gateways := []string{
		"create apps/deployments", "create apps/statefulsets", "create core/pods/exec", "delete apps/deployments", "delete apps/statefulsets",
		"delete core/pods",
		"get core/pods/exec", "patch apps/deployments", "patch apps/statefulsets", "patch core/pods",
	}
	reads := []string{
		"list core/pods", "list kubeovn.io/iptables-dnat-rules", "list kubeovn.io/iptables-eips", "list kubeovn.io/iptables-fip-rules",
		"list kubeovn.io/subnets", "list kubeovn.io/vpc-nat-gateways",
		"watch core/pods", "watch kubeovn.io/iptables-dnat-rules", "watch kubeovn.io/iptables-eips", "watch kubeovn.io/iptables-fip-rules",
		"watch kubeovn.io/subnets", "watch kubeovn.io/vpc-nat-gateways",
	}
	events := []string{"create events.k8s.io/events", "patch events.k8s.io/events"}
	services := []string{
		"create kubeovn.io/iptables-dnat-rules", "delete kubeovn.io/iptables-dnat-rules", "patch kubeovn.io/iptables-dnat-rules",
		"list core/services", "list discovery.k8s.io/endpointslices", "patch core/services/status", "watch core/services", "watch discovery.k8s.io/endpointslices",
	}
	stock := []string{"list apps/deployments/kube-ovn-controller!", "watch apps/deployments/kube-ovn-controller!"}
	handler := []string{
		"list apps/deployments", "list apps/statefulsets", "list kubeovn.io/vpcs", "watch apps/deployments", "watch apps/statefulsets", "watch kubeovn.io/vpcs",
		"patch kubeovn.io/iptables-dnat-rules", "patch kubeovn.io/iptables-dnat-rules/status", "patch kubeovn.io/iptables-eips",
		"patch kubeovn.io/iptables-eips/status", "patch kubeovn.io/vpc-nat-gateways", "patch kubeovn.io/vpc-nat-gateways/status",
	}
	lease := func(name string) []string {
		return []string{"create coordination.k8s.io/leases", "get coordination.k8s.io/leases/" + name + "!", "update coordination.k8s.io/leases/" + name + "!"}
	}
	configMaps := []string{
		"list core/configmaps/ovn-vpc-nat-config!", "list core/configmaps/ovn-vpc-nat-gw-config!",
		"watch core/configmaps/ovn-vpc-nat-config!", "watch core/configmaps/ovn-vpc-nat-gw-config!",
	}
	for _, l := range layouts {
		t.Run(l.chart, func(t *testing.T) {
			for _, tc := range []struct {
				name     string
				values   map[string]any
				cluster  []string
				upgrade  bool
				role     string
				want     []string
				wantOwn  []string
				wantEdge []string
			}{
				{
					name: "beside: Services only", values: set(l.enabled, true), cluster: []string{stockCRD}, role: "kube-ovn-nftable-lb",
					want: slices.Concat(events, reads, services, stock), wantOwn: lease("kube-ovn-nftable-lb"),
				},
				{
					name: "alone: Services and gateways", values: set(l.enabled, true), role: "kube-ovn-nftable-lb",
					want: slices.Concat(events, reads, services, handler), wantOwn: slices.Concat(lease("kube-ovn-controller"), configMaps, gateways),
				},
				{
					name: "alone: gateways only", role: "kube-ovn-nftable-lb",
					want: slices.Concat(events, reads, handler), wantOwn: slices.Concat(lease("kube-ovn-controller"), configMaps, gateways),
				},
				{
					name: "gateways in one more namespace", values: set(l.enabled, true, l.namespaces, []any{"edge"}), role: "kube-ovn-nftable-lb",
					want: slices.Concat(events, reads, services, handler), wantOwn: slices.Concat(lease("kube-ovn-controller"), configMaps, gateways), wantEdge: gateways,
				},
				{
					name: "gateways anywhere", values: set(l.enabled, true, l.namespaces, []any{"*"}), role: "kube-ovn-nftable-lb",
					want: slices.Concat(events, reads, services, handler, gateways), wantOwn: slices.Concat(lease("kube-ovn-controller"), configMaps),
				},
				{
					name: "the Job for the CRD", values: set(l.enabled, true), cluster: []string{stockCRD}, role: "kube-ovn-nftable-lb-setup-crd",
					want: []string{
						"get apiextensions.k8s.io/customresourcedefinitions/iptables-dnat-rules.kubeovn.io!",
						"patch apiextensions.k8s.io/customresourcedefinitions/iptables-dnat-rules.kubeovn.io!",
					},
				},
				{
					name: "the Job that withdraws", upgrade: true, cluster: []string{stockCRD}, role: "kube-ovn-nftable-lb-setup-withdraw",
					want:    []string{"delete kubeovn.io/iptables-dnat-rules", "list core/services", "list kubeovn.io/iptables-dnat-rules", "patch core/services/status"},
					wantOwn: []string{"get apps/deployments/kube-ovn-nftable-lb!", "list core/pods", "patch apps/deployments/kube-ovn-nftable-lb!"},
				},
			} {
				t.Run(tc.name, func(t *testing.T) {
					out := mustRender(t, l.chart, request{values: tc.values, upgrade: tc.upgrade, cluster: cluster(t, tc.cluster...)})
					for key, want := range map[string][]string{"ClusterRole//": tc.want, "Role/kube-system/": tc.wantOwn, "Role/edge/": tc.wantEdge} {
						if diff := gocmp.Diff(unique(want), verbs(t, out.objects[key+tc.role])); diff != "" {
							t.Errorf("%s (-want +got):\n%s", key, diff)
						}
					}
				})
			}
		})
	}
}

// verbs spells a role out, "VERB GROUP/RESOURCE", and "…/NAME!" where it is for one name. No object: none.
func verbs(t *testing.T, object *unstructured.Unstructured) []string {
	t.Helper()
	if object == nil {
		return nil
	}
	role := &rbacv1.ClusterRole{} // a Role has the same rules
	content := object.DeepCopy().Object
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content, role); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, rule := range role.Rules {
		names := []string{""}
		if len(rule.ResourceNames) > 0 {
			names = nil
			for _, name := range rule.ResourceNames {
				names = append(names, "/"+name+"!")
			}
		}
		for _, group := range rule.APIGroups {
			if group == "" {
				group = "core"
			}
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					for _, name := range names {
						out = append(out, verb+" "+group+"/"+resource+name)
					}
				}
			}
		}
	}
	return unique(out)
}

func unique(list []string) []string {
	if len(list) == 0 {
		return nil
	}
	return slices.Compact(slices.Sorted(slices.Values(list)))
}

// TestLayouts shows that the two charts differ in nothing but their values.
func TestLayouts(t *testing.T) {
	for _, stock := range [][]string{{}, {stockCRD}} {
		var all []map[string]any
		for _, l := range layouts {
			objects := map[string]any{}
			for key, object := range mustRender(t, l.chart, request{values: set(l.enabled, true), cluster: cluster(t, stock...)}).objects {
				text, err := sigsyaml.Marshal(object.Object)
				if err != nil {
					t.Fatal(err)
				}
				objects[key] = strings.ReplaceAll(string(text), "helm.sh/chart: kube-ovn-v2-", "helm.sh/chart: kube-ovn-")
			}
			all = append(all, objects)
		}
		if diff := gocmp.Diff(all[0], all[1]); diff != "" {
			t.Errorf("%s and %s (-want +got):\n%s", layouts[0].chart, layouts[1].chart, diff)
		}
	}
}

// TestCRDs shows that the CRDs are those of dist/crds, and stay when the release goes.
func TestCRDs(t *testing.T) {
	for _, l := range layouts {
		t.Run(l.chart, func(t *testing.T) {
			files, err := filepath.Glob("../../dist/crds/*.yaml")
			if err != nil || len(files) == 0 {
				t.Fatalf("CRDs: %v, %v", files, err)
			}
			out := mustRender(t, l.chart, request{cluster: cluster(t)})
			for _, file := range files {
				data, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				want := decode(t, string(data))[0]
				annotations := want.GetAnnotations()
				annotations["helm.sh/resource-policy"] = "keep"
				annotations["kubeovn.io/installed-by"] = "kube-ovn-nftable-lb"
				want.SetAnnotations(annotations)
				if diff := gocmp.Diff(want, out.objects["CustomResourceDefinition//"+want.GetName()]); diff != "" {
					t.Errorf("%s (-want +got):\n%s", file, diff)
				}
			}
		})
	}
}

// TestValuesAreDescribed shows that every value has its line in the README, which is made of the comments.
func TestValuesAreDescribed(t *testing.T) {
	for _, l := range layouts {
		t.Run(l.chart, func(t *testing.T) {
			readme, err := os.ReadFile(filepath.Join("../../charts", l.chart, "README.md"))
			if err != nil {
				t.Fatal(err)
			}
			values, err := util.CoalesceValues(load(t, l.chart), map[string]any{})
			if err != nil {
				t.Fatal(err)
			}
			for _, path := range leaves("", values) {
				described := false
				for p := path; p != "" && !described; p = parent(p) {
					described = strings.Contains(string(readme), "| `"+p+"` |")
				}
				if !described {
					t.Errorf("%s is described nowhere", path)
				}
			}
		})
	}
}

func leaves(prefix string, values map[string]any) []string {
	var out []string
	for key, value := range values {
		path := strings.TrimPrefix(prefix+"."+key, ".")
		if key == "kube-ovn-nftable-lb-lib" {
			continue
		}
		if m, ok := value.(map[string]any); ok && len(m) > 0 {
			out = append(out, leaves(path, m)...)
		} else {
			out = append(out, path)
		}
	}
	return out
}

func parent(path string) string {
	if i := strings.LastIndex(path, "."); i >= 0 {
		return path[:i]
	}
	return ""
}
