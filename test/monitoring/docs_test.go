// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var (
	quoted  = regexp.MustCompile("`([^`]+)`")
	library = regexp.MustCompile(`^(workqueue|rest_client|leader_election|controller_runtime|process|go)_[a-z_]+[a-z]$`)
)

func readDocument(t *testing.T) *Document {
	t.Helper()
	d, err := ReadDocument("../../docs/monitoring.md")
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// isOurs tells our metrics from those of libraries, of which only some are documented.
func isOurs(name string) bool { return strings.HasPrefix(name, "kube_ovn_") }

// TestEveryMetricIsDocumented compares names, types and labels, both ways.
func TestEveryMetricIsDocumented(t *testing.T) {
	type what struct {
		Type   string
		Labels []string
	}
	documented, served := map[string]what{}, map[string]what{}
	doc, families := readDocument(t), mustExpose(t)
	for name, m := range doc.Metrics {
		documented[name] = what{m.Type, slices.Sorted(maps.Keys(m.Labels))}
	}
	for name, f := range families {
		if _, mentioned := doc.Metrics[name]; mentioned || isOurs(name) {
			served[name] = what{f.kind, slices.Sorted(maps.Keys(f.labels))}
		}
	}
	if diff := cmp.Diff(documented, served); diff != "" {
		t.Errorf("metrics (-documented +served):\n%s", diff)
	}
	for name, m := range doc.Metrics {
		for label, values := range m.Labels {
			for value := range families[name].labels[label] {
				if len(values) > 0 && !slices.Contains(values, value) {
					t.Errorf("%s{%s=%q} is not documented", name, label, value)
				}
			}
		}
	}
}

// TestMetricsInTheText looks up every name of a metric that the text mentions.
func TestMetricsInTheText(t *testing.T) {
	families := mustExpose(t)
	for _, match := range quoted.FindAllStringSubmatch(readDocument(t).Text, -1) {
		name, _, _ := strings.Cut(match[1], "{")
		if (library.MatchString(name) || isOurs(name)) && families[name] == nil {
			t.Errorf("%s: nobody serves it", name)
		}
	}
}
