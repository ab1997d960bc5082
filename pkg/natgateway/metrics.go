// SPDX-License-Identifier: Apache-2.0

package natgateway

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics of the handler. Labels are gateways, verbs and results; the number of gateways bounds the first.
type Metrics struct {
	calls       *prometheus.CounterVec
	duration    *prometheus.HistogramVec
	identities  *prometheus.GaugeVec
	notReady    *prometheus.GaugeVec
	lastSuccess *prometheus.GaugeVec
}

const (
	metricsNamespace = "kube_ovn"
	metricsSubsystem = "nat_gateway"
)

// NewMetrics registers the handler's metrics; nil registers nowhere.
func NewMetrics(registerer prometheus.Registerer) (*Metrics, error) {
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: metricsNamespace, Subsystem: metricsSubsystem, Name: name, Help: help}
	}
	m := &Metrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts(opts("calls_total",
			"Runs of nat-gateway.sh, by verb and result (success, refused, error).")), []string{"gateway", "verb", "result"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: metricsNamespace, Subsystem: metricsSubsystem, Name: "call_duration_seconds",
			Help: "Time of a run of nat-gateway.sh, its way there and back included.", Buckets: prometheus.ExponentialBuckets(0.01, 2, 12),
		}, []string{"verb"}),
		identities: prometheus.NewGaugeVec(prometheus.GaugeOpts(opts("identities",
			"Identities (EIP, port, protocol) that a gateway should hold.")), []string{"gateway"}),
		notReady: prometheus.NewGaugeVec(prometheus.GaugeOpts(opts("rules_not_ready",
			"Rules of a gateway that are not programmed, by reason class (pending, lost, invalid).")), []string{"gateway", "class"}),
		lastSuccess: prometheus.NewGaugeVec(prometheus.GaugeOpts(opts("last_success_timestamp_seconds",
			"When a pod of the gateway was last known to hold all that it should.")), []string{"gateway"}),
	}
	if registerer == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.calls, m.duration, m.identities, m.notReady, m.lastSuccess} {
		errs = append(errs, registerer.Register(c))
	}
	return m, errors.Join(errs...)
}

func (m *Metrics) observeCall(gateway, verb string, err error, took time.Duration) {
	result := "success"
	switch {
	case err == nil:
	case refused(err):
		result = "refused"
	default:
		result = "error"
	}
	m.calls.WithLabelValues(gateway, verb, result).Inc()
	m.duration.WithLabelValues(verb).Observe(took.Seconds())
}

func (m *Metrics) observeState(s *State, waiting int) {
	classes := map[string]int{
		"pending": s.Counts[Pending] + s.Counts[Unclaimed] + waiting,
		"lost":    s.Counts[Lost],
		"invalid": s.Counts[Invalid],
	}
	m.identities.WithLabelValues(s.Gateway).Set(float64(len(s.Shares) + len(s.Exclusives)))
	for class, n := range classes {
		m.notReady.WithLabelValues(s.Gateway, class).Set(float64(n))
	}
}

func (m *Metrics) forget(gateway string) {
	labels := prometheus.Labels{"gateway": gateway}
	m.calls.DeletePartialMatch(labels)
	m.identities.DeletePartialMatch(labels)
	m.notReady.DeletePartialMatch(labels)
	m.lastSuccess.DeletePartialMatch(labels)
}
