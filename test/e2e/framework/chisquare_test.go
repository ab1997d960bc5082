// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"math"
	"testing"
)

func TestChiSquare(t *testing.T) {
	for _, tc := range []struct {
		name   string
		counts []int
		want   float64
	}{
		{"even", []int{100, 100, 100}, 0},
		{"a little uneven", []int{90, 110, 100}, 2},
		{"one gets all", []int{300, 0, 0}, 600},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := ChiSquare(tc.counts); math.Abs(got-tc.want) > 1e-9 {
				t.Errorf("ChiSquare(%v) = %v, want %v", tc.counts, got, tc.want)
			}
		})
	}
}

func TestChiSquareP(t *testing.T) {
	// Quantiles from printed tables.
	for _, tc := range []struct {
		x       float64
		freedom int
		want    float64
	}{
		{5.991, 2, 0.05}, {9.210, 2, 0.01}, {13.816, 2, 0.001}, {11.070, 5, 0.05}, {27.877, 9, 0.001},
	} {
		got := chiSquareP(tc.x, tc.freedom)
		if got < tc.want*0.7 || got > tc.want*1.4 {
			t.Errorf("chiSquareP(%v, %d) = %v, want about %v", tc.x, tc.freedom, got, tc.want)
		}
	}
}
