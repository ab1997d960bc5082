// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Kind is the way in which an attempt failed.
type Kind string

// The ways to fail.
const (
	// Refused: nobody listens there, or a firewall says so (TCP reset to a SYN, ICMP port unreachable).
	Refused Kind = "refused"
	// Reset: the connection stood and was torn down.
	Reset Kind = "reset"
	// Closed: the other side closed the connection before it had answered.
	Closed Kind = "closed"
	// Timeout: no answer in time.
	Timeout Kind = "timeout"
	// Unreachable: no way to the host or the network.
	Unreachable Kind = "unreachable"
	// BadAnswer: an answer, but not the one expected.
	BadAnswer Kind = "bad answer"
	// Other: anything else, such as no port left to connect from.
	Other Kind = "other"
)

// errBadAnswer is behind every failure of kind BadAnswer.
var errBadAnswer = errors.New("bad answer")

func badAnswer(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errBadAnswer, fmt.Sprintf(format, args...))
}

// KindOf tells how an attempt failed that returned err.
func KindOf(err error) Kind {
	var netErr net.Error
	switch {
	case errors.Is(err, errBadAnswer):
		return BadAnswer
	case errors.Is(err, unix.ECONNREFUSED):
		return Refused
	case errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EPIPE):
		return Reset
	case errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.ENETUNREACH):
		return Unreachable
	case errors.Is(err, unix.ETIMEDOUT), errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &netErr) && netErr.Timeout():
		return Timeout
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return Closed
	}
	return Other
}

// maxSamples bounds how many messages are kept: enough to see why, however many there were.
const maxSamples = 5

// Failures counts attempts that failed, by kind, and keeps the first messages as samples.
type Failures struct {
	Kinds   map[Kind]int `json:"kinds,omitempty"`
	Samples []string     `json:"samples,omitempty"`
}

func (f *Failures) add(err error) Kind {
	kind := KindOf(err)
	if f.Kinds == nil {
		f.Kinds = map[Kind]int{}
	}
	f.Kinds[kind]++
	if len(f.Samples) < maxSamples {
		f.Samples = append(f.Samples, err.Error())
	}
	return kind
}

// Count is the number of attempts that failed.
func (f *Failures) Count() int {
	total := 0
	for _, n := range f.Kinds {
		total += n
	}
	return total
}
