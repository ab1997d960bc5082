// SPDX-License-Identifier: Apache-2.0

package gatewaynft

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kubeovn/kube-ovn/pkg/gatewaynft/nfnl"
)

// expr is an expression of a rule. Two that do the same are the same to sameExpr, whether they were made here or read from the kernel.
type expr struct {
	name string
	// data are the expression's attributes as the kernel gives them. Those of a lookup in an anonymous set do without its name.
	data string
	// set is what is looked up in, where that is an anonymous set.
	set *set
}

type rule []expr

// set is a set or a map.
type set struct {
	name              string
	flags             uint32
	keyType, keyLen   uint32
	dataType, dataLen uint32
	size              uint32
	// userdata is what nft needs to print it.
	userdata string
	elements []element
}

type element struct {
	key, data string
}

const (
	anonymous   = unix.NFT_SET_ANONYMOUS | unix.NFT_SET_CONSTANT
	verdictType = 0xffffff00
)

// attr is one attribute.
func attr(kind uint16, value string) string {
	b := binary.NativeEndian.AppendUint16(make([]byte, 0, 8+len(value)), uint16(4+len(value)))
	b = append(binary.NativeEndian.AppendUint16(b, kind), value...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return string(b)
}

func be32(n uint32) string   { return string(binary.BigEndian.AppendUint32(nil, n)) }
func host32(n uint32) string { return string(binary.NativeEndian.AppendUint32(nil, n)) }

func num(kind uint16, n uint32) string { return attr(kind, be32(n)) }

// value is a register's content as an attribute.
func value(kind uint16, v string) string { return attr(kind, attr(unix.NFTA_DATA_VALUE, v)) }

const (
	network   = unix.NFT_PAYLOAD_NETWORK_HEADER
	transport = unix.NFT_PAYLOAD_TRANSPORT_HEADER
	offSource = 12
	offDest   = 16
	offDport  = 2
)

func payload(base, offset, length, to uint32) expr {
	return expr{name: "payload", data: num(unix.NFTA_PAYLOAD_DREG, to) + num(unix.NFTA_PAYLOAD_BASE, base) +
		num(unix.NFTA_PAYLOAD_OFFSET, offset) + num(unix.NFTA_PAYLOAD_LEN, length)}
}

func l4proto(to uint32) expr {
	return expr{name: "meta", data: num(unix.NFTA_META_KEY, unix.NFT_META_L4PROTO) + num(unix.NFTA_META_DREG, to)}
}

func ctLoad(key, to uint32) expr {
	return expr{name: "ct", data: num(unix.NFTA_CT_DREG, to) + num(unix.NFTA_CT_KEY, key)}
}

// ctOriginal is something of the connection as its client began it.
func ctOriginal(key, to uint32) expr {
	e := ctLoad(key, to)
	e.data += attr(unix.NFTA_CT_DIRECTION, "\x00")
	return e
}

func compare(op uint32, v string) expr {
	return expr{name: "cmp", data: num(unix.NFTA_CMP_SREG, 1) + num(unix.NFTA_CMP_OP, op) + value(unix.NFTA_CMP_DATA, v)}
}

func equal(v string) expr { return compare(unix.NFT_CMP_EQ, v) }

func and(mask string) expr {
	return expr{name: "bitwise", data: num(unix.NFTA_BITWISE_SREG, 1) + num(unix.NFTA_BITWISE_DREG, 1) +
		num(unix.NFTA_BITWISE_LEN, 4) + value(unix.NFTA_BITWISE_MASK, mask) + value(unix.NFTA_BITWISE_XOR, "\x00\x00\x00\x00")}
}

func immediate(to uint32, v string) expr {
	return expr{name: "immediate", data: num(unix.NFTA_IMMEDIATE_DREG, to) + value(unix.NFTA_IMMEDIATE_DATA, v)}
}

// verdictData is a verdict as an attribute; chain is "" for those that lead nowhere.
func verdictData(kind uint16, code int32, chain string) string {
	v := num(unix.NFTA_VERDICT_CODE, uint32(code))
	if chain != "" {
		v += attr(unix.NFTA_VERDICT_CHAIN, chain+"\x00")
	}
	return attr(kind, attr(unix.NFTA_DATA_VERDICT, v))
}

func verdict(code int32, chain string) expr {
	return expr{name: "immediate", data: num(unix.NFTA_IMMEDIATE_DREG, 0) + verdictData(unix.NFTA_IMMEDIATE_DATA, code, chain)}
}

func jump(chain string) expr { return verdict(unix.NFT_JUMP, chain) }

// toVerdict is where a verdict is written, which is followed at once.
const toVerdict = 0

// lookupIn looks up in a named map.
func lookupIn(name string, to uint32) expr {
	e := lookup(nil, to)
	e.data = attr(unix.NFTA_LOOKUP_SET, name+"\x00") + e.data
	return e
}

// lookup looks up in an anonymous set, or writes what an anonymous map says to a register.
func lookup(in *set, to ...uint32) expr {
	e := expr{name: "lookup", data: num(unix.NFTA_LOOKUP_SREG, 1), set: in}
	for _, reg := range to {
		e.data += num(unix.NFTA_LOOKUP_DREG, reg)
	}
	return e
}

func random(n int) expr {
	return expr{name: "numgen", data: num(unix.NFTA_NG_DREG, 1) + num(unix.NFTA_NG_MODULUS, uint32(n)) +
		num(unix.NFTA_NG_TYPE, 1) + num(unix.NFTA_NG_OFFSET, 0)}
}

// The kernel writes the connection's mark into the set, or takes the client's entry out of it.
const (
	dynsetUpdate = 1
	dynsetDelete = 2
)

func dynset(op uint32, name string, timeoutSeconds int32) expr {
	e := expr{name: "dynset", data: num(unix.NFTA_DYNSET_SREG_KEY, 1) + num(unix.NFTA_DYNSET_SREG_DATA, 2) +
		num(unix.NFTA_DYNSET_OP, op) + attr(unix.NFTA_DYNSET_SET_NAME, name+"\x00")}
	if timeoutSeconds > 0 {
		e.data += attr(unix.NFTA_DYNSET_TIMEOUT, be64(milliseconds(timeoutSeconds)))
	}
	return e
}

func be64(n uint64) string { return string(binary.BigEndian.AppendUint64(nil, n)) }

func milliseconds(seconds int32) uint64 { return uint64(seconds) * 1000 }

// dnat translates to the address in register 1 and the port in another.
func dnat(port uint32) expr {
	return expr{name: "nat", data: num(unix.NFTA_NAT_TYPE, unix.NFT_NAT_DNAT) + num(unix.NFTA_NAT_FAMILY, unix.NFPROTO_IPV4) +
		num(unix.NFTA_NAT_REG_ADDR_MIN, 1) + num(unix.NFTA_NAT_REG_ADDR_MAX, 1) +
		num(unix.NFTA_NAT_REG_PROTO_MIN, port) + num(unix.NFTA_NAT_REG_PROTO_MAX, port) +
		num(unix.NFTA_NAT_FLAGS, 3)} // address and port are given
}

func ctSetMark() expr {
	return expr{name: "ct", data: num(unix.NFTA_CT_KEY, unix.NFT_CT_MARK) + num(unix.NFTA_CT_SREG, 1)}
}

var (
	drop = verdict(0, "")
	back = verdict(unix.NFT_RETURN, "")
	masq = expr{name: "masq"}
)

// put appends an expression to a rule of a message. Anonymous sets are meant by the number that they have in the batch.
func (e *expr) put(m *nfnl.Buffer, ids map[*set]uint32) {
	at := m.Nest(unix.NFTA_LIST_ELEM)
	m.String(unix.NFTA_EXPR_NAME, e.name)
	inner := m.Nest(unix.NFTA_EXPR_DATA)
	if e.set != nil {
		m.String(unix.NFTA_LOOKUP_SET, e.set.name)
		m.Uint32(unix.NFTA_LOOKUP_SET_ID, ids[e.set])
	}
	m.Append(e.data)
	m.End(inner)
	m.End(at)
}

// sameExpr compares what two expressions do.
func sameExpr(a, b *expr) bool {
	if a.name != b.name || (a.set == nil) != (b.set == nil) || a.set != nil && !sameSet(a.set, b.set) {
		return false
	}
	return a.data == b.data || slices.Equal(a.telling(), b.telling())
}

// telling are the attributes that say something, in order: kernels differ in what they add that says nothing.
func (e *expr) telling() []string {
	var all []string
	for kind, v := range nfnl.Attrs([]byte(e.data)) {
		// That a lookup writes a verdict says something.
		if len(bytes.Trim(v, "\x00")) > 0 || e.name == "lookup" && kind == unix.NFTA_LOOKUP_DREG {
			all = append(all, be32(uint32(kind))+string(v))
		}
	}
	slices.Sort(all)
	return all
}

// sameSet compares what two anonymous sets look up.
func sameSet(a, b *set) bool {
	if a.flags != b.flags || a.keyLen != b.keyLen || a.dataLen != b.dataLen || len(a.elements) != len(b.elements) {
		return false
	}
	return slices.Equal(inOrder(a.elements), inOrder(b.elements))
}

func inOrder(elements []element) []element {
	byKey := func(a, b element) int { return strings.Compare(a.key, b.key) }
	if slices.IsSortedFunc(elements, byKey) {
		return elements
	}
	return slices.SortedFunc(slices.Values(elements), byKey)
}

func sameRules(a, b []rule) bool {
	return slices.EqualFunc(a, b, func(a, b rule) bool {
		return slices.EqualFunc(a, b, func(a, b expr) bool { return sameExpr(&a, &b) })
	})
}

// target is the chain that a verdict of a rule leads to, "" if the expression is no such verdict.
func (e *expr) target() string {
	if e.name != "immediate" {
		return ""
	}
	data := nfnl.Attr(nfnl.Attr([]byte(e.data), unix.NFTA_IMMEDIATE_DATA), unix.NFTA_DATA_VERDICT)
	return nfnl.Text(nfnl.Attr(data, unix.NFTA_VERDICT_CHAIN))
}

// constant is the value in an attribute of an expression, "" without one.
func (e *expr) constant(kind uint16) string {
	return string(nfnl.Attr(nfnl.Attr([]byte(e.data), kind), unix.NFTA_DATA_VALUE))
}

// number is a number in an attribute of an expression, 0 without one.
func (e *expr) number(kind uint16) uint32 {
	return uint32(nfnl.Number(nfnl.Attr([]byte(e.data), kind)))
}
