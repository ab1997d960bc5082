// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"syscall"
)

// maxReport bounds a line that the command prints.
const maxReport = 16 << 20

// Report is one of the results: Spread, Stream, Hold or Flow.
type Report interface {
	Spread | Stream | Hold | Flow
}

// Process is a running command whose reports are followed.
type Process[T Report] struct {
	cmd    *exec.Cmd
	stderr bytes.Buffer

	mu      sync.Mutex
	latest  T
	reports int
	changed chan struct{}
	ended   bool
	err     error
}

// Start starts a command that is an Argv, or ends in one, and follows its reports.
func Start[T Report](cmd *exec.Cmd) (*Process[T], error) {
	p := &Process[T]{cmd: cmd, changed: make(chan struct{})}
	cmd.Stderr = &p.stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start traffic: %w", err)
	}
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, maxReport)
	go p.follow(lines)
	return p, nil
}

// Do runs a command to its end and returns its last report.
func Do[T Report](ctx context.Context, cmd *exec.Cmd) (T, error) {
	p, err := Start[T](cmd)
	if err != nil {
		var none T
		return none, err
	}
	return p.Wait(ctx)
}

// follow reads reports until the command ends.
func (p *Process[T]) follow(lines *bufio.Scanner) {
	var broken error
	for lines.Scan() {
		var report T
		if err := json.Unmarshal(lines.Bytes(), &report); err != nil {
			broken = errors.Join(broken, fmt.Errorf("read report %q: %w", lines.Bytes(), err))
			continue
		}
		p.publish(func() { p.latest = report; p.reports++ })
	}
	err := errors.Join(broken, lines.Err(), p.cmd.Wait())
	p.publish(func() {
		p.ended = true
		if err != nil {
			p.err = fmt.Errorf("traffic %s: %w: %s", strings.Join(p.cmd.Args, " "), err, bytes.TrimSpace(p.stderr.Bytes()))
		}
	})
}

func (p *Process[T]) publish(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	close(p.changed)
	p.changed = make(chan struct{})
}

// Latest is the latest report.
func (p *Process[T]) Latest() T {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.latest
}

// Now asks for a report and returns it.
func (p *Process[T]) Now(ctx context.Context) (T, error) {
	p.mu.Lock()
	seen := p.reports
	p.mu.Unlock()
	// Before its first report it would die of the signal, and the first one comes by itself.
	if seen > 0 {
		if err := p.cmd.Process.Signal(syscall.SIGUSR1); err != nil {
			return p.Latest(), err
		}
	}
	return p.wait(ctx, func(T) bool { return p.reports > seen })
}

// Until waits for a report that fulfils a condition and returns it.
func (p *Process[T]) Until(ctx context.Context, fulfils func(T) bool) (T, error) {
	return p.wait(ctx, func(latest T) bool { return p.reports > 0 && fulfils(latest) })
}

// wait calls its condition with the lock held.
func (p *Process[T]) wait(ctx context.Context, condition func(T) bool) (T, error) {
	for {
		p.mu.Lock()
		latest, met, changed, ended, err := p.latest, condition(p.latest), p.changed, p.ended, p.err
		p.mu.Unlock()
		switch {
		case met:
			return latest, nil
		case ended && err == nil:
			return latest, errors.New("traffic ended before it was to")
		case ended:
			return latest, err
		}
		select {
		case <-ctx.Done():
			// What it had seen by then says why the wait was in vain.
			seen, _ := json.Marshal(latest)
			return latest, fmt.Errorf("wait for traffic: %w; it last reported %s", context.Cause(ctx), seen)
		case <-changed:
		}
	}
}

// Stop asks the command to end and returns its last report.
func (p *Process[T]) Stop(ctx context.Context) (T, error) {
	// Before its first report it may not be listening yet.
	if _, err := p.Until(ctx, func(T) bool { return true }); err != nil {
		return p.Latest(), err
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // It may have ended by itself.
	return p.Wait(ctx)
}

// Wait waits for the command's end and returns its last report. When ctx is done first, the command is killed.
func (p *Process[T]) Wait(ctx context.Context) (T, error) {
	for {
		p.mu.Lock()
		latest, changed, ended, err := p.latest, p.changed, p.ended, p.err
		p.mu.Unlock()
		if ended {
			return latest, err
		}
		select {
		case <-ctx.Done():
			_ = p.cmd.Process.Kill() // It may have ended by itself.
			return latest, fmt.Errorf("wait for the end of traffic: %w", context.Cause(ctx))
		case <-changed:
		}
	}
}
