// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"fmt"
	"time"
)

// SpreadOptions say how many connections to open, and to whom.
type SpreadOptions struct {
	Endpoint
	// UDP sends one datagram from a new port instead of opening a connection.
	UDP bool
	// Count is the number of connections. Default: 1.
	Count int
	// Interval is the time from the beginning of one to the beginning of the next. Default: none, the next begins when the
	// one before has ended.
	Interval time.Duration
}

func (o *SpreadOptions) complete() error {
	o.defaults()
	if o.Count == 0 {
		o.Count = 1
	}
	if o.Count < 0 || o.Interval < 0 {
		return fmt.Errorf("count %d and interval %s cannot be negative", o.Count, o.Interval)
	}
	return o.validate()
}

// Spread is who answered.
type Spread struct {
	Final bool `json:"final,omitempty"`
	// Attempts is the number of connections tried, OK of those that were answered.
	Attempts int `json:"attempts"`
	OK       int `json:"ok"`
	// Answers counts them by what was answered, usually a Pod's name.
	Answers map[string]int `json:"answers,omitempty"`
	// Sequence has an answer for each attempt, in order, "" where there was none.
	Sequence []string `json:"sequence,omitempty"`
	Failures Failures `json:"failures,omitzero"`
	Latency  *Latency `json:"latency,omitempty"`
}

// Run opens the connections one after the other, each a new one.
func (o SpreadOptions) Run(ctx context.Context) (Spread, error) {
	if err := o.complete(); err != nil {
		return Spread{}, err
	}
	ask := o.ask
	if o.UDP {
		ask = o.askUDP
	}
	result := Spread{Final: true, Answers: map[string]int{}}
	var took histogram
	for next := time.Now(); result.Attempts < o.Count && pause(ctx, next); next = next.Add(o.Interval) {
		began := time.Now()
		answer, err := ask()
		result.Attempts++
		result.Sequence = append(result.Sequence, answer)
		if err != nil {
			result.Failures.add(err)
			continue
		}
		result.OK++
		result.Answers[answer]++
		took.add(time.Since(began))
	}
	result.Latency = took.latency()
	return result, nil
}

// pause waits until a time; false means that ctx was done first.
func pause(ctx context.Context, until time.Time) bool {
	wait := time.Until(until)
	if wait <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
