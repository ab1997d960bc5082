// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"math"
	"slices"
)

// percentile returns the p-th percentile, between two samples in proportion. NaN where there are none.
func percentile(samples []float64, p float64) float64 {
	if len(samples) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(samples))
	at := p / 100 * float64(len(sorted)-1)
	below := int(at)
	if below >= len(sorted)-1 {
		return sorted[len(sorted)-1]
	}
	return sorted[below] + (at-float64(below))*(sorted[below+1]-sorted[below])
}

// Median returns the middle of samples.
func Median(samples []float64) float64 { return percentile(samples, 50) }

// Summary is what is told of many samples.
type Summary struct {
	N      int     `json:"n"`
	Min    float64 `json:"min"`
	P25    float64 `json:"p25"`
	Median float64 `json:"median"`
	P75    float64 `json:"p75"`
	P99    float64 `json:"p99"`
	Max    float64 `json:"max"`
}

func summarize(samples []float64) Summary {
	return Summary{
		N:      len(samples),
		Min:    percentile(samples, 0),
		P25:    percentile(samples, 25),
		Median: percentile(samples, 50),
		P75:    percentile(samples, 75),
		P99:    percentile(samples, 99),
		Max:    percentile(samples, 100),
	}
}
