// SPDX-License-Identifier: Apache-2.0

package nfnl

import (
	"encoding/binary"
	"iter"

	"golang.org/x/sys/unix"
)

const (
	headerLen = unix.SizeofNlMsghdr + 4 // netlink's header and netfilter's own
	attrLen   = 4
	typeMask  = 0x3fff // without the flags for nested attributes and byte order
	nested    = 0x8000
)

// Buffer is a row of messages in the making. The zero value is an empty one.
type Buffer struct {
	b     []byte
	open  int // where the last message begins
	count uint32
}

// Count is the number of messages so far.
func (m *Buffer) Count() int { return int(m.count) }

// Message begins a message and ends the one before it. Its sequence number is its place in the buffer, from 0.
func (m *Buffer) Message(kind uint16, flags uint16, family byte, resource uint16) {
	m.open = len(m.b)
	m.b = binary.NativeEndian.AppendUint32(m.b, headerLen)
	m.b = binary.NativeEndian.AppendUint16(m.b, kind)
	m.b = binary.NativeEndian.AppendUint16(m.b, flags|unix.NLM_F_REQUEST)
	m.b = binary.NativeEndian.AppendUint32(m.b, m.count)
	m.b = append(m.b, 0, 0, 0, 0, family, unix.NFNETLINK_V0)
	m.b = binary.BigEndian.AppendUint16(m.b, resource)
	m.count++
}

// grown brings the length of the open message up to date.
func (m *Buffer) grown() {
	binary.NativeEndian.PutUint32(m.b[m.open:], uint32(len(m.b)-m.open))
}

func (m *Buffer) head(kind uint16, length int) {
	m.b = binary.NativeEndian.AppendUint16(m.b, uint16(attrLen+length))
	m.b = binary.NativeEndian.AppendUint16(m.b, kind)
}

func (m *Buffer) pad() {
	for len(m.b)%4 != 0 {
		m.b = append(m.b, 0)
	}
	m.grown()
}

// Put appends an attribute of these bytes.
func (m *Buffer) Put(kind uint16, value []byte) {
	m.head(kind, len(value))
	m.b = append(m.b, value...)
	m.pad()
}

// String appends a text, with the NUL at its end that the kernel wants.
func (m *Buffer) String(kind uint16, value string) {
	m.head(kind, len(value)+1)
	m.b = append(append(m.b, value...), 0)
	m.pad()
}

// Uint32 appends a number in network order, as all of netfilter's are.
func (m *Buffer) Uint32(kind uint16, value uint32) {
	m.head(kind, 4)
	m.b = binary.BigEndian.AppendUint32(m.b, value)
	m.grown()
}

// Uint64 is Uint32 for longer ones.
func (m *Buffer) Uint64(kind uint16, value uint64) {
	m.head(kind, 8)
	m.b = binary.BigEndian.AppendUint64(m.b, value)
	m.grown()
}

// Nest begins an attribute of attributes; End ends it.
func (m *Buffer) Nest(kind uint16) (at int) {
	at = len(m.b)
	m.head(kind|nested, 0)
	m.grown()
	return at
}

// End ends what Nest began.
func (m *Buffer) End(at int) {
	binary.NativeEndian.PutUint16(m.b[at:], uint16(len(m.b)-at))
}

// Attrs goes through the attributes of a message, or of an attribute. What is cut short ends them.
func Attrs(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= attrLen {
			n := int(binary.NativeEndian.Uint16(b))
			if n < attrLen || n > len(b) {
				return
			}
			if !yield(binary.NativeEndian.Uint16(b[2:])&typeMask, b[attrLen:n]) {
				return
			}
			b = b[min(len(b), (n+3)&^3):]
		}
	}
}

// Attr is the first attribute of a kind, nil without one.
func Attr(b []byte, kind uint16) []byte {
	for k, v := range Attrs(b) {
		if k == kind {
			return v
		}
	}
	return nil
}

// Text is a text as the kernel gives it.
func Text(b []byte) string {
	if n := len(b); n > 0 && b[n-1] == 0 {
		b = b[:n-1]
	}
	return string(b)
}

// Number is a number in network order, of any length up to 8 bytes.
func Number(b []byte) (n uint64) {
	for _, c := range b {
		n = n<<8 | uint64(c)
	}
	return n
}

// Append appends attributes that are made already.
func (m *Buffer) Append(attrs string) {
	m.b = append(m.b, attrs...)
	m.grown()
}

// Answer has the last message so far answered, whatever becomes of it.
func (m *Buffer) Answer() {
	flags := m.b[m.open+6:]
	binary.NativeEndian.PutUint16(flags, binary.NativeEndian.Uint16(flags)|unix.NLM_F_ACK)
}

// At is what follows netfilter's header in a message, and its type; nil without such a message.
func (m *Buffer) At(message int) (body []byte, kind uint16) {
	for b := m.b; len(b) >= headerLen; message-- {
		n := int(binary.NativeEndian.Uint32(b))
		if message == 0 {
			return b[headerLen:n], binary.NativeEndian.Uint16(b[4:])
		}
		b = b[n:]
	}
	return nil, 0
}
