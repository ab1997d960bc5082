// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"math"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Latency is how long attempts took that succeeded, from the first packet to the end of the answer. Percentiles are
// exact to 2 %, the maximum is exact.
type Latency struct {
	P50 metav1.Duration `json:"p50"`
	P90 metav1.Duration `json:"p90"`
	P99 metav1.Duration `json:"p99"`
	Max metav1.Duration `json:"max"`
}

const (
	histogramBase   = time.Microsecond
	histogramGrowth = 1.02
)

// histogram counts durations in buckets that grow by 2 %, so that its size does not depend on how many there are.
type histogram struct {
	buckets []int
	count   int
	longest time.Duration
}

func (h *histogram) add(d time.Duration) {
	bucket := 0
	if d > histogramBase {
		bucket = int(math.Log(float64(d)/float64(histogramBase)) / math.Log(histogramGrowth))
	}
	for len(h.buckets) <= bucket {
		h.buckets = append(h.buckets, 0)
	}
	h.buckets[bucket]++
	h.count++
	h.longest = max(h.longest, d)
}

// quantile is the upper bound of the bucket that the q-th part of all falls into.
func (h *histogram) quantile(q float64) metav1.Duration {
	rank := int(math.Ceil(q * float64(h.count)))
	for bucket, n := range h.buckets {
		if rank -= n; rank <= 0 && n > 0 {
			bound := time.Duration(float64(histogramBase) * math.Pow(histogramGrowth, float64(bucket+1)))
			return metav1.Duration{Duration: min(bound, h.longest)}
		}
	}
	return metav1.Duration{}
}

func (h *histogram) latency() *Latency {
	if h.count == 0 {
		return nil
	}
	return &Latency{
		P50: h.quantile(0.50), P90: h.quantile(0.90), P99: h.quantile(0.99), Max: metav1.Duration{Duration: h.longest},
	}
}
