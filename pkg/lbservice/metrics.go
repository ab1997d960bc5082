// SPDX-License-Identifier: Apache-2.0

package lbservice

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// Values of the label "result".
const (
	resultSuccess = "success"
	resultWait    = "wait"
	resultStale   = "stale"
	resultError   = "error"
)

// Values of the label "operation".
const (
	operationCreate = "create"
	operationPatch  = "patch"
	operationDelete = "delete"
	operationStatus = "status"
)

// ruleStates are the values of the label "state".
var ruleStates = [...]string{"ready", "not_ready", "deleting"}

// Metrics of the controller. No label names a Service or a Pod.
type Metrics struct {
	syncSeconds *prometheus.HistogramVec
	lastSuccess prometheus.Gauge
	writes      *prometheus.CounterVec
	conflicts   prometheus.Counter
	services    *prometheus.GaugeVec
	rules       *prometheus.Desc

	mu      sync.Mutex
	reasons map[sharenat.Owner]string
	// counts are those of the rules, by gateway and by index into ruleStates. They follow the informer's events: there may be too many
	// rules to go through them whenever somebody asks.
	counts map[string]*[len(ruleStates)]int
}

// NewMetrics makes the metrics and registers them; registerer may be nil.
func NewMetrics(registerer prometheus.Registerer) *Metrics {
	const namespace, subsystem = "kube_ovn", "nftable_lb"
	m := &Metrics{
		syncSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "sync_duration_seconds",
			Help:    "Time of one pass over a Service, by result: success, wait (for an event), stale (cache behind), error.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16),
		}, []string{"result"}),
		lastSuccess: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "last_success_timestamp_seconds",
			Help: "When a pass over a Service last succeeded.",
		}),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "writes_total",
			Help: "Writes to the API server: create, patch and delete of rules, status of Services; by result.",
		}, []string{"operation", "result"}),
		conflicts: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "conflicts_total",
			Help: "Ports that Services were told they do not have, once a change.",
		}),
		services: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "services",
			Help: "Services served or to be served, by the reason of their condition " + ConditionReady + ".",
		}, []string{"reason"}),
		rules: prometheus.NewDesc(prometheus.BuildFQName(namespace, subsystem, "rules"),
			"Rules of Services, by gateway and state (ready, not_ready, deleting).", []string{"gateway", "state"}, nil),
		reasons: map[sharenat.Owner]string{},
		counts:  map[string]*[len(ruleStates)]int{},
	}
	if registerer != nil {
		registerer.MustRegister(m.syncSeconds, m.lastSuccess, m.writes, m.conflicts, m.services, m)
	}
	return m
}

var _ prometheus.Collector = (*Metrics)(nil)

// Describe implements prometheus.Collector, for the rules.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) { out <- m.rules }

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for gateway, counts := range m.counts {
		for state, n := range counts {
			out <- prometheus.MustNewConstMetric(m.rules, prometheus.GaugeValue, float64(n), gateway, ruleStates[state])
		}
	}
}

// ruleChanged counts a rule as it is now, and no more as it was; nil where there is none.
func (m *Metrics) ruleChanged(before, after *kubeovnv1.IptablesDnatRule) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.countRule(before, -1)
	m.countRule(after, 1)
}

func (m *Metrics) countRule(rule *kubeovnv1.IptablesDnatRule, sign int) {
	if rule == nil {
		return
	}
	if _, labelled := sharenat.LabelledOwner(rule); !labelled {
		return
	}
	gateway := rule.Labels[sharenat.GatewayLabel]
	counts := m.counts[gateway]
	if counts == nil {
		counts = new([len(ruleStates)]int)
		m.counts[gateway] = counts
	}
	switch {
	case rule.DeletionTimestamp != nil:
		counts[2] += sign
	case rule.Status.Ready:
		counts[0] += sign
	default:
		counts[1] += sign
	}
	if *counts == [len(ruleStates)]int{} {
		delete(m.counts, gateway)
	}
}

func (m *Metrics) observeSync(result string, start time.Time) {
	m.syncSeconds.WithLabelValues(result).Observe(time.Since(start).Seconds())
	if result == resultSuccess || result == resultWait {
		m.lastSuccess.SetToCurrentTime()
	}
}

func (m *Metrics) observeWrite(operation string, err error) {
	result := resultSuccess
	switch {
	case isBehind(err):
		result = resultStale
	case err != nil:
		result = resultError
	}
	m.writes.WithLabelValues(operation, result).Inc()
}

// setReason counts a Service under its reason; "" when it is not served here any more.
func (m *Metrics) setReason(key sharenat.Owner, reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.reasons[key]
	if before == reason {
		return
	}
	if before != "" {
		m.services.WithLabelValues(before).Dec()
	}
	if reason == "" {
		delete(m.reasons, key)
		return
	}
	m.services.WithLabelValues(reason).Inc()
	m.reasons[key] = reason
}
