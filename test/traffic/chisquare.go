// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"math"
)

// Fit is how well counts agree with a uniform distribution, by Pearson's chi-square test.
type Fit struct {
	// Statistic is the sum of (observed-expected)²/expected.
	Statistic float64 `json:"statistic"`
	// Freedom is the number of degrees of freedom: one less than there are backends.
	Freedom int `json:"freedom"`
	// P is the probability that chance alone makes counts at least as uneven as these.
	P float64 `json:"p"`
}

// String gives what a report says of it.
func (f Fit) String() string {
	return fmt.Sprintf("chi-square %.2f with %d degrees of freedom, p = %.3g", f.Statistic, f.Freedom, f.P)
}

// Even compares what each of the backends answered with an even share. One that never answered counts, too; an answer by
// somebody else makes P 0. The test holds for an expected count of 5 and more a backend.
func Even(answers map[string]int, backends []string) Fit {
	fit := Fit{Freedom: len(backends) - 1, P: 1}
	total, known := 0, 0
	for _, n := range answers {
		total += n
	}
	for _, backend := range backends {
		known += answers[backend]
	}
	if total == 0 || known != total {
		return Fit{Statistic: math.Inf(1), Freedom: fit.Freedom}
	}
	expected := float64(total) / float64(len(backends))
	for _, backend := range backends {
		off := float64(answers[backend]) - expected
		fit.Statistic += off * off / expected
	}
	if fit.Freedom > 0 {
		fit.P = upperGamma(float64(fit.Freedom)/2, fit.Statistic/2)
	}
	return fit
}

const (
	gammaSteps     = 500
	gammaPrecision = 1e-14
)

// upperGamma is the regularised upper incomplete gamma function Q(a, x); the chi-square distribution's upper tail is
// Q(freedom/2, statistic/2) (Abramowitz and Stegun, Handbook of Mathematical Functions, 26.4.19).
func upperGamma(a, x float64) float64 {
	if x <= 0 {
		return 1
	}
	lgamma, _ := math.Lgamma(a)
	front := math.Exp(-x + a*math.Log(x) - lgamma)
	if x < a+1 {
		return 1 - front*lowerSeries(a, x)
	}
	return front * upperFraction(a, x)
}

// lowerSeries is the sum of xⁿ/(a(a+1)…(a+n)), which converges quickly where x is small (6.5.29).
func lowerSeries(a, x float64) float64 {
	term := 1 / a
	sum := term
	for n := 1; n < gammaSteps && term > sum*gammaPrecision; n++ {
		term *= x / (a + float64(n))
		sum += term
	}
	return sum
}

// upperFraction is the continued fraction of 6.5.31, in the form that converges quickly where x is large, evaluated by
// Lentz's method.
func upperFraction(a, x float64) float64 {
	const tiny = 1e-300
	b := x + 1 - a
	c := 1 / tiny
	d := 1 / b
	value := d
	for n := 1; n < gammaSteps; n++ {
		factor := float64(n) * (a - float64(n))
		b += 2
		d = 1 / nonZero(factor*d+b, tiny)
		c = nonZero(b+factor/c, tiny)
		value *= c * d
		if math.Abs(c*d-1) < gammaPrecision {
			break
		}
	}
	return value
}

func nonZero(v, tiny float64) float64 {
	if math.Abs(v) < tiny {
		return tiny
	}
	return v
}
