// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// rowsOf describes a CRD as testdata/kube-ovn-fields.tsv describes stock's, a
// row each for the resource, the printer columns in their order, every field of
// spec and status, and what is required where. What the table has no word for
// and would still refuse or alter objects gets a word that no row has.
func rowsOf(crd *apiextensionsv1.CustomResourceDefinition) []string {
	r := rows{kind: crd.Spec.Names.Kind}
	for i := range crd.Spec.Versions {
		version := &crd.Spec.Versions[i]
		r.add("(resource)", resource(crd, version), "")
		for _, column := range version.AdditionalPrinterColumns {
			r.add("(column)", column.Name+" "+column.Type, column.JSONPath)
		}
		if version.Schema == nil {
			continue
		}
		root := version.Schema.OpenAPIV3Schema
		if len(root.Required) > 0 {
			r.add("", "required", strings.Join(root.Required, ","))
		}
		for _, name := range slices.Sorted(maps.Keys(root.Properties)) {
			if name != "apiVersion" && name != "kind" && name != "metadata" {
				r.field("."+name, root.Properties[name])
			}
		}
	}
	return r.lines
}

type rows struct {
	kind  string
	lines []string
}

func (r *rows) add(path, what, detail string) {
	r.lines = append(r.lines, strings.Join([]string{r.kind, path, what, detail}, "\t"))
}

func (r *rows) field(path string, schema apiextensionsv1.JSONSchemaProps) {
	if describes(&schema, reflect.TypeFor[corev1.Affinity]()) {
		r.add(path, schema.Type, "core/v1 Affinity")
		return
	}
	r.add(path, schema.Type, constraints(&schema))
	if len(schema.Required) > 0 {
		r.add(path, "required", strings.Join(slices.Sorted(slices.Values(schema.Required)), ","))
	}
	for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
		r.field(path+"."+name, schema.Properties[name])
	}
	if schema.Items != nil && schema.Items.Schema != nil {
		r.field(path+"[]", *schema.Items.Schema)
	}
}

func resource(crd *apiextensionsv1.CustomResourceDefinition, version *apiextensionsv1.CustomResourceDefinitionVersion) string {
	status := version.Subresources != nil && version.Subresources.Status != nil
	return fmt.Sprintf("%s %s scope=%s shortNames=%s storage=%s status-subresource=%s",
		crd.Name, version.Name, crd.Spec.Scope, strings.Join(crd.Spec.Names.ShortNames, ","),
		titled(version.Storage && version.Served), titled(status))
}

// constraints lists what a field's values must be, and become by default.
func constraints(schema *apiextensionsv1.JSONSchemaProps) string {
	var words []string
	if len(schema.Enum) > 0 {
		var values []string
		for _, value := range schema.Enum {
			values = append(values, strings.ReplaceAll(string(value.Raw), `"`, "'"))
		}
		words = append(words, "enum=["+strings.Join(values, ", ")+"]")
	}
	if schema.Default != nil {
		words = append(words, "default="+plain(string(schema.Default.Raw)))
	}
	if schema.Minimum != nil {
		words = append(words, fmt.Sprintf("minimum=%.0f", *schema.Minimum))
	}
	if schema.Maximum != nil {
		words = append(words, fmt.Sprintf("maximum=%.0f", *schema.Maximum))
	}
	if schema.Format != "" {
		words = append(words, "format="+schema.Format)
	}
	return strings.Join(append(words, unlisted(schema)...), " ")
}

// unlisted names what no row of the table has.
func unlisted(schema *apiextensionsv1.JSONSchemaProps) []string {
	entries := schema.AdditionalProperties
	var words []string
	for _, constraint := range []struct {
		word string
		set  bool
	}{
		{"pattern", schema.Pattern != ""},
		{"length", schema.MinLength != nil || schema.MaxLength != nil},
		{"items", schema.MinItems != nil || schema.MaxItems != nil || schema.UniqueItems},
		{"exclusive", schema.ExclusiveMinimum || schema.ExclusiveMaximum},
		{"logical", len(schema.AllOf)+len(schema.AnyOf)+len(schema.OneOf) > 0 || schema.Not != nil},
		{"validations", len(schema.XValidations) > 0},
		{"nullable", schema.Nullable},
		{"int-or-string", schema.XIntOrString},
		{"preserve-unknown", schema.XPreserveUnknownFields != nil},
		{"embedded-resource", schema.XEmbeddedResource},
		{"not-of-strings", entries != nil && (entries.Schema == nil || entries.Schema.Type != "string")},
		{"always-empty", schema.Type == "object" && entries == nil && len(schema.Properties) == 0},
	} {
		if constraint.set {
			words = append(words, constraint.word)
		}
	}
	return words
}

// plain writes a JSON scalar as the table does: a string without quotes, a
// truth value with a capital.
func plain(json string) string {
	switch {
	case json == "true" || json == "false":
		return titled(json == "true")
	case strings.HasPrefix(json, `"`):
		if text, err := strconv.Unquote(json); err == nil {
			return text
		}
	}
	return json
}

func titled(b bool) string {
	if b {
		return "True"
	}
	return "False"
}

// describes says whether a schema has exactly the fields that a Go type has.
func describes(schema *apiextensionsv1.JSONSchemaProps, t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer:
		return describes(schema, t.Elem())
	case reflect.Struct:
		return schema.Type == "object" && sameFields(schema.Properties, t)
	case reflect.Slice:
		return schema.Type == "array" && schema.Items != nil && schema.Items.Schema != nil &&
			describes(schema.Items.Schema, t.Elem())
	case reflect.Map:
		return schema.Type == "object" && schema.AdditionalProperties != nil &&
			schema.AdditionalProperties.Schema != nil && describes(schema.AdditionalProperties.Schema, t.Elem())
	case reflect.String:
		return schema.Type == "string"
	case reflect.Int32, reflect.Int64:
		return schema.Type == "integer" && schema.Format == t.Kind().String()
	default:
		return false
	}
}

func sameFields(properties map[string]apiextensionsv1.JSONSchemaProps, t reflect.Type) bool {
	if len(properties) != t.NumField() {
		return false
	}
	for field := range t.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		property, ok := properties[name]
		if !ok || !describes(&property, field.Type) {
			return false
		}
	}
	return true
}
