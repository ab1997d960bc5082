// SPDX-License-Identifier: Apache-2.0

package charts

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"
	sigsyaml "sigs.k8s.io/yaml"
)

// layout says where a chart keeps the values that the tests set.
type layout struct {
	chart                                      string
	enabled, lb, handler, mode, namespaces     string
	replicas, withdraw, tag, gatewayRepository string
	abilities                                  string
}

var layouts = []layout{
	{
		chart: "kube-ovn", enabled: "func.ENABLE_NFTABLE_LB_SVC", lb: "func.ENABLE_LB", handler: "func.ENABLE_NAT_GW_HANDLER",
		mode: "installMode", namespaces: "natGwNamespaces", replicas: "replicaCount", withdraw: "withdrawOnUninstall",
		tag: "global.images.kubeovn.tag", gatewayRepository: "global.images.kubeovn.vpcRepository",
		abilities: "natGwHandlerAbilities",
	},
	{
		chart: "kube-ovn-v2", enabled: "features.enableNftableLoadbalancerService", lb: "features.enableLoadbalancer", handler: "features.enableNatGatewayHandler",
		mode: "installMode", namespaces: "natGw.namespaces", replicas: "controller.replicas", withdraw: "withdrawOnUninstall",
		tag: "global.images.kubeovn.tag", gatewayRepository: "global.images.natgateway.repository",
		abilities: "natGw.handlerAbilities",
	},
}

// set makes values of pairs of a path with dots and what is there.
func set(pairs ...any) map[string]any {
	values := map[string]any{}
	for i := 0; i < len(pairs); i += 2 {
		if err := unstructured.SetNestedField(values, pairs[i+1], strings.Split(pairs[i].(string), ".")...); err != nil {
			panic(err)
		}
	}
	return values
}

// pretended is a cluster to look objects up in.
type pretended struct{ client dynamic.Interface }

// plurals are the resources of what the templates look up.
var plurals = map[string]string{
	"Namespace": "namespaces", "Deployment": "deployments", "ConfigMap": "configmaps", "CustomResourceDefinition": "customresourcedefinitions",
}

func (p *pretended) GetClientFor(apiVersion, kind string) (dynamic.NamespaceableResourceInterface, bool, error) {
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return nil, false, err
	}
	return p.client.Resource(gv.WithResource(plurals[kind])), kind == "Deployment" || kind == "ConfigMap", nil
}

// cluster is one with the namespace kube-system and these objects, in YAML.
func cluster(t *testing.T, documents ...string) engine.ClientProvider {
	t.Helper()
	documents = append(documents, "{apiVersion: v1, kind: Namespace, metadata: {name: kube-system}}")
	kinds := map[schema.GroupVersionResource]string{}
	var objects []runtime.Object
	for _, document := range documents {
		object := &unstructured.Unstructured{}
		if err := sigsyaml.Unmarshal([]byte(document), &object.Object); err != nil {
			t.Fatal(err)
		}
		gvk := object.GroupVersionKind()
		kinds[gvk.GroupVersion().WithResource(plurals[gvk.Kind])] = gvk.Kind + "List"
		objects = append(objects, object)
	}
	return &pretended{fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds, objects...)}
}

// request is what is rendered.
type request struct {
	values  map[string]any
	upgrade bool
	cluster engine.ClientProvider
}

// rendered are objects, by kind/namespace/name, and the notes.
type rendered struct {
	objects map[string]*unstructured.Unstructured
	notes   string
}

func load(t *testing.T, name string) *chart.Chart {
	t.Helper()
	// The library is a link there: what a release ships is what the link leads to.
	c, err := loader.LoadDir(filepath.Join("..", "..", "charts", name))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func render(t *testing.T, name string, r request) (*rendered, error) {
	t.Helper()
	c := load(t, name)
	release := common.ReleaseOptions{Name: "lb", Namespace: "kube-system", Revision: 1, IsInstall: !r.upgrade, IsUpgrade: r.upgrade}
	values, err := util.ToRenderValues(c, r.values, release, common.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	var files map[string]string
	if r.cluster != nil {
		files, err = engine.RenderWithClientProvider(c, values, r.cluster)
	} else {
		files, err = engine.Render(c, values)
	}
	if err != nil {
		return nil, err
	}
	out := &rendered{objects: map[string]*unstructured.Unstructured{}}
	for file, text := range files {
		switch filepath.Base(file) {
		case "NOTES.txt":
			out.notes = text
		case "objects.yaml":
			for _, object := range decode(t, text) {
				key := strings.Join([]string{object.GetKind(), object.GetNamespace(), object.GetName()}, "/")
				if _, twice := out.objects[key]; twice {
					t.Errorf("%s is there twice", key)
				}
				out.objects[key] = object
			}
		}
	}
	return out, nil
}

// mustRender is a render that has to succeed.
func mustRender(t *testing.T, name string, r request) *rendered {
	t.Helper()
	out, err := render(t, name, r)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// decode reads documents of YAML; a key that is there twice is an error.
func decode(t *testing.T, text string) []*unstructured.Unstructured {
	t.Helper()
	var out []*unstructured.Unstructured
	reader := yaml.NewDocumentDecoder(io.NopCloser(strings.NewReader(text)))
	buf := make([]byte, 1<<20)
	for {
		n, err := reader.Read(buf)
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		object := &unstructured.Unstructured{}
		if err := sigsyaml.UnmarshalStrict(bytes.TrimSpace(buf[:n]), &object.Object); err != nil {
			t.Fatalf("%v in\n%s", err, buf[:n])
		}
		if len(object.Object) > 0 {
			out = append(out, object)
		}
	}
}

// names are the objects that are no hooks' and no CRDs, sorted.
func (r *rendered) names() []string {
	var out []string
	for key, object := range r.objects {
		if object.GetAnnotations()["helm.sh/hook"] == "" && object.GetKind() != "CustomResourceDefinition" {
			out = append(out, key)
		}
	}
	slices.Sort(out)
	return out
}

// hooks are the Jobs that Helm runs, and when.
func (r *rendered) hooks() map[string]string {
	out := map[string]string{}
	for _, object := range r.objects {
		if hook := object.GetAnnotations()["helm.sh/hook"]; hook != "" && object.GetKind() == "Job" {
			out[object.GetName()] = hook
		}
	}
	return out
}

func (r *rendered) crds() []string {
	var out []string
	for _, object := range r.sorted() {
		if object.GetKind() == "CustomResourceDefinition" {
			out = append(out, object.GetName())
		}
	}
	return out
}

func (r *rendered) sorted() []*unstructured.Unstructured {
	keys := slices.Sorted(maps.Keys(r.objects))
	out := make([]*unstructured.Unstructured, len(keys))
	for i, key := range keys {
		out[i] = r.objects[key]
	}
	slices.SortStableFunc(out, func(a, b *unstructured.Unstructured) int { return cmp.Compare(a.GetKind(), b.GetKind()) })
	return out
}
