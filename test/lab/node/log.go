// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/virtual-kubelet/virtual-kubelet/node/api"
)

const (
	maxLogLine  = 16 << 10
	maxLogBytes = 4 << 20
)

type logLine struct {
	at   time.Time
	text []byte
}

// logBook keeps what a container wrote, stdout and stderr together; the oldest lines go when it is full.
type logBook struct {
	mu      sync.Mutex
	lines   []logLine
	dropped int // lines that went
	size    int
	closed  bool
	more    chan struct{} // closed and replaced at each change
}

func newLogBook() *logBook { return &logBook{more: make(chan struct{})} }

// stream makes a writer that splits its own input into lines.
func (l *logBook) stream() *logStream { return &logStream{book: l} }

type logStream struct {
	book    *logBook
	partial []byte
}

// Write implements io.Writer.
func (s *logStream) Write(data []byte) (int, error) {
	s.book.mu.Lock()
	defer s.book.mu.Unlock()
	now := time.Now()
	s.partial = append(s.partial, data...)
	for {
		end := bytes.IndexByte(s.partial, '\n')
		if end < 0 && len(s.partial) < maxLogLine {
			break
		}
		if end < 0 {
			end = maxLogLine - 1
		}
		s.book.append(logLine{at: now, text: bytes.Clone(s.partial[:end+1])})
		s.partial = s.partial[end+1:]
	}
	s.book.signal()
	return len(data), nil
}

// flush adds a last line that had no end.
func (s *logStream) flush() {
	s.book.mu.Lock()
	defer s.book.mu.Unlock()
	if len(s.partial) > 0 {
		s.book.append(logLine{at: time.Now(), text: bytes.Clone(s.partial)})
		s.partial = nil
		s.book.signal()
	}
}

func (l *logBook) append(line logLine) {
	l.lines = append(l.lines, line)
	l.size += len(line.text)
	for l.size > maxLogBytes {
		l.size -= len(l.lines[0].text)
		l.lines = l.lines[1:]
		l.dropped++
	}
}

func (l *logBook) signal() {
	close(l.more)
	l.more = make(chan struct{})
}

// close says that nothing more comes.
func (l *logBook) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.signal()
}

// from gives the lines from the given number on, the number after them, and how to wait for more; nil when there is none
// to come.
func (l *logBook) from(number int) (lines []logLine, next int, more <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	number = max(number, l.dropped)
	lines = l.lines[number-l.dropped:]
	next = number + len(lines)
	if !l.closed {
		more = l.more
	}
	return lines, next, more
}

// read streams the log as the options ask.
func (l *logBook) read(ctx context.Context, opts api.ContainerLogOpts) io.ReadCloser {
	reader, writer := io.Pipe()
	go func() { _ = writer.CloseWithError(l.copy(ctx, writer, opts)) }()
	return reader
}

func (l *logBook) copy(ctx context.Context, writer io.Writer, opts api.ContainerLogOpts) error {
	since := opts.SinceTime
	if opts.SinceSeconds > 0 {
		since = time.Now().Add(-time.Duration(opts.SinceSeconds) * time.Second)
	}
	lines, next, more := l.from(0)
	if opts.Tail > 0 && len(lines) > opts.Tail {
		lines = lines[len(lines)-opts.Tail:]
	}
	left := opts.LimitBytes
	for {
		for _, line := range lines {
			if line.at.Before(since) {
				continue
			}
			text := line.text
			if opts.Timestamps {
				text = fmt.Appendf(nil, "%s %s", line.at.UTC().Format(time.RFC3339Nano), text)
			}
			if opts.LimitBytes > 0 {
				text = text[:min(len(text), left)]
				left -= len(text)
			}
			if _, err := writer.Write(text); err != nil {
				return err
			}
			if opts.LimitBytes > 0 && left == 0 {
				return nil
			}
		}
		if !opts.Follow || more == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-more:
			lines, next, more = l.from(next)
		}
	}
}
