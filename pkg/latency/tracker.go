// SPDX-License-Identifier: Apache-2.0

package latency

import (
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// maxPending bounds how many changes of one Service are remembered; of more, the later ones are not measured.
const maxPending = 64

// Decision is what a Service should have: identities of one gateway, and the digest of each one's content, which is empty when there
// should be none. Without a gateway it is nothing.
type Decision struct {
	Gateway string
	Digests map[sharenat.Identity]string
}

// Holds tells whether the gateway holds what is decided about a Service, in every pod that counts.
type Holds func(sharenat.Owner, Decision) bool

// Tracker follows changes. A nil Tracker follows none.
type Tracker struct {
	now   func() time.Time
	start time.Time

	mu sync.Mutex
	// holds asks those who program the gateways, where they are in this process; else fallback asks the Service controller.
	holds, fallback Holds
	// changed are the trigger times that no decision took into account yet.
	changed map[sharenat.Owner][]time.Time
	// open are the decisions that are not in the gateway yet.
	open map[sharenat.Owner]*open

	duration *prometheus.HistogramVec
	oldest   *prometheus.Desc
}

type open struct {
	Decision
	triggers []time.Time
}

// NewTracker makes a tracker and registers its metrics; nil registers nowhere.
func NewTracker(registerer prometheus.Registerer) (*Tracker, error) {
	return newTracker(registerer, time.Now)
}

func newTracker(registerer prometheus.Registerer, now func() time.Time) (*Tracker, error) {
	t := &Tracker{
		now: now, start: now(), changed: map[sharenat.Owner][]time.Time{}, open: map[sharenat.Owner]*open{},
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "kube_ovn", Subsystem: "nftable_lb", Name: "programming_duration_seconds",
			Help:    "Time from the change of an EndpointSlice (its last-change-trigger-time) until every ready pod of the gateway holds it.",
			Buckets: prometheus.ExponentialBuckets(0.025, 2, 14),
		}, []string{"gateway"}),
		oldest: prometheus.NewDesc("kube_ovn_nftable_lb_programming_pending_seconds",
			"Age of the oldest change of an EndpointSlice that the gateway does not hold yet; none while it holds all.", []string{"gateway"}, nil),
	}
	if registerer == nil {
		return t, nil
	}
	return t, registerer.Register(t)
}

// SetHandler names who knows what gateways hold, and calls Check when that changes.
func (t *Tracker) SetHandler(holds Holds) {
	if t != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.holds = holds
	}
}

// SetFallback names who is asked, at each decision, where nobody in this process programs gateways.
func (t *Tracker) SetFallback(holds Holds) {
	if t != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.fallback = holds
	}
}

// TriggerTime reads when the change happened that an EndpointSlice is the outcome of. A time that is missing or cannot be read is none.
func TriggerTime(slice metav1.Object) time.Time {
	at, err := time.Parse(time.RFC3339Nano, slice.GetAnnotations()[corev1.EndpointsLastChangeTriggerTime])
	if err != nil {
		return time.Time{}
	}
	return at
}

// Changed notes that a Service's endpoints have changed, and when that was triggered. It is called before the Service is looked at.
func (t *Tracker) Changed(owner sharenat.Owner, at time.Time) {
	if t == nil || !at.After(t.start) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.changed[owner]) < maxPending {
		t.changed[owner] = append(t.changed[owner], at)
	}
}

// Pass begins a look at a Service. What it returns takes the decision; a look that ends without one leaves everything as it was.
//
// The changes that count for the decision are those noted before the look began: the others may not be in it.
func (t *Tracker) Pass(owner sharenat.Owner) func(decide func() Decision) {
	if t == nil {
		return func(func() Decision) {}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	seen := len(t.changed[owner])
	return func(decide func() Decision) { t.expect(owner, seen, decide) }
}

func (t *Tracker) expect(owner sharenat.Owner, seen int, decide func() Decision) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.open[owner]
	seen = min(seen, len(t.changed[owner])) // the Service may have been forgotten meanwhile
	if seen == 0 && before == nil {
		return
	}
	triggers := t.changed[owner][:seen:seen]
	if t.changed[owner] = t.changed[owner][seen:]; len(t.changed[owner]) == 0 {
		delete(t.changed, owner)
	}
	now := &open{Decision: decide()}
	switch {
	case now.Gateway == "":
		delete(t.open, owner)
		return
	case before != nil && before.Gateway == now.Gateway:
		now.triggers = before.triggers
	}
	if t.held(owner, now) {
		// What was open is done. The new changes have changed nothing in the gateway.
		t.observe(now)
		delete(t.open, owner)
		return
	}
	now.triggers = append(now.triggers[:len(now.triggers):len(now.triggers)], triggers...)
	if len(now.triggers) == 0 {
		delete(t.open, owner)
		return
	}
	now.triggers = now.triggers[:min(len(now.triggers), maxPending)]
	t.open[owner] = now
}

// Check looks again at what a gateway should hold.
func (t *Tracker) Check(gateway string) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for owner, o := range t.open {
		if o.Gateway == gateway && t.held(owner, o) {
			t.observe(o)
			delete(t.open, owner)
		}
	}
}

func (t *Tracker) held(owner sharenat.Owner, o *open) bool {
	holds := t.holds
	if holds == nil {
		holds = t.fallback
	}
	return holds != nil && holds(owner, o.Decision)
}

func (t *Tracker) observe(o *open) {
	now := t.now()
	for _, at := range o.triggers {
		// The clock of whoever wrote the time may be ahead.
		t.duration.WithLabelValues(o.Gateway).Observe(max(now.Sub(at), 0).Seconds())
	}
}

// Forget a Service that is gone, or not served any more.
func (t *Tracker) Forget(owner sharenat.Owner) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.changed, owner)
	delete(t.open, owner)
}

// ForgetGateway forgets a gateway that is gone, its series included.
func (t *Tracker) ForgetGateway(gateway string) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.open, func(_ sharenat.Owner, o *open) bool { return o.Gateway == gateway })
	t.duration.DeleteLabelValues(gateway)
}

var _ prometheus.Collector = (*Tracker)(nil)

// Describe implements prometheus.Collector.
func (t *Tracker) Describe(out chan<- *prometheus.Desc) {
	t.duration.Describe(out)
	out <- t.oldest
}

// Collect implements prometheus.Collector.
func (t *Tracker) Collect(out chan<- prometheus.Metric) {
	t.duration.Collect(out)
	for gateway, age := range t.pending() {
		out <- prometheus.MustNewConstMetric(t.oldest, prometheus.GaugeValue, age.Seconds(), gateway)
	}
}

// pending gives the age of the oldest open change of each gateway that has some.
func (t *Tracker) pending() map[string]time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	now, ages := t.now(), map[string]time.Duration{}
	for _, o := range t.open {
		for _, at := range o.triggers {
			ages[o.Gateway] = max(ages[o.Gateway], now.Sub(at))
		}
	}
	return ages
}
