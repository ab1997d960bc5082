// SPDX-License-Identifier: Apache-2.0

package admission

import "github.com/prometheus/client_golang/prometheus"

// Values of the label "result".
const (
	resultAllowed = "allowed"
	resultWarned  = "warned"
	resultRefused = "refused"
	resultError   = "error"
	resultSuccess = "success"
)

// Metrics of the webhook. Their labels are kinds, operations and results; no label names an object or a user.
type Metrics struct {
	reviews *prometheus.CounterVec
	reads   *prometheus.CounterVec
}

// NewMetrics makes the metrics and registers them; registerer may be nil.
func NewMetrics(registerer prometheus.Registerer) *Metrics {
	const namespace, subsystem = "kube_ovn", "webhook"
	m := &Metrics{
		reviews: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "reviews_total",
			Help: "Answered requests, by kind, operation and result (allowed, warned, refused, error).",
		}, []string{"kind", "operation", "result"}),
		reads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "live_reads_total",
			Help: "Reads from the API server of what a refusal rests on, by result (success, error).",
		}, []string{"result"}),
	}
	if registerer != nil {
		registerer.MustRegister(m.reviews, m.reads)
	}
	return m
}

func (m *Metrics) reviewed(kind Kind, op Operation, result string) {
	m.reviews.WithLabelValues(string(kind), string(op), result).Inc()
}

func (m *Metrics) liveRead(err error) {
	result := resultSuccess
	if err != nil {
		result = resultError
	}
	m.reads.WithLabelValues(result).Inc()
}
