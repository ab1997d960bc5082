// SPDX-License-Identifier: Apache-2.0

package gatewaynft

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kubeovn/kube-ovn/pkg/gatewaynft/nfnl"
)

// pin is a client's entry in a map, 24 bytes each: there may be a million.
type pin struct {
	client, mark     [4]byte
	timeout, expires uint64 // milliseconds
}

// retimed is a pin with another timeout, the time since its client's last connection counted; false where that is over.
func (p pin) retimed(timeout uint64) (pin, bool) {
	idle := p.timeout - min(p.timeout, p.expires)
	if idle >= timeout {
		return p, false
	}
	p.timeout, p.expires = timeout, timeout-idle
	return p, true
}

// readPin reads an element of a map of pins.
func readPin(elem []byte) (p pin, ok bool) {
	for kind, v := range nfnl.Attrs(elem) {
		switch kind {
		case unix.NFTA_SET_ELEM_KEY:
			if v = nfnl.Attr(v, unix.NFTA_DATA_VALUE); len(v) == 4 {
				p.client, ok = [4]byte(v), true
			}
		case unix.NFTA_SET_ELEM_DATA:
			if v = nfnl.Attr(v, unix.NFTA_DATA_VALUE); len(v) == 4 {
				p.mark = [4]byte(v)
			}
		case unix.NFTA_SET_ELEM_TIMEOUT:
			p.timeout = nfnl.Number(v)
		case unix.NFTA_SET_ELEM_EXPIRATION:
			p.expires = nfnl.Number(v)
		}
	}
	return p, ok && p.timeout > 0
}

func (p pin) put(b *batch) {
	elem := b.Nest(unix.NFTA_LIST_ELEM)
	b.Append(value(unix.NFTA_SET_ELEM_KEY, string(p.client[:])) + value(unix.NFTA_SET_ELEM_DATA, string(p.mark[:])))
	b.Uint64(unix.NFTA_SET_ELEM_TIMEOUT, p.timeout)
	b.Uint64(unix.NFTA_SET_ELEM_EXPIRATION, p.expires)
	b.End(elem)
}

// pinsAtOnce are moved in a transaction. An element is some 60 bytes, and all elements of a message fit into an attribute.
const pinsAtOnce = 800

// repin is the transaction that gives pins another timeout. An element cannot be changed on all kernels, so it is taken out and put in
// anew. That it is put in as it was, first, lets it be taken out also where it has just expired.
func repin(set string, pins []pin, timeout uint64) *batch {
	b := newBatch(0)
	at := b.elements(unix.NFT_MSG_NEWSETELEM, set, 0)
	for _, p := range pins {
		p.put(b)
	}
	b.End(at)
	at = b.elements(unix.NFT_MSG_DELSETELEM, set, 0)
	for _, p := range pins {
		putElement(&b.Buffer, value(unix.NFTA_SET_ELEM_KEY, string(p.client[:])))
	}
	b.End(at)
	var put []pin
	for _, p := range pins {
		if p, ok := p.retimed(timeout); ok {
			put = append(put, p)
		}
	}
	if len(put) > 0 {
		at = b.elements(unix.NFT_MSG_NEWSETELEM, set, 0)
		for _, p := range put {
			p.put(b)
		}
		b.End(at)
	}
	return b
}

// retime gives pins another timeout, in pieces between which others get their turn. Each piece is all or nothing, and what was not
// reached has the former timeout, so it can be gone on with at any time. Pins come and go meanwhile: a piece of which one changed is tried
// pin by pin, and a pin that cannot be moved takes the new timeout with its client's next connection.
func (g *Gateway) retime(r retiming) error {
	set, timeout := namesOf(r.hash).aff, milliseconds(r.timeout)
	var pins []pin
	ask := ofTable(func(m *nfnl.Buffer) { m.String(unix.NFTA_SET_ELEM_LIST_SET, set) })
	err := g.conn.Dump(kind(unix.NFT_MSG_GETSETELEM), unix.NFPROTO_IPV4, ask, func(body []byte) {
		for _, e := range nfnl.Attrs(nfnl.Attr(body, unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
			if p, ok := readPin(e); ok && p.timeout != timeout {
				pins = append(pins, p)
			}
		}
	})
	// What changed while it was read is not missed for long: each pin is moved by itself.
	if err != nil && !errors.Is(err, nfnl.ErrChanged) {
		return fmt.Errorf("pins of %s: %w", set, err)
	}
	for first := true; len(pins) > 0; first = false {
		if !first {
			going, err := g.letOthers(r)
			if err != nil || !going {
				return err
			}
		}
		some := pins[:min(pinsAtOnce, len(pins))]
		pins = pins[len(some):]
		if g.conn.Send(repin(set, some, timeout).messages()) == nil {
			continue
		}
		for i := range some {
			_ = g.conn.Send(repin(set, some[i:i+1], timeout).messages())
		}
	}
	return nil
}

// letOthers lets others have their turn; false where, after it, the pins are to have another timeout, or there are none.
func (g *Gateway) letOthers(r retiming) (going bool, err error) {
	if g.Yield == nil {
		return true, nil
	}
	if err := g.Yield(); err != nil {
		return false, err
	}
	after := newReader(g.conn)
	if err := after.readChain(pinName(r.hash, r.timeout), true); err != nil {
		return false, err
	}
	return len(chainRules(after.snapshot, pinName(r.hash, r.timeout))) > 0, nil
}
