// SPDX-License-Identifier: Apache-2.0

package alerts

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"
)

type dashboard struct {
	UID        string
	Title      string
	Panels     []panel
	Templating struct {
		List []struct{ Name, Type, Definition string }
	}
}

type panel struct {
	ID          int
	Type        string
	Title       string
	Description string
	GridPos     struct{ X, Y, W, H int }
	Targets     []struct{ Expr, LegendFormat string }
}

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	data, err := os.ReadFile("../../dist/monitoring/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(data, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

var (
	legendLabel = regexp.MustCompile(`\{\{(\w+)\}\}`)
	labelValues = regexp.MustCompile(`^label_values\((.+), (\w+)\)$`)
	// variables are replaced as Grafana does before it asks.
	variables = strings.NewReplacer("$__rate_interval", "5m")
)

func TestDashboardUsesMetricsThatExist(t *testing.T) {
	c := newChecker(t)
	for _, p := range readDashboard(t).Panels {
		for _, target := range p.Targets {
			expr := variables.Replace(target.Expr)
			for _, wrong := range c.check(expr) {
				t.Errorf("panel %q: %s", p.Title, wrong)
			}
			parsed, err := parser.NewParser(parser.Options{}).ParseExpr(expr)
			if err != nil {
				continue
			}
			for _, match := range legendLabel.FindAllStringSubmatch(target.LegendFormat, -1) {
				if !slices.Contains(c.labelsIn(parsed), match[1]) {
					t.Errorf("panel %q: the legend shows label %s, which nothing has", p.Title, match[1])
				}
			}
		}
	}
}

func TestDashboardVariables(t *testing.T) {
	c := newChecker(t)
	d := readDashboard(t)
	names := map[string]bool{"__rate_interval": true}
	for _, v := range d.Templating.List {
		names[v.Name] = true
		if v.Type != "query" {
			continue
		}
		match := labelValues.FindStringSubmatch(v.Definition)
		if match == nil || !slices.Contains(c.series[match[1]], match[2]) {
			t.Errorf("variable %s: %q asks for what is not there", v.Name, v.Definition)
		}
	}
	used := regexp.MustCompile(`\$\{?(\w+)`)
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			for _, match := range used.FindAllStringSubmatch(target.Expr, -1) {
				if !names[match[1]] {
					t.Errorf("panel %q: variable %s is not defined", p.Title, match[1])
				}
			}
		}
	}
}

// TestDashboardLayout looks that panels say what they show, and do not lie on each other.
func TestDashboardLayout(t *testing.T) {
	type cell struct{ x, y int }
	taken, ids := map[cell]string{}, map[int]bool{}
	for _, p := range readDashboard(t).Panels {
		if p.Title == "" || ids[p.ID] || p.Type != "row" && (p.Description == "" || len(p.Targets) == 0) {
			t.Errorf("panel %d %q: no title, description or target, or its ID is another one's", p.ID, p.Title)
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := taken[cell{x, y}]; other != "" || x >= 24 {
					t.Fatalf("panels %q and %q lie on each other, or beyond the right edge", p.Title, other)
				}
				taken[cell{x, y}] = p.Title
			}
		}
	}
}
