// SPDX-License-Identifier: Apache-2.0

package stock

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"
)

func table(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("../../..", Table))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestCRDs holds stock's CRDs against this project's, which a test of theirs holds against the whole table: they differ in
// the newer fields, in words for people and for merging, and in an affinity's depths.
func TestCRDs(t *testing.T) {
	crds, err := CRDs(table(t), false)
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("../../../dist/crds/*.yaml")
	if err != nil || len(files) != len(crds) {
		t.Fatalf("%d CRDs, but %v, %v", len(crds), files, err)
	}
	own := map[string]*apiextensionsv1.CustomResourceDefinition{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(data, crd); err != nil {
			t.Fatal(err)
		}
		own[crd.Name] = crd
	}
	for _, crd := range crds {
		want := own[crd.Name]
		if want == nil {
			t.Errorf("%s is none of this project's", crd.Name)
			continue
		}
		plain(want.Spec.Versions[0].Schema.OpenAPIV3Schema)
		for _, field := range Newer {
			if field[0] == crd.Spec.Names.Kind {
				delete(want.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties, field[1][len(".spec."):])
			}
		}
		want.Annotations = nil
		if diff := cmp.Diff(want, crd); diff != "" {
			t.Errorf("%s (-this project's +stock's):\n%s", crd.Name, diff)
		}
	}
}

// plain takes out of a schema what the table has no word for.
func plain(s *schema) {
	s.Description, s.XListType, s.XMapType = "", nil, nil
	for name, field := range s.Properties {
		plain(&field)
		if name == "affinity" {
			field.Properties, field.XPreserveUnknownFields = nil, ptr.To(true)
		}
		s.Properties[name] = field
	}
	if s.Items != nil {
		plain(s.Items.Schema)
	}
}

func TestRefusesNonsense(t *testing.T) {
	const head, resource = "kind\tpath\ttype\tdetail\n", "Pear\t(resource)\tpears.kubeovn.io v1 scope=Cluster shortNames=p storage=True status-subresource=True\t\n"
	for name, rows := range map[string]string{
		"too few columns":   "Pear\t.spec\tobject\n",
		"no resource":       "Pear\t.spec\tobject\t\n",
		"another's field":   resource + "Apple\t.spec\tobject\t\n",
		"half a resource":   "Pear\t(resource)\tpears.kubeovn.io v1\t\n",
		"an unknown detail": resource + "Pear\t.spec\tobject\tripe=True\n",
		"a word for number": resource + "Pear\t.spec\tinteger\tminimum=few\n",
	} {
		t.Run(name, func(t *testing.T) {
			if crds, err := CRDs(head+rows, false); err == nil {
				t.Errorf("read as %v", crds)
			}
		})
	}
}
