// SPDX-License-Identifier: Apache-2.0

package packets

import (
	"errors"
	"fmt"
	"net"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kubeovn/kube-ovn/test/lab/fabric"
)

// message is the kernel's struct mmsghdr.
type message struct {
	header unix.Msghdr
	length uint32
	_      [4]byte
}

// volley is frames in the form that sendmmsg takes.
type volley struct {
	frames   []byte
	vectors  []unix.Iovec
	messages []message
}

// newVolley makes the first frames of flows, from the clients to the router.
func newVolley(flows []flow) (*volley, error) {
	from, to, err := macs(clientNIC, routerNIC)
	if err != nil {
		return nil, err
	}
	v := &volley{
		frames:   make([]byte, 0, len(flows)*maxFrame),
		vectors:  make([]unix.Iovec, len(flows)),
		messages: make([]message, len(flows)),
	}
	for i, f := range flows {
		at := len(v.frames)
		v.frames = appendFrame(v.frames, f, from, to)
		v.vectors[i].Base = &v.frames[at]
		v.vectors[i].SetLen(len(v.frames) - at)
		v.messages[i].header.Iov = &v.vectors[i]
		v.messages[i].header.SetIovlen(1)
	}
	return v, nil
}

func macs(a, b string) (net.HardwareAddr, net.HardwareAddr, error) {
	from, errA := net.ParseMAC(a)
	to, errB := net.ParseMAC(b)
	return from, to, errors.Join(errA, errB)
}

// send sends all of it over a packet socket and returns the CPU time that took this thread, which must be locked.
func (v *volley) send(socket int) (time.Duration, error) {
	began := threadTime()
	for rest := v.messages; len(rest) > 0; {
		n, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(socket), uintptr(unsafe.Pointer(&rest[0])), uintptr(len(rest)), 0, 0, 0)
		if errno != 0 {
			return 0, fmt.Errorf("send frames: %w", errno)
		}
		rest = rest[n:]
	}
	return threadTime() - began, nil
}

// threadTime is the CPU time that this thread has used.
func threadTime() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts) // It cannot fail for this clock.
	return time.Duration(ts.Nano())
}

// packetSocket opens a packet socket on an interface of the thread's namespace, one that receives frames of a protocol, 0: none.
func packetSocket(index int, protocol uint16) (int, error) {
	protocol = protocol>>8 | protocol<<8
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(protocol))
	if err != nil {
		return -1, fmt.Errorf("open packet socket: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: index, Protocol: protocol}); err != nil {
		return -1, errors.Join(fmt.Errorf("bind packet socket: %w", err), unix.Close(fd))
	}
	return fd, nil
}

// flood sends volleys from the clients of a lane and returns what each took.
func (l *lane) flood(volleys ...*volley) (took []time.Duration, err error) {
	err = l.clients.Do(func() error {
		socket, err := packetSocket(l.clientIndex, 0)
		if err != nil {
			return err
		}
		defer unix.Close(socket)
		for _, v := range volleys {
			t, err := v.send(socket)
			if err != nil {
				return err
			}
			took = append(took, t)
		}
		return nil
	})
	return took, err
}

// roomForCapture is enough for the packets of a check.
const roomForCapture = 256 << 20

// capture does something and returns the packets that come to a NIC of a namespace meanwhile.
func capture(ns fabric.Namespace, index int, do func() error) (flows []flow, err error) {
	err = ns.Do(func() error {
		socket, err := packetSocket(index, unix.ETH_P_IP)
		if err != nil {
			return err
		}
		defer unix.Close(socket)
		if err := unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, roomForCapture); err != nil {
			return fmt.Errorf("make room for captured packets: %w", err)
		}
		if err := do(); err != nil {
			return err
		}
		frame := make([]byte, 2048)
		for {
			n, from, err := unix.Recvfrom(socket, frame, unix.MSG_DONTWAIT)
			if errors.Is(err, unix.EAGAIN) {
				break
			}
			if err != nil {
				return fmt.Errorf("read captured packets: %w", err)
			}
			if ll, ok := from.(*unix.SockaddrLinklayer); ok && ll.Pkttype == unix.PACKET_OUTGOING {
				continue
			}
			if f, ok := parseFrame(frame[:n]); ok {
				flows = append(flows, f)
			}
		}
		stats, err := unix.GetsockoptTpacketStats(socket, unix.SOL_PACKET, unix.PACKET_STATISTICS)
		if err == nil && stats.Drops > 0 {
			err = fmt.Errorf("%d captured packets found no room", stats.Drops)
		}
		return err
	})
	return flows, err
}
