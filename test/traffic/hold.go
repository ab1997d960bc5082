// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxCuts bounds how many cuts are kept one by one.
const maxCuts = 1000

// HoldOptions say how many connections to keep open, and to whom.
type HoldOptions struct {
	Endpoint
	// Connections is their number. Default: 10.
	Connections int
	// Interval is the time between a connection's requests. Default: 100 ms.
	Interval time.Duration
	// Duration ends it. Default: it goes on until ctx is done.
	Duration time.Duration
}

func (o *HoldOptions) complete() error {
	o.defaults()
	if o.Connections == 0 {
		o.Connections = 10
	}
	if o.Interval == 0 {
		o.Interval = 100 * time.Millisecond
	}
	if o.Connections < 0 || o.Interval < 0 || o.Duration < 0 {
		return fmt.Errorf("connections %d, interval %s and duration %s cannot be negative", o.Connections, o.Interval, o.Duration)
	}
	return o.validate()
}

// Cut is the end of a connection that was not ours to end.
type Cut struct {
	At time.Time `json:"at"`
	// Backend is whose connection it was, "" when it had not said yet.
	Backend string `json:"backend"`
	Kind    Kind   `json:"kind"`
	// Age is how long the connection stood, Requests how many were answered on it.
	Age      metav1.Duration `json:"age"`
	Requests int             `json:"requests"`
}

// Hold is what came of connections kept open.
type Hold struct {
	Final   bool            `json:"final,omitempty"`
	Elapsed metav1.Duration `json:"elapsed"`
	// Open is the number of connections that stand, by backend.
	Open map[string]int `json:"open,omitempty"`
	// Opened is how many were opened so far, those in place of cut ones included; Requests how many requests were answered.
	Opened   int `json:"opened"`
	Requests int `json:"requests"`
	// Cut is the number of connections that were cut; Cuts lists them, Failures counts them by kind.
	Cut      int      `json:"cut"`
	Cuts     []Cut    `json:"cuts,omitempty"`
	Failures Failures `json:"failures,omitzero"`
	// Moved is how often another backend answered than before on the same connection.
	Moved int `json:"moved,omitempty"`
	// NotOpened counts the attempts to open a connection that failed.
	NotOpened Failures `json:"notOpened,omitzero"`
	Latency   *Latency `json:"latency,omitempty"`
}

// Holder keeps connections open and uses them.
type Holder struct {
	options HoldOptions

	mu     sync.Mutex
	began  time.Time
	result Hold
	took   histogram
}

// NewHolder checks the options.
func NewHolder(options HoldOptions) (*Holder, error) {
	if err := options.complete(); err != nil {
		return nil, err
	}
	return &Holder{options: options, result: Hold{Open: map[string]int{}}}, nil
}

// Run keeps the connections until ctx is done. In place of one that is cut it opens another.
func (h *Holder) Run(ctx context.Context) {
	if h.options.Duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, h.options.Duration)
		defer cancel()
	}
	began := time.Now()
	h.mu.Lock()
	h.began = began
	h.mu.Unlock()

	var group sync.WaitGroup
	for i := range h.options.Connections {
		// Their requests are spread over the interval.
		next := began.Add(h.options.Interval * time.Duration(i) / time.Duration(h.options.Connections))
		group.Go(func() {
			for pause(ctx, next) {
				h.one(ctx, next)
				next = time.Now().Add(h.options.Interval)
			}
		})
	}
	group.Wait()
}

// one is the life of one connection.
func (h *Holder) one(ctx context.Context, next time.Time) {
	began := time.Now()
	s, err := h.options.connect(began.Add(h.options.Timeout))
	h.mu.Lock()
	if err != nil {
		h.result.NotOpened.add(err)
	} else {
		h.result.Opened++
	}
	h.mu.Unlock()
	if err != nil {
		return
	}
	defer s.conn.Close()
	cut := Cut{}
	defer func() { h.leave(cut.Backend) }()
	for ctx.Err() == nil {
		if err := h.ask(s, &cut); err != nil {
			h.record(&cut, began, err)
			return
		}
		next = next.Add(h.options.Interval)
		if now := time.Now(); next.Before(now) {
			next = now
		}
		if err := s.idle(next); err != nil {
			h.record(&cut, began, err)
			return
		}
	}
}

// ask sends a request and takes note of who answered.
func (h *Holder) ask(s *session, cut *Cut) error {
	sent := time.Now()
	answer, err := s.request(&h.options.Endpoint, sent.Add(h.options.Timeout), false)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.took.add(time.Since(sent))
	h.result.Requests++
	cut.Requests++
	if answer == cut.Backend {
		return nil
	}
	if cut.Backend != "" {
		h.result.Moved++
		h.result.Open[cut.Backend]--
	}
	h.result.Open[answer]++
	cut.Backend = answer
	return nil
}

// idle waits for a time while nothing is expected, and notices at once when the connection is cut.
func (s *session) idle(until time.Time) error {
	if err := s.conn.SetReadDeadline(until); err != nil {
		return err
	}
	_, err := s.reader.Peek(1)
	switch {
	case err == nil:
		return badAnswer("an answer that was not asked for")
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil
	}
	return err
}

func (h *Holder) record(cut *Cut, began time.Time, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	cut.At = time.Now()
	cut.Age.Duration = cut.At.Sub(began).Round(time.Millisecond)
	cut.Kind = h.result.Failures.add(err)
	h.result.Cut++
	if len(h.result.Cuts) < maxCuts {
		h.result.Cuts = append(h.result.Cuts, *cut)
	}
}

// leave takes a connection out of those that stand.
func (h *Holder) leave(backend string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.result.Open[backend]--; h.result.Open[backend] <= 0 {
		delete(h.result.Open, backend)
	}
}

// Snapshot is the state of things.
func (h *Holder) Snapshot() Hold {
	h.mu.Lock()
	defer h.mu.Unlock()
	result := h.result
	result.Elapsed.Duration = elapsed(h.began)
	result.Open = maps.Clone(result.Open)
	result.Cuts = slices.Clone(result.Cuts)
	for _, failures := range []*Failures{&result.Failures, &result.NotOpened} {
		failures.Kinds = maps.Clone(failures.Kinds)
		failures.Samples = slices.Clone(failures.Samples)
	}
	result.Latency = h.took.latency()
	return result
}
