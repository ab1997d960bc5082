// SPDX-License-Identifier: Apache-2.0

package gatewaynft

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeovn/kube-ovn/pkg/gatewaynft/nfnl"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// Gateway is the nftables of the network namespace in which it was opened. Whoever changes it has a lock.
type Gateway struct {
	conn *nfnl.Conn
	// Warn is told what does not make a change fail.
	Warn func(string)
	// Yield lets others have the lock for a moment, in the middle of what may be long.
	Yield func() error
}

// Open opens the gateway of the calling thread's network namespace.
func Open() (*Gateway, error) {
	conn, err := nfnl.Dial()
	if err != nil {
		return nil, err
	}
	return &Gateway{conn: conn, Warn: func(string) {}}, nil
}

// Close closes it.
func (g *Gateway) Close() error { return g.conn.Close() }

// tries is how often somebody else may change something in between.
const tries = 20

// List reads the shares that the kernel holds.
func (g *Gateway) List() (Shares, error) {
	have, err := g.readWhole(true)
	if err != nil {
		return Shares{}, err
	}
	return list(have), nil
}

// readWhole reads until nothing changes meanwhile.
func (g *Gateway) readWhole(rules bool) (*snapshot, error) {
	for n := 1; ; n++ {
		have, err := readWhole(g.conn, rules)
		if err == nil || !errors.Is(err, nfnl.ErrChanged) || n == tries {
			return have, reading(err)
		}
	}
}

func reading(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("reading the kernel: %w", err)
}

// Apply makes the state so, in one transaction, and then ends the connections that it leaves without their backend. An error of the latter
// says so; all other errors say that nothing was changed.
func (g *Gateway) Apply(state *sharenat.State) error {
	done, err := g.transact(state)
	if err != nil {
		return err
	}
	gone := append(done.chains, done.sets...)
	for _, r := range done.pins {
		if err := g.retime(r); err != nil {
			g.Warn("pins keep their old timeout until their clients connect again: " + err.Error())
		}
	}
	gone = append(gone, done.former...)
	endErr := done.ended.end(g.conn)
	if endErr == nil {
		gone = append(gone, done.notes...)
	} else {
		endErr = fmt.Errorf("state applied, but %w", endErr)
	}
	g.sweep(done, gone)
	return endErr
}

// transact sends the change. What belongs to the identities of the state is all that is asked for, as long as it is as this package would
// have left it. Where the kernel refuses the change all the same, it is made again from all that is there. Who says all that there is to be
// can have the rest thrown away, pins too, where it is in the way.
func (g *Gateway) transact(state *sharenat.State) (*change, error) {
	const (
		some = iota
		whole
		anew
	)
	way := some
	if state.Full || len(state.Set)+len(state.Remove) > maxByName {
		way = whole
	}
	var because error
	for n := 1; ; n++ {
		have, err := g.readFor(state, way > some)
		switch {
		case errors.Is(err, errGaps):
			way = whole
			continue
		case errors.Is(err, nfnl.ErrChanged) && n < tries:
			continue
		case err != nil:
			return nil, reading(err)
		}
		c := plan(state, have, way == anew)
		if !c.batch.empty() {
			err = g.conn.Send(c.batch.messages())
		}
		refused := (*nfnl.RefusedError)(nil)
		switch {
		case err == nil:
			if way == anew {
				g.Warn("what was there could not be changed, and was made anew, without its pins: " + because.Error())
			}
			return c, nil
		case errors.Is(err, unix.ERESTART) && n < tries:
			continue
		case errors.As(err, &refused):
			because = fmt.Errorf("%s: %w", c.batch.about(refused.Message), refused)
		default:
			because = err
		}
		if way == anew || way == whole && !state.Full {
			return nil, fmt.Errorf("nft refused: %w", because)
		}
		way++
	}
}

// maxByName is how many identities are asked for one by one; from there on it costs less to ask for all.
const maxByName = 200

func (g *Gateway) readFor(state *sharenat.State, whole bool) (*snapshot, error) {
	if whole {
		return readWhole(g.conn, false)
	}
	ids := make([]sharenat.Identity, 0, len(state.Set)+len(state.Remove))
	for i := range state.Set {
		ids = append(ids, state.Set[i].Identity)
	}
	return readSome(g.conn, append(ids, state.Remove...))
}

// sweep deletes what the change emptied. On kernels that still count the old references it is tried again for a moment; then the rest stays
// as empty chains that nothing leads to. A listing calls them stale, and the next full state takes them.
func (g *Gateway) sweep(done *change, names []string) {
	if len(names) == 0 {
		return
	}
	isSet := map[string]bool{}
	for _, name := range done.sets {
		isSet[name] = true
	}
	b := newBatch(0)
	for _, do := range []func(string){b.flush, b.deleteChain} {
		for _, name := range names {
			if !isSet[name] {
				do(name)
			}
		}
	}
	for _, name := range done.sets {
		b.deleteSet(name)
	}
	for _, pause := range []time.Duration{0, 50 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond, time.Second} {
		time.Sleep(pause)
		if g.conn.Send(b.messages()) == nil {
			return
		}
	}
}

// End ends connections, of what is no share identity as well.
func (g *Gateway) End(connections []sharenat.Connections) error {
	e := newEndings()
	for _, c := range connections {
		e.forget[c] = true
	}
	return e.end(g.conn)
}
