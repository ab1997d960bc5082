// SPDX-License-Identifier: Apache-2.0

package nfnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Conn is a socket to netfilter. It serves one request at a time.
type Conn struct {
	fd   int
	room []byte // for what the kernel says
	asks Buffer
	seq  uint32
	sent int // what the socket takes at once
}

// The kernel says as much at once as the reader takes, up to 32 KiB.
const readSize = 64 << 10

// Dial opens a socket in the network namespace of the calling thread.
func Dial() (*Conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, errors.Join(fmt.Errorf("bind a netlink socket: %w", err), unix.Close(fd))
	}
	// An error is told without the message that it is about. Where the kernel does not know how, it is told with it.
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1)
	return &Conn{fd: fd, room: make([]byte, readSize)}, nil
}

// Close closes the socket.
func (c *Conn) Close() error {
	if err := unix.Close(c.fd); err != nil {
		return fmt.Errorf("close a netlink socket: %w", err)
	}
	return nil
}

// ErrChanged says that a dump is not of one moment, because something changed meanwhile.
var ErrChanged = errors.New("changed while it was read")

// Dump asks for all there is and gives what follows netfilter's header in each message to seen. The bytes are good until that returns. ask writes the request's attributes.
func (c *Conn) Dump(kind uint16, family byte, ask func(*Buffer), seen func(body []byte)) error {
	return c.ask(kind, unix.NLM_F_DUMP, family, ask, seen)
}

// Get asks for one thing. It fails with ENOENT where that is not there.
func (c *Conn) Get(kind uint16, family byte, ask func(*Buffer), seen func(body []byte)) error {
	return c.ask(kind, unix.NLM_F_ACK, family, ask, seen)
}

func (c *Conn) ask(kind, flags uint16, family byte, ask func(*Buffer), seen func([]byte)) error {
	c.asks.b, c.asks.count = c.asks.b[:0], 0
	c.asks.Message(kind, flags, family, 0)
	if ask != nil {
		ask(&c.asks)
	}
	c.seq++
	binary.NativeEndian.PutUint32(c.asks.b[8:], c.seq)
	if err := c.send(c.asks.b); err != nil {
		return err
	}
	changed := false
	for {
		n, err := c.receive(0)
		if err != nil {
			return err
		}
		over, err := each(c.room[:n], func(h header, body []byte) (bool, error) {
			if h.seq != c.seq {
				return false, nil // of a request that was given up
			}
			changed = changed || h.flags&unix.NLM_F_DUMP_INTR != 0
			switch h.kind {
			case unix.NLMSG_DONE, unix.NLMSG_ERROR:
				return true, errorOf(h, body)
			}
			if len(body) >= 4 {
				seen(body[4:])
			}
			return false, nil
		})
		switch {
		case err != nil:
			return err
		case over && changed:
			return ErrChanged
		case over:
			return nil
		}
	}
}

// RefusedError is what the kernel has against a message of a batch.
type RefusedError struct {
	// Message is its place in the batch.
	Message int
	Errno   unix.Errno
	// Said is the kernel's own word on it, often empty.
	Said string
}

// Error gives the kernel's words.
func (r *RefusedError) Error() string {
	if r.Said != "" {
		return r.Said + ": " + r.Errno.Error()
	}
	return r.Errno.Error()
}

// Unwrap gives the error number.
func (r *RefusedError) Unwrap() error { return r.Errno }

// Send has the kernel carry out the messages, which it does before it returns. The last of them must ask for an answer. The error is a
// *RefusedError where the kernel refuses one of them.
func (c *Conn) Send(m *Buffer) error {
	if err := c.send(m.b); err != nil {
		return err
	}
	var refused error
	answered := false
	err := c.answers(func(h header, err error) {
		answered = true
		if r := (*RefusedError)(nil); errors.As(err, &r) {
			r.Message = int(h.seq)
		}
		if refused == nil {
			refused = err
		}
	})
	if err == nil && refused == nil && !answered {
		err = errors.New("the kernel gave no answer to a batch")
	}
	return errors.Join(refused, err)
}

// send sends all of it as one datagram, which is what the kernel takes as one transaction.
func (c *Conn) send(b []byte) error {
	if need := len(b) + len(b)/8 + 4096; need > c.sent {
		// Beyond the limit of the machine where that is allowed, as far as possible elsewhere.
		if unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, need) != nil {
			_ = unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, need)
		}
		c.sent = need
	}
	for {
		err := unix.Sendto(c.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("send %d bytes to the kernel: %w", len(b), err)
		}
	}
}

func (c *Conn) receive(flags int) (int, error) {
	for {
		n, _, err := unix.Recvfrom(c.fd, c.room, flags)
		if err == nil {
			return n, nil
		}
		if !errors.Is(err, unix.EINTR) {
			return 0, fmt.Errorf("hear from the kernel: %w", os.NewSyscallError("recvfrom", err))
		}
	}
}

type header struct {
	kind, flags uint16
	seq         uint32
}

// each goes through the messages of a datagram, until one is the last.
func each(b []byte, seen func(header, []byte) (last bool, err error)) (bool, error) {
	for len(b) >= unix.SizeofNlMsghdr {
		n := int(binary.NativeEndian.Uint32(b))
		if n < unix.SizeofNlMsghdr || n > len(b) {
			return false, errors.New("the kernel's message is cut short")
		}
		h := header{
			kind:  binary.NativeEndian.Uint16(b[4:]),
			flags: binary.NativeEndian.Uint16(b[6:]),
			seq:   binary.NativeEndian.Uint32(b[8:]),
		}
		if last, err := seen(h, b[unix.SizeofNlMsghdr:n]); last || err != nil {
			return last, err
		}
		b = b[min(len(b), (n+3)&^3):]
	}
	return false, nil
}

// errorOf reads the end of a dump, or the answer to a message; nil where all is well.
func errorOf(h header, body []byte) error {
	if len(body) < 4 {
		return nil
	}
	errno := unix.Errno(-int32(binary.NativeEndian.Uint32(body)))
	if errno == 0 {
		return nil
	}
	r := &RefusedError{Errno: errno}
	if h.flags&unix.NLM_F_ACK_TLVS != 0 {
		rest := body[4:]
		if h.kind == unix.NLMSG_ERROR && len(rest) >= unix.SizeofNlMsghdr {
			n := unix.SizeofNlMsghdr
			if h.flags&unix.NLM_F_CAPPED == 0 {
				n = int(binary.NativeEndian.Uint32(rest)+3) &^ 3
			}
			rest = rest[min(n, len(rest)):]
		}
		r.Said = Text(Attr(rest, unix.NLMSGERR_ATTR_MSG))
	}
	return r
}

// maxAsked is how many answers a socket has room for, however small that is.
const maxAsked = 64

// Each has the kernel carry out messages one by one, each of which must ask for an answer. What is refused for a reason that is fine is
// passed over; the error is the first other one.
func (c *Conn) Each(m *Buffer, fine func(error) bool) error {
	var failed error
	for rest := m.b; len(rest) > 0; {
		n := 0
		for asked := 0; asked < maxAsked && n < len(rest); asked++ {
			n += int(binary.NativeEndian.Uint32(rest[n:]))
		}
		if err := c.send(rest[:n]); err != nil {
			return errors.Join(failed, err)
		}
		rest = rest[n:]
		err := c.answers(func(_ header, err error) {
			if err != nil && failed == nil && !fine(err) {
				failed = err
			}
		})
		if err != nil {
			return errors.Join(failed, err)
		}
	}
	return failed
}

// answers hears all answers that are there.
func (c *Conn) answers(heard func(header, error)) error {
	for {
		n, err := c.receive(unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EAGAIN) {
			return nil
		}
		if err != nil {
			return err
		}
		_, err = each(c.room[:n], func(h header, body []byte) (bool, error) {
			if h.kind == unix.NLMSG_ERROR {
				heard(h, errorOf(h, body))
			}
			return false, nil
		})
		if err != nil {
			return err
		}
	}
}
