// SPDX-License-Identifier: Apache-2.0

package stock

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/utils/ptr"
)

// Table is where the tree has the table of the fields, a row each: kind, path, type, detail.
const Table = "pkg/apis/kubeovn/v1/testdata/kube-ovn-fields.tsv"

// Newer are the fields of the table that v1.17 does not have yet, by kind and path: those of affinity.
var Newer = [][2]string{
	{"IptablesDnatRule", ".spec.sessionAffinity"},
	{"IptablesDnatRule", ".spec.sessionAffinityTimeoutSeconds"},
}

type schema = apiextensionsv1.JSONSchemaProps

// CRDs makes those of v1.17 from a table, or those of a newer release, which knows affinity.
func CRDs(table string, affinity bool) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	_, rows, _ := strings.Cut(table, "\n") // the head
	var crds []*apiextensionsv1.CustomResourceDefinition
	for row := range strings.Lines(rows) {
		columns := strings.Split(strings.TrimSuffix(row, "\n"), "\t")
		if len(columns) != 4 {
			return nil, fmt.Errorf("row %q has not four columns", row)
		}
		kind, path, what, detail := columns[0], columns[1], columns[2], columns[3]
		if !affinity && slices.Contains(Newer, [2]string{kind, path}) {
			continue
		}
		var err error
		if path == "(resource)" {
			var crd *apiextensionsv1.CustomResourceDefinition
			crd, err = resource(kind, what)
			crds = append(crds, crd)
		} else if len(crds) == 0 || crds[len(crds)-1].Spec.Names.Kind != kind {
			err = fmt.Errorf("no row says what resource it is of")
		} else {
			err = add(&crds[len(crds)-1].Spec.Versions[0], path, what, detail)
		}
		if err != nil {
			return nil, fmt.Errorf("row %q: %w", row, err)
		}
	}
	return crds, nil
}

// resource makes a CRD without fields of what the table says of a resource.
func resource(kind, what string) (*apiextensionsv1.CustomResourceDefinition, error) {
	var name, version, scope, short, storage, status string
	what = strings.NewReplacer("scope=", "", "shortNames=", "", "storage=", "", "status-subresource=", "").Replace(what)
	if _, err := fmt.Sscan(what, &name, &version, &scope, &short, &storage, &status); err != nil {
		return nil, err
	}
	plural, group, _ := strings.Cut(name, ".")
	crd := &apiextensionsv1.CustomResourceDefinition{}
	crd.APIVersion, crd.Kind, crd.Name = "apiextensions.k8s.io/v1", "CustomResourceDefinition", name
	crd.Spec.Group, crd.Spec.Scope = group, apiextensionsv1.ResourceScope(scope)
	crd.Spec.Names = apiextensionsv1.CustomResourceDefinitionNames{
		Kind: kind, ListKind: kind + "List", Plural: plural, Singular: strings.TrimSuffix(plural, "s"), ShortNames: strings.Split(short, ","),
	}
	v := apiextensionsv1.CustomResourceDefinitionVersion{
		Name: version, Served: true, Storage: storage == "True",
		Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &schema{Type: "object", Properties: map[string]schema{
			"apiVersion": {Type: "string"}, "kind": {Type: "string"}, "metadata": {Type: "object"},
		}}},
	}
	if status == "True" {
		v.Subresources = &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}}
	}
	crd.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{v}
	return crd, nil
}

// add puts another row's matter into a version.
func add(version *apiextensionsv1.CustomResourceDefinitionVersion, path, what, detail string) error {
	if path == "(column)" {
		name, kind, _ := strings.Cut(what, " ")
		version.AdditionalPrinterColumns = append(version.AdditionalPrinterColumns, apiextensionsv1.CustomResourceColumnDefinition{Name: name, Type: kind, JSONPath: detail})
		return nil
	}
	steps := strings.Split(strings.TrimPrefix(strings.ReplaceAll(path, "[]", ".[]"), "."), ".")
	return change(version.Schema.OpenAPIV3Schema, steps, func(s *schema) error {
		if what == "required" {
			s.Required = strings.Split(detail, ",")
			return nil
		}
		s.Type = what
		if what == "object" {
			// Of strings, where no row follows that names a field of it.
			s.AdditionalProperties = &apiextensionsv1.JSONSchemaPropsOrBool{Allows: true, Schema: &schema{Type: "string"}}
		}
		return constrain(s, detail)
	})
}

// change reaches down to a field, which it makes if need be, and changes it.
func change(s *schema, steps []string, do func(*schema) error) error {
	if len(steps) == 0 {
		return do(s)
	}
	if steps[0] == "[]" {
		if s.Items == nil {
			s.Items = &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &schema{}}
		}
		return change(s.Items.Schema, steps[1:], do)
	}
	s.AdditionalProperties = nil
	if s.Properties == nil {
		s.Properties = map[string]schema{}
	}
	field := s.Properties[steps[0]]
	if err := change(&field, steps[1:], do); err != nil {
		return err
	}
	s.Properties[steps[0]] = field
	return nil
}

// constrain reads what the table says of a field's values.
func constrain(s *schema, detail string) error {
	if detail == "core/v1 Affinity" {
		// A long one, which nobody here looks into.
		s.AdditionalProperties, s.XPreserveUnknownFields = nil, ptr.To(true)
		return nil
	}
	if list, rest, ok := strings.Cut(strings.TrimPrefix(detail, "enum=["), "]"); ok && list != detail {
		for value := range strings.SplitSeq(list, ", ") {
			s.Enum = append(s.Enum, apiextensionsv1.JSON{Raw: []byte(strings.ReplaceAll(value, "'", `"`))})
		}
		detail = rest
	}
	for word := range strings.FieldsSeq(detail) {
		name, value, _ := strings.Cut(word, "=")
		number, err := strconv.ParseFloat(value, 64)
		switch name {
		case "format":
			s.Format, err = value, nil
		case "minimum":
			s.Minimum = ptr.To(number)
		case "maximum":
			s.Maximum = ptr.To(number)
		case "default":
			var raw []byte
			raw, err = literal(s.Type, value)
			s.Default = &apiextensionsv1.JSON{Raw: raw}
		default:
			return fmt.Errorf("nobody knows what %q means", word)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// literal writes a value of the table, whose truths have capitals and whose strings no quotes, in JSON.
func literal(kind, value string) ([]byte, error) {
	switch kind {
	case "boolean":
		return []byte(strings.ToLower(value)), nil
	case "string":
		return json.Marshal(value)
	default:
		return []byte(value), nil
	}
}
