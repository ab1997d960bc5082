// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/fake"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// ours is the CRD as this project has it.
func ours(t *testing.T) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	data, err := os.ReadFile("../../dist/crds/kubeovn.io_iptables-dnat-rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(data, crd); err != nil {
		t.Fatal(err)
	}
	crd.ResourceVersion = "7"
	return crd
}

// stock is the CRD as Kube-OVN has it: with things that are unknown here, and without the fields.
func stock(t *testing.T, lacks ...string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	crd := ours(t)
	spec := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
	for _, name := range lacks {
		delete(spec.Properties, name)
	}
	spec.Properties["fieldOfTomorrow"] = apiextensionsv1.JSONSchemaProps{Type: "string"}
	crd.Labels = map[string]string{"app.kubernetes.io/managed-by": "Helm"}
	return crd
}

func TestExtendCRD(t *testing.T) {
	for _, tc := range []struct {
		name  string
		lacks []string
		want  string
	}{
		{
			name: "lacks both", lacks: []string{"sessionAffinity", "sessionAffinityTimeoutSeconds"},
			want: "CRD iptables-dnat-rules.kubeovn.io: added v1.spec.sessionAffinity, v1.spec.sessionAffinityTimeoutSeconds\n",
		},
		{
			name: "lacks one", lacks: []string{"sessionAffinityTimeoutSeconds"},
			want: "CRD iptables-dnat-rules.kubeovn.io: added v1.spec.sessionAffinityTimeoutSeconds\n",
		},
		{name: "lacks none", want: "CRD iptables-dnat-rules.kubeovn.io has the fields already\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			client := fake.NewClientset(stock(t, tc.lacks...))
			var out bytes.Buffer
			if err := extendCRD(t.Context(), client, &out); err != nil {
				t.Fatal(err)
			}
			got, err := client.ApiextensionsV1().CustomResourceDefinitions().Get(t.Context(), ruleCRD, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			// The fields are as in the CRD of this project, and all else is as it was.
			got.ManagedFields = nil
			if diff := cmp.Diff(stock(t), got); diff != "" {
				t.Errorf("CRD (-want +got):\n%s", diff)
			}
			if out.String() != tc.want {
				t.Errorf("said %q, want %q", out.String(), tc.want)
			}
		})
	}
}

func TestExtendCRDErrors(t *testing.T) {
	bare := ours(t)
	bare.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties = nil
	for _, tc := range []struct {
		name   string
		client *fake.Clientset
		want   string
	}{
		{"no Kube-OVN", fake.NewClientset(), "no CRD iptables-dnat-rules.kubeovn.io: Kube-OVN is not installed here"},
		{"a schema of another kind", fake.NewClientset(bare), "CRD iptables-dnat-rules.kubeovn.io: the schema of version v1 has no fields in spec"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := extendCRD(t.Context(), tc.client, &bytes.Buffer{})
			if err == nil || err.Error() != tc.want {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}
