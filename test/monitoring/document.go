// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

// Metric is one row of a table of metrics in docs/monitoring.md.
type Metric struct {
	// Type is gauge, counter or histogram.
	Type string
	// Labels have the values that there are; one without values has any.
	Labels map[string][]string
}

// Document is docs/monitoring.md.
type Document struct {
	Metrics map[string]Metric
	// Sections have the text under each heading of the runbook.
	Sections map[string]string
	Text     string
}

var (
	row     = regexp.MustCompile("^\\| `([a-z_]+)` \\| (gauge|counter|histogram) \\| ([^|]+) \\| [^|]+ \\|$")
	heading = regexp.MustCompile(`(?m)^### (\w+)$`)
)

// ReadDocument reads what is documented.
func ReadDocument(path string) (*Document, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	d := &Document{Metrics: map[string]Metric{}, Sections: map[string]string{}, Text: string(data)}
	for line := range strings.Lines(d.Text) {
		cells := row.FindStringSubmatch(strings.TrimSpace(line))
		if cells == nil {
			continue
		}
		if _, twice := d.Metrics[cells[1]]; twice {
			return nil, fmt.Errorf("%s: metric %s is there twice", path, cells[1])
		}
		d.Metrics[cells[1]] = Metric{Type: cells[2], Labels: readLabels(cells[3])}
	}
	for _, at := range heading.FindAllStringSubmatchIndex(d.Text, -1) {
		section, _, _ := strings.Cut(d.Text[at[1]:], "\n##")
		d.Sections[d.Text[at[2]:at[3]]] = section
	}
	return d, nil
}

// readLabels takes "`gateway`; `state`: ready, not_ready", and "–" for none.
func readLabels(cell string) map[string][]string {
	labels := map[string][]string{}
	for item := range strings.SplitSeq(cell, ";") {
		label, values, listed := strings.Cut(strings.TrimSpace(item), ":")
		if label == "–" {
			continue
		}
		label = strings.Trim(label, "`")
		labels[label] = nil
		if listed {
			labels[label] = strings.Split(strings.TrimSpace(values), ", ")
		}
	}
	return labels
}
