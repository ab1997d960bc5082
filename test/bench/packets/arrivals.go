// SPDX-License-Identifier: Apache-2.0

package packets

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
	"github.com/kubeovn/kube-ovn/test/traffic"
)

// Chance alone makes a spread as uneven as is refused once in so many.
const tooUneven = 1e-9

// source is who opened a connection.
type source struct {
	proto uint8
	from  netip.AddrPort
}

// checkArrivals compares the connections that were opened, each by a source of its own, with those that came out behind the
// router: all of them, by their own sources, to backends of the identity they were for, spread evenly, and those of one
// client to one backend where it says so.
func checkArrivals(opened, arrived []flow, shares []sharenat.Share) error {
	if len(arrived) != len(opened) {
		return fmt.Errorf("%d connections opened, %d arrived", len(opened), len(arrived))
	}
	to := make(map[source]netip.AddrPort, len(arrived))
	for _, f := range arrived {
		to[source{f.proto, f.src}] = f.dst
	}
	seen := map[sharenat.Identity]*reached{}
	for i := range shares {
		seen[shares[i].Identity] = newReached(&shares[i])
	}
	for _, f := range opened {
		id := sharenat.Identity{EIP: f.dst.Addr(), Port: f.dst.Port(), Protocol: protocolName(f.proto)}
		at, ok := to[source{f.proto, f.src}]
		if !ok {
			return fmt.Errorf("the connection from %s to %s did not arrive with its own source", f.src, id)
		}
		r := seen[id]
		if r == nil {
			return fmt.Errorf("%s: no such identity, and yet a connection to it arrived", id)
		}
		if err := r.add(f.src.Addr(), at); err != nil {
			return err
		}
	}
	var errs []error
	for i := range shares {
		errs = append(errs, seen[shares[i].Identity].even())
	}
	return errors.Join(errs...)
}

func protocolName(number uint8) sharenat.Protocol {
	if number == protocolNumber(sharenat.UDP) {
		return sharenat.UDP
	}
	return sharenat.TCP
}

// reached is which backends of an identity the connections came to.
type reached struct {
	share  *sharenat.Share
	counts map[string]int
	// pins are where clients went first; without affinity there are none.
	pins  map[netip.Addr]netip.AddrPort
	draws int
}

func newReached(s *sharenat.Share) *reached {
	r := &reached{share: s, counts: make(map[string]int, len(s.Backends)), pins: map[netip.Addr]netip.AddrPort{}}
	for _, b := range s.Backends {
		r.counts[b.Addr.String()] = 0
	}
	return r
}

func (r *reached) add(client netip.Addr, at netip.AddrPort) error {
	if _, ok := r.counts[at.String()]; !ok {
		return fmt.Errorf("%s: a connection arrived at %s, which is no backend of it", r.share.Identity, at)
	}
	if r.share.Affinity.ClientIP {
		if pin, ok := r.pins[client]; ok {
			if pin != at {
				return fmt.Errorf("%s: client %s came to %s, and then to %s", r.share.Identity, client, pin, at)
			}
			return nil
		}
		r.pins[client] = at
	}
	r.counts[at.String()]++
	r.draws++
	return nil
}

// even tests the spread where there was enough of it: draws are connections, or clients where they stay.
func (r *reached) even() error {
	if r.draws < 5*len(r.share.Backends) {
		return nil
	}
	names := make([]string, len(r.share.Backends))
	for i, b := range r.share.Backends {
		names[i] = b.Addr.String()
	}
	if fit := traffic.Even(r.counts, names); fit.P < tooUneven {
		return fmt.Errorf("%s: spread unevenly: %s", r.share.Identity, fit)
	}
	return nil
}
