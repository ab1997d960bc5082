// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// StreamOptions say how many connections a second to open, and to whom.
type StreamOptions struct {
	Endpoint
	// Rate is the number of new connections a second. Default: 100.
	Rate float64
	// Workers bounds how many attempts are under way at once; when all are, attempts are left out and counted as Behind.
	// Default: enough to keep the rate when all of them time out.
	Workers int
	// Duration ends the stream. Default: it goes on until ctx is done.
	Duration time.Duration
}

func (o *StreamOptions) complete() error {
	o.defaults()
	if o.Rate == 0 {
		o.Rate = 100
	}
	if o.Rate < 0 || o.Workers < 0 || o.Duration < 0 {
		return fmt.Errorf("rate %g, workers %d and duration %s cannot be negative", o.Rate, o.Workers, o.Duration)
	}
	if o.Workers == 0 {
		o.Workers = int(math.Ceil(o.Rate*o.Timeout.Seconds())) + 1
	}
	return o.validate()
}

// Stream is what came of a stream of new connections.
type Stream struct {
	Final   bool            `json:"final,omitempty"`
	Elapsed metav1.Duration `json:"elapsed"`
	// Attempts is the number of connections that came to an end: OK were answered, Failed were not.
	Attempts int      `json:"attempts"`
	OK       int      `json:"ok"`
	Failed   int      `json:"failed"`
	Failures Failures `json:"failures,omitzero"`
	// Behind is the number of attempts left out because all workers were busy. 0 means that the rate was kept.
	Behind int `json:"behind,omitempty"`
	// Backends counts the answers by what was answered, usually a Pod's name.
	Backends map[string]int `json:"backends,omitempty"`
	Outages  Outages        `json:"outages,omitzero"`
	Latency  *Latency       `json:"latency,omitempty"`
}

// Streamer opens new connections at a constant rate.
type Streamer struct {
	options StreamOptions

	mu     sync.Mutex
	began  time.Time
	result Stream
	track  outageTracker
	took   histogram
}

// NewStreamer checks the options.
func NewStreamer(options StreamOptions) (*Streamer, error) {
	if err := options.complete(); err != nil {
		return nil, err
	}
	return &Streamer{options: options, result: Stream{Backends: map[string]int{}}}, nil
}

// Run opens connections until ctx is done, then waits for those under way: none of them counts as lost because of the end.
func (s *Streamer) Run(ctx context.Context) {
	if s.options.Duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.options.Duration)
		defer cancel()
	}
	s.mu.Lock()
	s.began = time.Now()
	s.mu.Unlock()

	var group sync.WaitGroup
	defer group.Wait()
	free := make(chan struct{}, s.options.Workers)
	started := 0
	for tick := 0; pause(ctx, s.tick(tick)); tick++ {
		select {
		case free <- struct{}{}:
			number := started
			started++
			group.Go(func() {
				s.attempt(number)
				<-free
			})
		default:
			s.mu.Lock()
			s.result.Behind++
			s.mu.Unlock()
		}
	}
}

// tick is when an attempt is due.
func (s *Streamer) tick(n int) time.Time {
	return s.began.Add(time.Duration(float64(n) / s.options.Rate * float64(time.Second)))
}

func (s *Streamer) attempt(number int) {
	began := time.Now()
	answer, err := s.options.ask()
	took := time.Since(began)

	s.mu.Lock()
	defer s.mu.Unlock()
	s.result.Attempts++
	a := attempt{began: began}
	if err != nil {
		s.result.Failed++
		a.kind = s.result.Failures.add(err)
	} else {
		s.result.OK++
		s.result.Backends[answer]++
		s.took.add(took)
	}
	s.track.add(number, a)
}

// Snapshot is the state of things.
func (s *Streamer) Snapshot() Stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	result := s.result
	result.Elapsed.Duration = elapsed(s.began)
	result.Backends = maps.Clone(result.Backends)
	result.Failures.Kinds = maps.Clone(result.Failures.Kinds)
	result.Failures.Samples = slices.Clone(result.Failures.Samples)
	result.Outages = s.track.outages()
	result.Latency = s.took.latency()
	return result
}

// elapsed is the time since then, to the millisecond; none when it has not begun.
func elapsed(began time.Time) time.Duration {
	if began.IsZero() {
		return 0
	}
	return time.Since(began).Round(time.Millisecond)
}
