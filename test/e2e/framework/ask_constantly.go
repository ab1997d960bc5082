// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
)

// Transcript is what a client was answered that asks all the time.
type Transcript struct {
	stop context.CancelFunc
	done chan struct{}

	mu       sync.Mutex
	answers  []string
	attempts int
	last     time.Time
	gap      time.Duration
}

// AskConstantly has a client make one new connection after the other, with a moment between them, until Stop or the spec's end.
func AskConstantly(ctx context.Context, client Client, to Target) *Transcript {
	GinkgoHelper()
	ctx, cancel := context.WithCancel(ctx)
	t := &Transcript{stop: cancel, done: make(chan struct{})}
	DeferCleanup(t.Stop)
	go func() {
		defer close(t.done)
		ticker := time.NewTicker(5 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			answers, err := client.Ask(ctx, to, AskHostname, 1)
			if ctx.Err() != nil {
				return
			}
			t.mu.Lock()
			t.attempts++
			if err == nil {
				now := time.Now()
				if !t.last.IsZero() {
					t.gap = max(t.gap, now.Sub(t.last))
				}
				t.last = now
			}
			if err == nil && (len(t.answers) == 0 || t.answers[len(t.answers)-1] != answers[0]) {
				t.answers = append(t.answers, answers[0])
			}
			t.mu.Unlock()
		}
	}()
	return t
}

// Stop ends it and waits for the last answer.
func (t *Transcript) Stop() {
	t.stop()
	<-t.done
}

// Answerers are those who answered, in order, each as often as it answered after another one.
func (t *Transcript) Answerers() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]string{}, t.answers...)
}

// Attempts is how many connections were tried.
func (t *Transcript) Attempts() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.attempts
}

// Gap is the longest time between two answers.
func (t *Transcript) Gap() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.gap
}
