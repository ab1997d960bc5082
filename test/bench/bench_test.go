// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPercentile(t *testing.T) {
	for _, test := range []struct {
		name    string
		samples []float64
		p, want float64
	}{
		{"one", []float64{3}, 99, 3},
		{"odd", []float64{9, 1, 5}, 50, 5},
		{"even", []float64{4, 1, 2, 3}, 50, 2.5},
		{"least", []float64{4, 1, 2, 3}, 0, 1},
		{"most", []float64{4, 1, 2, 3}, 100, 4},
		{"between", []float64{0, 10}, 99, 9.9},
	} {
		if got := percentile(test.samples, test.p); math.Abs(got-test.want) > 1e-9 {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
	if got := percentile(nil, 50); !math.IsNaN(got) {
		t.Errorf("of nothing: %v", got)
	}
}

func TestFormat(t *testing.T) {
	for _, test := range []struct {
		value float64
		unit  string
		want  string
	}{
		{0.0123, "s", "12.3 ms"},
		{0.0000456, "s", "45.6 µs"},
		{1234, "s", "1234 s"},
		{12.34, "s", "12.3 s"},
		{2.5e9, "bit/s", "2.50 Gbit/s"},
		{256e6, "B", "256 MB"},
		{812.4, "ns/flow", "812 ns/flow"},
		{0, "B", "0 B"},
		{0, "", "0"},
		{3, "calls", "3.00 calls"},
		{math.NaN(), "s", "–"},
	} {
		if got := Format(test.value, test.unit); got != test.want {
			t.Errorf("%v %s: %q, want %q", test.value, test.unit, got, test.want)
		}
	}
}

func measure(name string, sides ...Side) Measure {
	return Measure{Name: name, Title: "A title", Unit: "s", Rounds: 5, Prepare: func(context.Context, *Env) ([]Side, func(context.Context) error, error) {
		return sides, nil, nil
	}}
}

func TestSelect(t *testing.T) {
	all := []Measure{measure("script/one"), measure("script/other"), measure("packets/one")}
	for _, test := range []struct {
		name     string
		patterns []string
		want     []string
		fails    bool
	}{
		{"all", nil, []string{"script/one", "script/other", "packets/one"}, false},
		{"group", []string{"script"}, []string{"script/one", "script/other"}, false},
		{"own order, once", []string{"packets", "script/o", "script/one"}, []string{"script/one", "script/other", "packets/one"}, false},
		{"one", []string{"script/one"}, []string{"script/one"}, false},
		{"unknown", []string{"script/one", "control"}, nil, true},
	} {
		selected, err := Select(all, test.patterns)
		if test.fails {
			if err == nil {
				t.Errorf("%s: no error", test.name)
			}
			continue
		}
		var names []string
		for i := range selected {
			names = append(names, selected[i].Name)
		}
		if diff := cmp.Diff(test.want, names); diff != "" || err != nil {
			t.Errorf("%s: %v, (-want +got):\n%s", test.name, err, diff)
		}
	}
}

func TestSelectRefuses(t *testing.T) {
	for name, edit := range map[string]func(*Measure){
		"name without group": func(m *Measure) { m.Name = "one" },
		"capital":            func(m *Measure) { m.Name = "script/One" },
		"no title":           func(m *Measure) { m.Title = "" },
		"no unit":            func(m *Measure) { m.Unit = "" },
		"few rounds":         func(m *Measure) { m.Rounds = 4 },
		"no Prepare":         func(m *Measure) { m.Prepare = nil },
		"aim without limit":  func(m *Measure) { m.Aims = []Aim{{Of: "a"}} },
		"aim with two":       func(m *Measure) { m.Aims = []Aim{{Of: "a", Min: 1, Max: 2}} },
		"name of another":    func(m *Measure) { m.Name = "script/other" },
	} {
		m := measure("script/one")
		edit(&m)
		if _, err := Select([]Measure{m, measure("script/other")}, nil); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// constant is a side whose samples are all alike, and which leaves a trace.
func constant(name string, value float64, trace *[]string) Side {
	return Side{Name: name, Sample: func(context.Context) ([]float64, error) {
		*trace = append(*trace, name)
		return []float64{value}, nil
	}}
}

func TestRunAlternates(t *testing.T) {
	var trace []string
	m := measure("script/one", constant("a", 1, &trace), constant("b", 2, &trace), constant("c", 3, &trace))
	r := Run(t.Context(), &m, Options{Logf: t.Logf})
	want := "a b c b c a c a b a b c b c a c a b" // the warm-up and five rounds
	if got := strings.Join(trace, " "); got != want {
		t.Errorf("sampled %s, want %s", got, want)
	}
	if r.Error != "" || r.Sides[1].Summary.N != 5 || r.Sides[1].Summary.Median != 2 || r.Sides[1].Unit != "s" {
		t.Errorf("%+v", r)
	}
}

func TestRunWithoutWarmUp(t *testing.T) {
	var trace []string
	m := measure("script/one", constant("a", 1, &trace), constant("b", 2, &trace))
	m.NoWarmUp = true
	r := Run(t.Context(), &m, Options{Logf: t.Logf})
	if got, want := strings.Join(trace, " "), "a b b a a b b a a b"; got != want {
		t.Errorf("sampled %s, want %s", got, want)
	}
	if r.Error != "" || r.Sides[0].Summary.N != 5 {
		t.Errorf("%+v", r)
	}
}

func TestRunJudges(t *testing.T) {
	for _, test := range []struct {
		name  string
		aim   Aim
		value float64
		met   bool
	}{
		{"ratio", Aim{Of: "a", Over: "b", Max: 0.5}, 0.5, true},
		{"ratio missed", Aim{Of: "b", Over: "a", Max: 1.9}, 2, false},
		{"at least", Aim{Of: "b", Over: "a", Min: 1.9}, 2, true},
		{"too little", Aim{Of: "b", Over: "a", Min: 2.1}, 2, false},
		{"by itself", Aim{Of: "b", Max: 256}, 20, true},
		{"p99", Aim{Of: "c", Over: "a", Percentile: 100, Max: 3}, 10, false},
	} {
		var trace []string
		m := measure("script/one", constant("a", 10, &trace), constant("b", 20, &trace), Side{Name: "c", Sample: func(context.Context) ([]float64, error) {
			return []float64{1, 100}, nil
		}})
		m.Aims = []Aim{test.aim}
		r := Run(t.Context(), &m, Options{Logf: t.Logf})
		if r.Error != "" || r.Aims[0].Value != test.value || r.Aims[0].Met != test.met {
			t.Errorf("%s: %+v %s", test.name, r.Aims, r.Error)
		}
	}
}

func TestRunFails(t *testing.T) {
	bad := errors.New("bad")
	one := Side{Name: "a", Sample: func(context.Context) ([]float64, error) { return []float64{1}, nil }}
	for _, test := range []struct {
		name  string
		sides []Side
		check error
		fails error
		aims  []Aim
		want  string
	}{
		{name: "prepare", fails: bad, want: "prepare: bad"},
		{name: "check", sides: []Side{one}, check: bad, want: "check: bad"},
		{name: "sample", sides: []Side{{Name: "a", Sample: func(context.Context) ([]float64, error) { return nil, bad }}}, want: "a, round 0: bad"},
		{name: "empty", sides: []Side{{Name: "a", Sample: func(context.Context) ([]float64, error) { return nil, nil }}}, want: "a, round 0: no samples"},
		{name: "twice", sides: []Side{one, one}, want: `measure script/one: side "a" has no name of its own, or nothing to sample`},
		{name: "no side", sides: []Side{one}, aims: []Aim{{Of: "a", Over: "b", Max: 1}}, want: "measure script/one: no such side"},
	} {
		m := measure("script/one")
		m.Aims = test.aims
		var undone []int
		m.Prepare = func(_ context.Context, env *Env) ([]Side, func(context.Context) error, error) {
			env.Cleanup(func() { undone = append(undone, 1) })
			env.Cleanup(func() { undone = append(undone, 2) })
			return test.sides, func(context.Context) error { return test.check }, test.fails
		}
		r := Run(t.Context(), &m, Options{Logf: t.Logf})
		if !strings.HasPrefix(r.Error, test.want) {
			t.Errorf("%s: error %q, want %q", test.name, r.Error, test.want)
		}
		if !slices.Equal(undone, []int{2, 1}) {
			t.Errorf("%s: cleaned up in order %v", test.name, undone)
		}
	}
}

func TestReport(t *testing.T) {
	var trace []string
	m := measure("script/one", constant("ours", 0.02, &trace), constant("nft -f", 0.01, &trace), Side{Name: "memory", Unit: "B", Sample: func(context.Context) ([]float64, error) {
		return []float64{1e6}, nil
	}})
	m.Aims = []Aim{{Of: "ours", Over: "nft -f", Max: 1.5}, {Of: "memory", Max: 256e6}}
	result := Run(t.Context(), &m, Options{Logf: t.Logf})
	result.Took, result.Notes = 1, []Note{{"rules", 7, ""}}
	report := Report{Machine: "a machine", Scale: 0.5, Results: []Result{result, {Name: "script/broken", Title: "T", Error: "why"}}}
	dir := t.TempDir()
	if err := report.Write(dir); err != nil {
		t.Fatal(err)
	}
	want := `0001-01-01 00:00 UTC, a machine; **a quick run, sizes × 0.5**

**script/one**: A title (5 rounds, 1.00 s)

| side   | median  | quartiles         | range             | samples |
| ------ | ------- | ----------------- | ----------------- | ------- |
| ours   | 20.0 ms | 20.0 ms – 20.0 ms | 20.0 ms – 20.0 ms | 5       |
| nft -f | 10.0 ms | 10.0 ms – 10.0 ms | 10.0 ms – 10.0 ms | 5       |
| memory | 1.00 MB | 1.00 MB – 1.00 MB | 1.00 MB – 1.00 MB | 5       |

| figure        | value   | aim      |            |
| ------------- | ------- | -------- | ---------- |
| ours / nft -f | 2×      | ≤ 1.5×   | **missed** |
| memory        | 1.00 MB | ≤ 256 MB | met        |

- rules: 7.00

**script/broken**: T (0 rounds, 0 s)

**FAILED**: why
`
	table, err := os.ReadFile(filepath.Join(dir, "table.md"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(table)); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
	data, err := os.ReadFile(filepath.Join(dir, "results.json"))
	if err != nil {
		t.Fatal(err)
	}
	var got Report
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(report, got); diff != "" {
		t.Errorf("results.json (-want +got):\n%s", diff)
	}
	svg, err := os.ReadFile(filepath.Join(dir, "script-one.svg"))
	if err != nil || !strings.Contains(string(svg), "nft -f: 10.0 ms") {
		t.Errorf("%v in plot:\n%s", err, svg)
	}
	if diff := cmp.Diff([]string{"script/one"}, report.Missed()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"script/broken"}, report.Failed()); diff != "" {
		t.Error(diff)
	}
}
