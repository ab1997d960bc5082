// SPDX-License-Identifier: Apache-2.0

package alerts

import (
	"log/slog"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

const (
	alertsFile = "../../dist/monitoring/alerts.yaml"
	runbook    = "https://github.com/kubeovn/kube-ovn/blob/master/docs/monitoring.md#"
)

// alerts are the rules by name.
func alerts(t *testing.T) map[string]rulefmt.Rule {
	t.Helper()
	data, err := os.ReadFile(alertsFile)
	if err != nil {
		t.Fatal(err)
	}
	groups, errs := rulefmt.Parse(data, false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	out := map[string]rulefmt.Rule{}
	for _, group := range groups.Groups {
		for _, rule := range group.Rules {
			if rule.Alert == "" || out[rule.Alert].Alert != "" {
				t.Errorf("group %s: alert %q has no name, or another one's", group.Name, rule.Alert)
			}
			out[rule.Alert] = rule
		}
	}
	return out
}

func TestAlertsUseMetricsThatExist(t *testing.T) {
	c := newChecker(t)
	for name, rule := range alerts(t) {
		for _, wrong := range c.check(rule.Expr) {
			t.Errorf("%s: %s", name, wrong)
		}
	}
}

func TestAlertsAreComplete(t *testing.T) {
	severities := []string{"critical", "warning", "info"}
	for name, rule := range alerts(t) {
		if !strings.HasPrefix(name, "KubeOvn") || rule.For == 0 || !slices.Contains(severities, rule.Labels["severity"]) {
			t.Errorf("%s: for %v, severity %q", name, rule.For, rule.Labels["severity"])
		}
		if want := runbook + strings.ToLower(name); rule.Annotations["runbook_url"] != want {
			t.Errorf("%s: runbook_url %q, want %q", name, rule.Annotations["runbook_url"], want)
		}
		for _, annotation := range []string{"summary", "description"} {
			if !strings.HasSuffix(rule.Annotations[annotation], ".") {
				t.Errorf("%s: %s %q is no sentence", name, annotation, rule.Annotations[annotation])
			}
		}
	}
}

var link = regexp.MustCompile(`\]\(#([^)]*)\)`)

// TestEveryAlertHasItsSection compares the alerts with the runbook, both ways, and follows the links in it.
func TestEveryAlertHasItsSection(t *testing.T) {
	doc := readDocument(t)
	if diff := cmp.Diff(slices.Sorted(maps.Keys(alerts(t))), slices.Sorted(maps.Keys(doc.Sections))); diff != "" {
		t.Errorf("alerts and sections (-alerts +sections):\n%s", diff)
	}
	anchors := map[string]bool{}
	for name, text := range doc.Sections {
		anchors[strings.ToLower(name)] = true
		for _, part := range []string{"**What it means to users.** ", "**How to look.** ", "**What to do.** "} {
			if strings.Count(text, "\n"+part) != 1 {
				t.Errorf("section %s does not say once %q", name, part)
			}
		}
	}
	for _, match := range link.FindAllStringSubmatch(doc.Text, -1) {
		if !anchors[match[1]] {
			t.Errorf("link to #%s, which is not there", match[1])
		}
	}
}
