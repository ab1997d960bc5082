// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxChanges bounds how many changes of backend are kept one by one.
const maxChanges = 1000

// FlowOptions say how often to send, from which port, and to whom.
type FlowOptions struct {
	Endpoint
	// Port is the source port. Default: the kernel's choice, but one for the whole flow.
	Port uint16
	// Interval is the time between two datagrams. Answers do not say what they answer: one that comes later than that counts
	// as the next one's. Default: 50 ms.
	Interval time.Duration
	// Duration ends the flow. Default: it goes on until ctx is done.
	Duration time.Duration
}

func (o *FlowOptions) complete() error {
	o.defaults()
	if o.Interval == 0 {
		o.Interval = 50 * time.Millisecond
	}
	if o.Interval < 0 || o.Duration < 0 {
		return fmt.Errorf("interval %s and duration %s cannot be negative", o.Interval, o.Duration)
	}
	return o.validate()
}

// Change is when another backend answered than before; From is "" for the first.
type Change struct {
	At   time.Time `json:"at"`
	From string    `json:"from"`
	To   string    `json:"to"`
}

// Flow is what came of datagrams sent from one port.
type Flow struct {
	Final   bool            `json:"final,omitempty"`
	Elapsed metav1.Duration `json:"elapsed"`
	// Sent datagrams were followed by an answer (Answered) or not (Lost) before the next was sent.
	Sent     int      `json:"sent"`
	Answered int      `json:"answered"`
	Lost     int      `json:"lost"`
	Failures Failures `json:"failures,omitzero"`
	// Backends counts the answers by what was answered, usually a Pod's name; Backend is the last.
	Backends map[string]int `json:"backends,omitempty"`
	Backend  string         `json:"backend,omitempty"`
	Changes  []Change       `json:"changes,omitempty"`
	// Gaps are the times without an answer.
	Gaps    Outages  `json:"gaps,omitzero"`
	Latency *Latency `json:"latency,omitempty"`
}

// Sender sends datagrams from one port.
type Sender struct {
	options FlowOptions

	mu     sync.Mutex
	began  time.Time
	result Flow
	track  outageTracker
	took   histogram
}

// NewSender checks the options.
func NewSender(options FlowOptions) (*Sender, error) {
	if err := options.complete(); err != nil {
		return nil, err
	}
	return &Sender{options: options, result: Flow{Backends: map[string]int{}}}, nil
}

// Run sends until ctx is done.
func (s *Sender) Run(ctx context.Context) error {
	conn, err := s.options.socket(s.options.Port)
	if err != nil {
		return fmt.Errorf("open socket: %w", err)
	}
	defer conn.Close()
	if s.options.Duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.options.Duration)
		defer cancel()
	}
	next := time.Now()
	s.mu.Lock()
	s.began = next
	s.mu.Unlock()
	for pause(ctx, next) {
		sent := time.Now()
		next = next.Add(s.options.Interval)
		if next.Before(sent) {
			next = sent.Add(s.options.Interval)
		}
		answer, err := exchange(conn, next)
		s.record(sent, time.Now(), answer, err)
	}
	return nil
}

// exchange sends one datagram and waits for an answer until the next is due.
func exchange(conn *net.UDPConn, deadline time.Time) (string, error) {
	if err := conn.SetDeadline(deadline); err != nil {
		return "", err
	}
	if _, err := conn.Write([]byte(hostnameRequest)); err != nil {
		// What an ICMP error said of an earlier datagram comes up here, and only once; this one was not sent.
		if _, err = conn.Write([]byte(hostnameRequest)); err != nil {
			return "", err
		}
	}
	answer := make([]byte, maxAnswer)
	n, err := conn.Read(answer)
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(answer[:n])), nil
}

// errNoAnswer is the sample kept of a datagram that nothing came back for.
var errNoAnswer = fmt.Errorf("no answer before the next datagram was due: %w", os.ErrDeadlineExceeded)

func (s *Sender) record(sent, done time.Time, answer string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	number := s.result.Sent
	s.result.Sent++
	a := attempt{began: sent}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = errNoAnswer
		fallthrough
	case err != nil:
		s.result.Lost++
		a.kind = s.result.Failures.add(err)
	default:
		s.result.Answered++
		s.result.Backends[answer]++
		s.took.add(done.Sub(sent))
		if answer != s.result.Backend && len(s.result.Changes) < maxChanges {
			s.result.Changes = append(s.result.Changes, Change{At: done, From: s.result.Backend, To: answer})
		}
		s.result.Backend = answer
	}
	s.track.add(number, a)
}

// Snapshot is the state of things.
func (s *Sender) Snapshot() Flow {
	s.mu.Lock()
	defer s.mu.Unlock()
	result := s.result
	result.Elapsed.Duration = elapsed(s.began)
	result.Backends = maps.Clone(result.Backends)
	result.Changes = slices.Clone(result.Changes)
	result.Failures.Kinds = maps.Clone(result.Failures.Kinds)
	result.Failures.Samples = slices.Clone(result.Failures.Samples)
	result.Gaps = s.track.outages()
	result.Latency = s.took.latency()
	return result
}
