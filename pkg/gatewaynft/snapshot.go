// SPDX-License-Identifier: Apache-2.0

package gatewaynft

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kubeovn/kube-ovn/pkg/gatewaynft/nfnl"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// snapshot is what the kernel has, or as much of it as a change needs to know.
type snapshot struct {
	generation uint32
	// whole says that all that is there has been asked for by name, and not only what belongs to some identities.
	whole          bool
	table, dormant bool
	chains         map[string]*chain
	read           map[string]bool // the chains whose rules have been asked for
	sets           map[string]*set // named ones
	service, masq  map[string]leads
}

// leads is a verdict of one of the two maps.
type leads struct {
	code  int32
	chain string
}

func goTo(chain string) leads { return leads{unix.NFT_GOTO, chain} }

func newSnapshot() *snapshot {
	return &snapshot{
		chains: map[string]*chain{}, read: map[string]bool{}, sets: map[string]*set{},
		service: map[string]leads{}, masq: map[string]leads{},
	}
}

// rulesOf are the rules of a chain, if there is one and they have been read.
func (s *snapshot) rulesOf(name string) ([]rule, bool) {
	c := s.chains[name]
	if c == nil || !s.read[name] {
		return nil, false
	}
	return c.rules, true
}

// reader reads a snapshot.
type reader struct {
	*snapshot
	conn      *nfnl.Conn
	anonymous map[string]*set
	texts     map[string]string
}

func newReader(conn *nfnl.Conn) *reader {
	return &reader{snapshot: newSnapshot(), conn: conn, anonymous: map[string]*set{}, texts: map[string]string{}}
}

// text is a string of these bytes, the same one each time: a gateway has the same expressions thousands of times.
func (r *reader) text(b []byte) string {
	if s, ok := r.texts[string(b)]; ok {
		return s
	}
	s := string(b)
	r.texts[s] = s
	return s
}

func kind(message uint16) uint16 { return unix.NFNL_SUBSYS_NFTABLES<<8 | message }

// ofTable is what a request about our table begins with. The table's name has the same place in all of them.
func ofTable(more func(*nfnl.Buffer)) func(*nfnl.Buffer) {
	return func(m *nfnl.Buffer) {
		m.String(unix.NFTA_TABLE_NAME, tableName)
		if more != nil {
			more(m)
		}
	}
}

func (r *reader) dump(message uint16, more func(*nfnl.Buffer), seen func(body []byte)) error {
	err := r.conn.Dump(kind(message), unix.NFPROTO_IPV4, ofTable(more), func(body []byte) {
		if nfnl.Text(nfnl.Attr(body, unix.NFTA_TABLE_NAME)) == tableName { // kernels do not agree on what they leave out
			seen(body)
		}
	})
	if errors.Is(err, unix.ENOENT) {
		return nil // gone, or never there: then there is nothing in it
	}
	return err
}

// get asks for one thing, which may not be there.
func (r *reader) get(message uint16, more func(*nfnl.Buffer), seen func(body []byte)) error {
	err := r.conn.Get(kind(message), unix.NFPROTO_IPV4, ofTable(more), seen)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// readTable reads the generation of all rules there are, and whether our table is there.
func (r *reader) readTable() error {
	err := r.conn.Get(kind(unix.NFT_MSG_GETGEN), unix.AF_UNSPEC, nil, func(body []byte) {
		r.generation = uint32(nfnl.Number(nfnl.Attr(body, unix.NFTA_GEN_ID)))
	})
	if err != nil {
		return fmt.Errorf("generation: %w", err)
	}
	err = r.get(unix.NFT_MSG_GETTABLE, nil, func(body []byte) {
		r.table = true
		r.dormant = nfnl.Number(nfnl.Attr(body, unix.NFTA_TABLE_FLAGS))&unix.NFT_TABLE_F_DORMANT != 0
	})
	if err != nil {
		return fmt.Errorf("table: %w", err)
	}
	return nil
}

// errGaps says that a snapshot of some identities does not tell enough.
var errGaps = errors.New("not all of what is there is known")

// readSome reads what all identities share, and what these have. It fails with errGaps where something is not as this package would have
// left it: then it takes a whole snapshot to know what belongs to whom.
func readSome(conn *nfnl.Conn, ids []sharenat.Identity) (*snapshot, error) {
	r := newReader(conn)
	if err := r.readTable(); err != nil || !r.table {
		return r.snapshot, err
	}
	for name := range natBase {
		if err := r.readChain(name, true); err != nil {
			return nil, err
		}
	}
	for _, name := range []string{serviceIPs, masqIPs} {
		if err := r.readSet(name); err != nil {
			return nil, err
		}
	}
	if !r.sound() {
		return nil, errGaps
	}
	for _, id := range ids {
		if err := r.readIdentity(id); err != nil {
			return nil, err
		}
	}
	return r.snapshot, nil
}

// sound tells whether what all identities share is as it should be.
func (s *snapshot) sound() bool {
	post, _ := s.rulesOf(postrouting)
	return s.laid(prerouting, preroutingRules()) && !s.dormant && s.typed(serviceIPs) && s.typed(masqIPs) &&
		(s.laid(postrouting, nil) || s.laid(postrouting, postroutingRules(len(post) > 0)))
}

// laid tells whether a base chain is as it should be, with these rules.
func (s *snapshot) laid(name string, rules []rule) bool {
	c := s.chains[name]
	return c != nil && c.base != nil && *c.base == natBase[name] && sameRules(c.rules, rules)
}

// typed tells whether one of the verdict maps can hold identities.
func (s *snapshot) typed(name string) bool {
	m := s.sets[name]
	return m != nil && m.flags == unix.NFT_SET_MAP && m.keyType == typeKey && m.keyLen == 12 && m.dataType == verdictType
}

func (r *reader) readIdentity(id sharenat.Identity) error {
	var (
		hash = id.Hash()
		n    = namesOf(hash)
		k    = key(id)
	)
	err := errors.Join(r.readVerdict(serviceIPs, k, r.service), r.readVerdict(masqIPs, k, r.masq), r.readChain(n.dnat, true))
	if err != nil {
		return err
	}
	if to, ok := r.service[k]; ok && to != goTo(n.dnat) {
		return errGaps
	}
	if to, ok := r.masq[k]; ok && to != goTo(n.masq) {
		return errGaps
	}
	kind := kindOf(0, false, false)
	if _, there := r.chains[n.dnat]; there {
		targets, plain := r.leadsFrom(n.dnat)
		if !plain {
			return errGaps
		}
		var timeout int32
		for _, name := range targets {
			of, seconds, isPin := pinOf(name)
			switch {
			case isPin && of == hash:
				timeout = seconds
			case name != n.src:
				return errGaps
			}
			if err := r.readChain(name, false); err != nil {
				return err
			}
		}
		_, masquerades := r.masq[k]
		kind = kindOf(timeout, slices.Contains(targets, n.src), masquerades)
	}
	return errors.Join(
		r.readChain(n.src, false), r.readChain(n.masq, false), r.readChain(n.get, true), r.readSet(n.aff),
		r.readChain(n.dnat+"-"+kind, false))
}

// kindOf ends the names of the empty chains by which an earlier program told what objects an identity had.
func kindOf(timeout int32, sources, masquerades bool) string {
	kind := "0"
	if timeout > 0 {
		kind = fmt.Sprintf("c%d", timeout)
	}
	if sources {
		kind += "s"
	}
	if masquerades {
		kind += "m"
	}
	return kind
}

// leadsFrom are the chains that a chain leads to; false where it also leads somewhere by a map.
func (s *snapshot) leadsFrom(name string) (targets []string, plain bool) {
	for _, rule := range s.chains[name].rules {
		for i := range rule {
			e := &rule[i]
			if to := e.target(); to != "" {
				targets = append(targets, to)
			}
			if to := nfnl.Attr([]byte(e.data), unix.NFTA_LOOKUP_DREG); e.name == "lookup" && to != nil && nfnl.Number(to) == toVerdict {
				return nil, false
			}
		}
	}
	return targets, true
}

// readChain reads whether there is a chain, and its rules.
func (r *reader) readChain(name string, rules bool) error {
	err := r.get(unix.NFT_MSG_GETCHAIN, func(m *nfnl.Buffer) { m.String(unix.NFTA_CHAIN_NAME, name) }, r.addChain)
	if err == nil && rules && r.chains[name] != nil {
		err = r.readRules(name)
	}
	if err != nil {
		return fmt.Errorf("chain %s: %w", name, err)
	}
	return nil
}

func (r *reader) addChain(body []byte) {
	c := &chain{}
	for kind, v := range nfnl.Attrs(body) {
		switch kind {
		case unix.NFTA_CHAIN_NAME:
			c.name = nfnl.Text(v)
		case unix.NFTA_CHAIN_HOOK:
			c.base = orNew(c.base)
			c.base.hook = uint32(nfnl.Number(nfnl.Attr(v, unix.NFTA_HOOK_HOOKNUM)))
			c.base.priority = int32(uint32(nfnl.Number(nfnl.Attr(v, unix.NFTA_HOOK_PRIORITY))))
		case unix.NFTA_CHAIN_POLICY:
			c.base = orNew(c.base)
			c.base.policy = uint32(nfnl.Number(v))
		case unix.NFTA_CHAIN_TYPE:
			c.base = orNew(c.base)
			c.base.kind = nfnl.Text(v)
		}
	}
	r.chains[c.name] = c
}

func orNew(b *base) *base {
	if b == nil {
		return &base{}
	}
	return b
}

// readRules reads the rules of a chain, or of all.
func (r *reader) readRules(name string) error {
	ask := func(m *nfnl.Buffer) {
		if name != "" {
			m.String(unix.NFTA_RULE_CHAIN, name)
		}
	}
	err := r.dump(unix.NFT_MSG_GETRULE, ask, func(body []byte) {
		of := nfnl.Attr(body, unix.NFTA_RULE_CHAIN)
		if c := r.chains[nfnl.Text(of)]; c != nil && (name == "" || c.name == name) {
			c.rules = append(c.rules, r.rule(nfnl.Attr(body, unix.NFTA_RULE_EXPRESSIONS)))
		}
	})
	if name != "" {
		r.read[name] = true
	}
	return err
}

func (r *reader) rule(expressions []byte) rule {
	n := 0
	for range nfnl.Attrs(expressions) {
		n++
	}
	out := make(rule, 0, n)
	for _, e := range nfnl.Attrs(expressions) {
		name, data := nfnl.Attr(e, unix.NFTA_EXPR_NAME), nfnl.Attr(e, unix.NFTA_EXPR_DATA)
		x := expr{name: r.text(name[:max(0, len(name)-1)])}
		if x.name != "lookup" {
			x.data = r.text(data)
			out = append(out, x)
			continue
		}
		in := nfnl.Text(nfnl.Attr(data, unix.NFTA_LOOKUP_SET))
		var rest strings.Builder
		for kind, v := range nfnl.Attrs(data) {
			if kind != unix.NFTA_LOOKUP_SET || !strings.HasPrefix(in, "__") {
				rest.WriteString(attr(kind, string(v)))
			}
		}
		x.data = r.text([]byte(rest.String()))
		if strings.HasPrefix(in, "__") {
			// One that has not been read is unlike any other.
			if x.set = r.anonymous[in]; x.set == nil {
				x.set = &set{name: in}
			}
		}
		out = append(out, x)
	}
	return out
}

func (r *reader) readSet(name string) error {
	err := r.get(unix.NFT_MSG_GETSET, func(m *nfnl.Buffer) { m.String(unix.NFTA_SET_NAME, name) }, r.addSet)
	if err != nil {
		return fmt.Errorf("set %s: %w", name, err)
	}
	return nil
}

func (r *reader) addSet(body []byte) {
	s := &set{}
	for kind, v := range nfnl.Attrs(body) {
		switch kind {
		case unix.NFTA_SET_NAME:
			s.name = nfnl.Text(v)
		case unix.NFTA_SET_FLAGS:
			s.flags = uint32(nfnl.Number(v))
		case unix.NFTA_SET_KEY_TYPE:
			s.keyType = uint32(nfnl.Number(v))
		case unix.NFTA_SET_KEY_LEN:
			s.keyLen = uint32(nfnl.Number(v))
		case unix.NFTA_SET_DATA_TYPE:
			s.dataType = uint32(nfnl.Number(v))
		case unix.NFTA_SET_DATA_LEN:
			s.dataLen = uint32(nfnl.Number(v))
		}
	}
	if s.flags&unix.NFT_SET_ANONYMOUS != 0 {
		r.anonymous[s.name] = s
	} else {
		r.sets[s.name] = s
	}
}

// readVerdict reads where one of the verdict maps leads to.
func (r *reader) readVerdict(name, key string, to map[string]leads) error {
	ask := func(m *nfnl.Buffer) {
		m.String(unix.NFTA_SET_ELEM_LIST_SET, name)
		at := m.Nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
		putElement(m, value(unix.NFTA_SET_ELEM_KEY, key))
		m.End(at)
	}
	err := r.get(unix.NFT_MSG_GETSETELEM, ask, func(body []byte) { addVerdicts(body, to) })
	if err != nil {
		return fmt.Errorf("map %s: %w", name, err)
	}
	return nil
}

func addVerdicts(body []byte, to map[string]leads) {
	for _, e := range nfnl.Attrs(nfnl.Attr(body, unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
		v := nfnl.Attr(nfnl.Attr(e, unix.NFTA_SET_ELEM_DATA), unix.NFTA_DATA_VERDICT)
		to[string(nfnl.Attr(nfnl.Attr(e, unix.NFTA_SET_ELEM_KEY), unix.NFTA_DATA_VALUE))] = leads{
			code:  int32(uint32(nfnl.Number(nfnl.Attr(v, unix.NFTA_VERDICT_CODE)))),
			chain: nfnl.Text(nfnl.Attr(v, unix.NFTA_VERDICT_CHAIN)),
		}
	}
}

// readWhole reads all there is but the clients' pins. Without rules only those are read that a change needs.
func readWhole(conn *nfnl.Conn, rules bool) (*snapshot, error) {
	r := newReader(conn)
	r.whole = true
	if err := r.readTable(); err != nil || !r.table {
		return r.snapshot, err
	}
	if err := r.dump(unix.NFT_MSG_GETCHAIN, nil, r.addChain); err != nil {
		return nil, fmt.Errorf("chains: %w", err)
	}
	if err := r.dump(unix.NFT_MSG_GETSET, nil, r.addSet); err != nil {
		return nil, fmt.Errorf("sets: %w", err)
	}
	for name, to := range map[string]map[string]leads{serviceIPs: r.service, masqIPs: r.masq} {
		if !r.typed(name) {
			continue
		}
		if err := r.dumpSet(name, func(body []byte) { addVerdicts(body, to) }); err != nil {
			return nil, err
		}
	}
	if rules {
		return r.snapshot, r.readAllRules()
	}
	led := map[string]bool{}
	for _, to := range r.service {
		led[to.chain] = true
	}
	for name := range r.chains {
		_, isBase := natBase[name]
		if !isBase && (led[name] || !strings.HasPrefix(name, "dnat-")) {
			continue
		}
		if err := r.readRules(name); err != nil {
			return nil, fmt.Errorf("chain %s: %w", name, err)
		}
	}
	return r.snapshot, nil
}

func (r *reader) dumpSet(name string, seen func(body []byte)) error {
	err := r.dump(unix.NFT_MSG_GETSETELEM, func(m *nfnl.Buffer) { m.String(unix.NFTA_SET_ELEM_LIST_SET, name) }, seen)
	if err != nil {
		return fmt.Errorf("set %s: %w", name, err)
	}
	return nil
}

// readAllRules reads all rules, and what is in the anonymous sets.
func (r *reader) readAllRules() error {
	if err := r.readRules(""); err != nil {
		return fmt.Errorf("rules: %w", err)
	}
	for name := range r.chains {
		r.read[name] = true
	}
	for name, s := range r.anonymous {
		err := r.dumpSet(name, func(body []byte) {
			for _, e := range nfnl.Attrs(nfnl.Attr(body, unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
				s.elements = append(s.elements, element{
					key:  r.text(nfnl.Attr(nfnl.Attr(e, unix.NFTA_SET_ELEM_KEY), unix.NFTA_DATA_VALUE)),
					data: r.text(nfnl.Attr(nfnl.Attr(e, unix.NFTA_SET_ELEM_DATA), unix.NFTA_DATA_VALUE)),
				})
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}
