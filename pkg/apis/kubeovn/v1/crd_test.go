// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"
)

const (
	crdDir    = "../../../../dist/crds"
	tableFile = "testdata/kube-ovn-fields.tsv"
)

// TestCRDsMatchTable holds the generated CRDs against the table of stock
// Kube-OVN's, both ways: no row is missing or differs, and none is too many.
func TestCRDsMatchTable(t *testing.T) {
	want := readTable(t)
	got := map[string][]string{}
	for kind, crd := range readCRDs(t) {
		got[kind] = rowsOf(crd)
	}
	for kind := range want {
		t.Run(kind, func(t *testing.T) {
			if diff := cmp.Diff(want[kind], got[kind]); diff != "" {
				t.Errorf("CRD differs from %s (-want +got):\n%s", tableFile, diff)
			}
		})
	}
	for kind := range got {
		if _, ok := want[kind]; !ok {
			t.Errorf("the CRD of %s is not in %s", kind, tableFile)
		}
	}
}

// TestCRDsAreStructural: fields that the schema does not name are pruned, so
// none may ask to be kept, and the API server takes only structural schemas.
func TestCRDsAreStructural(t *testing.T) {
	for kind, crd := range readCRDs(t) {
		t.Run(kind, func(t *testing.T) {
			if crd.Spec.PreserveUnknownFields {
				t.Error("spec.preserveUnknownFields is set")
			}
			for _, version := range crd.Spec.Versions {
				internal := &apiextensions.JSONSchemaProps{}
				err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(version.Schema.OpenAPIV3Schema, internal, nil)
				if err != nil {
					t.Fatalf("convert schema: %v", err)
				}
				structural, err := structuralschema.NewStructural(internal)
				if err != nil {
					t.Fatalf("schema is not structural: %v", err)
				}
				if errs := structuralschema.ValidateStructural(nil, structural); len(errs) > 0 {
					t.Errorf("schema is not structural: %v", errs.ToAggregate())
				}
			}
		})
	}
}

// TestRowsShowEveryDifference proves that the comparison above is not blind:
// each change of a CRD that a client could notice changes its rows.
func TestRowsShowEveryDifference(t *testing.T) {
	type (
		crd     = apiextensionsv1.CustomResourceDefinition
		version = apiextensionsv1.CustomResourceDefinitionVersion
		schema  = apiextensionsv1.JSONSchemaProps
		literal = apiextensionsv1.JSON
	)
	field := func(name string, change func(*schema)) func(*crd, *version) {
		return func(_ *crd, v *version) {
			properties := v.Schema.OpenAPIV3Schema.Properties["spec"].Properties
			property := properties[name]
			change(&property)
			properties[name] = property
		}
	}
	tests := []struct {
		name   string
		mutate func(*crd, *version)
	}{
		{"name", func(c *crd, _ *version) { c.Name = "gateways.kubeovn.io" }},
		{"scope", func(c *crd, _ *version) { c.Spec.Scope = "Namespaced" }},
		{"short name", func(c *crd, _ *version) { c.Spec.Names.ShortNames = nil }},
		{"version", func(_ *crd, v *version) { v.Name = "v1beta1" }},
		{"storage", func(_ *crd, v *version) { v.Storage = false }},
		{"served", func(_ *crd, v *version) { v.Served = false }},
		{"status subresource", func(_ *crd, v *version) { v.Subresources = nil }},
		{"column order", func(_ *crd, v *version) {
			slices.Reverse(v.AdditionalPrinterColumns)
		}},
		{"column name", func(_ *crd, v *version) { v.AdditionalPrinterColumns[1].Name = "VPC" }},
		{"column type", func(_ *crd, v *version) { v.AdditionalPrinterColumns[1].Type = "date" }},
		{"column path", func(_ *crd, v *version) {
			v.AdditionalPrinterColumns[1].JSONPath = ".spec"
		}},
		{"required at the top", func(_ *crd, v *version) {
			v.Schema.OpenAPIV3Schema.Required = []string{"spec"}
		}},
		{"field gone", func(_ *crd, v *version) {
			delete(v.Schema.OpenAPIV3Schema.Properties["spec"].Properties, "lanIp")
		}},
		{"field type", field("lanIp", func(s *schema) { s.Type = "integer" })},
		{"field format", field("replicas", func(s *schema) { s.Format = "int64" })},
		{"field enum", field("vpc", func(s *schema) { s.Enum = []literal{{Raw: []byte(`"a"`)}} })},
		{"field default", field("replicas", func(s *schema) { s.Default = &literal{Raw: []byte("2")} })},
		{"field minimum", field("replicas", func(s *schema) { s.Minimum = ptr.To(0.0) })},
		{"field maximum", field("replicas", func(s *schema) { s.Maximum = ptr.To(9.0) })},
		{"field pattern", field("vpc", func(s *schema) { s.Pattern = "^a" })},
		{"field required", field("bfd", func(s *schema) { s.Required = []string{"minRX"} })},
		{"unknown fields kept", field("bfd", func(s *schema) { s.XPreserveUnknownFields = ptr.To(true) })},
		{"map gone", field("annotations", func(s *schema) { s.AdditionalProperties = nil })},
		{"item type", field("selector", func(s *schema) { s.Items.Schema.Type = "object" })},
		{"affinity", field("affinity", func(s *schema) { delete(s.Properties, "podAffinity") })},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			mutated := readCRDs(t)["VpcNatGateway"]
			before := rowsOf(mutated)
			tt.mutate(mutated, &mutated.Spec.Versions[0])
			if cmp.Equal(before, rowsOf(mutated)) {
				t.Error("the rows are still the same")
			}
		})
	}
}

// readTable returns the table's rows by kind, in their order.
func readTable(t *testing.T) map[string][]string {
	t.Helper()
	data, err := os.ReadFile(tableFile)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
	if want := "kind\tpath\ttype\tdetail"; lines[0] != want {
		t.Fatalf("head of %s is %q, want %q", tableFile, lines[0], want)
	}
	table := map[string][]string{}
	for _, line := range lines[1:] {
		kind, _, ok := strings.Cut(line, "\t")
		if !ok {
			t.Fatalf("%s: no tab in %q", tableFile, line)
		}
		table[kind] = append(table[kind], line)
	}
	return table
}

// readCRDs returns the generated CRDs by kind, read as strictly as can be.
func readCRDs(t *testing.T) map[string]*apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(crdDir, "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Fatalf("no CRDs in %s", crdDir)
	}
	crds := map[string]*apiextensionsv1.CustomResourceDefinition{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(data, crd); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		crds[crd.Spec.Names.Kind] = crd
	}
	return crds
}
