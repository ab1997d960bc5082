// SPDX-License-Identifier: Apache-2.0

package natgateway

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

const (
	// standbyFor is how long after a sync the next one of the same pod is kept begun.
	standbyFor = 10 * time.Minute
	// maxStandbys bounds how many are: each is a connection, and a process that sleeps in a gateway pod.
	maxStandbys = 256
	// abandonedFor is how long the script may take to end when it is not used.
	abandonedFor = 10 * time.Second
)

// standbyExecutor begins a sync before there is anything to send. Most of the time from a change to its rules goes into
// reaching the pod and starting the script: two TLS handshakes, an upgrade, a process. The script reads all of its standard input before it
// looks at anything, so a run that waits for its input holds no lock and has seen nothing that could grow old, and one that gets
// none refuses. So after each sync the next one is begun at once. It is used for this container only, and once; where there is none,
// or it has ended, the call is made as any other.
type standbyExecutor struct {
	*podExecutor

	mu      sync.Mutex
	closed  bool
	waiting map[types.NamespacedName]*standby
}

var _ Executor = (*standbyExecutor)(nil)

func newStandbyExecutor(inner *podExecutor) *standbyExecutor {
	return &standbyExecutor{podExecutor: inner, waiting: map[types.NamespacedName]*standby{}}
}

// standby is a call that has begun.
type standby struct {
	container string
	input     *io.PipeWriter
	cancel    context.CancelFunc
	expiry    *time.Timer
	// ended is closed once stdout and err are there.
	ended  chan struct{}
	stdout []byte
	err    error
}

// Exec implements Executor.
func (e *standbyExecutor) Exec(ctx context.Context, call Call) ([]byte, error) {
	if call.Verb != sharenat.SyncVerb || call.Container == "" {
		return e.podExecutor.Exec(ctx, call)
	}
	out, sent, err := e.take(call).finish(ctx, call.Stdin)
	if !sent {
		out, err = e.podExecutor.Exec(ctx, call)
	}
	if err == nil {
		e.begin(ctx, call)
	}
	return out, err
}

// take gives the call that waits for a pod's container, nil where none does.
func (e *standbyExecutor) take(call Call) *standby {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.waiting[call.Pod]
	delete(e.waiting, call.Pod)
	if s == nil || !s.expiry.Stop() {
		return nil
	}
	if s.container != call.Container {
		s.abandon()
		return nil
	}
	return s
}

// finish sends the input and waits for the end. Nothing was sent where the call ended before; whoever has sent something does not
// try again by itself, as after any other call of which the end is not known.
func (s *standby) finish(ctx context.Context, input []byte) (stdout []byte, sent bool, err error) {
	if s == nil {
		return nil, false, nil
	}
	select {
	case <-s.ended:
		return nil, false, nil
	default:
	}
	defer context.AfterFunc(ctx, s.cancel)()
	if n, err := s.input.Write(input); err != nil && n == 0 && ctx.Err() == nil {
		return nil, false, nil
	}
	_ = s.input.Close()
	<-s.ended
	var callErr *CallError
	if ctx.Err() != nil && errors.As(s.err, &callErr) && callErr.ExitCode < 0 {
		callErr.Err = noAnswer(ctx)
	}
	return s.stdout, true, s.err
}

// abandon ends a call that got no input: the script refuses, and goes. One that does not is left behind.
func (s *standby) abandon() {
	_ = s.input.Close()
	time.AfterFunc(abandonedFor, s.cancel)
}

// begin starts the next call of a pod.
func (e *standbyExecutor) begin(ctx context.Context, call Call) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	reader, writer := io.Pipe()
	s := &standby{container: call.Container, input: writer, cancel: cancel, ended: make(chan struct{})}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || len(e.waiting) >= maxStandbys || e.waiting[call.Pod] != nil {
		cancel()
		return
	}
	s.expiry = time.AfterFunc(standbyFor, s.abandon)
	e.waiting[call.Pod] = s
	call.Stdin = nil // it was another one's
	go func() {
		defer cancel()
		s.stdout, s.err = e.run(ctx, call, reader)
		_ = writer.Close() // Whoever still writes, or reads, learns that it is over.
		close(s.ended)
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.waiting[call.Pod] == s {
			delete(e.waiting, call.Pod)
		}
	}()
}

// Close ends all calls that wait.
func (e *standbyExecutor) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	for _, s := range e.waiting {
		s.abandon()
	}
	clear(e.waiting)
	return nil
}
