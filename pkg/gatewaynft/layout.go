// SPDX-License-Identifier: Apache-2.0

package gatewaynft

import (
	"encoding/binary"
	"math"
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// The names of what all identities share.
const (
	tableName   = "kube-ovn"
	prerouting  = "prerouting"
	postrouting = "postrouting"
	serviceIPs  = "service-ips"
	masqIPs     = "masquerade-ips"

	// maxPins is room for a million clients; the memory is taken as they come.
	maxPins = 1 << 20
)

// Types of nft, by which it prints what is in a set.
const (
	typeInteger = 4
	typeIPv4    = 7
	typeProto   = 12
	typePort    = 13
	typeMark    = 19
	typeBackend = typeIPv4<<6 | typePort
	typeKey     = typeIPv4<<12 | typeProto<<6 | typePort
)

// What nft writes beside a set, to print it: the byte order of its keys (0) and data (1), of what type they are (3), and
// whether data are intervals (6). Each is a type, a length and the value.
const (
	anyOrder = "\x00\x00\x00\x00"
	ofHost   = "\x01\x00\x00\x00"
	ofWire   = "\x02\x00\x00\x00"

	noted      = "\x04"
	noteSaddr  = "\x03\x14\x00\x04\x07\x00\x00\x00\x01\x0c\x00\x04\x0c\x00\x00\x00\x01\x04\x0b\x00\x00\x00"
	noteTarget = "\x03\x34\x00\x04\x0d\x00\x00\x00\x01\x2c" +
		"\x00\x14\x00\x04\x07\x00\x00\x00\x01\x0c\x00\x04\x0c\x00\x00\x00\x01\x04\x0c\x00\x00\x00" +
		"\x01\x14\x00\x04\x07\x00\x00\x00\x01\x0c\x00\x04\x0b\x00\x00\x00\x01\x04\x02\x00\x00\x00"
	noteVerdicts = "\x03\x08\x00\x04\x0d\x00\x00\x00\x01\x00"
	noIntervals  = "\x06\x04\x00\x00\x00\x00"
)

func keyOrder(o string) string  { return "\x00" + noted + o }
func dataOrder(o string) string { return "\x01" + noted + o }

// chain is a chain and all that is in it.
type chain struct {
	name  string
	rules []rule
	// base is nil unless packets come to it from the network stack.
	base *base
}

type base struct {
	kind     string
	hook     uint32
	priority int32
	policy   uint32
}

// natBase are base chains for NAT: prerouting comes before the NAT rules of iptables at -100, and the first to translate wins, so a share
// identity beats an exclusive DNAT; postrouting comes before its SNAT rules at 100, the hairpin among them.
var natBase = map[string]base{
	prerouting:  {kind: "nat", hook: unix.NF_INET_PRE_ROUTING, priority: -150, policy: accept},
	postrouting: {kind: "nat", hook: unix.NF_INET_POST_ROUTING, priority: 90, policy: accept},
}

const accept = 1

func preroutingRules() []rule {
	return []rule{{payload(network, offDest, 4, 1), l4proto(9), payload(transport, offDport, 2, 10), lookupIn(serviceIPs, toVerdict)}}
}

const statusDNAT = 0x20

// postroutingRules are a rule a protocol: nft knows what a port is only after a match on the protocol. Without anybody who
// masquerades there are none, since they cost each new connection.
func postroutingRules(masquerades bool) []rule {
	if !masquerades {
		return nil
	}
	var rules []rule
	for _, proto := range []string{protoNumber(sharenat.TCP), protoNumber(sharenat.UDP)} {
		rules = append(rules, rule{
			ctLoad(unix.NFT_CT_STATUS, 1), and(host32(statusDNAT)), compare(unix.NFT_CMP_NEQ, host32(0)),
			l4proto(1), equal(proto),
			ctOriginal(unix.NFT_CT_DST_IP, 1), l4proto(9), ctOriginal(unix.NFT_CT_PROTO_DST, 10), lookupIn(masqIPs, toVerdict),
		})
	}
	return rules
}

// verdictMap is one of the two maps that lead to the identities' chains.
func verdictMap(name string) set {
	return set{
		name: name, flags: unix.NFT_SET_MAP, keyType: typeKey, keyLen: 12, dataType: verdictType, dataLen: 16,
		userdata: keyOrder(anyOrder) + dataOrder(anyOrder) + noteVerdicts + noIntervals,
	}
}

func affMap(name string) set {
	return set{
		name: name, flags: unix.NFT_SET_MAP | unix.NFT_SET_TIMEOUT | unix.NFT_SET_EVAL,
		keyType: typeIPv4, keyLen: 4, dataType: typeMark, dataLen: 4, size: maxPins,
		userdata: keyOrder(ofWire) + dataOrder(ofHost) + noIntervals,
	}
}

// anonymousMap is a map that a rule brings along. Its keys are numbers of the host's.
func anonymousMap(keyType, keyLen, dataType, dataLen uint32, data string, elements []element) *set {
	return &set{
		name: "__map%d", flags: anonymous | unix.NFT_SET_MAP, keyType: keyType, keyLen: keyLen, dataType: dataType, dataLen: dataLen,
		size: uint32(len(elements)), userdata: keyOrder(ofHost) + dataOrder(data) + noIntervals, elements: elements,
	}
}

func anonymousSet(keyType, keyLen uint32, userdata string, elements []element) *set {
	return &set{
		name: "__set%d", flags: anonymous, keyType: keyType, keyLen: keyLen,
		size: uint32(len(elements)), userdata: userdata, elements: elements,
	}
}

// key is an identity in the verdict maps: each field fills words.
func key(id sharenat.Identity) string {
	a := id.EIP.As4()
	return string(a[:]) + protoNumber(id.Protocol) + "\x00\x00\x00" + port16(id.Port) + "\x00\x00"
}

// identityOf is the reverse of key; false for what is no identity's.
func identityOf(key string) (sharenat.Identity, bool) {
	if len(key) != 12 {
		return sharenat.Identity{}, false
	}
	b := []byte(key)
	id := sharenat.Identity{EIP: netip.AddrFrom4([4]byte(b[:4])), Port: binary.BigEndian.Uint16(b[8:])}
	switch b[4] {
	case unix.IPPROTO_TCP:
		id.Protocol = sharenat.TCP
	case unix.IPPROTO_UDP:
		id.Protocol = sharenat.UDP
	default:
		return sharenat.Identity{}, false
	}
	return id, true
}

func protoNumber(p sharenat.Protocol) string {
	if p == sharenat.UDP {
		return string(rune(unix.IPPROTO_UDP))
	}
	return string(rune(unix.IPPROTO_TCP))
}

func port16(p uint16) string { return string(binary.BigEndian.AppendUint16(nil, p)) }

// target is a backend as a map's data: address, port, and what fills the word.
func target(b netip.AddrPort) string {
	a := b.Addr().As4()
	return string(a[:]) + port16(b.Port()) + "\x00\x00"
}

// names of an identity's objects.
type names struct{ dnat, src, masq, aff, get string }

func namesOf(hash string) names {
	return names{dnat: "dnat-" + hash, src: "src-" + hash, masq: "masq-" + hash, aff: "aff-" + hash, get: "aff-" + hash + "-get"}
}

func pinName(hash string, timeout int32) string {
	return "pin-" + hash + "-" + strconv.Itoa(int(timeout))
}

// objects are all that an identity has in the kernel, but for its elements in the verdict maps.
type objects struct {
	chains     []chain
	aff        *set
	masquerade bool
}

// objectsOf lays a share out. Its backends fill the slots in the order in which they are.
func objectsOf(s *sharenat.Share) objects {
	var (
		o    objects
		hash = s.Hash()
		n    = namesOf(hash)
		main []rule
	)
	if len(s.Sources) > 0 {
		o.chains = append(o.chains, chain{name: n.src, rules: sourceRules(s.Sources)})
		main = append(main, rule{jump(n.src)})
	}
	if s.Affinity.ClientIP {
		aff := affMap(n.aff)
		o.aff = &aff
		pin := pinName(hash, s.Affinity.TimeoutSeconds)
		o.chains = append(o.chains,
			chain{name: n.get, rules: []rule{{payload(network, offSource, 4, 1), lookupIn(n.aff, 1), ctSetMark()}}},
			chain{name: pin, rules: pinRules(s, n)})
		main = append(main, rule{jump(pin)}, rule{jump(pin)})
	} else {
		main = append(main, append(rule{l4proto(1), equal(protoNumber(s.Protocol))}, spread(s.Backends)...))
	}
	main = append(main, rule{drop})
	o.chains = append(o.chains, chain{name: n.dnat, rules: main})
	if rules := masqueradeRules(s.Backends); rules != nil {
		o.masquerade = true
		o.chains = append(o.chains, chain{name: n.masq, rules: rules})
	}
	return o
}

// spread sends a connection to any of the backends.
func spread(backends []sharenat.Backend) rule {
	if len(backends) == 1 {
		return toLone(backends[0].Addr)
	}
	slots := make([]element, len(backends))
	for i, b := range backends {
		slots[i] = element{host32(uint32(i)), target(b.Addr)}
	}
	return rule{
		random(len(backends)),
		lookup(anonymousMap(typeInteger, 4, typeBackend, 8, anyOrder, slots), 1),
		dnat(9),
	}
}

// toLone does without a map.
func toLone(b netip.AddrPort) rule {
	a := b.Addr().As4()
	return rule{immediate(1, string(a[:])), immediate(2, port16(b.Port())), dnat(2)}
}

func pinRules(s *sharenat.Share, n names) []rule {
	proto := protoNumber(s.Protocol)
	marks := marksOf(s.Backends)
	var choose, send rule
	if len(s.Backends) == 1 {
		choose = rule{immediate(1, host32(marks[0]))}
		send = append(rule{equal(host32(marks[0]))}, toLone(s.Backends[0].Addr)...)
	} else {
		slots, targets := make([]element, len(marks)), make([]element, len(marks))
		for i, m := range marks {
			slots[i] = element{host32(uint32(i)), host32(m)}
			targets[i] = element{host32(m), target(s.Backends[i].Addr)}
		}
		choose = rule{random(len(marks)), lookup(anonymousMap(typeInteger, 4, typeMark, 4, ofHost, slots), 1)}
		send = rule{lookup(anonymousMap(typeMark, 4, typeBackend, 8, anyOrder, targets), 1), dnat(9)}
	}
	none := anonymousMap(typeProto, 1, typeMark, 4, ofHost, []element{{proto, host32(0)}})
	return []rule{
		append(choose, ctSetMark(), payload(network, offSource, 4, 1), ctLoad(unix.NFT_CT_MARK, 2),
			dynset(dynsetUpdate, n.aff, s.Affinity.TimeoutSeconds)),
		{jump(n.get)},
		append(rule{l4proto(1), equal(proto), ctLoad(unix.NFT_CT_MARK, 1)}, send...),
		{l4proto(1), lookup(none, 1), ctSetMark(), payload(network, offSource, 4, 1), immediate(2, host32(0)), dynset(dynsetDelete, n.aff, 0)},
	}
}

// marksOf gives the backends' marks, each made from the backend's address and port alone, so that it does not change with what is beside
// it. Two backends of one identity with one mark need different ports; the second then takes the next free number.
func marksOf(backends []sharenat.Backend) []uint32 {
	marks, used := make([]uint32, len(backends)), make(map[uint32]bool, len(backends))
	for i, b := range backends {
		a := b.Addr.Addr().As4()
		m := binary.BigEndian.Uint32(a[:]) + uint32(b.Addr.Port())*2654435761
		for m == 0 || used[m] {
			m++
		}
		used[m] = true
		marks[i] = m
	}
	return marks
}

// sourceRules go by prefix length, not by an interval set: overlapping and adjoining prefixes stay as they were given, and a lookup costs
// one hash a length.
func sourceRules(sources []netip.Prefix) []rule {
	var byLength [33][]netip.Prefix
	for _, p := range sources {
		byLength[p.Bits()] = append(byLength[p.Bits()], p)
	}
	var rules []rule
	for length, prefixes := range byLength {
		if len(prefixes) > 0 {
			rules = append(rules, append(inPrefixes(length, prefixes), back))
		}
	}
	return append(rules, rule{drop})
}

// inPrefixes matches clients from prefixes of one length.
func inPrefixes(length int, prefixes []netip.Prefix) rule {
	all := payload(network, offSource, 4, 1)
	first := addr4(prefixes[0].Addr())
	switch {
	case length == 0:
		return nil
	case len(prefixes) == 1 && length%8 == 0:
		return rule{payload(network, offSource, uint32(length/8), 1), equal(first[:length/8])}
	case len(prefixes) == 1:
		return rule{all, and(mask(length)), equal(first)}
	}
	elements := make([]element, len(prefixes))
	for i, p := range prefixes {
		elements[i].key = addr4(p.Addr())
	}
	if length == 32 {
		return rule{all, lookup(anonymousSet(typeIPv4, 4, keyOrder(ofWire)+noteSaddr, elements))}
	}
	return rule{all, and(mask(length)), lookup(anonymousSet(typeIPv4, 4, keyOrder(ofWire), elements))}
}

func addr4(a netip.Addr) string {
	b := a.As4()
	return string(b[:])
}

func mask(length int) string { return be32(uint32(math.MaxUint32) << (32 - length)) }

// masqueradeRules are nil where no backend is masqueraded.
func masqueradeRules(backends []sharenat.Backend) []rule {
	var elements []element
	for _, b := range backends {
		if b.Masquerade {
			elements = append(elements, element{key: target(b.Addr)})
		}
	}
	switch len(elements) {
	case 0:
		return nil
	case len(backends):
		return []rule{{masq}}
	}
	targets := anonymousSet(typeBackend, 8, keyOrder(anyOrder)+noteTarget, elements)
	return []rule{{payload(network, offDest, 4, 1), payload(transport, offDport, 2, 9), lookup(targets), masq}}
}

// noteRules stand in the chain of an identity that was removed, as long as its connections are not: they say which identity it was.
func noteRules(id sharenat.Identity) []rule {
	return []rule{{
		payload(network, offDest, 4, 1), equal(addr4(id.EIP)), l4proto(1), equal(protoNumber(id.Protocol)),
		payload(transport, offDport, 2, 1), equal(port16(id.Port)), drop,
	}}
}

// notedIn is the reverse of noteRules.
func notedIn(rules []rule) (id sharenat.Identity, ok bool) {
	if len(rules) != 1 || len(rules[0]) != 7 {
		return id, false
	}
	r := rules[0]
	k := r[1].constant(unix.NFTA_CMP_DATA) + r[3].constant(unix.NFTA_CMP_DATA) + "\x00\x00\x00" + r[5].constant(unix.NFTA_CMP_DATA) + "\x00\x00"
	id, ok = identityOf(k)
	return id, ok && sameRules(rules, noteRules(id))
}
