// SPDX-License-Identifier: Apache-2.0

package packets

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeovn/kube-ovn/test/bench"
	"github.com/kubeovn/kube-ovn/test/lab/fabric"
)

// exchangePort is where the server of an exchange listens; it is the same at the EIP.
const exchangePort = 9000

// Sizes of what is exchanged: a small request and its answer, and as much as the kernel makes one packet of.
const (
	smallMessage = 64
	bulkMessage  = 60_000
)

// How much of it is a sample.
const (
	exchangesPerSample = 2000
	bulksPerSample     = 1000
)

// exchange is an established TCP connection both of whose ends are in the hands of one thread. What one end writes is at the
// other when the write returns: the kernel takes it all the way on the time of whoever sends. So that thread's CPU time
// is what the way costs, without the wake-ups and the waiting for a CPU that make other measures of it so uneven.
type exchange struct{ client, server int }

// newExchange connects to the server of a path.
func newExchange(undo func(func()), p path) (*exchange, error) {
	to, err := netip.ParseAddr(p.server)
	if err != nil {
		return nil, err
	}
	e := &exchange{}
	listener, err := tcpSocket(undo, p.lane.pods)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(unix.Bind(listener, &unix.SockaddrInet4{Port: exchangePort}), unix.Listen(listener, 1)); err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if e.client, err = tcpSocket(undo, p.lane.clients); err != nil {
		return nil, err
	}
	if err := unix.Connect(e.client, &unix.SockaddrInet4{Port: exchangePort, Addr: to.As4()}); err != nil {
		return nil, fmt.Errorf("connect to %s: %w", p.server, err)
	}
	if e.server, _, err = unix.Accept(listener); err != nil {
		return nil, fmt.Errorf("accept: %w", err)
	}
	undo(func() { _ = unix.Close(e.server) })
	for _, fd := range []int{e.client, e.server} {
		timeout := unix.NsecToTimeval(int64(5 * time.Second))
		if err := errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1), unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout)); err != nil {
			return nil, os.NewSyscallError("setsockopt", err)
		}
	}
	return e, nil
}

func tcpSocket(undo func(func()), ns fabric.Namespace) (fd int, err error) {
	err = ns.Do(func() error {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return -1, fmt.Errorf("open a socket in %s: %w", ns.Name, err)
	}
	undo(func() { _ = unix.Close(fd) })
	return fd, nil
}

// move writes a message to one end and reads all of it from the other.
func move(from, to int, message, into []byte) error {
	if n, err := unix.Write(from, message); err != nil || n != len(message) {
		return fmt.Errorf("wrote %d bytes of %d: %w", n, len(message), err)
	}
	for got := 0; got < len(message); {
		n, err := unix.Read(to, into)
		if err != nil || n == 0 {
			return fmt.Errorf("read %d bytes of %d: %w", got, len(message), err)
		}
		got += n
	}
	return nil
}

// timed does something n times and returns the CPU time of it.
func timed(n int, do func() error) (took time.Duration, err error) {
	err = fabric.InThread(func() error {
		began := threadTime()
		for range n {
			if err := do(); err != nil {
				return err
			}
		}
		took = threadTime() - began
		return nil
	})
	return took, err
}

// roundTrip gives the seconds of CPU time of a request and its answer.
func (e *exchange) roundTrip(context.Context) ([]float64, error) {
	message, into := make([]byte, smallMessage), make([]byte, smallMessage)
	took, err := timed(exchangesPerSample, func() error {
		return errors.Join(move(e.client, e.server, message, into), move(e.server, e.client, message, into))
	})
	return []float64{took.Seconds() / exchangesPerSample}, err
}

// bulk gives the bits that go through in a second of CPU time.
func (e *exchange) bulk(context.Context) ([]float64, error) {
	message, into := make([]byte, bulkMessage), make([]byte, bulkMessage)
	took, err := timed(bulksPerSample, func() error { return move(e.client, e.server, message, into) })
	return []float64{bulksPerSample * bulkMessage * 8 / took.Seconds()}, err
}

// exchangeMeasure compares an established connection through a gateway with others.
func exchangeMeasure(m bench.Measure, aim bench.Aim, sample func(*exchange, context.Context) ([]float64, error)) bench.Measure {
	for _, over := range []string{bare, plain} {
		aim.Of, aim.Over = through, over
		m.Aims = append(m.Aims, aim)
	}
	m.Rounds = 41
	m.Prepare = func(_ context.Context, env *bench.Env) ([]bench.Side, func(context.Context) error, error) {
		all, err := paths(env, exchangePort)
		if err != nil {
			return nil, nil, err
		}
		var out []bench.Side
		for _, p := range all {
			e, err := newExchange(env.Cleanup, p)
			if err != nil {
				return nil, nil, fmt.Errorf("%s: %w", p.name, err)
			}
			out = append(out, bench.Side{Name: p.name, Sample: func(ctx context.Context) ([]float64, error) { return sample(e, ctx) }})
		}
		return out, translated(all, exchangePort), nil
	}
	return m
}

func roundTripMeasure() bench.Measure {
	return exchangeMeasure(bench.Measure{
		Name: "packets/round-trip", Title: "request and answer on an established TCP connection, CPU time", Unit: "s",
	}, bench.Aim{Max: 1 / atLeast}, (*exchange).roundTrip)
}

func bulkMeasure() bench.Measure {
	return exchangeMeasure(bench.Measure{
		Name: "packets/bulk", Title: "data on an established TCP connection, by CPU time", Unit: "bit/s",
	}, bench.Aim{Min: atLeast}, (*exchange).bulk)
}
