// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"math"
	"slices"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// ChiSquare is Pearson's statistic of counts against all of them being equally likely.
func ChiSquare(counts []int) float64 {
	total := 0
	for _, n := range counts {
		total += n
	}
	expected := float64(total) / float64(len(counts))
	sum := 0.0
	for _, n := range counts {
		sum += (float64(n) - expected) * (float64(n) - expected) / expected
	}
	return sum
}

// chiSquareP is the chance of a statistic at least this large with so many degrees of freedom, by the approximation of
// Wilson and Hilferty, which is good to a few percent of itself.
func chiSquareP(x float64, freedom int) float64 {
	k := float64(freedom)
	z := (math.Cbrt(x/k) - (1 - 2/(9*k))) / math.Sqrt(2/(9*k))
	return math.Erfc(z/math.Sqrt2) / 2
}

// ExpectEven fails the spec when a spread over these Pods is not what equal chances give, and returns the statistic. By mere chance it fails
// once in ten million times.
func ExpectEven(spread Spread, pods []string) float64 {
	GinkgoHelper()
	Expect(spread.Who()).To(Equal(slices.Sorted(slices.Values(pods))), "who answered: %s", spread)
	counts := make([]int, 0, len(pods))
	for _, pod := range pods {
		counts = append(counts, spread[pod])
	}
	x := ChiSquare(counts)
	Expect(chiSquareP(x, len(pods)-1)).To(BeNumerically(">", 1e-7), "chi-square of %s is %.1f", spread, x)
	return x
}
