// SPDX-License-Identifier: Apache-2.0

package lbservice

import (
	"net/netip"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/latency"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// noteTrigger tells the tracker when a slice's change was triggered. Where the slice does not say, it is now: Kubernetes' controller says
// nothing when a Pod came and became ready within one second, and whoever else writes slices leaves the time as it was. Of a
// slice that is seen for the first time without a time it cannot be told whether it is new.
func (c *Controller) noteTrigger(before, after *discoveryv1.EndpointSlice) {
	slice, at := after, c.now()
	switch {
	case after == nil:
		slice = before
	case before == nil:
		at = latency.TriggerTime(after)
	default:
		if said := latency.TriggerTime(after); !said.IsZero() && !said.Equal(latency.TriggerTime(before)) {
			at = said
		}
	}
	owner := sharenat.Owner{Namespace: slice.Namespace, Name: slice.Labels[discoveryv1.LabelServiceName]}
	if svc := c.service(owner); sharenat.Qualifies(svc) {
		c.opts.Latency.Changed(owner, at)
	}
}

// decisionOf gives what the gateway should hold of a Service by this decision.
func decisionOf(s *Snapshot, o *Outcome) latency.Decision {
	if !o.Qualified || o.Blocked != "" || !o.Owned() {
		return latency.Decision{}
	}
	rules := make([]*kubeovnv1.IptablesDnatRule, len(o.Rules))
	for i := range o.Rules {
		rule := &o.Rules[i]
		rules[i] = &kubeovnv1.IptablesDnatRule{ObjectMeta: metav1.ObjectMeta{Labels: rule.Labels, Annotations: rule.Annotations}, Spec: rule.Spec}
	}
	out := latency.Decision{Gateway: s.Gateway.Name, Digests: digests(o.Address, rules)}
	for i := range s.Service.Spec.Ports {
		claim, ok := sharenat.ClaimOfPort(&s.Service.Spec.Ports[i])
		if !ok || o.Ports[i].Err != "" {
			continue
		}
		id := sharenat.Identity{EIP: o.Address, Port: claim.Port, Protocol: claim.Protocol}
		if _, has := out.Digests[id]; !has {
			out.Digests[id] = ""
		}
	}
	return out
}

// digests gives the digest of each identity that these rules of one Service make at an EIP's address.
func digests(address netip.Addr, rules []*kubeovnv1.IptablesDnatRule) map[sharenat.Identity]string {
	shares := map[sharenat.Identity]*sharenat.Share{}
	for _, obj := range rules {
		rule, err := sharenat.ParseRule(obj, address)
		if err != nil {
			continue
		}
		share := shares[rule.Identity]
		if share == nil {
			share = &sharenat.Share{Identity: rule.Identity, Affinity: rule.Affinity, Sources: rule.Sources}
			shares[rule.Identity] = share
		}
		share.Backends = append(share.Backends, rule.Backend)
	}
	out := make(map[sharenat.Identity]string, len(shares))
	for id, share := range shares {
		share.Normalize()
		out[id] = share.Digest()
	}
	return out
}

// rulesSay tells by the rules' status whether the gateway holds what is decided. A rule that is being deleted has its finalizer for as
// long as a gateway holds it.
func (c *Controller) rulesSay(owner sharenat.Owner, want latency.Decision) bool {
	held := map[netip.Addr][]*kubeovnv1.IptablesDnatRule{}
	for _, rule := range byIndex[kubeovnv1.IptablesDnatRule](c.in.rules, rulesByOwner, owner.String()) {
		if addr, err := sharenat.ParseIPv4(rule.Labels[sharenat.EIPAddressLabel]); err == nil && (rule.Status.Ready || rule.DeletionTimestamp != nil) {
			held[addr] = append(held[addr], rule)
		}
	}
	have := map[netip.Addr]map[sharenat.Identity]string{}
	for id, digest := range want.Digests {
		if have[id.EIP] == nil {
			have[id.EIP] = digests(id.EIP, held[id.EIP])
		}
		if have[id.EIP][id] != digest {
			return false
		}
	}
	return true
}
