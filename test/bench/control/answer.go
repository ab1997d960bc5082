// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeovn/kube-ovn/test/lab/fabric"
)

// answerPort is where the backend answers.
const answerPort = 9100

// serveAddresses answers every TCP connection to a network namespace with the address that it came to.
func serveAddresses(namespace string) (net.Listener, error) {
	var listener net.Listener
	err := fabric.Namespace{Name: namespace}.Do(func() error {
		var err error
		listener, err = net.Listen("tcp4", fmt.Sprintf(":%d", answerPort))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("serve in %s: %w", namespace, err)
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			addr, ok := conn.LocalAddr().(*net.TCPAddr)
			if ok {
				_, _ = conn.Write(addr.AddrPort().Addr().Unmap().AsSlice())
			}
			_ = conn.Close()
		}
	}()
	return listener, nil
}

// caller makes connections from a network namespace; "" is the node's.
type caller struct {
	namespace string
	to        netip.AddrPort
	backend   func(i int) netip.Addr
}

// pause between two connections of a caller: what it adds to the figures, at most. Less of it takes the processor from those who are
// measured.
const pause = 4 * time.Millisecond

// call connects until the i-th backend answers, and returns when it did so first.
func (c *caller) call(ctx context.Context, i int) (time.Time, error) {
	want := c.backend(i).As4()
	var at time.Time
	knock := func() error {
		for ctx.Err() == nil {
			answer, err := ask(c.to)
			if err == nil && answer == want {
				at = time.Now()
				return nil
			}
			time.Sleep(pause)
		}
		return fmt.Errorf("%s is not answered by %s: %w", c.to, c.backend(i), ctx.Err())
	}
	do := fabric.Namespace{Name: c.namespace}.Do
	if c.namespace == "" {
		do = fabric.InThread
	}
	err := do(knock)
	return at, err
}

// ask makes one connection, by hand: a netpoller in between would cost more than the answer.
func ask(to netip.AddrPort) (answer [4]byte, err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return answer, err
	}
	defer unix.Close(fd)
	timeout := unix.Timeval{Usec: 100_000}
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &timeout)
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout)
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}); err != nil {
		return answer, err
	}
	n, err := unix.Read(fd, answer[:])
	if err == nil && n != len(answer) {
		err = errors.New("no answer")
	}
	return answer, err
}
