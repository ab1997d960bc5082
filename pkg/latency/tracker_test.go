// SPDX-License-Identifier: Apache-2.0

package latency

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

var (
	web  = sharenat.Owner{Namespace: "shop", Name: "web"}
	http = sharenat.Identity{EIP: netip.MustParseAddr("203.0.113.10"), Port: 80, Protocol: sharenat.TCP}
)

// world is a tracker with a clock, and what the gateways hold of the one identity.
type world struct {
	*testing.T
	*Tracker
	registry *prometheus.Registry
	clock    time.Time
	held     map[string]string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, registry: prometheus.NewRegistry(), clock: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), held: map[string]string{}}
	var err error
	if w.Tracker, err = newTracker(w.registry, func() time.Time { return w.clock }); err != nil {
		t.Fatal(err)
	}
	w.SetHandler(func(owner sharenat.Owner, want Decision) bool {
		return owner == web && w.held[want.Gateway] == want.Digests[http]
	})
	return w
}

func (w *world) pass(seconds int) { w.clock = w.clock.Add(time.Duration(seconds) * time.Second) }

// decide is a whole pass of the Service controller.
func (w *world) decide(gateway, digest string) {
	w.Pass(web)(func() Decision {
		return Decision{Gateway: gateway, Digests: map[sharenat.Identity]string{http: digest}}
	})
}

// program is what the handler does.
func (w *world) program(gateway, digest string) {
	w.held[gateway] = digest
	w.Check(gateway)
}

// want compares what was measured, as "gateway count sum", and what is pending, as "gateway seconds".
func (w *world) want(measured, pending string) {
	w.Helper()
	families, err := w.registry.Gather()
	if err != nil {
		w.Fatal(err)
	}
	var gotMeasured, gotPending []string
	for _, family := range families {
		for _, m := range family.GetMetric() {
			gateway := m.GetLabel()[0].GetValue()
			if h := m.GetHistogram(); h != nil {
				gotMeasured = append(gotMeasured, fmt.Sprintf("%s %d %g", gateway, h.GetSampleCount(), h.GetSampleSum()))
			} else {
				gotPending = append(gotPending, fmt.Sprintf("%s %g", gateway, m.GetGauge().GetValue()))
			}
		}
	}
	if diff := cmp.Diff([]string{measured, pending}, []string{strings.Join(gotMeasured, ", "), strings.Join(gotPending, ", ")}); diff != "" {
		w.Errorf("measured and pending (-want +got):\n%s", diff)
	}
}

func TestChangeIsMeasured(t *testing.T) {
	w := newWorld(t)
	w.pass(10)
	w.Changed(web, w.clock)
	w.pass(1)
	w.decide("gw", "one")
	w.want("", "gw 1")
	w.Check("other")
	w.program("gw", "half of it")
	w.want("", "gw 1")
	w.pass(2)
	w.program("gw", "one")
	w.want("gw 1 3", "")
	w.Check("gw")
	w.want("gw 1 3", "")
}

func TestChangesThatAreNotMeasured(t *testing.T) {
	for name, do := range map[string]func(w *world){
		"one from before the start": func(w *world) { w.Changed(web, w.start); w.decide("gw", "one"); w.program("gw", "one") },
		"one without a time":        func(w *world) { w.Changed(web, time.Time{}); w.decide("gw", "one"); w.program("gw", "one") },
		"one that changes nothing": func(w *world) {
			w.held["gw"] = "one"
			w.Changed(web, w.clock)
			w.decide("gw", "one")
			w.program("gw", "one")
		},
		"one of a Service not served": func(w *world) {
			w.Changed(web, w.clock)
			w.Pass(web)(func() Decision { return Decision{} })
			w.decide("gw", "one")
			w.program("gw", "one")
		},
		"one of a Service that goes": func(w *world) { w.Changed(web, w.clock); w.decide("gw", "one"); w.Forget(web); w.program("gw", "one") },
		"one of a Service gone in a pass": func(w *world) {
			w.Changed(web, w.clock)
			p := w.Pass(web)
			w.Forget(web)
			p(func() Decision { return Decision{Gateway: "gw"} })
		},
		"one whose gateway goes": func(w *world) {
			w.Changed(web, w.clock)
			w.decide("gw", "one")
			w.ForgetGateway("gw")
			w.program("gw", "one")
		},
		"one that the Service moved from": func(w *world) {
			w.Changed(web, w.clock)
			w.decide("gw", "one")
			w.decide("gw2", "one")
			w.program("gw2", "one")
			w.program("gw", "one")
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.pass(10)
			do(w)
			w.want("", "")
		})
	}
}

// What comes later replaces what should be held; every change is measured when the latest is there.
func TestChangesFollowEachOther(t *testing.T) {
	w := newWorld(t)
	w.pass(10)
	w.Changed(web, w.clock)
	w.decide("gw", "one")
	w.pass(5)
	w.Changed(web, w.clock)
	w.Changed(web, w.clock.Add(-time.Second))
	w.decide("gw", "two")
	w.pass(1)
	w.program("gw", "one")
	w.want("", "gw 6")
	w.program("gw", "two")
	w.want("gw 3 9", "") // 6 + 1 + 2
}

// A change that is noted while a pass is under way is the next one's; so is one whose pass ends without a decision.
func TestPassTakesWhatItSaw(t *testing.T) {
	w := newWorld(t)
	w.pass(10)
	w.Changed(web, w.clock)
	decided := w.Pass(web)
	w.pass(1)
	w.Changed(web, w.clock)
	decided(func() Decision { return Decision{Gateway: "gw", Digests: map[sharenat.Identity]string{http: "one"}} })
	w.program("gw", "one")
	w.want("gw 1 1", "")
	w.Pass(web)
	w.pass(1)
	w.decide("gw", "two")
	w.program("gw", "two")
	w.want("gw 2 2", "")
}

func TestBackAsItWas(t *testing.T) {
	w := newWorld(t)
	w.held["gw"] = "one"
	w.pass(10)
	w.Changed(web, w.clock)
	w.decide("gw", "two")
	w.pass(1)
	w.Changed(web, w.clock)
	w.decide("gw", "one") // before the gateway was told
	w.want("gw 1 1", "")
}

func TestClockAhead(t *testing.T) {
	w := newWorld(t)
	w.Changed(web, w.clock.Add(time.Hour))
	w.decide("gw", "one")
	w.want("", "gw 0")
	w.program("gw", "one")
	w.want("gw 1 0", "")
}

func TestManyChangesAreBounded(t *testing.T) {
	w := newWorld(t)
	for range 3 {
		for i := range 2 * maxPending {
			w.Changed(web, w.start.Add(time.Duration(i+1)*time.Second))
		}
		w.decide("gw", "one")
	}
	w.pass(1000)
	w.program("gw", "one")
	w.want(fmt.Sprintf("gw %d 61920", maxPending), "")
}

func TestFallback(t *testing.T) {
	w := newWorld(t)
	w.SetHandler(nil)
	ready := false
	w.pass(10)
	w.Changed(web, w.clock)
	w.decide("gw", "one") // nobody to ask
	w.SetFallback(func(sharenat.Owner, Decision) bool { return ready })
	w.decide("gw", "one")
	w.pass(2)
	ready = true
	w.decide("gw", "one")
	w.want("gw 1 2", "")
}

func TestGatewayGone(t *testing.T) {
	w := newWorld(t)
	w.pass(10)
	w.Changed(web, w.clock)
	w.decide("gw", "one")
	w.program("gw", "one")
	w.want("gw 1 0", "")
	w.ForgetGateway("gw")
	w.want("", "")
}

func TestNoTracker(t *testing.T) {
	var none *Tracker
	none.SetHandler(nil)
	none.SetFallback(nil)
	none.Changed(web, time.Now())
	none.Pass(web)(func() Decision { t.Error("asked for a decision"); return Decision{} })
	none.Check("gw")
	none.Forget(web)
	none.ForgetGateway("gw")
}

func TestTriggerTime(t *testing.T) {
	at := time.Date(2026, 1, 1, 10, 20, 30, 123456789, time.UTC)
	for text, want := range map[string]time.Time{
		"2026-01-01T10:20:30.123456789Z":      at,
		"2026-01-01T12:20:30.123456789+02:00": at,
		"2026-01-01T10:20:30Z":                at.Truncate(time.Second),
		"":                                    {},
		"yesterday":                           {},
		"1767262830":                          {},
		"2026-13-01T10:20:30Z":                {},
	} {
		slice := &discoveryv1.EndpointSlice{}
		slice.Annotations = map[string]string{"endpoints.kubernetes.io/last-change-trigger-time": text}
		if got := TriggerTime(slice); !got.Equal(want) {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
	if got := TriggerTime(&discoveryv1.EndpointSlice{}); !got.IsZero() {
		t.Errorf("no annotation: %v", got)
	}
}

func TestMetricNames(t *testing.T) {
	w := newWorld(t)
	w.Changed(web, w.clock.Add(time.Second))
	w.decide("gw", "one")
	problems, err := testutil.GatherAndLint(w.registry)
	if err != nil || len(problems) > 0 {
		t.Error(problems, err)
	}
}
