// SPDX-License-Identifier: Apache-2.0

package alerts

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/kubeovn/kube-ovn/test/monitoring"
)

// targetLabels are those that Prometheus puts on every series it scrapes.
var targetLabels = []string{"job", "instance", "namespace", "pod", "container", "endpoint"}

// checker holds expressions against the metrics that docs/monitoring.md names, with their labels and the values of these.
// That these are the ones which are served is what test/monitoring tests.
type checker struct {
	doc    *monitoring.Document
	series map[string][]string
}

func readDocument(t *testing.T) *monitoring.Document {
	t.Helper()
	doc, err := monitoring.ReadDocument("../../docs/monitoring.md")
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

func newChecker(t *testing.T) *checker {
	t.Helper()
	doc := readDocument(t)
	c := &checker{doc: doc, series: map[string][]string{}}
	for name, m := range doc.Metrics {
		names := slices.Sorted(maps.Keys(m.Labels))
		if m.Type == "histogram" {
			c.series[name+"_bucket"] = append(slices.Clone(names), "le")
			c.series[name+"_sum"], c.series[name+"_count"] = names, names
			continue
		}
		c.series[name] = names
	}
	return c
}

// check parses an expression and lists what is wrong with it.
func (c *checker) check(expr string) []string {
	parsed, err := parser.NewParser(parser.Options{}).ParseExpr(expr)
	if err != nil {
		return []string{err.Error()}
	}
	var wrong []string
	parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
		switch n := node.(type) {
		case *parser.VectorSelector:
			wrong = append(wrong, c.selector(n)...)
		case *parser.AggregateExpr:
			for _, label := range n.Grouping {
				if !n.Without && !slices.Contains(c.labelsIn(n.Expr), label) {
					wrong = append(wrong, fmt.Sprintf("by (%s): no series in %s has that label", label, n.Expr))
				}
			}
		}
		return nil
	})
	return wrong
}

func (c *checker) selector(n *parser.VectorSelector) []string {
	have, ok := c.series[n.Name]
	if !ok {
		return []string{"metric " + n.Name + ": not documented"}
	}
	var wrong []string
	for _, m := range n.LabelMatchers {
		switch {
		case m.Name == model.MetricNameLabel:
		case !slices.Contains(have, m.Name) && !slices.Contains(targetLabels, m.Name):
			wrong = append(wrong, fmt.Sprintf("metric %s has no label %s", n.Name, m.Name))
		default:
			wrong = append(wrong, c.values(n.Name, m)...)
		}
	}
	return wrong
}

// values looks whether those that a matcher spells out are values that the label has.
func (c *checker) values(name string, m *labels.Matcher) []string {
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		if base := strings.TrimSuffix(name, suffix); c.doc.Metrics[base].Type == "histogram" {
			name = base
		}
	}
	known := c.doc.Metrics[name].Labels[m.Name]
	if len(known) == 0 || strings.HasPrefix(m.Value, "$") {
		return nil
	}
	var wrong []string
	for value := range strings.SplitSeq(m.Value, "|") {
		if !slices.Contains(known, value) {
			wrong = append(wrong, fmt.Sprintf("label %s of %s has no value %q", m.Name, name, value))
		}
	}
	return wrong
}

// labelsIn are the labels of all series in an expression.
func (c *checker) labelsIn(expr parser.Expr) []string {
	all := map[string]bool{}
	for _, label := range targetLabels {
		all[label] = true
	}
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		if n, ok := node.(*parser.VectorSelector); ok {
			for _, label := range c.series[n.Name] {
				all[label] = true
			}
		}
		return nil
	})
	return slices.Sorted(maps.Keys(all))
}

// The checker itself finds what it is there to find.
func TestChecker(t *testing.T) {
	c := newChecker(t)
	for expr, want := range map[string]string{
		`kube_ovn_nat_gateway_ready == 0`:                                                "",
		`kube_ovn_nat_gateway_raedy == 0`:                                                "not documented",
		`rate(kube_ovn_nat_gateway_call_duration_seconds[5m])`:                           "not documented",
		`kube_ovn_nat_gateway_ready{gw="demo"}`:                                          "has no label gw",
		`sum by (verb) (kube_ovn_nat_gateway_ready)`:                                     "no series",
		`sum by (gateway`:                                                                "parse error",
		`kube_ovn_nat_gateway_rules_not_ready{class="pendng"}`:                           `no value "pendng"`,
		`kube_ovn_nat_gateway_rules_not_ready{class=~"lost|lots"}`:                       `no value "lots"`,
		`sum by (pod) (workqueue_depth{name="lbservice",namespace="kube-system"})`:       "",
		`rate(kube_ovn_nftable_lb_sync_duration_seconds_count{result="errror"}[5m]) > 0`: `no value "errror"`,
	} {
		got := strings.Join(c.check(expr), "; ")
		if want == "" && got != "" || want != "" && !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", expr, got, want)
		}
	}
}
