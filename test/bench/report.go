// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Report is a whole run.
type Report struct {
	Started time.Time `json:"started"`
	// Machine says what it ran on.
	Machine string   `json:"machine"`
	Scale   float64  `json:"scale"`
	Results []Result `json:"results"`
}

// Failed returns the names of the measures that came to nothing, or whose check found something wrong.
func (r *Report) Failed() []string {
	var names []string
	for i := range r.Results {
		if r.Results[i].Error != "" {
			names = append(names, r.Results[i].Name)
		}
	}
	return names
}

// Missed returns the names of the measures with an aim that is not met.
func (r *Report) Missed() []string {
	var names []string
	for i := range r.Results {
		for _, a := range r.Results[i].Aims {
			if !a.Met {
				names = append(names, r.Results[i].Name)
				break
			}
		}
	}
	return names
}

// Write leaves results.json, table.md and a plot a measure in a directory.
func (r *Report) Write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "results.json"), append(data, '\n'), 0o644); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "table.md"), []byte(r.Table()), 0o644); err != nil {
		return err
	}
	for i := range r.Results {
		if len(r.Results[i].Sides) == 0 {
			continue
		}
		svg, err := plotted(&r.Results[i])
		if err != nil {
			return fmt.Errorf("plot %s: %w", r.Results[i].Name, err)
		}
		name := strings.ReplaceAll(r.Results[i].Name, "/", "-") + ".svg"
		if err := os.WriteFile(filepath.Join(dir, name), svg, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// Table is the report as Markdown.
func (r *Report) Table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %s", r.Started.UTC().Format("2006-01-02 15:04 MST"), r.Machine)
	if r.Scale != 1 {
		fmt.Fprintf(&b, "; **a quick run, sizes × %g**", r.Scale)
	}
	b.WriteString("\n")
	for i := range r.Results {
		b.WriteString("\n" + r.Results[i].Table())
	}
	return b.String()
}

// Table is the part of the report that is about one measure.
func (r *Result) Table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "**%s**: %s (%d rounds, %s)\n\n", r.Name, r.Title, r.Rounds, Format(r.Took, "s"))
	if len(r.Sides) > 0 {
		rows := [][]string{{"side", "median", "quartiles", "range", "samples"}}
		for i := range r.Sides {
			s, u := &r.Sides[i].Summary, r.Sides[i].Unit
			rows = append(rows, []string{
				r.Sides[i].Name, Format(s.Median, u), Format(s.P25, u) + " – " + Format(s.P75, u), Format(s.Min, u) + " – " + Format(s.Max, u), strconv.Itoa(s.N),
			})
		}
		writeTable(&b, rows)
	}
	if len(r.Aims) > 0 {
		rows := [][]string{{"figure", "value", "aim", ""}}
		for _, a := range r.Aims {
			rows = append(rows, a.row(r.Sides))
		}
		b.WriteString("\n")
		writeTable(&b, rows)
	}
	for i, n := range r.Notes {
		if i == 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "- %s: %s\n", n.Name, Format(n.Value, n.Unit))
	}
	if r.Error != "" {
		fmt.Fprintf(&b, "\n**FAILED**: %s\n", r.Error)
	}
	return strings.ReplaceAll(b.String(), "\n\n\n", "\n\n")
}

func (a AimResult) row(sides []SideResult) []string {
	aim := Aim{Of: a.Of, Over: a.Over, Max: a.Max, Min: a.Min, Percentile: a.Percentile}
	sign, limit := aim.limit()
	what, unit := a.Of, ""
	if a.Percentile != 0 {
		what += fmt.Sprintf(", p%g", a.Percentile)
	}
	format := func(v float64) string { return fmt.Sprintf("%.3g×", v) }
	if a.Over != "" {
		what += " / " + a.Over
	} else {
		for i := range sides {
			if sides[i].Name == a.Of {
				unit = sides[i].Unit
			}
		}
		format = func(v float64) string { return Format(v, unit) }
	}
	verdict := "met"
	if !a.Met {
		verdict = "**missed**"
	}
	return []string{what, format(a.Value), sign + " " + format(limit), verdict}
}

// writeTable writes a Markdown table whose columns also line up as plain text.
func writeTable(b *strings.Builder, rows [][]string) {
	width := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			width[i] = max(width[i], len([]rune(cell)))
		}
	}
	line := func(row []string, fill string) {
		for i, cell := range row {
			b.WriteString("| " + cell + strings.Repeat(fill, width[i]-len([]rune(cell))) + " ")
		}
		b.WriteString("|\n")
	}
	line(rows[0], " ")
	line(make([]string, len(width)), "-")
	for _, row := range rows[1:] {
		line(row, " ")
	}
}

// prefixes are the multiples of a unit that a person reads, the greatest first.
var prefixes = []struct {
	factor float64
	sign   string
}{{1e9, "G"}, {1e6, "M"}, {1e3, "k"}, {1, ""}, {1e-3, "m"}, {1e-6, "µ"}, {1e-9, "n"}}

// Format writes a value with three digits and its unit.
func Format(v float64, unit string) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return "–"
	}
	if unit == "s" && math.Abs(v) >= 1 || v == 0 {
		return strings.TrimSpace(digits(v) + " " + unit)
	}
	switch unit {
	case "s", "B", "bit/s", "B/s", "Hz", "packets/s", "flows/s", "1/s":
		for _, p := range prefixes {
			if math.Abs(v) >= p.factor {
				return digits(v/p.factor) + " " + p.sign + unit
			}
		}
	}
	return strings.TrimSpace(digits(v) + " " + unit)
}

// digits writes a number with three digits, or all of its whole ones.
func digits(v float64) string {
	switch a := math.Abs(v); {
	case a >= 100 || a == 0:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	case a >= 1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.3g", v)
}
