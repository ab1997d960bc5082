// SPDX-License-Identifier: Apache-2.0

package gatewaynft

import (
	"encoding/binary"
	"maps"
	"math/bits"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// Shares are what a gateway holds of share identities.
type Shares struct {
	Held map[sharenat.Identity]sharenat.Holding
	// Stale names what belongs to no identity. A full state puts it right.
	Stale []string
}

// hashLen is that of sharenat.Identity.Hash.
const hashLen = 12

// hashIn is the hash of the identity that a chain or set belongs to by its name, "" if it belongs to none.
func hashIn(name string) string {
	prefix, rest, ok := strings.Cut(name, "-")
	if !ok || !slices.Contains([]string{"dnat", "src", "pin", "masq", "aff", "ep"}, prefix) {
		return ""
	}
	return rest[:min(hashLen, len(rest))]
}

// pinOf takes a name of pinName apart.
func pinOf(name string) (hash string, timeout int32, ok bool) {
	rest, ok := strings.CutPrefix(name, "pin-")
	hash, seconds, cut := strings.Cut(rest, "-")
	n, err := strconv.ParseInt(seconds, 10, 32)
	return hash, int32(n), ok && cut && err == nil && n > 0
}

// list makes a listing of a whole snapshot with its rules.
func list(s *snapshot) Shares {
	out := Shares{Held: map[sharenat.Identity]sharenat.Holding{}}
	post, _ := s.rulesOf(postrouting)
	laid := s.laid(postrouting, postroutingRules(len(post) > 0)) && (len(post) > 0 || len(s.masq) == 0)
	whole := laid && !s.dormant && s.laid(prerouting, preroutingRules())
	claimed, bare, odd := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, name := range []string{serviceIPs, masqIPs} {
		odd[name] = s.sets[name] != nil && !s.typed(name)
	}
	for k, to := range s.service {
		id, ok := identityOf(k)
		if !ok {
			odd[serviceIPs] = true
			continue
		}
		held := sharenat.Holding{Digest: sharenat.UnknownDigest}
		if share, objects, ok := s.share(id, to); ok {
			for _, name := range objects {
				claimed[name] = true
			}
			if whole {
				share.Normalize()
				held = sharenat.Holding{Digest: share.Digest(), Backends: len(share.Backends)}
			}
		} else {
			// Of an older layout, or edited: what carries its name belongs to it all the same.
			bare[hashIn(to.chain)] = true
		}
		out.Held[id] = held
	}
	for k := range s.masq {
		if _, served := s.service[k]; !served {
			odd[masqIPs] = true
		}
		if id, ok := identityOf(k); !ok || s.masq[k] != goTo(namesOf(id.Hash()).masq) && s.service[k] == goTo(namesOf(id.Hash()).dnat) {
			odd[masqIPs] = true
		}
	}
	if s.chains[postrouting] != nil && !laid {
		out.Stale = append(out.Stale, postrouting)
	}
	for _, name := range []string{serviceIPs, masqIPs} {
		if odd[name] {
			out.Stale = append(out.Stale, name)
		}
	}
	for _, name := range slices.Concat(slices.Collect(maps.Keys(s.chains)), slices.Collect(maps.Keys(s.sets))) {
		if h := hashIn(name); h != "" && !claimed[name] && !bare[h] {
			out.Stale = append(out.Stale, name)
		}
	}
	slices.Sort(out.Stale)
	return out
}

// share reads an identity's share, and the names of its objects: it guesses from some of what is there, lays the guess out, and looks
// whether that is what is there.
func (s *snapshot) share(id sharenat.Identity, to leads) (share sharenat.Share, objects []string, ok bool) {
	share.Identity = id
	n := namesOf(hashIn(to.chain))
	if n.dnat != to.chain || to != goTo(n.dnat) {
		return share, nil, false
	}
	spelled := id.Hash() == hashIn(to.chain)
	main, _ := s.rulesOf(n.dnat)
	if len(main) > 0 && len(main[0]) == 1 && main[0][0].target() == n.src {
		var ok bool
		if share.Sources, ok = sourcesIn(s.chains[n.src]); !ok {
			return share, nil, false
		}
		main = main[1:]
	}
	if len(main) == 0 {
		return share, nil, false
	}
	sending := main[0]
	if hash, timeout, isPin := pinOf(sending[0].target()); isPin && hash == hashIn(to.chain) {
		share.Affinity = sharenat.Affinity{ClientIP: true, TimeoutSeconds: timeout}
		pin, _ := s.rulesOf(pinName(hash, timeout))
		if len(pin) != 4 {
			return share, nil, false
		}
		sending = pin[2]
		share.Backends = targetsIn(sending, slotsIn(pin[0]))
	} else {
		share.Backends = targetsIn(sending, nil)
	}
	if !s.masqueraded(&share, n.masq) || len(share.Backends) == 0 || !spelled {
		return share, nil, false
	}
	laid := objectsOf(&share)
	if laid.aff != nil {
		if s.sets[n.aff] == nil {
			return share, nil, false
		}
		objects = append(objects, n.aff)
	}
	for _, c := range laid.chains {
		if rules, ok := s.rulesOf(c.name); !ok || !sameRules(rules, c.rules) {
			return share, nil, false
		}
		objects = append(objects, c.name)
	}
	return share, objects, true
}

// targetsIn are the backends that a rule sends to, in the order of their slots; of pinned ones that is the order of marks.
func targetsIn(r rule, marks []string) []sharenat.Backend {
	for i := range r {
		e := &r[i]
		if e.set != nil && e.set.dataLen == 8 {
			return fromMap(e.set, marks)
		}
		if e.name == "nat" && i >= 2 {
			at, port := r[i-2].constant(unix.NFTA_IMMEDIATE_DATA), r[i-1].constant(unix.NFTA_IMMEDIATE_DATA)
			return backends(at + port)
		}
	}
	return nil
}

func fromMap(m *set, keys []string) []sharenat.Backend {
	byKey := make(map[string]string, len(m.elements))
	for _, e := range m.elements {
		byKey[e.key] = e.data
	}
	if keys == nil {
		for i := range m.elements {
			keys = append(keys, host32(uint32(i)))
		}
	}
	out := make([]sharenat.Backend, 0, len(keys))
	for _, k := range keys {
		out = append(out, backends(byKey[k])...)
	}
	return out
}

// slotsIn are the marks among which a pin chain chooses, in order.
func slotsIn(r rule) []string {
	for i := range r {
		if m := r[i].set; m != nil {
			out := make([]string, len(m.elements))
			for _, e := range m.elements {
				if slot := binary.NativeEndian.Uint32(append([]byte(e.key), 0, 0, 0, 0)); slot < uint32(len(out)) {
					out[slot] = e.data
				}
			}
			return out
		}
	}
	return nil
}

// backends is the one that these bytes are, or none.
func backends(b string) []sharenat.Backend {
	if len(b) < 6 {
		return nil
	}
	at := netip.AddrPortFrom(netip.AddrFrom4([4]byte([]byte(b[:4]))), binary.BigEndian.Uint16([]byte(b[4:6])))
	return []sharenat.Backend{{Addr: at}}
}

// sourcesIn are the prefixes that a chain lets pass.
func sourcesIn(c *chain) (out []netip.Prefix, ok bool) {
	if c == nil || len(c.rules) < 2 {
		return nil, false
	}
	for _, r := range c.rules[:len(c.rules)-1] {
		length, prefixes := 32, []string{"\x00\x00\x00\x00"}
		if len(r) == 1 {
			length = 0
		}
		for i := range r {
			switch e := &r[i]; {
			case e.name == "bitwise":
				mask := []byte(e.constant(unix.NFTA_BITWISE_MASK))
				if len(mask) == 4 {
					length = bits.OnesCount32(binary.BigEndian.Uint32(mask))
				}
			case e.name == "payload" && e.number(unix.NFTA_PAYLOAD_LEN) < 4:
				length = int(e.number(unix.NFTA_PAYLOAD_LEN)) * 8
			case e.name == "cmp":
				prefixes = []string{e.constant(unix.NFTA_CMP_DATA)}
			case e.set != nil:
				prefixes = nil
				for _, el := range inOrder(e.set.elements) {
					prefixes = append(prefixes, el.key)
				}
			}
		}
		for _, from := range prefixes {
			p := netip.PrefixFrom(netip.AddrFrom4([4]byte([]byte((from + "\x00\x00\x00\x00")[:4]))), length)
			if p != p.Masked() {
				return nil, false
			}
			out = append(out, p)
		}
	}
	out = sharenat.NormalizeSources(out)
	return out, true
}

// masqueraded finds out which backends are masqueraded; false where that is not told as this package tells it.
func (s *snapshot) masqueraded(share *sharenat.Share, name string) bool {
	to, ok := s.masq[key(share.Identity)]
	if !ok {
		return true
	}
	rules, _ := s.rulesOf(name)
	if to != goTo(name) || len(rules) != 1 {
		return false
	}
	all, some := true, map[string]bool{}
	for i := range rules[0] {
		if m := rules[0][i].set; m != nil {
			all = false
			for _, e := range m.elements {
				some[e.key] = true
			}
		}
	}
	for i, b := range share.Backends {
		share.Backends[i].Masquerade = all || some[target(b.Addr)]
	}
	return true
}
