// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"
)

// lockWait is less than the 30 s after which the controller gives a call up, lists the gateway and goes on from there: a call that still
// waited then would put back what has changed since.
const lockWait = 20 * time.Second

// namespace is what is locked: the gateway itself. It is there in any container, whatever can be written to, and the same for all of them.
const namespace = "/proc/self/ns/net"

// lock is one a gateway.
type lock struct{ file *os.File }

// takeLock waits for its turn. From then on a hang-up of the caller does not stop the call halfway.
func takeLock() (*lock, error) {
	file, err := os.Open(namespace)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	l := &lock{file}
	if err := l.wait(); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGTERM, unix.SIGPIPE)
	return l, nil
}

func (l *lock) wait() error {
	taken := make(chan error, 1)
	fd := int(l.file.Fd())
	go func() {
		for {
			err := unix.Flock(fd, unix.LOCK_EX)
			if !errors.Is(err, unix.EINTR) {
				taken <- err
				return
			}
		}
	}()
	select {
	case err := <-taken:
		if err != nil {
			return fmt.Errorf("lock: %w", err)
		}
		return nil
	case <-time.After(lockWait):
		return fmt.Errorf("another call holds the gateway for more than %s", lockWait)
	}
}

// yield lets others have their turn.
func (l *lock) yield() error {
	if err := unix.Flock(int(l.file.Fd()), unix.LOCK_UN); err != nil {
		return fmt.Errorf("unlock: %w", err)
	}
	return l.wait()
}
