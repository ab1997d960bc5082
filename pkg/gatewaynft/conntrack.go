// SPDX-License-Identifier: Apache-2.0

package gatewaynft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeovn/kube-ovn/pkg/gatewaynft/nfnl"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// endings are the connections that are to end.
type endings struct {
	// checked are identities of which all connections end but those to an alive backend.
	checked map[sharenat.Identity]bool
	alive   map[sharenat.Connections]bool
	forget  map[sharenat.Connections]bool
}

func newEndings() endings {
	return endings{map[sharenat.Identity]bool{}, map[sharenat.Connections]bool{}, map[sharenat.Connections]bool{}}
}

func (e *endings) all(id sharenat.Identity) { e.checked[id] = true }

// except ends those of a share that do not lead to one of its backends.
func (e *endings) except(s *sharenat.Share) {
	e.checked[s.Identity] = true
	for _, b := range s.Backends {
		e.alive[sharenat.Connections{Identity: s.Identity, Backend: b.Addr}] = true
	}
}

func (e *endings) none() bool { return len(e.checked) == 0 && len(e.forget) == 0 }

// ends decides on a connection.
func (e *endings) ends(c *connection) bool {
	if c.over {
		return false
	}
	return e.forget[c.Connections] || e.checked[c.Identity] && !e.alive[c.Connections]
}

// connection is an entry of conntrack.
type connection struct {
	sharenat.Connections
	// over says that nothing goes on in it. It is left to expire: a Pod that is asked for more answers with a reset, and a client that
	// takes up its port begins a new connection.
	over bool
	// What the kernel knows it by.
	original, id, zone []byte
}

// Attributes of a conntrack entry; golang.org/x/sys/unix has none of them.
const (
	ctNew, ctGet, ctDelete = 0, 1, 2

	ctaOriginal, ctaReply, ctaProtoInfo, ctaID, ctaZone, ctaFilter = 1, 2, 4, 12, 18, 25

	ctaIP, ctaProto             = 1, 2 // of a tuple
	ctaSource, ctaDest          = 1, 2
	ctaNumber, ctaSport, ctaDst = 1, 2, 3
	ctaTCP, ctaTCPState         = 1, 1

	tcpTimeWait, tcpClose = 7, 8
)

func ctKind(message uint16) uint16 { return unix.NFNL_SUBSYS_CTNETLINK<<8 | message }

// tuple takes the addresses of one direction apart.
func tuple(b []byte) (proto byte, from, to netip.AddrPort) {
	ip, ports := nfnl.Attr(b, ctaIP), nfnl.Attr(b, ctaProto)
	end := func(addr, port []byte) netip.AddrPort {
		if len(addr) != 4 || len(port) != 2 {
			return netip.AddrPort{}
		}
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(addr)), binary.BigEndian.Uint16(port))
	}
	if n := nfnl.Attr(ports, ctaNumber); len(n) == 1 {
		proto = n[0]
	}
	return proto, end(nfnl.Attr(ip, ctaSource), nfnl.Attr(ports, ctaSport)), end(nfnl.Attr(ip, ctaDest), nfnl.Attr(ports, ctaDst))
}

// readConnection reads an entry; false where it is none that a gateway could have made.
func readConnection(body []byte) (c connection, ok bool) {
	c.original = nfnl.Attr(body, ctaOriginal)
	proto, _, to := tuple(c.original)
	_, backend, _ := tuple(nfnl.Attr(body, ctaReply))
	c.Identity = sharenat.Identity{EIP: to.Addr(), Port: to.Port()}
	c.Backend = backend
	switch proto {
	case unix.IPPROTO_TCP:
		c.Protocol = sharenat.TCP
		state := nfnl.Attr(nfnl.Attr(nfnl.Attr(body, ctaProtoInfo), ctaTCP), ctaTCPState)
		c.over = len(state) == 1 && (state[0] == tcpTimeWait || state[0] == tcpClose)
	case unix.IPPROTO_UDP:
		c.Protocol = sharenat.UDP
	default:
		return c, false
	}
	c.id, c.zone = nfnl.Attr(body, ctaID), nfnl.Attr(body, ctaZone)
	return c, to.IsValid() && backend.IsValid() && c.id != nil
}

// settle waits until every packet that the former rules have let through has its entry: what is in handshake must not escape.
func settle() {
	const global = 1 // MEMBARRIER_CMD_GLOBAL: waits for all that reads under RCU, and so do packets on their way
	if _, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, global, 0, 0); errno != 0 {
		time.Sleep(20 * time.Millisecond)
	}
}

// end ends connections, each by its entry: an entry that took its place meanwhile has another ID, and stays.
func (e *endings) end(conn *nfnl.Conn) error {
	if e.none() || noConnections() {
		return nil
	}
	settle()
	deletions := &nfnl.Buffer{}
	for again := 0; ; again++ {
		err := conn.Dump(ctKind(ctGet), unix.AF_INET, e.filter, func(body []byte) {
			if c, ok := readConnection(body); ok && e.ends(&c) {
				deletions.Message(ctKind(ctDelete), unix.NLM_F_ACK, unix.AF_INET, 0)
				deletions.Put(ctaOriginal|unix.NLA_F_NESTED, c.original)
				if c.zone != nil {
					deletions.Put(ctaZone, c.zone)
				}
				deletions.Put(ctaID, c.id)
			}
		})
		if err == nil {
			break
		}
		if !errors.Is(err, nfnl.ErrChanged) || again == 3 {
			return fmt.Errorf("conntrack cannot list: %w", err)
		}
	}
	if err := conn.Each(deletions, gone); err != nil {
		return fmt.Errorf("conntrack cannot delete: %w", err)
	}
	return nil
}

// gone says that an entry is not there any more, which is fine.
func gone(err error) bool { return errors.Is(err, unix.ENOENT) }

// filter has the kernel leave out the other addresses, where it knows how and there is but one.
func (e *endings) filter(m *nfnl.Buffer) {
	eip := netip.Addr{}
	for id := range e.checked {
		if eip.IsValid() && id.EIP != eip {
			return
		}
		eip = id.EIP
	}
	for c := range e.forget {
		if eip.IsValid() && c.EIP != eip {
			return
		}
		eip = c.EIP
	}
	const byDest = 1 << 1
	at := m.Nest(ctaFilter)
	m.Put(1, binary.NativeEndian.AppendUint32(nil, byDest))
	m.Put(2, binary.NativeEndian.AppendUint32(nil, 0))
	m.End(at)
	t := m.Nest(ctaOriginal)
	ip := m.Nest(ctaIP)
	a := eip.As4()
	m.Put(ctaDest, a[:])
	m.End(ip)
	m.End(t)
}

// noConnections tells that there is no entry at all, as far as one is told.
func noConnections() bool {
	count, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_count")
	return err == nil && strings.TrimSpace(string(count)) == "0"
}
