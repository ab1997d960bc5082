// SPDX-License-Identifier: Apache-2.0

package natgateway

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Metrics of the handler. Labels are gateways, verbs and results; the number of gateways bounds the first. What a gateway is like is
// looked up when it is asked for, so that it is never out of date, and gone with the gateway.
type Metrics struct {
	calls       *prometheus.CounterVec
	duration    *prometheus.HistogramVec
	lastSuccess *prometheus.GaugeVec

	ready, pods, identities, backends, notReady, rollout *prometheus.Desc

	mu sync.Mutex
	// exists tells of a gateway whether it is there, and snapshot what all of them are like; nil before there is a controller.
	exists   func(gateway string) bool
	snapshot func() []gatewayFigures
}

// gatewayFigures are those of one gateway.
type gatewayFigures struct {
	gateway string
	ready   bool
	// pods that run it by what is known of them, and rules that are not ready by the reason's class.
	pods, rules          map[string]int
	rollout              string // its place in the rollout of an image; empty: none
	identities, backends int
}

// Values of the label "state": a pod that counts holds all that it should, or not yet; or it does not count.
const (
	podFilled   = "filled"
	podFilling  = "filling"
	podNotReady = "not_ready"
)

// Values of the label "class".
const (
	// classPending rules wait for an address or a gateway.
	classPending = "pending"
	// classProgramming rules are on their way into the gateway's pods.
	classProgramming = "programming"
	// classLost rules are others' to serve.
	classLost = "lost"
	// classInvalid rules say something that cannot be.
	classInvalid = "invalid"
	// classDeleting rules are on their way out of the gateway's pods.
	classDeleting = "deleting"
)

const (
	metricsNamespace = "kube_ovn"
	metricsSubsystem = "nat_gateway"
)

// NewMetrics registers the handler's metrics; nil registers nowhere.
func NewMetrics(registerer prometheus.Registerer) (*Metrics, error) {
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: metricsNamespace, Subsystem: metricsSubsystem, Name: name, Help: help}
	}
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(metricsNamespace, metricsSubsystem, name), help, append([]string{"gateway"}, labels...), nil)
	}
	m := &Metrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts(opts("calls_total",
			"Runs of nat-gateway.sh, by verb and result (success, refused, error).")), []string{"gateway", "verb", "result"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: metricsNamespace, Subsystem: metricsSubsystem, Name: "call_duration_seconds",
			Help: "Time of a run of nat-gateway.sh, its way there and back included.", Buckets: prometheus.ExponentialBuckets(0.01, 2, 12),
		}, []string{"gateway", "verb"}),
		lastSuccess: prometheus.NewGaugeVec(prometheus.GaugeOpts(opts("last_success_timestamp_seconds",
			"When a pod of the gateway was last known to hold all that it should.")), []string{"gateway"}),
		ready:      desc("ready", "1 while as many pods as wanted run the gateway and hold all that they should, else 0."),
		pods:       desc("pods", "Pods of the gateway, by state: filled (holds all that it should), filling, not_ready (no traffic is expected from it).", "state"),
		identities: desc("identities", "Identities (EIP, port, protocol) that a gateway should hold."),
		backends:   desc("backends", "Backends of all identities that a gateway should hold."),
		notReady: desc("rules_not_ready", "Rules of a gateway that are not, or still, programmed, by reason class: pending (an address or the gateway is missing), "+
			"programming (on the way), lost (the port is another's), invalid, deleting (on the way out).", "class"),
		rollout: desc("rollout", "1 for the gateway's place in the rollout of an image, else 0: held (keeps the former one until the others "+
			"are filled), filling (has the new one, is not filled yet), failed (cannot be filled, the others wait).", "state"),
	}
	if registerer == nil {
		return m, nil
	}
	return m, registerer.Register(m)
}

var _ prometheus.Collector = (*Metrics)(nil)

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) {
	for _, c := range []prometheus.Collector{m.calls, m.duration, m.lastSuccess} {
		c.Describe(out)
	}
	for _, desc := range []*prometheus.Desc{m.ready, m.pods, m.identities, m.backends, m.notReady, m.rollout} {
		out <- desc
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	for _, c := range []prometheus.Collector{m.calls, m.duration, m.lastSuccess} {
		c.Collect(out)
	}
	m.mu.Lock()
	snapshot := m.snapshot
	m.mu.Unlock()
	if snapshot == nil {
		return
	}
	gauge := func(desc *prometheus.Desc, value int, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(value), labels...)
	}
	flag := map[bool]int{true: 1}
	for _, f := range snapshot() {
		gauge(m.ready, flag[f.ready], f.gateway)
		for _, state := range []string{rolloutHeld, rolloutFilling, rolloutFailed} {
			gauge(m.rollout, flag[state == f.rollout], f.gateway, state)
		}
		gauge(m.identities, f.identities, f.gateway)
		gauge(m.backends, f.backends, f.gateway)
		for state, n := range f.pods {
			gauge(m.pods, n, f.gateway, state)
		}
		for class, n := range f.rules {
			gauge(m.notReady, n, f.gateway, class)
		}
	}
}

// show a controller's gateways.
func (m *Metrics) show(c *Controller) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.exists = func(gateway string) bool {
		_, err := c.gatewayLister.Get(gateway)
		return err == nil
	}
	m.snapshot = c.figures
}

// of calls update unless the gateway is gone: a call that ends after it must not bring its series back. Forgetting comes after the
// going, under the same lock.
func (m *Metrics) of(gateway string, update func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.exists == nil || m.exists(gateway) {
		update()
	}
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
	m.of(gateway, func() {
		m.calls.WithLabelValues(gateway, verb, result).Inc()
		m.duration.WithLabelValues(gateway, verb).Observe(took.Seconds())
	})
}

func (m *Metrics) observeSuccess(gateway string, now time.Time) {
	m.of(gateway, func() { m.lastSuccess.WithLabelValues(gateway).Set(float64(now.UnixMilli()) / 1000) })
}

func (m *Metrics) forget(gateway string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	series := prometheus.Labels{"gateway": gateway}
	m.calls.DeletePartialMatch(series)
	m.duration.DeletePartialMatch(series)
	m.lastSuccess.DeletePartialMatch(series)
}

// figures of all gateways there are.
func (c *Controller) figures() []gatewayFigures {
	gateways, err := c.gatewayLister.List(labels.Everything())
	if err != nil {
		return nil // a lister's List has no error
	}
	out := make([]gatewayFigures, 0, len(gateways))
	rollout := c.rolloutStates()
	for _, gw := range gateways {
		f := gatewayFigures{
			gateway: gw.Name, ready: gw.Status.Ready, rollout: rollout[gw.Name],
			pods:  map[string]int{podFilled: 0, podFilling: 0, podNotReady: 0},
			rules: map[string]int{classPending: 0, classProgramming: 0, classLost: 0, classInvalid: 0, classDeleting: 0},
		}
		for _, pod := range c.podsOf(gw.Name) {
			f.pods[c.podState(pod)]++
		}
		if state := c.states.current(gw.Name); state != nil {
			f.identities, f.backends = len(state.Shares)+len(state.Exclusives), state.Backends
			c.countRules(state, f.rules)
		}
		out = append(out, f)
	}
	return out
}

func (c *Controller) podState(pod *corev1.Pod) string {
	switch {
	case !counts(pod):
		return podNotReady
	case c.programs.get(keyOf(pod)).isFilled(runningContainer(pod)):
		return podFilled
	}
	return podFilling
}

// countRules counts by class what is decided about the rules, and those that wait for the gateway's pods.
func (c *Controller) countRules(s *State, classes map[string]int) {
	classes[classPending] += s.Counts[Pending] + s.Counts[Unclaimed]
	classes[classLost] += s.Counts[Lost]
	classes[classInvalid] += s.Counts[Invalid]
	classes[classDeleting] += s.Counts[Deleting]
	waiting, _ := c.waits.of(s.Gateway)
	for _, name := range waiting {
		rule, err := c.ruleLister.Get(name)
		if err != nil {
			continue
		}
		if v := s.Verdict(rule); v != nil && v.Outcome == Wanted {
			classes[classProgramming]++
		}
	}
}
