// SPDX-License-Identifier: Apache-2.0

package sharenat

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// State is what a gateway is told: all that it is to hold, or a change of some identities.
type State struct {
	// Full says that all identities go that are not named.
	Full bool
	Delta
}

// InputError says what is wrong with a line of the input.
func InputError(line int, what, input string) error {
	printable := strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, asBytes(input))
	if len(printable) > 200 {
		printable = printable[:200] + "..."
	}
	return fmt.Errorf("line %d: %s", line, what+`: "`+printable+`"`)
}

// asBytes makes a character of each byte.
func asBytes(s string) string {
	if !strings.ContainsFunc(s, func(r rune) bool { return r > '~' }) {
		return s
	}
	runes := make([]rune, len(s))
	for i := range len(s) {
		runes[i] = rune(s[i])
	}
	return string(runes)
}

func plainASCII(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// Fields takes an argument apart at its commas; the error names its number.
func Fields(number int, arg string) ([]string, error) {
	if !plainASCII(arg) {
		return nil, InputError(number, "not plain ASCII", arg)
	}
	return strings.Split(arg, ","), nil
}

// ReadIdentity reads the fields of an identity on a line of input; the error names the line.
func ReadIdentity(line int, eip, port, protocol string) (id Identity, err error) {
	protocol = strings.ToLower(protocol)
	if id.EIP, err = ParseIPv4(eip); err != nil {
		return id, InputError(line, "not an IPv4 address", eip)
	}
	if id.Port, err = ParsePort(port); err != nil {
		return id, InputError(line, "not a port (1-65535)", port)
	}
	if id.Protocol, err = ParseProtocol(protocol); err != nil {
		return id, InputError(line, "protocol is neither tcp nor udp", protocol)
	}
	return id, nil
}

// ReadBackend reads the fields of a backend on a line of input; the error names the line.
func ReadBackend(line int, addr, port string) (netip.AddrPort, error) {
	a, err := ParseIPv4(addr)
	if err != nil {
		return netip.AddrPort{}, InputError(line, "not an IPv4 address", addr)
	}
	p, err := ParsePort(port)
	if err != nil {
		return netip.AddrPort{}, InputError(line, "not a port (1-65535)", port)
	}
	return netip.AddrPortFrom(a, p), nil
}

func readAffinity(line int, affinity, timeout string) (Affinity, error) {
	switch affinity {
	case "none":
		if timeout != "0" {
			return Affinity{}, InputError(line, "timeout without affinity is not 0", timeout)
		}
		return Affinity{}, nil
	case "clientip":
		n, err := strconv.ParseInt(timeout, 10, 32)
		if err != nil || n < 1 || n > int64(MaxAffinityTimeout) || timeout[0] == '0' || timeout[0] == '+' {
			return Affinity{}, InputError(line, fmt.Sprintf("not a timeout (1-%d seconds)", MaxAffinityTimeout), timeout)
		}
		return Affinity{ClientIP: true, TimeoutSeconds: int32(n)}, nil
	}
	return Affinity{}, InputError(line, "affinity is neither none nor clientip", affinity)
}

func readSources(line int, list string) ([]netip.Prefix, error) {
	if list == "" {
		return nil, InputError(line, "empty list of sources", list)
	}
	var out []netip.Prefix
	for item := range strings.SplitSeq(list, ",") {
		p, err := netip.ParsePrefix(item)
		if err != nil || !p.Addr().Is4() || p != p.Masked() {
			return nil, InputError(line, "not an IPv4 prefix", item)
		}
		out = append(out, p)
	}
	return NormalizeSources(out), nil
}

// stateReader reads the text of SyncVerb line by line.
type stateReader struct {
	State
	line  int
	at    int // the line of the identity whose backends come now, 0 without one
	named map[Identity]struct{}
	ended bool
}

// ParseState reads the standard input of SyncVerb. All of it is good, or the error names the first line that is not.
func ParseState(input string) (*State, error) {
	r := stateReader{named: map[Identity]struct{}{}}
	last := ""
	for len(input) > 0 {
		last, input, _ = strings.Cut(input, "\n")
		r.line++
		if err := r.read(last); err != nil {
			return nil, err
		}
	}
	if !r.ended {
		return nil, InputError(r.line, "cut short, no end line", last)
	}
	return &r.State, nil
}

func (r *stateReader) read(line string) error {
	if !plainASCII(line) {
		return InputError(r.line, "not plain ASCII", line)
	}
	if r.ended {
		return InputError(r.line, "something after end", line)
	}
	f := strings.Split(line, " ")
	switch {
	case r.line == 1:
		if line != syncHeader+"full" && line != syncHeader+"delta" {
			return InputError(r.line, "not a share-state v1", line)
		}
		r.Full = f[2] == "full"
		return nil
	case f[0] == "identity" && (len(f) == 6 || len(f) == 7):
		return r.identity(line, f)
	case f[0] == "backend" && (len(f) == 3 || len(f) == 4):
		return r.backend(line, f)
	case f[0] == "remove" && (len(f) == 4 || len(f) == 5):
		return r.remove(line, f)
	case f[0] == "forget" && len(f) == 6:
		return r.forget(f)
	case line == trailer:
		r.ended = true
		return r.finish()
	}
	return InputError(r.line, "unknown line", line)
}

// name notes that an identity is named, which it may be once.
func (r *stateReader) name(line string, f []string) (Identity, error) {
	if err := r.finish(); err != nil {
		return Identity{}, err
	}
	id, err := ReadIdentity(r.line, f[1], f[2], f[3])
	if err != nil {
		return id, err
	}
	if _, twice := r.named[id]; twice {
		return id, InputError(r.line, "identity named twice", line)
	}
	r.named[id] = struct{}{}
	return id, nil
}

func (r *stateReader) identity(line string, f []string) error {
	id, err := r.name(line, f)
	if err != nil {
		return err
	}
	s := Share{Identity: id}
	if s.Affinity, err = readAffinity(r.line, f[4], f[5]); err != nil {
		return err
	}
	if len(f) == 7 {
		list, ok := strings.CutPrefix(f[6], "sources=")
		if !ok {
			return InputError(r.line, "unknown word", f[6])
		}
		if s.Sources, err = readSources(r.line, list); err != nil {
			return err
		}
	}
	r.Set = append(r.Set, s)
	r.at = r.line
	return nil
}

func (r *stateReader) backend(line string, f []string) error {
	if r.at == 0 {
		return InputError(r.line, "backend of no identity", line)
	}
	if len(f) == 4 && f[3] != SourceIPMasquerade {
		return InputError(r.line, "unknown word", f[3])
	}
	addr, err := ReadBackend(r.line, f[1], f[2])
	if err != nil {
		return err
	}
	s := &r.Set[len(r.Set)-1]
	s.Backends = append(s.Backends, Backend{Addr: addr, Masquerade: len(f) == 4})
	return nil
}

func (r *stateReader) remove(line string, f []string) error {
	switch {
	case r.Full:
		return InputError(r.line, "remove in a full state", line)
	case len(f) == 5 && f[4] != keepTCP:
		return InputError(r.line, "unknown word", f[4])
	}
	id, err := r.name(line, f)
	if err != nil {
		return err
	}
	r.Remove = append(r.Remove, id)
	if len(f) == 5 {
		if r.Keep == nil {
			r.Keep = map[Identity]bool{}
		}
		r.Keep[id] = true
	}
	return nil
}

const keepTCP = "keep-tcp"

func (r *stateReader) forget(f []string) error {
	if err := r.finish(); err != nil {
		return err
	}
	id, err := ReadIdentity(r.line, f[1], f[2], f[3])
	if err != nil {
		return err
	}
	to, err := ReadBackend(r.line, f[4], f[5])
	if err != nil {
		return err
	}
	r.Forget = append(r.Forget, Connections{Identity: id, Backend: to})
	return nil
}

// finish ends the backends of an identity.
func (r *stateReader) finish() error {
	if r.at == 0 {
		return nil
	}
	at, s := r.at, &r.Set[len(r.Set)-1]
	r.at = 0
	if len(s.Backends) == 0 {
		return InputError(at, "identity without a backend", s.words())
	}
	if !slices.IsSortedFunc(s.Backends, compareBackends) {
		slices.SortStableFunc(s.Backends, compareBackends)
	}
	for i, b := range s.Backends[1:] {
		if compareBackends(s.Backends[i], b) == 0 {
			return InputError(at, "backend named twice", fmt.Sprintf("%s . %d", b.Addr.Addr(), b.Addr.Port()))
		}
	}
	return nil
}

// words names an identity as nft does.
func (id Identity) words() string { return fmt.Sprintf("%s . %s . %d", id.EIP, id.Protocol, id.Port) }

// ParseAdd reads the arguments of nft-dnat-map-add: EIP,DPORT,PROTO,[AFFINITY,TIMEOUT,]IP:PORT@IP:PORT…. One rule twice is one rule; two
// that differ are refused.
func ParseAdd(args []string) (*State, error) {
	state, seen := &State{}, map[Identity]Share{}
	for i, arg := range args {
		line := i + 1
		f, err := Fields(line, arg)
		if err != nil {
			return nil, err
		}
		if len(f) != 4 && len(f) != 6 {
			return nil, InputError(line, "not EIP,DPORT,PROTO[,AFFINITY,TIMEOUT],BACKENDS", arg)
		}
		s, err := readAdd(line, arg, f)
		if err != nil {
			return nil, err
		}
		if was, twice := seen[s.Identity]; twice {
			if was.Affinity != s.Affinity || !slices.Equal(was.Backends, s.Backends) {
				return nil, InputError(line, "identity named twice, differently", arg)
			}
			continue
		}
		seen[s.Identity] = s
		state.Set = append(state.Set, s)
	}
	return state, nil
}

func readAdd(line int, arg string, f []string) (s Share, err error) {
	if s.Identity, err = ReadIdentity(line, f[0], f[1], f[2]); err != nil {
		return s, err
	}
	if len(f) == 6 {
		if s.Affinity, err = readAffinity(line, f[3], f[4]); err != nil {
			return s, err
		}
	}
	list := f[len(f)-1]
	if list == "" {
		return s, InputError(line, "no backends", arg)
	}
	for item := range strings.SplitSeq(list, "@") {
		parts := strings.Split(item, ":")
		if len(parts) != 2 {
			return s, InputError(line, "not a backend IP:PORT", item)
		}
		addr, err := ReadBackend(line, parts[0], parts[1])
		if err != nil {
			return s, err
		}
		s.Backends = append(s.Backends, Backend{Addr: addr})
	}
	slices.SortFunc(s.Backends, compareBackends)
	s.Backends = slices.CompactFunc(s.Backends, func(a, b Backend) bool { return a.Addr == b.Addr })
	return s, nil
}

// ParseRemove reads the arguments of nft-dnat-map-del, EIP,DPORT,PROTO each.
func ParseRemove(args []string) (*State, error) {
	state, seen := &State{}, map[Identity]bool{}
	for i, arg := range args {
		f, err := Fields(i+1, arg)
		if err != nil {
			return nil, err
		}
		if len(f) != 3 {
			return nil, InputError(i+1, "not EIP,DPORT,PROTO", arg)
		}
		id, err := ReadIdentity(i+1, f[0], f[1], f[2])
		if err != nil {
			return nil, err
		}
		if !seen[id] {
			seen[id] = true
			state.Remove = append(state.Remove, id)
		}
	}
	return state, nil
}

// AppendTo appends the text that ListVerb prints, and that ParseListing reads; stale names what belongs to no identity.
func (l *Listing) AppendTo(out []byte, stale []string) []byte {
	out = append(out, listHeader+"\n"...)
	if l.Initialized {
		out = fmt.Appendf(out, "init %s\n", l.Interfaces)
	}
	for _, e := range l.Exclusives {
		out = fmt.Appendf(out, "dnat %s %d %s %s %d\n", e.EIP, e.Port, e.Protocol, e.Backend.Addr(), e.Backend.Port())
	}
	for _, p := range l.EIPs {
		out = fmt.Appendf(out, "eip %s\n", p)
	}
	for _, r := range l.Routes {
		out = fmt.Appendf(out, "route %s %s\n", r.CIDR, r.NextHop)
	}
	for _, id := range slices.SortedFunc(maps.Keys(l.Shares), Identity.Compare) {
		out = append(out, "identity "...)
		out = append(id.appendFields(out), ' ')
		out = append(append(out, l.Shares[id].Digest...), ' ')
		out = append(strconv.AppendInt(out, int64(l.Shares[id].Backends), 10), '\n')
	}
	for _, name := range stale {
		out = fmt.Appendf(out, "stale %s\n", name)
	}
	return append(out, trailer+"\n"...)
}
