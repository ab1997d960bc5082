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
	// listRules is nil before there is a controller.
	listRules func() []any
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
			"Rules of Services, by gateway and state (ready, not_ready, deleting), counted when asked.", []string{"gateway", "state"}, nil),
		reasons: map[sharenat.Owner]string{},
	}
	if registerer != nil {
		registerer.MustRegister(m.syncSeconds, m.lastSuccess, m.writes, m.conflicts, m.services, m)
	}
	return m
}

var _ prometheus.Collector = (*Metrics)(nil)

// Describe implements prometheus.Collector, for what is counted when it is asked for.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) { out <- m.rules }

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	for gateway, counts := range m.countRules() {
		for state, n := range counts {
			out <- prometheus.MustNewConstMetric(m.rules, prometheus.GaugeValue, float64(n), gateway, ruleStates[state])
		}
	}
}

// countRules counts the rules of Services, by gateway and by index into ruleStates.
func (m *Metrics) countRules() map[string]*[len(ruleStates)]int {
	m.mu.Lock()
	list := m.listRules
	m.mu.Unlock()
	if list == nil {
		return nil
	}
	out := map[string]*[len(ruleStates)]int{}
	for _, obj := range list() {
		rule, ok := obj.(*kubeovnv1.IptablesDnatRule)
		if !ok {
			continue
		}
		if _, managed, err := sharenat.OwnerOf(rule.Labels); err != nil || !managed {
			continue
		}
		counts := out[rule.Labels[sharenat.GatewayLabel]]
		if counts == nil {
			counts = new([len(ruleStates)]int)
			out[rule.Labels[sharenat.GatewayLabel]] = counts
		}
		switch {
		case rule.DeletionTimestamp != nil:
			counts[2]++
		case rule.Status.Ready:
			counts[0]++
		default:
			counts[1]++
		}
	}
	return out
}

// show the rules of a controller.
func (m *Metrics) show(c *Controller) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.listRules = c.in.rules.GetIndexer().List
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
