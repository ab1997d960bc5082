// SPDX-License-Identifier: Apache-2.0

package sharenat

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"
)

// Verbs of nat-gateway.sh that take and give the text of this file.
const (
	SyncVerb = "nft-dnat-map-sync"
	ListVerb = "nft-dnat-map-list"
)

const (
	syncHeader = "share-state v1 "
	listHeader = "gateway-state v1"
	trailer    = "end"
)

// EncodeFull gives the standard input of SyncVerb that makes the gateway hold these shares and no others.
// Every share must be canonical (Normalize) and valid.
func EncodeFull(shares []Share) ([]byte, error) {
	return encode("full", Delta{Set: shares})
}

// EncodeDelta gives the standard input of SyncVerb that writes the shares of set, removes the identities of remove and leaves the rest alone.
func EncodeDelta(set []Share, remove []Identity) ([]byte, error) {
	return Delta{Set: set, Remove: remove}.Encode()
}

// Connections are those of an identity to one backend.
type Connections struct {
	Identity
	Backend netip.AddrPort
}

// Compare orders by identity, then by backend.
func (c Connections) Compare(other Connections) int {
	return cmp.Or(c.Identity.Compare(other.Identity), c.Backend.Compare(other.Backend))
}

// Delta is a change of some identities.
type Delta struct {
	Set    []Share
	Remove []Identity
	// Keep says of which of the removed identities the TCP connections stay.
	Keep map[Identity]bool
	// Forget has connections end that lead to what is no backend any more.
	Forget []Connections
}

// Encode gives the standard input of SyncVerb.
func (d Delta) Encode() ([]byte, error) { return encode("delta", d) }

func encode(mode string, d Delta) ([]byte, error) {
	set, remove := d.Set, d.Remove
	seen := make(map[Identity]struct{}, len(set)+len(remove))
	once := func(id Identity) error {
		if _, dup := seen[id]; dup {
			return fmt.Errorf("identity %s: named twice in one call", id)
		}
		seen[id] = struct{}{}
		return nil
	}
	out := append([]byte(syncHeader), mode...)
	out = append(out, '\n')
	for i := range set {
		if err := errors.Join(set[i].Validate(), once(set[i].Identity)); err != nil {
			return nil, err
		}
		out = set[i].appendLines(out)
	}
	for _, id := range remove {
		if err := once(id); err != nil {
			return nil, err
		}
		out = append(out, "remove "...)
		out = id.appendFields(out)
		if d.Keep[id] {
			out = append(out, " keep-tcp"...)
		}
		out = append(out, '\n')
	}
	for _, c := range d.Forget {
		out = append(out, "forget "...)
		out = append(c.appendFields(out), ' ')
		out = append(c.Backend.Addr().AppendTo(out), ' ')
		out = append(strconv.AppendUint(out, uint64(c.Backend.Port()), 10), '\n')
	}
	return append(out, trailer+"\n"...), nil
}

// appendFields appends "EIP PORT PROTO".
func (id Identity) appendFields(out []byte) []byte {
	out = append(id.EIP.AppendTo(out), ' ')
	out = append(strconv.AppendUint(out, uint64(id.Port), 10), ' ')
	return append(out, id.Protocol...)
}

// appendLines appends the identity line and its backend lines.
func (s *Share) appendLines(out []byte) []byte {
	out = append(out, "identity "...)
	out = append(s.appendFields(out), ' ')
	out = append(out, s.Affinity.String()...)
	for i, p := range s.Sources {
		if i == 0 {
			out = append(out, " sources="...)
		} else {
			out = append(out, ',')
		}
		out = p.AppendTo(out)
	}
	out = append(out, '\n')
	for _, b := range s.Backends {
		out = append(out, "backend "...)
		out = append(b.Addr.Addr().AppendTo(out), ' ')
		out = strconv.AppendUint(out, uint64(b.Addr.Port()), 10)
		if b.Masquerade {
			out = append(out, " "+SourceIPMasquerade...)
		}
		out = append(out, '\n')
	}
	return out
}

// UnknownDigest stands for content that this project would not have written: it differs from every Digest.
const UnknownDigest = "-"

// Route is a route that subnet-route-add made.
type Route struct {
	CIDR    netip.Prefix
	NextHop netip.Addr
}

// Exclusive is an exclusive DNAT, as dnat-add made it.
type Exclusive struct {
	Identity
	Backend netip.AddrPort
}

// Holding is what a gateway says of one share identity.
type Holding struct {
	Digest   string
	Backends int
}

// Listing is what a gateway holds, as ListVerb prints it.
type Listing struct {
	// Initialized, and for which interfaces, "vpcIf,extIf".
	Initialized bool
	Interfaces  string
	EIPs        []netip.Prefix
	Routes      []Route
	Exclusives  []Exclusive
	Shares      map[Identity]Holding
	// Stale counts objects that belong to no identity; a full sync removes them.
	Stale int
}

// ParseListing reads the output of ListVerb. Lines of a kind it does not know are an error: a newer gateway announces itself by its first line.
func ParseListing(r io.Reader) (*Listing, error) {
	l := &Listing{Shares: map[Identity]Holding{}}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	if !lines.Scan() || lines.Text() != listHeader {
		return nil, errors.Join(fmt.Errorf("first line %q: must be %q", lines.Text(), listHeader), lines.Err())
	}
	for n := 2; lines.Scan(); n++ {
		if lines.Text() == trailer {
			return l, nil
		}
		if err := l.addLine(strings.Split(lines.Text(), " ")); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
	}
	return nil, errors.Join(errors.New("cut short: no last line \""+trailer+"\""), lines.Err())
}

func (l *Listing) addLine(f []string) (err error) {
	fields := map[string]int{"init": 2, "eip": 2, "route": 3, "dnat": 6, "identity": 6, "stale": 2}
	if want, known := fields[f[0]]; !known || len(f) != want {
		return fmt.Errorf("%q: not a line of this format", strings.Join(f, " "))
	}
	switch f[0] {
	case "init":
		l.Initialized, l.Interfaces = true, f[1]
	case "stale":
		l.Stale++
	case "eip":
		var p netip.Prefix
		p, err = netip.ParsePrefix(f[1])
		l.EIPs = append(l.EIPs, p)
	case "route":
		var r Route
		if r.CIDR, err = netip.ParsePrefix(f[1]); err == nil {
			r.NextHop, err = ParseIPv4(f[2])
		}
		l.Routes = append(l.Routes, r)
	case "dnat":
		var e Exclusive
		if e.Identity, err = parseIdentity(f[1], f[2], f[3]); err == nil {
			e.Backend, err = ParseBackendAddr(f[4], f[5])
		}
		l.Exclusives = append(l.Exclusives, e)
	case "identity":
		id, idErr := parseIdentity(f[1], f[2], f[3])
		n, numErr := strconv.Atoi(f[5])
		if err = errors.Join(idErr, numErr); err == nil {
			l.Shares[id] = Holding{Digest: f[4], Backends: n}
		}
	}
	return err
}

func parseIdentity(eip, port, protocol string) (id Identity, err error) {
	var errs [3]error
	id.EIP, errs[0] = ParseIPv4(eip)
	id.Port, errs[1] = ParsePort(port)
	id.Protocol, errs[2] = ParseProtocol(protocol)
	return id, errors.Join(errs[:]...)
}

// ParseBackendAddr takes a backend's IPv4 address and port.
func ParseBackendAddr(addr, port string) (netip.AddrPort, error) {
	a, aErr := ParseIPv4(addr)
	p, pErr := ParsePort(port)
	return netip.AddrPortFrom(a, p), errors.Join(aErr, pErr)
}
