// SPDX-License-Identifier: Apache-2.0

package natgateway

import (
	"cmp"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// Verbs of nat-gateway.sh that take arguments.
const (
	verbInit         = "init"
	verbEIPAdd       = "eip-add"
	verbEIPDel       = "eip-del"
	verbRouteAdd     = "subnet-route-add"
	verbRouteDel     = "subnet-route-del"
	verbExclusiveAdd = "dnat-add"
	verbExclusiveDel = "dnat-del"
	verbShareAdd     = "nft-dnat-map-add"
	verbShareDel     = "nft-dnat-map-del"
)

// maxArgBytes bounds the arguments of one call, as they stand in the URL of the exec request. API servers and what stands before them take
// a megabyte or as little as 64 KiB.
const maxArgBytes = 32 << 10

// Content is what a pod holds, as far as it is known.
type Content struct {
	Initialized bool
	EIPs        map[netip.Prefix]bool
	Routes      map[netip.Prefix]netip.Addr
	// Exclusives maps an identity to its backends; there is more than one only where something went wrong.
	Exclusives map[sharenat.Identity][]netip.AddrPort
	// Shares maps an identity to the digest of its content.
	Shares map[sharenat.Identity]string
	// Stale says that there are objects which only a full sync removes.
	Stale bool
	// Legacy says that the script is an older one: it can neither list nor sync, and takes shares as arguments.
	Legacy bool
	// Rejected maps an identity to the digest of the content that the script would not take; it is tried again after the next look at the pod.
	Rejected map[sharenat.Identity]string
}

// NewContent takes over what a pod listed.
func NewContent(l *sharenat.Listing) *Content {
	c := emptyContent()
	c.Initialized, c.Stale = l.Initialized, l.Stale > 0
	for _, p := range l.EIPs {
		c.EIPs[p] = true
	}
	for _, r := range l.Routes {
		c.Routes[r.CIDR.Masked()] = r.NextHop
	}
	for _, e := range l.Exclusives {
		c.addExclusive(e)
	}
	for id, h := range l.Shares {
		c.Shares[id] = h.Digest
	}
	return c
}

// NewLegacyContent is for a pod that cannot list: nothing of what is wanted counts as there, and what rules name that are not wanted
// any more counts as there, so that it is removed.
func NewLegacyContent(want *State) *Content {
	c := emptyContent()
	c.Legacy = true
	for _, g := range want.groups {
		for _, v := range g.verdicts {
			c.presume(want, v)
		}
	}
	return c
}

func (c *Content) presume(want *State, v *Verdict) {
	id := v.Rule.Identity
	if v.Outcome == Wanted || !id.EIP.Is4() || id.Port == 0 || id.Protocol == "" {
		return
	}
	if v.Rule.Share && want.Shares[id] == nil {
		c.Shares[id] = sharenat.UnknownDigest
	}
	if target := v.Rule.Backend.Addr; !v.Rule.Share && target.IsValid() && want.Exclusives[id] != target {
		c.addExclusive(sharenat.Exclusive{Identity: id, Backend: target})
	}
}

func (c *Content) addExclusive(e sharenat.Exclusive) {
	if !slices.Contains(c.Exclusives[e.Identity], e.Backend) {
		c.Exclusives[e.Identity] = append(c.Exclusives[e.Identity], e.Backend)
	}
}

func (c *Content) removeExclusive(e sharenat.Exclusive) {
	rest := slices.DeleteFunc(c.Exclusives[e.Identity], func(b netip.AddrPort) bool { return b == e.Backend })
	if len(rest) == 0 {
		delete(c.Exclusives, e.Identity)
		return
	}
	c.Exclusives[e.Identity] = rest
}

func emptyContent() *Content {
	return &Content{
		EIPs:       map[netip.Prefix]bool{},
		Routes:     map[netip.Prefix]netip.Addr{},
		Exclusives: map[sharenat.Identity][]netip.AddrPort{},
		Shares:     map[sharenat.Identity]string{},
		Rejected:   map[sharenat.Identity]string{},
	}
}

// matches says that the pod holds of this identity exactly what is wanted, which may be nothing.
func (c *Content) matches(want *State, id sharenat.Identity) bool {
	digest := ""
	if share := want.Shares[id]; share != nil {
		digest = share.Digest
	}
	if c.Shares[id] != digest {
		return false
	}
	target, wanted := want.Exclusives[id]
	held := c.Exclusives[id]
	return !wanted && len(held) == 0 || wanted && len(held) == 1 && held[0] == target
}

// Action is one call, and what it changes.
type Action struct {
	Verb string
	Args []string

	// Of SyncVerb, and of the legacy verbs: the shares that are written and the identities that are removed.
	Full   bool
	Set    []*DesiredShare
	Remove []sharenat.Identity
	// Keep says of which of the removed identities the TCP connections stay, Forget which connections end.
	Keep   map[sharenat.Identity]bool
	Forget []sharenat.Connections

	// identities of the verbs that carry them as arguments.
	identities []sharenat.Identity
	effect     func(*Content)
}

// touched gives the identities that the action may change.
func (a *Action) touched() map[sharenat.Identity]struct{} {
	out := make(map[sharenat.Identity]struct{}, len(a.Set)+len(a.Remove)+len(a.identities))
	for _, s := range a.Set {
		out[s.Identity] = struct{}{}
	}
	for _, id := range a.Remove {
		out[id] = struct{}{}
	}
	for _, id := range a.identities {
		out[id] = struct{}{}
	}
	return out
}

// Apply notes in the content what the action has changed, once it has succeeded.
func (a *Action) Apply(c *Content) {
	if a.effect != nil {
		a.effect(c)
	}
	if a.Full {
		c.Shares = make(map[sharenat.Identity]string, len(a.Set))
		c.Stale = false
	}
	for _, s := range a.Set {
		c.Shares[s.Identity] = s.Digest
		delete(c.Rejected, s.Identity)
	}
	for _, id := range a.Remove {
		delete(c.Shares, id)
	}
}

// Plan gives the calls that make the content what is wanted, in order: what is needed first, additions before removals. An EIP
// comes after what is served at it: eip-add announces it to the neighbours, and a pod that draws them to itself before it is filled
// resets their connections. There is nothing to do when there are none.
func Plan(want *State, have *Content) []Action {
	var actions []Action
	if !have.Initialized {
		actions = append(actions, Action{Verb: verbInit, effect: func(c *Content) { c.Initialized = true }})
	}
	eipAdd, eipReplace, eipDel := planEIPs(want, have)
	routeAdd, routeDel := planRoutes(want, have)
	dnatAdd, dnatReplace, dnatDel := planExclusives(want, have)
	actions = append(actions, routeAdd...)
	actions = append(actions, planShares(want, have)...)
	actions = append(actions, dnatReplace...)
	actions = append(actions, dnatAdd...)
	actions = append(actions, eipReplace...)
	actions = append(actions, eipAdd...)
	actions = append(actions, dnatDel...)
	actions = append(actions, routeDel...)
	return append(actions, eipDel...)
}

func planEIPs(want *State, have *Content) (add, replace, del []Action) {
	wanted := make(map[netip.Prefix]bool, len(want.EIPs))
	addrs := make(map[netip.Addr]bool, len(want.EIPs))
	var adds, replaces, dels []netip.Prefix
	for _, p := range want.EIPs {
		wanted[p], addrs[p.Addr()] = true, true
		if !have.EIPs[p] {
			adds = append(adds, p)
		}
	}
	for p := range have.EIPs {
		switch {
		case wanted[p]:
		case addrs[p.Addr()]:
			replaces = append(replaces, p)
		default:
			dels = append(dels, p)
		}
	}
	slices.SortFunc(replaces, comparePrefixes)
	slices.SortFunc(dels, comparePrefixes)
	gone := func(c *Content, p netip.Prefix) { delete(c.EIPs, p) }
	return batches(verbEIPAdd, slices.Compact(adds), netip.Prefix.String, func(c *Content, p netip.Prefix) { c.EIPs[p] = true }),
		batches(verbEIPDel, replaces, netip.Prefix.String, gone),
		batches(verbEIPDel, dels, netip.Prefix.String, gone)
}

func planRoutes(want *State, have *Content) (add, del []Action) {
	wanted := make(map[netip.Prefix]bool, len(want.Routes))
	var adds []sharenat.Route
	var dels []netip.Prefix
	for _, r := range want.Routes {
		wanted[r.CIDR] = true
		if have.Routes[r.CIDR] != r.NextHop {
			adds = append(adds, r)
		}
	}
	for cidr := range have.Routes {
		if !wanted[cidr] {
			dels = append(dels, cidr)
		}
	}
	slices.SortFunc(dels, comparePrefixes)
	return batches(verbRouteAdd, adds,
			func(r sharenat.Route) string { return r.CIDR.String() + "," + r.NextHop.String() },
			func(c *Content, r sharenat.Route) { c.Routes[r.CIDR] = r.NextHop }),
		batches(verbRouteDel, dels, netip.Prefix.String, func(c *Content, p netip.Prefix) { delete(c.Routes, p) })
}

// planExclusives removes a changed DNAT before its successor is added, since scripts differ in what the second one of a port does.
func planExclusives(want *State, have *Content) (add, replace, del []Action) {
	var adds, replaces, dels []sharenat.Exclusive
	for id, target := range want.Exclusives {
		if !slices.Contains(have.Exclusives[id], target) {
			adds = append(adds, sharenat.Exclusive{Identity: id, Backend: target})
		}
	}
	for id, backends := range have.Exclusives {
		target, wanted := want.Exclusives[id]
		for _, b := range backends {
			e := sharenat.Exclusive{Identity: id, Backend: b}
			switch {
			case !wanted:
				dels = append(dels, e)
			case b != target:
				replaces = append(replaces, e)
			}
		}
	}
	for _, list := range [][]sharenat.Exclusive{adds, replaces, dels} {
		slices.SortFunc(list, compareExclusives)
	}
	return batches(verbExclusiveAdd, adds, exclusiveArg, (*Content).addExclusive),
		batches(verbExclusiveDel, replaces, exclusiveArg, (*Content).removeExclusive),
		batches(verbExclusiveDel, dels, exclusiveArg, (*Content).removeExclusive)
}

// planShares compares by digest. Everything that differs goes into one call, which the gateway applies as one transaction.
func planShares(want *State, have *Content) []Action {
	var set []*DesiredShare
	var remove []sharenat.Identity
	for id, share := range want.Shares {
		if have.Shares[id] != share.Digest && have.Rejected[id] != share.Digest {
			set = append(set, share)
		}
	}
	for id := range have.Shares {
		if want.Shares[id] == nil {
			remove = append(remove, id)
		}
	}
	slices.SortFunc(remove, sharenat.Identity.Compare)
	full := !have.Legacy && len(have.Rejected) == 0 && (have.Stale || len(have.Shares) == 0)
	switch {
	case have.Legacy:
		sortShares(set)
		return append(legacyAdd(set), batches(verbShareDel, remove, legacyID, func(c *Content, id sharenat.Identity) { delete(c.Shares, id) })...)
	case len(set) == 0 && len(remove) == 0 && (!full || !have.Stale):
		return nil
	case full:
		set = set[:0]
		for _, share := range want.Shares {
			set = append(set, share)
		}
		remove = nil
	}
	sortShares(set)
	return []Action{{Verb: sharenat.SyncVerb, Full: full, Set: set, Remove: remove}}
}

func sortShares(shares []*DesiredShare) {
	slices.SortFunc(shares, func(a, b *DesiredShare) int { return a.Compare(b.Identity) })
}

// stdin gives the standard input of a sync.
func (a *Action) stdin() ([]byte, error) {
	shares := make([]sharenat.Share, len(a.Set))
	for i, s := range a.Set {
		shares[i] = s.Share
	}
	if a.Full {
		return sharenat.EncodeFull(shares)
	}
	return sharenat.Delta{Set: shares, Remove: a.Remove, Keep: a.Keep, Forget: a.Forget}.Encode()
}

func legacyAdd(set []*DesiredShare) []Action {
	return batches(verbShareAdd, set, legacyShare, func(c *Content, s *DesiredShare) { c.Shares[s.Identity] = s.Digest })
}

func legacyID(id sharenat.Identity) string {
	return id.EIP.String() + "," + strconv.Itoa(int(id.Port)) + "," + string(id.Protocol)
}

// legacyShare gives "eip,dport,proto,affinity,timeout,ip:port@ip:port…". What only newer scripts know is left out.
func legacyShare(s *DesiredShare) string {
	var b strings.Builder
	b.WriteString(legacyID(s.Identity) + "," + strings.Replace(s.Affinity.String(), " ", ",", 1) + ",")
	for i, backend := range s.Backends {
		if i > 0 {
			b.WriteByte('@')
		}
		b.WriteString(backend.Addr.String())
	}
	return b.String()
}

func exclusiveArg(e sharenat.Exclusive) string {
	return legacyID(e.Identity) + "," + e.Backend.Addr().String() + "," + strconv.Itoa(int(e.Backend.Port()))
}

// batches gives as few calls of a verb as the bound on their arguments allows; no items, no call.
func batches[T any](verb string, items []T, arg func(T) string, effect func(*Content, T)) []Action {
	var out []Action
	for start := 0; start < len(items); {
		var args []string
		size := 0
		end := start
		for ; end < len(items); end++ {
			s := arg(items[end])
			size += len(url.QueryEscape(s)) + len("&command=")
			if len(args) > 0 && size > maxArgBytes {
				break
			}
			args = append(args, s)
		}
		batch := items[start:end]
		out = append(out, Action{Verb: verb, Args: args, identities: identitiesOf(batch), effect: func(c *Content) {
			for _, item := range batch {
				effect(c, item)
			}
		}})
		start = end
	}
	return out
}

// identitiesOf gives the identities of items that have one.
func identitiesOf[T any](items []T) []sharenat.Identity {
	var out []sharenat.Identity
	for _, item := range items {
		switch x := any(item).(type) {
		case sharenat.Identity:
			out = append(out, x)
		case sharenat.Exclusive:
			out = append(out, x.Identity)
		case *DesiredShare:
			out = append(out, x.Identity)
		}
	}
	return out
}

func comparePrefixes(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

func compareRoutes(a, b sharenat.Route) int {
	return cmp.Or(comparePrefixes(a.CIDR, b.CIDR), a.NextHop.Compare(b.NextHop))
}

func compareExclusives(a, b sharenat.Exclusive) int {
	return cmp.Or(a.Compare(b.Identity), a.Backend.Compare(b.Backend))
}
