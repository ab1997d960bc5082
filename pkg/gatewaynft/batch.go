// SPDX-License-Identifier: Apache-2.0

package gatewaynft

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kubeovn/kube-ovn/pkg/gatewaynft/nfnl"
)

// batch is a transaction in the making.
type batch struct {
	nfnl.Buffer
	sets uint32 // how many anonymous ones there are
	done bool
}

// maxElements keeps the elements of a message, 32 bytes each, below the 64 KiB at which an attribute ends.
const maxElements = 1500

// newBatch begins a transaction that fails where another one came between a snapshot and it. Without a generation it does not matter.
func newBatch(generation uint32) *batch {
	b := &batch{}
	b.Message(unix.NFNL_MSG_BATCH_BEGIN, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
	if generation != 0 {
		b.Uint32(unix.NFNL_BATCH_GENID, generation)
	}
	return b
}

// empty says that there is nothing to do.
func (b *batch) empty() bool { return b.Count() == 1 }

func (b *batch) message(message, flags uint16) {
	b.Message(kind(message), flags, unix.NFPROTO_IPV4, 0)
	b.String(unix.NFTA_TABLE_NAME, tableName)
}

func (b *batch) addTable() {
	b.message(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE)
	b.Uint32(unix.NFTA_TABLE_FLAGS, 0)
}

func (b *batch) deleteTable() { b.message(unix.NFT_MSG_DELTABLE, 0) }

func (b *batch) addChain(name string, as *base) {
	b.message(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE)
	b.String(unix.NFTA_CHAIN_NAME, name)
	if as != nil {
		hook := b.Nest(unix.NFTA_CHAIN_HOOK)
		b.Uint32(unix.NFTA_HOOK_HOOKNUM, as.hook)
		b.Uint32(unix.NFTA_HOOK_PRIORITY, uint32(as.priority))
		b.End(hook)
		b.Uint32(unix.NFTA_CHAIN_POLICY, as.policy)
		b.String(unix.NFTA_CHAIN_TYPE, as.kind)
	}
}

// flush empties a chain.
func (b *batch) flush(chain string) {
	b.message(unix.NFT_MSG_DELRULE, 0)
	b.String(unix.NFTA_RULE_CHAIN, chain)
}

func (b *batch) deleteChain(name string) {
	b.message(unix.NFT_MSG_DELCHAIN, 0)
	b.String(unix.NFTA_CHAIN_NAME, name)
}

func (b *batch) addRules(chain string, rules []rule) {
	for _, r := range rules {
		var ids map[*set]uint32
		for i := range r {
			if in := r[i].set; in != nil {
				if ids == nil {
					ids = map[*set]uint32{}
				}
				b.sets++
				ids[in] = b.sets
				b.addSet(in, b.sets)
				b.addElements(in, b.sets)
			}
		}
		b.message(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND)
		b.String(unix.NFTA_RULE_CHAIN, chain)
		at := b.Nest(unix.NFTA_RULE_EXPRESSIONS)
		for i := range r {
			r[i].put(&b.Buffer, ids)
		}
		b.End(at)
	}
}

// addSet makes a set; an anonymous one has a number for the rule that brings it along.
func (b *batch) addSet(s *set, id uint32) {
	b.message(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE)
	b.String(unix.NFTA_SET_NAME, s.name)
	b.Uint32(unix.NFTA_SET_FLAGS, s.flags)
	b.Uint32(unix.NFTA_SET_KEY_TYPE, s.keyType)
	b.Uint32(unix.NFTA_SET_KEY_LEN, s.keyLen)
	if s.flags&unix.NFT_SET_MAP != 0 {
		b.Uint32(unix.NFTA_SET_DATA_TYPE, s.dataType)
		if s.dataType != verdictType {
			b.Uint32(unix.NFTA_SET_DATA_LEN, s.dataLen)
		}
	}
	b.Uint32(unix.NFTA_SET_ID, id)
	if s.size > 0 {
		desc := b.Nest(unix.NFTA_SET_DESC)
		b.Uint32(unix.NFTA_SET_DESC_SIZE, s.size)
		b.End(desc)
	}
	b.Put(unix.NFTA_SET_USERDATA, []byte(s.userdata))
}

// addElements fills an anonymous set, in as many messages as it takes.
func (b *batch) addElements(s *set, id uint32) {
	for rest := s.elements; len(rest) > 0; rest = rest[min(maxElements, len(rest)):] {
		at := b.elements(unix.NFT_MSG_NEWSETELEM, s.name, id)
		for _, e := range rest[:min(maxElements, len(rest))] {
			attrs := value(unix.NFTA_SET_ELEM_KEY, e.key)
			if s.flags&unix.NFT_SET_MAP != 0 {
				attrs += value(unix.NFTA_SET_ELEM_DATA, e.data)
			}
			putElement(&b.Buffer, attrs)
		}
		b.End(at)
	}
}

// elements begins a message about elements of a set.
func (b *batch) elements(message uint16, name string, id uint32) (at int) {
	flags := uint16(0)
	if message == unix.NFT_MSG_NEWSETELEM {
		flags = unix.NLM_F_CREATE
	}
	b.message(message, flags)
	b.String(unix.NFTA_SET_ELEM_LIST_SET, name)
	if id != 0 {
		b.Uint32(unix.NFTA_SET_ELEM_LIST_SET_ID, id)
	}
	return b.Nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
}

// putElement appends an element of a set, which these attributes make.
func putElement(m *nfnl.Buffer, attrs string) {
	at := m.Nest(unix.NFTA_LIST_ELEM)
	m.Append(attrs)
	m.End(at)
}

func (b *batch) addVerdict(name, key, chain string) {
	at := b.elements(unix.NFT_MSG_NEWSETELEM, name, 0)
	putElement(&b.Buffer, value(unix.NFTA_SET_ELEM_KEY, key)+verdictData(unix.NFTA_SET_ELEM_DATA, unix.NFT_GOTO, chain))
	b.End(at)
}

func (b *batch) deleteElement(name, key string) {
	at := b.elements(unix.NFT_MSG_DELSETELEM, name, 0)
	putElement(&b.Buffer, value(unix.NFTA_SET_ELEM_KEY, key))
	b.End(at)
}

func (b *batch) deleteSet(name string) {
	b.message(unix.NFT_MSG_DELSET, 0)
	b.String(unix.NFTA_SET_NAME, name)
}

// messages are what to send.
func (b *batch) messages() *nfnl.Buffer {
	if !b.done {
		b.Answer() // the last one that is about something
		b.Message(unix.NFNL_MSG_BATCH_END, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
		b.done = true
	}
	return &b.Buffer
}

// about says in nft's words what a message is about.
func (b *batch) about(message int) string {
	body, kindOf := b.At(message)
	verbs := map[uint16]string{
		unix.NFT_MSG_NEWTABLE: "add table", unix.NFT_MSG_DELTABLE: "delete table",
		unix.NFT_MSG_NEWCHAIN: "add chain", unix.NFT_MSG_DELCHAIN: "delete chain",
		unix.NFT_MSG_NEWRULE: "add rule", unix.NFT_MSG_DELRULE: "flush chain",
		unix.NFT_MSG_NEWSET: "add map", unix.NFT_MSG_DELSET: "delete map",
		unix.NFT_MSG_NEWSETELEM: "add element", unix.NFT_MSG_DELSETELEM: "delete element",
	}
	names := map[uint16]uint16{
		unix.NFT_MSG_NEWCHAIN: unix.NFTA_CHAIN_NAME, unix.NFT_MSG_DELCHAIN: unix.NFTA_CHAIN_NAME,
		unix.NFT_MSG_NEWRULE: unix.NFTA_RULE_CHAIN, unix.NFT_MSG_DELRULE: unix.NFTA_RULE_CHAIN,
		unix.NFT_MSG_NEWSET: unix.NFTA_SET_NAME, unix.NFT_MSG_DELSET: unix.NFTA_SET_NAME,
		unix.NFT_MSG_NEWSETELEM: unix.NFTA_SET_ELEM_LIST_SET, unix.NFT_MSG_DELSETELEM: unix.NFTA_SET_ELEM_LIST_SET,
	}
	verb, ok := verbs[kindOf&0xff]
	if !ok || kindOf>>8 != unix.NFNL_SUBSYS_NFTABLES {
		return "transaction"
	}
	text := fmt.Sprintf("%s ip %s", verb, tableName)
	if attr, ok := names[kindOf&0xff]; ok {
		text += " " + nfnl.Text(nfnl.Attr(body, attr))
	}
	return text
}
