// SPDX-License-Identifier: Apache-2.0

package gatewaynft

import (
	"maps"
	"slices"
	"strings"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// change is what makes a gateway hold a state: a transaction, and what there is to do behind it.
type change struct {
	batch *batch
	// pins are maps whose pins are to get another timeout.
	pins []retiming
	// ended are the connections that the change leaves without their backend.
	ended endings
	// Chains and sets that lead nowhere by now. Those that note what is still to be done go when it is done: notes are about
	// connections, former about pins.
	chains, sets, notes, former []string
}

// retiming gives the pins in a map a timeout.
type retiming struct {
	hash    string
	timeout int32
}

// planner makes a change of a state and a snapshot.
type planner struct {
	*change
	state *sharenat.State
	have  *snapshot
	// objects are the names of all that an identity has, by its hash.
	objects map[string][]string
	// named are the hashes of the identities in the state.
	named map[string]bool
	// ledTo counts the identities that lead to a chain.
	ledTo map[string]int
	keep  map[string]bool
}

// plan makes the change. anew throws away what is there, which a full state may: then only the connections of what is there matter.
func plan(state *sharenat.State, have *snapshot, anew bool) *change {
	p := &planner{
		change:  &change{batch: newBatch(have.generation), ended: newEndings()},
		state:   state,
		have:    have,
		objects: map[string][]string{}, named: map[string]bool{}, ledTo: map[string]int{}, keep: map[string]bool{},
	}
	if anew {
		p.startAnew()
	}
	for _, name := range slices.Sorted(maps.Keys(p.have.chains)) {
		p.objects[hashIn(name)] = append(p.objects[hashIn(name)], name)
	}
	for _, name := range slices.Sorted(maps.Keys(p.have.sets)) {
		p.objects[hashIn(name)] = append(p.objects[hashIn(name)], name)
	}
	delete(p.objects, "")
	for _, to := range p.have.service {
		p.ledTo[to.chain]++
	}
	for i := range state.Set {
		p.named[state.Set[i].Hash()] = true
	}
	for _, id := range state.Remove {
		p.named[id.Hash()] = true
	}
	p.base()
	for i := range state.Set {
		p.put(&state.Set[i])
	}
	for _, id := range state.Remove {
		p.remove(id, state.Keep[id])
	}
	for _, c := range state.Forget {
		p.ended.forget[c] = true
	}
	if state.Full {
		p.rest()
	}
	return p.change
}

// startAnew has everything thrown away, first of all.
func (p *planner) startAnew() {
	stays := map[sharenat.Identity]bool{}
	for i := range p.state.Set {
		stays[p.state.Set[i].Identity] = true
	}
	for k := range p.have.service {
		if id, ok := identityOf(k); ok && !stays[id] {
			p.ended.all(id)
		}
	}
	if p.have.table {
		p.batch.deleteTable()
	}
	p.have = newSnapshot()
	p.have.whole = true
}

// base lays what all identities share.
func (p *planner) base() {
	if !p.have.table || p.have.dormant {
		p.batch.addTable()
	}
	for _, name := range []string{serviceIPs, masqIPs} {
		if !p.have.typed(name) {
			m := verdictMap(name)
			p.batch.sets++
			p.batch.addSet(&m, p.batch.sets)
		}
	}
	p.layBase(prerouting, preroutingRules())
	p.layBase(postrouting, postroutingRules(p.masquerades()))
}

func (p *planner) layBase(name string, rules []rule) {
	if p.have.laid(name, rules) {
		return
	}
	b := natBase[name]
	p.batch.addChain(name, &b)
	if p.have.chains[name] != nil {
		p.batch.flush(name)
	}
	p.batch.addRules(name, rules)
}

// masquerades tells whether connections have to be looked up for masquerading at all.
func (p *planner) masquerades() bool {
	for i := range p.state.Set {
		if slices.ContainsFunc(p.state.Set[i].Backends, func(b sharenat.Backend) bool { return b.Masquerade }) {
			return true
		}
	}
	if p.state.Full {
		return false
	}
	if !p.have.whole { // others may need what is there
		rules, _ := p.have.rulesOf(postrouting)
		return len(rules) > 0
	}
	for name := range p.have.chains {
		if strings.HasPrefix(name, "masq-") {
			return true
		}
	}
	return false
}

// put makes an identity so.
func (p *planner) put(s *sharenat.Share) {
	hash, k := s.Hash(), key(s.Identity)
	n := namesOf(hash)
	o := objectsOf(s)
	var write []chain
	for _, c := range o.chains {
		p.keep[c.name] = true
		have, known := p.have.rulesOf(c.name)
		switch {
		case p.have.chains[c.name] == nil:
			p.batch.addChain(c.name, nil)
		case known && sameRules(have, c.rules):
			continue // as it is, and with what it counts on in place
		default:
			p.batch.flush(c.name)
		}
		write = append(write, c)
	}
	if o.aff != nil {
		p.keep[n.aff] = true
		if p.have.sets[n.aff] == nil || p.have.whole && p.have.sets[n.aff].flags != o.aff.flags {
			p.batch.sets++
			p.batch.addSet(o.aff, p.batch.sets)
		}
	}
	for _, c := range write {
		p.batch.addRules(c.name, c.rules)
	}
	elsewhere := p.lead(serviceIPs, k, n.dnat, p.have.service)
	if o.masquerade {
		p.lead(masqIPs, k, n.masq, p.have.masq)
	} else if _, there := p.have.masq[k]; there {
		p.batch.deleteElement(masqIPs, k)
	}
	if s.Affinity.ClientIP {
		p.formerPins(hash, s.Affinity.TimeoutSeconds)
	}
	_, pending := notedIn(chainRules(p.have, n.dnat))
	if s.Protocol == sharenat.UDP || pending {
		p.ended.except(s)
	}
	p.clear(hash)
	if elsewhere != "" {
		p.clear(elsewhere)
	}
}

func chainRules(s *snapshot, name string) []rule {
	rules, _ := s.rulesOf(name)
	return rules
}

// lead has one of the verdict maps lead to a chain; it gives the hash by which a chain is named that is led to no more.
func (p *planner) lead(name, key, chain string, have map[string]leads) (left string) {
	to, there := have[key]
	if there && to == goTo(chain) {
		return ""
	}
	if there {
		p.batch.deleteElement(name, key)
		left = p.ownHash(to.chain)
	}
	p.batch.addVerdict(name, key, chain)
	return left
}

// ownHash is the hash in the name of a chain that only one identity leads to, "" if it belongs to another one of the state.
func (p *planner) ownHash(chain string) string {
	h := hashIn(chain)
	if !strings.HasPrefix(chain, "dnat-") || p.ledTo[chain] > 1 || p.named[h] {
		return ""
	}
	return h
}

// formerPins keeps in mind that pins have another timeout than they are to have.
func (p *planner) formerPins(hash string, timeout int32) {
	now, found := pinName(hash, timeout), false
	for _, name := range p.objects[hash] {
		if of, _, isPin := pinOf(name); isPin && of == hash && name != now {
			found = true
			p.keep[name] = true
			p.batch.flush(name)
			p.former = append(p.former, name)
		}
	}
	if found {
		p.pins = append(p.pins, retiming{hash, timeout})
	}
}

// clear empties what carries the hash and is not kept, for the sweep to delete. Kernels before 6.2 refuse (EBUSY) to delete a chain in the
// transaction that removes the map element leading to it, and may go on refusing for a moment afterwards, until the old element is freed.
func (p *planner) clear(hash string) {
	for _, name := range p.objects[hash] {
		switch {
		case p.keep[name]:
		case p.have.chains[name] == nil:
			p.sets = append(p.sets, name)
		case isPromise(name):
			p.batch.deleteChain(name) // nothing leads to it, so no kernel refuses
		default:
			p.batch.flush(name)
			p.chains = append(p.chains, name)
		}
	}
	delete(p.objects, hash)
}

// isPromise tells of the empty chains by which an earlier program told what objects an identity had: dnat-<h>-<kind>.
func isPromise(name string) bool {
	return strings.HasPrefix(name, "dnat-") && strings.Count(name, "-") > 1
}

// remove takes an identity away. Its connections go as well, TCP's unless they are to be kept.
func (p *planner) remove(id sharenat.Identity, keepTCP bool) {
	hash, k := id.Hash(), key(id)
	n := namesOf(hash)
	to, there := p.have.service[k]
	_, pending := notedIn(chainRules(p.have, n.dnat))
	if there {
		p.batch.deleteElement(serviceIPs, k)
	}
	if _, masquerades := p.have.masq[k]; masquerades {
		p.batch.deleteElement(masqIPs, k)
	}
	end := (there || pending) && (id.Protocol == sharenat.UDP || !keepTCP)
	if end {
		p.ended.all(id)
		if there {
			p.note(id, n.dnat)
		}
		p.keep[n.dnat] = true
		p.notes = append(p.notes, n.dnat)
	}
	if other := p.ownHash(to.chain); there && other != "" && other != hash {
		p.clear(other)
	}
	p.clear(hash)
}

// note has the chain of an identity that goes say that its connections are still there.
func (p *planner) note(id sharenat.Identity, chain string) {
	if p.have.chains[chain] == nil {
		p.batch.addChain(chain, nil)
	} else {
		p.batch.flush(chain)
	}
	p.batch.addRules(chain, noteRules(id))
}

// rest removes all that a full state does not name.
func (p *planner) rest() {
	wanted := map[string]bool{}
	for i := range p.state.Set {
		wanted[key(p.state.Set[i].Identity)] = true
	}
	for _, k := range slices.Sorted(maps.Keys(p.have.service)) {
		if wanted[k] {
			continue
		}
		if id, ok := identityOf(k); ok {
			p.remove(id, false)
			delete(p.have.masq, k)
		} else {
			p.batch.deleteElement(serviceIPs, k)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(p.have.masq)) {
		if !wanted[k] {
			p.batch.deleteElement(masqIPs, k)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.have.chains)) {
		if id, ok := notedIn(chainRules(p.have, name)); ok && namesOf(id.Hash()).dnat == name && !p.keep[name] {
			p.ended.all(id)
			p.keep[name] = true
			p.notes = append(p.notes, name)
		}
	}
	for _, hash := range slices.Sorted(maps.Keys(p.objects)) {
		p.clear(hash)
	}
}
