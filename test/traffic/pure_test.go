// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestUpperGammaAgainstTables(t *testing.T) {
	// Critical values of the chi-square distribution: NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.4.
	tests := []struct {
		freedom  int
		critical float64
		p        float64
	}{
		{1, 2.706, 0.10},
		{1, 3.841, 0.05},
		{1, 6.635, 0.01},
		{1, 10.828, 0.001},
		{2, 4.605, 0.10},
		{2, 5.991, 0.05},
		{2, 9.210, 0.01},
		{2, 13.816, 0.001},
		{5, 9.236, 0.10},
		{5, 11.070, 0.05},
		{5, 15.086, 0.01},
		{5, 20.515, 0.001},
		{9, 14.684, 0.10},
		{9, 16.919, 0.05},
		{9, 21.666, 0.01},
		{9, 27.877, 0.001},
		{99, 117.407, 0.10},
		{99, 123.225, 0.05},
		{99, 134.642, 0.01},
		{99, 148.230, 0.001},
	}
	for _, tt := range tests {
		got := upperGamma(float64(tt.freedom)/2, tt.critical/2)
		if math.Abs(got-tt.p)/tt.p > 0.005 {
			t.Errorf("freedom %d, statistic %g: p = %g, the table has %g", tt.freedom, tt.critical, got, tt.p)
		}
	}
}

func TestEven(t *testing.T) {
	pods := []string{"a", "b", "c"}
	tests := []struct {
		name           string
		answers        map[string]int
		backends       []string
		wantStatistic  float64
		minP, maxP     float64
		wantFreedom    int
		statisticIsInf bool
	}{
		{name: "all the same", answers: map[string]int{"a": 20, "b": 20, "c": 20}, backends: pods, minP: 1, maxP: 1, wantFreedom: 2},
		{name: "as chance has it", answers: map[string]int{"a": 25, "b": 17, "c": 18}, backends: pods, wantStatistic: 1.9, minP: 0.386, maxP: 0.388, wantFreedom: 2},
		{name: "one never answers", answers: map[string]int{"a": 30, "b": 30}, backends: pods, wantStatistic: 30, minP: 3e-7, maxP: 3.1e-7, wantFreedom: 2},
		{name: "one alone answers", answers: map[string]int{"a": 60}, backends: pods, wantStatistic: 120, minP: 0, maxP: 1e-20, wantFreedom: 2},
		{name: "a stranger answers", answers: map[string]int{"a": 20, "b": 20, "c": 20, "d": 1}, backends: pods, wantFreedom: 2, statisticIsInf: true},
		{name: "nobody answers", answers: nil, backends: pods, wantFreedom: 2, statisticIsInf: true},
		{name: "only one there", answers: map[string]int{"a": 60}, backends: []string{"a"}, minP: 1, maxP: 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := Even(tt.answers, tt.backends)
			if tt.statisticIsInf {
				tt.wantStatistic = math.Inf(1)
			}
			off := math.Abs(got.Statistic - tt.wantStatistic)
			if off > 1e-9 || got.P < tt.minP || got.P > tt.maxP || got.Freedom != tt.wantFreedom {
				t.Errorf("%s", got)
			}
		})
	}
}

func TestOutages(t *testing.T) {
	zero := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(s int) time.Time { return zero.Add(time.Duration(s) * time.Second) }
	seconds := func(n int) metav1.Duration { return metav1.Duration{Duration: time.Duration(n) * time.Second} }
	type numbered struct {
		number int
		kind   Kind
	}
	tests := []struct {
		name string
		// in has attempts in the order in which they ended; number n began at second n.
		in   []numbered
		want Outages
	}{
		{name: "none", in: []numbered{{0, ""}, {1, ""}}},
		{
			name: "one, over",
			in:   []numbered{{0, ""}, {1, Timeout}, {2, Refused}, {3, Refused}, {4, ""}},
			want: func() Outages {
				o := &Outage{From: at(1), Until: at(4), Length: seconds(3), Kinds: map[Kind]int{Timeout: 1, Refused: 2}}
				return Outages{Count: 1, First: o, Longest: o, Last: o}
			}(),
		},
		{
			name: "ended in another order than begun",
			in:   []numbered{{0, ""}, {4, ""}, {2, Refused}, {3, Refused}, {1, Timeout}},
			want: func() Outages {
				o := &Outage{From: at(1), Until: at(4), Length: seconds(3), Kinds: map[Kind]int{Timeout: 1, Refused: 2}}
				return Outages{Count: 1, First: o, Longest: o, Last: o}
			}(),
		},
		{
			name: "one that lasts",
			in:   []numbered{{0, Timeout}, {1, Timeout}},
			want: func() Outages {
				o := &Outage{From: at(0), Length: seconds(1), Kinds: map[Kind]int{Timeout: 2}}
				return Outages{Count: 1, First: o, Longest: o, Last: o}
			}(),
		},
		{
			name: "several",
			in:   []numbered{{0, Reset}, {1, ""}, {2, Timeout}, {3, Timeout}, {4, ""}, {5, Refused}, {6, ""}},
			want: Outages{
				Count:   3,
				First:   &Outage{From: at(0), Until: at(1), Length: seconds(1), Kinds: map[Kind]int{Reset: 1}},
				Longest: &Outage{From: at(2), Until: at(4), Length: seconds(2), Kinds: map[Kind]int{Timeout: 2}},
				Last:    &Outage{From: at(5), Until: at(6), Length: seconds(1), Kinds: map[Kind]int{Refused: 1}},
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var track outageTracker
			for _, n := range tt.in {
				track.add(n.number, attempt{began: at(n.number), kind: n.kind})
			}
			if diff := cmp.Diff(tt.want, track.outages()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestLatency(t *testing.T) {
	var h histogram
	if h.latency() != nil {
		t.Error("a latency of nothing")
	}
	for i := 1; i <= 1000; i++ {
		h.add(time.Duration(i) * time.Millisecond)
	}
	got := h.latency()
	for _, q := range []struct {
		name      string
		got, want time.Duration
	}{
		{"p50", got.P50.Duration, 500 * time.Millisecond},
		{"p90", got.P90.Duration, 900 * time.Millisecond},
		{"p99", got.P99.Duration, 990 * time.Millisecond},
	} {
		if off := math.Abs(float64(q.got-q.want)) / float64(q.want); off > 0.021 {
			t.Errorf("%s is %s, not %s", q.name, q.got, q.want)
		}
	}
	if got.Max.Duration != time.Second {
		t.Errorf("max is %s", got.Max.Duration)
	}
}

func TestArgvRoundTrip(t *testing.T) {
	endpoint := Endpoint{Target: "203.0.113.10:80", Source: netip.MustParseAddr("203.0.113.101"), Path: "/clientip", Timeout: 3 * time.Second}
	addr := cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

	spread := SpreadOptions{Endpoint: endpoint, UDP: true, Count: 60, Interval: time.Second}
	var gotSpread SpreadOptions
	check(t, spread.Argv(), func(args []string) error { _, err := parse(gotSpread.flags(), &gotSpread.Endpoint, args); return err })
	if diff := cmp.Diff(spread, gotSpread, addr); diff != "" {
		t.Errorf("spread (-want +got):\n%s", diff)
	}
	stream := StreamOptions{Endpoint: endpoint, Rate: 12.5, Workers: 3, Duration: time.Minute}
	var gotStream StreamOptions
	check(t, stream.Argv(), func(args []string) error { _, err := parse(gotStream.flags(), &gotStream.Endpoint, args); return err })
	if diff := cmp.Diff(stream, gotStream, addr); diff != "" {
		t.Errorf("stream (-want +got):\n%s", diff)
	}
	hold := HoldOptions{Endpoint: endpoint, Connections: 5, Interval: time.Second, Duration: time.Minute}
	var gotHold HoldOptions
	check(t, hold.Argv(), func(args []string) error { _, err := parse(gotHold.flags(), &gotHold.Endpoint, args); return err })
	if diff := cmp.Diff(hold, gotHold, addr); diff != "" {
		t.Errorf("hold (-want +got):\n%s", diff)
	}
	flow := FlowOptions{Endpoint: Endpoint{Target: "203.0.113.10:53"}, Port: 4000}
	var gotFlow FlowOptions
	check(t, flow.Argv(), func(args []string) error { _, err := parse(gotFlow.flags(), &gotFlow.Endpoint, args); return err })
	if diff := cmp.Diff(flow, gotFlow, addr); diff != "" {
		t.Errorf("flow (-want +got):\n%s", diff)
	}
}

// check reads the arguments of an argv again.
func check(t *testing.T, argv []string, read func(args []string) error) {
	t.Helper()
	if argv[1] != hook {
		t.Fatalf("argv %q", argv)
	}
	if err := read(argv[3:]); err != nil {
		t.Fatalf("argv %q: %v", argv, err)
	}
}
