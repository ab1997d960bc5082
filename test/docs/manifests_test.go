// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/kubeovn/kube-ovn/test/lab/stockrules"
)

// networks are what a cluster has before its users make anything.
const networks = "test/lab/manifests/20-networks.yaml"

var fence = regexp.MustCompile("(?ms)^( *)```(?:yaml|yml)\n(.*?)^ *```")

// kubeOvnObjects gives those of Kube-OVN's kinds that there are in YAML documents.
func kubeOvnObjects(text string) ([]*unstructured.Unstructured, error) {
	var out []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096)
	for {
		object := &unstructured.Unstructured{}
		switch err := decoder.Decode(&object.Object); {
		case errors.Is(err, io.EOF):
			return out, nil
		case err != nil:
			return nil, err
		}
		if strings.HasPrefix(object.GetAPIVersion(), "kubeovn.io/") {
			out = append(out, object)
		}
	}
}

// manifests gives the objects of Kube-OVN's kinds that are shown to users, by where: all that a document shows belongs
// together.
func manifests(t *testing.T) map[string][]*unstructured.Unstructured {
	t.Helper()
	texts := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "charts/*/*.md", "dist/*/*.md", "test/*/*.md"} {
		paths, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for _, block := range fence.FindAllStringSubmatch(string(data), -1) {
				texts[strings.TrimPrefix(path, root+"/")] += "---\n" + strings.ReplaceAll("\n"+block[2], "\n"+block[1], "\n")
			}
		}
	}
	paths, err := filepath.Glob(filepath.Join(root, "test/demo/manifests/*.yaml"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("%d manifests of the demo: %v", len(paths), err)
	}
	for _, path := range paths {
		texts["the demo"] += "---\n" + read(t, strings.TrimPrefix(path, root+"/"))
	}
	sets := map[string][]*unstructured.Unstructured{}
	for name, text := range texts {
		objects, err := kubeOvnObjects(text)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if len(objects) > 0 {
			sets[name] = objects
		}
	}
	return sets
}

// TestStockTakesManifests: what users are shown passes the rules by which their Kube-OVN refuses things.
func TestStockTakesManifests(t *testing.T) {
	there, err := kubeOvnObjects(read(t, networks))
	if err != nil || len(there) == 0 {
		t.Fatalf("%d objects in %s: %v", len(there), networks, err)
	}
	sets := manifests(t)
	if len(sets["the demo"]) < 4 || len(sets["README.md"]) < 4 {
		t.Fatalf("the search is broken: it finds something in %v", slices.Sorted(maps.Keys(sets)))
	}
	for name, set := range sets {
		t.Run(name, func(t *testing.T) {
			if err := stockrules.CheckSet(slices.Concat(there, set)); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestStockTakesNoNamesakes: such was once this project's example, of which users' Kube-OVN processed nothing.
func TestStockTakesNoNamesakes(t *testing.T) {
	there, err := kubeOvnObjects(read(t, networks))
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(read(t, "test/demo/manifests/10-vpc.yaml"), "demo-net", "demo")
	set, err := kubeOvnObjects(text)
	if err != nil {
		t.Fatal(err)
	}
	want := "a Vpc and a Subnet cannot have the same name"
	if err := stockrules.CheckSet(slices.Concat(there, set)); !strings.Contains(fmt.Sprint(err), want) {
		t.Errorf("got %v, want %s", err, want)
	}
}
