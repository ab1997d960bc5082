// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestMain(m *testing.M) {
	Init()
	os.Exit(m.Run())
}

// backend is a netexec that can be told what to answer. Its connections can be cut.
type backend struct {
	*http.Server
	address string
	name    atomic.Value
	opened  atomic.Int32
}

func newBackend(t *testing.T, address, name string) *backend {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	b := &backend{address: listener.Addr().String()}
	b.name.Store(name)
	mux := http.NewServeMux()
	mux.HandleFunc("/hostname", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, b.name.Load()) })
	mux.HandleFunc("/clientip", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.RemoteAddr) })
	b.Server = &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute, ConnState: func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			b.opened.Add(1)
		}
	}}
	go func() { _ = b.Serve(listener) }()
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// silent accepts connections and never says anything.
func silent(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	return listener.Addr().String()
}

// rude accepts connections and treats them as it likes.
func rude(t *testing.T, treat func(*net.TCPConn)) string {
	t.Helper()
	listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			conn, err := listener.AcceptTCP()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 1024))
			treat(conn)
		}
	}()
	t.Cleanup(func() { _ = listener.Close() })
	return listener.Addr().String()
}

// nobody is an address where nobody listens.
func nobody(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

func TestFailureKinds(t *testing.T) {
	good := newBackend(t, "127.0.0.1:0", "pod-a").address
	tests := []struct {
		name     string
		endpoint Endpoint
		want     Kind
	}{
		{"nobody listens", Endpoint{Target: nobody(t)}, Refused},
		{"no answer", Endpoint{Target: silent(t), Timeout: 20 * time.Millisecond}, Timeout},
		{"closed without an answer", Endpoint{Target: rude(t, func(c *net.TCPConn) { _ = c.Close() })}, Closed},
		{"reset", Endpoint{Target: rude(t, func(c *net.TCPConn) { _ = c.SetLinger(0); _ = c.Close() })}, Reset},
		{"closed in the answer", Endpoint{Target: rude(t, func(c *net.TCPConn) {
			_, _ = c.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\npod"))
			_ = c.Close()
		})}, Closed},
		{"not found", Endpoint{Target: good, Path: "/nowhere"}, BadAnswer},
		{"no such source", Endpoint{Target: good, Source: netip.MustParseAddr("192.0.2.1")}, Other},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := SpreadOptions{Endpoint: tt.endpoint, Count: 2}.Run(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(map[Kind]int{tt.want: 2}, got.Failures.Kinds); diff != "" {
				t.Errorf("kinds (-want +got):\n%s%v", diff, got.Failures.Samples)
			}
			if got.Attempts != 2 || got.OK != 0 {
				t.Errorf("attempts %d, ok %d", got.Attempts, got.OK)
			}
		})
	}
}

func TestSpreadOpensNewConnections(t *testing.T) {
	b := newBackend(t, "127.0.0.1:0", "pod-a")
	got, err := SpreadOptions{Endpoint: Endpoint{Target: b.address}, Count: 30}.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if n := b.opened.Load(); n != 30 {
		t.Errorf("%d connections", n)
	}
	if diff := cmp.Diff(map[string]int{"pod-a": 30}, got.Answers); diff != "" {
		t.Errorf("answers (-want +got):\n%s", diff)
	}
	if len(got.Sequence) != 30 || got.Latency == nil || got.Latency.Max.Duration <= 0 {
		t.Errorf("sequence %v, latency %v", got.Sequence, got.Latency)
	}
}

func TestSpreadFromSource(t *testing.T) {
	b := newBackend(t, "127.0.0.1:0", "")
	endpoint := Endpoint{Target: b.address, Source: netip.MustParseAddr("127.0.0.77"), Path: "/clientip"}
	got, err := SpreadOptions{Endpoint: endpoint}.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if seen := netip.MustParseAddrPort(got.Sequence[0]).Addr(); seen != endpoint.Source {
		t.Errorf("the backend saw %s", seen)
	}
}

func TestBadOptions(t *testing.T) {
	target := Endpoint{Target: "127.0.0.1:80"}
	tests := []struct {
		name string
		try  func() error
	}{
		{"no target", func() error { _, err := SpreadOptions{}.Run(t.Context()); return err }},
		{"target without port", func() error {
			_, err := NewStreamer(StreamOptions{Endpoint: Endpoint{Target: "127.0.0.1"}})
			return err
		}},
		{"target by name", func() error {
			_, err := NewStreamer(StreamOptions{Endpoint: Endpoint{Target: "localhost:80"}})
			return err
		}},
		{"two requests in a path", func() error {
			_, err := SpreadOptions{Endpoint: Endpoint{Target: target.Target, Path: "/ HTTP/1.1\r\n"}}.Run(t.Context())
			return err
		}},
		{"negative count", func() error { _, err := SpreadOptions{Endpoint: target, Count: -1}.Run(t.Context()); return err }},
		{"negative rate", func() error { _, err := NewStreamer(StreamOptions{Endpoint: target, Rate: -1}); return err }},
		{"negative connections", func() error { _, err := NewHolder(HoldOptions{Endpoint: target, Connections: -1}); return err }},
		{"negative interval", func() error { _, err := NewSender(FlowOptions{Endpoint: target, Interval: -1}); return err }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.try() == nil {
				t.Error("taken")
			}
		})
	}
}

// eventually waits until something holds of what is measured, and returns it.
func eventually[T any](t *testing.T, snapshot func() T, holds func(T) bool) T {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; {
		s := snapshot()
		if holds(s) {
			return s
		}
		if time.Now().After(deadline) {
			t.Fatalf("it never came to it: %+v", s)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestStreamFindsOutage(t *testing.T) {
	b := newBackend(t, "127.0.0.1:0", "pod-a")
	s, err := NewStreamer(StreamOptions{Endpoint: Endpoint{Target: b.address}, Rate: 500})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan struct{})
	go func() { s.Run(ctx); close(done) }()

	eventually(t, s.Snapshot, func(s Stream) bool { return s.OK > 10 })
	down := time.Now()
	_ = b.Close()
	eventually(t, s.Snapshot, func(s Stream) bool { return s.Failed > 10 })
	up := time.Now()
	newBackend(t, b.address, "pod-b")
	eventually(t, s.Snapshot, func(s Stream) bool { return s.Backends["pod-b"] > 10 })
	stop()
	<-done

	got := s.Snapshot()
	if got.Attempts != got.OK+got.Failed || got.Failed != got.Failures.Count() {
		t.Errorf("%d attempts, %d ok, %d failed: %v", got.Attempts, got.OK, got.Failed, got.Failures)
	}
	if got.Outages.Count == 0 {
		t.Fatal("no outage found")
	}
	// Attempts overlap: at either edge one may fail between two that do not, which makes an outage of its own, and a
	// short one. The long one began with an attempt that was under way when the server closed, at the earliest; none is
	// for longer than its timeout.
	long := got.Outages.Longest
	if long.From.Before(down.Add(-DefaultTimeout)) || long.Until.Before(up.Add(-DefaultTimeout)) || long.Length.Duration > time.Since(down)+DefaultTimeout {
		t.Errorf("down at %s, up at %s, outage %+v", down, up, long)
	}
}

func TestStreamCountsWhatItLeavesOut(t *testing.T) {
	s, err := NewStreamer(StreamOptions{
		Endpoint: Endpoint{Target: silent(t), Timeout: 50 * time.Millisecond}, Rate: 1000, Workers: 2, Duration: 120 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Run(t.Context())
	got := s.Snapshot()
	if got.Behind == 0 || got.OK != 0 || got.Failures.Kinds[Timeout] != got.Attempts {
		t.Errorf("%+v", got)
	}
}

func TestHoldNoticesCutAtOnce(t *testing.T) {
	b := newBackend(t, "127.0.0.1:0", "pod-a")
	// Nothing is sent after the first request, so that only the cut itself can be noticed.
	h, err := NewHolder(HoldOptions{Endpoint: Endpoint{Target: b.address}, Connections: 3, Interval: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	// The connections' first requests are due at different times.
	for range 3 {
		go h.one(ctx, time.Now())
	}
	eventually(t, h.Snapshot, func(h Hold) bool { return h.Open["pod-a"] == 3 })
	_ = b.Close()
	got := eventually(t, h.Snapshot, func(h Hold) bool { return h.Cut == 3 && len(h.Open) == 0 })
	for _, cut := range got.Cuts {
		if cut.Backend != "pod-a" || cut.Requests != 1 || cut.Kind == "" {
			t.Errorf("%+v", cut)
		}
	}
}

func TestHoldKeepsItsConnections(t *testing.T) {
	b := newBackend(t, "127.0.0.1:0", "pod-a")
	h, err := NewHolder(HoldOptions{Endpoint: Endpoint{Target: b.address}, Connections: 4, Interval: 5 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan struct{})
	go func() { h.Run(ctx); close(done) }()
	got := eventually(t, h.Snapshot, func(h Hold) bool { return h.Requests > 40 && h.Open["pod-a"] == 4 })
	if got.Opened != 4 || got.Cut != 0 || got.Moved != 0 {
		t.Errorf("%+v", got)
	}
	b.name.Store("pod-b")
	got = eventually(t, h.Snapshot, func(h Hold) bool { return h.Open["pod-b"] == 4 })
	if diff := cmp.Diff(map[string]int{"pod-a": 0, "pod-b": 4}, got.Open); diff != "" || got.Moved != 4 || got.Opened != 4 {
		t.Errorf("open (-want +got):\n%s%+v", diff, got)
	}
	stop()
	<-done
	if got := h.Snapshot(); got.Cut != 0 || len(got.Open) != 1 {
		t.Errorf("after the end: %+v", got)
	}
}

// netexecUDP answers with a name, or not at all when that is "".
func netexecUDP(t *testing.T, address, name string) *net.UDPConn {
	t.Helper()
	addr, err := net.ResolveUDPAddr("udp", address)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.ListenUDP("udp", addr)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		buf := make([]byte, 100)
		for {
			n, from, err := conn.ReadFromUDP(buf)
			if err != nil {
				return
			}
			if name != "" && string(buf[:n]) == "hostname" {
				_, _ = conn.WriteToUDP([]byte(name), from)
			}
		}
	}()
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func TestFlowFindsGap(t *testing.T) {
	first := netexecUDP(t, "127.0.0.1:0", "pod-a")
	address := first.LocalAddr().String()
	s, err := NewSender(FlowOptions{Endpoint: Endpoint{Target: address}, Interval: 5 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()

	eventually(t, s.Snapshot, func(f Flow) bool { return f.Answered > 5 })
	_ = first.Close()
	eventually(t, s.Snapshot, func(f Flow) bool { return f.Failures.Kinds[Refused] > 5 })
	mute := netexecUDP(t, address, "")
	eventually(t, s.Snapshot, func(f Flow) bool { return f.Failures.Kinds[Timeout] > 5 })
	_ = mute.Close()
	netexecUDP(t, address, "pod-b")
	eventually(t, s.Snapshot, func(f Flow) bool { return f.Backends["pod-b"] > 5 })
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}

	got := s.Snapshot()
	if got.Gaps.Count != 1 || got.Gaps.First.Until.IsZero() || got.Sent != got.Answered+got.Lost {
		t.Errorf("%+v, gaps %+v", got, got.Gaps)
	}
	var changes []string
	for _, c := range got.Changes {
		changes = append(changes, c.From+">"+c.To)
	}
	if diff := cmp.Diff([]string{">pod-a", "pod-a>pod-b"}, changes); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
}

func TestSpreadUDP(t *testing.T) {
	address := netexecUDP(t, "127.0.0.1:0", "pod-a").LocalAddr().String()
	got, err := SpreadOptions{Endpoint: Endpoint{Target: address}, UDP: true, Count: 5}.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]int{"pod-a": 5}, got.Answers); diff != "" {
		t.Errorf("answers (-want +got):\n%s", diff)
	}
}

// command makes a command of an Argv.
func command(t *testing.T, argv []string) *exec.Cmd {
	t.Helper()
	return exec.CommandContext(t.Context(), argv[0], argv[1:]...)
}

func TestProcess(t *testing.T) {
	b := newBackend(t, "127.0.0.1:0", "pod-a")
	options := StreamOptions{Endpoint: Endpoint{Target: b.address}, Rate: 200}
	p, err := Start[Stream](command(t, append(options.Argv(), "--report=1h")))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Now(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() Stream {
		s, err := p.Now(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return s
	}, func(s Stream) bool { return s.OK >= 10 })
	got, err := p.Stop(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !got.Final || got.OK < 10 || got.Failed != 0 || !slices.Equal(slices.Collect(maps.Keys(got.Backends)), []string{"pod-a"}) {
		t.Errorf("%+v", got)
	}
}

func TestProcessThatFails(t *testing.T) {
	_, err := Do[Spread](t.Context(), command(t, SpreadOptions{Endpoint: Endpoint{Target: "nowhere"}}.Argv()))
	if err == nil {
		t.Fatal("no error")
	}
	p, err := Start[Hold](command(t, append(HoldOptions{Endpoint: Endpoint{Target: "127.0.0.1:80"}}.Argv(), "--nonsense")))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Stop(t.Context()); err == nil {
		t.Error("no error")
	}
}

func TestProcessEndsByItself(t *testing.T) {
	b := newBackend(t, "127.0.0.1:0", "pod-a")
	endpoint := Endpoint{Target: b.address}
	spread, err := Do[Spread](t.Context(), command(t, SpreadOptions{Endpoint: endpoint, Count: 7}.Argv()))
	if err != nil {
		t.Fatal(err)
	}
	if spread.OK != 7 {
		t.Errorf("%+v", spread)
	}
	hold, err := Do[Hold](t.Context(), command(t, HoldOptions{Endpoint: endpoint, Connections: 2, Duration: 50 * time.Millisecond, Interval: 10 * time.Millisecond}.Argv()))
	if err != nil {
		t.Fatal(err)
	}
	if !hold.Final || hold.Opened != 2 || hold.Cut != 0 {
		t.Errorf("%+v", hold)
	}
}
