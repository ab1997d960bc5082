// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeovn/kube-ovn/test/lab/fabric"
)

const (
	// groupNFTables is the netlink group of the events that nft monitor prints (NFNLGRP_NFTABLES).
	groupNFTables = 7
	// ending is the type of the message that ends a transaction (NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_NEWGEN).
	ending = 10<<8 | 15

	receiveBuffer = 256 << 20
)

// kernel tells when the nftables of a network namespace have changed: what nft monitor prints, without the printing, which
// takes its time with many thousand rules.
type kernel struct {
	fd   int
	done chan struct{}

	mu      sync.Mutex
	awaited []*sighting
	last    time.Time // when the last transaction ended
	lost    bool
}

// sighting is what is waited for: one of some addresses, or all of them.
type sighting struct {
	// order of a state among states: one that is seen stands for those before it. 0: none does.
	order   int
	missing []pattern
	all     bool
	seen    chan time.Time
}

// pattern is how an address looks in an event: kube-proxy has them in the names of its chains, gateways in the elements of maps.
type pattern struct{ binary, text []byte }

func patternOf(addr netip.Addr) pattern {
	return pattern{binary: addr.AsSlice(), text: []byte("__" + addr.String() + "/")}
}

func (p pattern) in(data []byte) bool {
	return bytes.Contains(data, p.binary) || bytes.Contains(data, p.text)
}

// watch begins to watch a network namespace; "" is the node's.
func watch(namespace string) (*kernel, error) {
	k := &kernel{done: make(chan struct{})}
	open := func() error {
		var err error
		k.fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
		if err != nil {
			return fmt.Errorf("open netlink: %w", err)
		}
		_ = unix.SetsockoptInt(k.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) // as much as there may be
		// So that it notices that it was closed.
		if err := unix.SetsockoptTimeval(k.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 200_000}); err != nil {
			return err
		}
		return unix.Bind(k.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (groupNFTables - 1)})
	}
	var err error
	if namespace == "" {
		err = open()
	} else {
		err = fabric.Namespace{Name: namespace}.Do(open)
	}
	if err != nil {
		return nil, fmt.Errorf("watch nftables of %q: %w", namespace, err)
	}
	go k.read()
	return k, nil
}

func (k *kernel) close() { close(k.done) }

func (k *kernel) read() {
	defer unix.Close(k.fd)
	buffer := make([]byte, 1<<20)
	for {
		select {
		case <-k.done:
			return
		default:
		}
		n, _, err := unix.Recvfrom(k.fd, buffer, 0)
		now := time.Now()
		switch {
		case errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ENOBUFS):
			k.mu.Lock()
			k.lost = true
			k.mu.Unlock()
			continue
		case err != nil:
			return
		}
		k.note(buffer[:n], now)
	}
}

func (k *kernel) note(data []byte, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if endsTransaction(data) {
		k.last = now
	}
	newest := 0
	rest := k.awaited[:0]
	for _, s := range k.awaited {
		before := len(s.missing)
		s.missing = slices.DeleteFunc(s.missing, func(p pattern) bool { return p.in(data) })
		if len(s.missing) == 0 || !s.all && len(s.missing) < before {
			newest = max(newest, s.order)
			s.seen <- now
			continue
		}
		rest = append(rest, s)
	}
	k.awaited = slices.DeleteFunc(rest, func(s *sighting) bool {
		older := s.order > 0 && s.order < newest
		if older {
			s.seen <- now
		}
		return older
	})
}

// endsTransaction looks for the message that ends one; several can come at once.
func endsTransaction(data []byte) bool {
	for len(data) >= unix.NLMSG_HDRLEN {
		length := int(uint32(data[0]) | uint32(data[1])<<8 | uint32(data[2])<<16 | uint32(data[3])<<24)
		if int(data[4])|int(data[5])<<8 == ending {
			return true
		}
		length = (length + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1)
		if length < unix.NLMSG_HDRLEN || length > len(data) {
			return false
		}
		data = data[length:]
	}
	return false
}

// expect tells when the kernel first holds a rule to an address, or to one that was expected after it: a state that is as new.
func (k *kernel) expect(order int, addr netip.Addr) <-chan time.Time {
	return k.await(&sighting{order: order, missing: []pattern{patternOf(addr)}})
}

// expectAll tells when all addresses were seen, in whatever transactions.
func (k *kernel) expectAll(addrs []netip.Addr) <-chan time.Time {
	s := &sighting{all: true}
	for _, addr := range addrs {
		s.missing = append(s.missing, patternOf(addr))
	}
	return k.await(s)
}

func (k *kernel) await(s *sighting) <-chan time.Time {
	s.seen = make(chan time.Time, 1)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.awaited = append(k.awaited, s)
	return s.seen
}

// sight waits for a time from expect or expectAll.
func sight(ctx context.Context, what string, seen <-chan time.Time) (time.Time, error) {
	select {
	case at := <-seen:
		return at, nil
	case <-ctx.Done():
		return time.Time{}, fmt.Errorf("no rule for %s: %w", what, ctx.Err())
	}
}

// quietSince returns when the last transaction ended; the zero time when none was seen.
func (k *kernel) quietSince() time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.last
}

// complete says that no event was lost.
func (k *kernel) complete() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.lost {
		return errors.New("the kernel has dropped nftables events")
	}
	return nil
}
