// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	. "github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
)

// measurement is the name of report entries that hold one.
const measurement = "measurement"

// Measured is one row of the table of measurements.
type Measured struct{ What, Result string }

// Report adds a row to the table of measurements that is printed at the end.
func (m Measured) Report() {
	AddReportEntry(measurement, types.ReportEntryVisibilityNever, m)
}

// Durations are several measurements of the same.
type Durations []time.Duration

// String gives median and extremes.
func (d Durations) String() string {
	if len(d) == 0 {
		return "none"
	}
	round := func(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }
	return fmt.Sprintf("median of %d: %s (%s to %s)", len(d), round(d.Median()), round(slices.Min(d)), round(slices.Max(d)))
}

// Median is the middle one, of an even number the later of the two; 0 of none.
func (d Durations) Median() time.Duration {
	if len(d) == 0 {
		return 0
	}
	return slices.Sorted(slices.Values(d))[len(d)/2]
}

// PrintMeasurements prints what the specs of a run measured.
func PrintMeasurements(w io.Writer, report Report) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	rows := 0
	for _, spec := range report.SpecReports {
		for _, entry := range spec.ReportEntries {
			if entry.Name != measurement {
				continue
			}
			// Of this process it is there as it was; from another one it came as JSON.
			m, own := entry.Value.GetRawValue().(Measured)
			if !own && json.Unmarshal([]byte(entry.Value.AsJSON), &m) != nil {
				continue
			}
			if rows == 0 {
				fmt.Fprintln(w, "\nMeasurements")
			}
			fmt.Fprintf(table, "  %s\t%s\n", m.What, m.Result)
			rows++
		}
	}
	_ = table.Flush() // Nothing is to be done where the terminal is gone.
}
