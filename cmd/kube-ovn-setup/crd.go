// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
)

// ruleCRD is the CRD of DNAT rules.
const ruleCRD = "iptables-dnat-rules.kubeovn.io"

type field struct {
	name   string
	schema apiextensionsv1.JSONSchemaProps
}

// fields are those of a rule's spec that Kube-OVN up to v1.17 does not have.
func fields() []field {
	return []field{
		{"sessionAffinity", apiextensionsv1.JSONSchemaProps{
			Type: "string",
			Description: "SessionAffinity ClientIP keeps a client on the backend that it first\n" +
				"reached. All rules of an identity have the same one. Of rules of type share.",
			Enum: []apiextensionsv1.JSON{{Raw: []byte(`""`)}, {Raw: []byte(`"ClientIP"`)}},
		}},
		{"sessionAffinityTimeoutSeconds", apiextensionsv1.JSONSchemaProps{
			Type: "integer", Format: "int32", Minimum: ptr.To(0.0), Maximum: ptr.To(86400.0),
			Description: "SessionAffinityTimeoutSeconds is how long after its last new connection\n" +
				"a client is remembered. With ClientIP, 0 stands for 10800.",
		}},
	}
}

// operation is one of a JSON patch.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// crdPatch adds to every version of a CRD the fields that it lacks, and changes nothing else: what the CRD has that is not
// known here stays. No operations: it lacks none.
func crdPatch(crd *apiextensionsv1.CustomResourceDefinition) (patch []operation, added []string, err error) {
	for i := range crd.Spec.Versions {
		v := &crd.Spec.Versions[i]
		if v.Schema == nil || v.Schema.OpenAPIV3Schema == nil {
			return nil, nil, fmt.Errorf("version %s has no schema", v.Name)
		}
		spec, ok := v.Schema.OpenAPIV3Schema.Properties["spec"]
		if !ok || len(spec.Properties) == 0 {
			return nil, nil, fmt.Errorf("the schema of version %s has no fields in spec", v.Name)
		}
		for _, f := range fields() {
			if _, there := spec.Properties[f.name]; there {
				continue
			}
			patch = append(patch, operation{"add", fmt.Sprintf("/spec/versions/%d/schema/openAPIV3Schema/properties/spec/properties/%s", i, f.name), f.schema})
			added = append(added, fmt.Sprintf("%s.spec.%s", v.Name, f.name))
		}
	}
	if len(patch) > 0 {
		// The versions are counted, so it has to be the list that was read.
		patch = append([]operation{{"test", "/metadata/resourceVersion", crd.ResourceVersion}}, patch...)
	}
	return patch, added, nil
}

// extendCRD makes the CRD hold the fields.
func extendCRD(ctx context.Context, client apiextensions.Interface, out io.Writer) error {
	crds := client.ApiextensionsV1().CustomResourceDefinitions()
	stale := errors.New("the CRD changed meanwhile")
	return retry.OnError(retry.DefaultBackoff, func(err error) bool { return errors.Is(err, stale) }, func() error {
		crd, err := crds.Get(ctx, ruleCRD, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return fmt.Errorf("no CRD %s: Kube-OVN is not installed here", ruleCRD)
		}
		if err != nil {
			return fmt.Errorf("read CRD: %w", err)
		}
		patch, added, err := crdPatch(crd)
		if err != nil {
			return fmt.Errorf("CRD %s: %w", ruleCRD, err)
		}
		if len(patch) == 0 {
			fmt.Fprintf(out, "CRD %s has the fields already\n", ruleCRD)
			return nil
		}
		data, err := json.Marshal(patch)
		if err != nil {
			return fmt.Errorf("encode patch: %w", err)
		}
		_, err = crds.Patch(ctx, ruleCRD, types.JSONPatchType, data, metav1.PatchOptions{FieldManager: program})
		if apierrors.IsConflict(err) || apierrors.IsInvalid(err) {
			return fmt.Errorf("patch CRD %s: %w: %w", ruleCRD, stale, err)
		}
		if err != nil {
			return fmt.Errorf("patch CRD %s: %w", ruleCRD, err)
		}
		fmt.Fprintf(out, "CRD %s: added %s\n", ruleCRD, strings.Join(added, ", "))
		return nil
	})
}
