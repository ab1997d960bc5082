// SPDX-License-Identifier: Apache-2.0

package lbservice

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// Rule is one rule as it should be.
type Rule struct {
	Name        string
	Labels      map[string]string
	Annotations map[string]string
	Spec        kubeovnv1.IptablesDnatRuleSpec
	// Held: another Service's rules are still there, so this one must not be created yet.
	Held bool
}

// PortOutcome is what became of one port of the Service.
type PortOutcome struct {
	Port     int32
	Protocol corev1.Protocol
	// Err is empty when the port is the Service's.
	Err PortError
	// Holder has the port, where Err is PortConflict.
	Holder sharenat.Holder
	// Rules are the names of the port's rules.
	Rules []string
}

// PortError says why a port is not served, as it stands in status.loadBalancer.ingress[].ports[].error.
type PortError string

// The reasons why a port is not served.
const (
	PortConflict            PortError = "kubeovn.io/PortConflict"
	PortProtocolUnsupported PortError = "kubeovn.io/ProtocolNotSupported"
)

// Outcome is the decision about one Service: what should be, and why.
type Outcome struct {
	// Qualified: the Service is ours to serve.
	Qualified bool
	// Blocked is the reason why there can be nothing at all, one of the Reason constants, with its message.
	Blocked        string
	BlockedMessage string
	// Address of the EIP; valid when the Service may be published.
	Address netip.Addr
	// Degraded is a reason that does not keep the Service from being served as it was.
	Degraded        string
	DegradedMessage string
	// Limited is what the handler does not do of what was asked for, though the Service is served.
	Limited        string
	LimitedMessage string
	// Refused is the API server's word about a rule that it did not take.
	Refused string
	// Ports in the Service's order.
	Ports []PortOutcome
	// Rules by name.
	Rules []Rule
	// Skipped endpoints could be backends, if something about them were otherwise.
	Skipped []Skip
	// Waiting counts the endpoints that are no backends yet.
	Waiting int
	// Denied: the source ranges allow no IPv4 client.
	Denied bool
	// Notes tell the user how parts of the spec are served.
	Notes []Note

	nodes  reach
	living map[netip.Addr]bool
	// lack is the message, with the ports to be named, of ports without a backend.
	lack string
}

// Owned tells whether at least one port is the Service's.
func (o *Outcome) Owned() bool {
	return slices.ContainsFunc(o.Ports, func(p PortOutcome) bool { return p.Err == "" })
}

// Desired decides what a Service should have.
func Desired(s *Snapshot) *Outcome {
	out := &Outcome{Qualified: sharenat.Qualifies(s.Service)}
	if !out.Qualified {
		return out
	}
	if !admit(s, out) {
		out.Notes = notesOf(s)
		return out
	}
	if out.Blocked == "" {
		limit(s, out)
	}
	out.Notes = notesOf(s)
	owned := sharenat.NewOwnership(&sharenat.Claims{
		EIP: s.EIP, RequireGrant: s.RequireEIPGrant, FIPs: s.FIPs, Rules: s.EIPRules, Services: s.Claimants,
	})
	for i := range s.Service.Spec.Ports {
		out.Ports = append(out.Ports, decidePort(s, owned, &s.Service.Spec.Ports[i]))
	}
	if out.Blocked != "" {
		return out
	}
	addRules(s, owned, out)
	return out
}

// admit looks at the EIP and its gateway, from the most basic need up. It returns false when not even the ports can be decided.
func admit(s *Snapshot, out *Outcome) bool {
	name := sharenat.EIPName(s.Service)
	switch {
	case s.EIP == nil:
		out.block(ReasonEIPNotFound, msgEIPNotFound, name)
		return false
	case !sharenat.Granted(s.EIP, s.Service.Namespace, s.RequireEIPGrant):
		out.block(ReasonNotGranted, msgNotGranted, s.Service.Namespace, name, sharenat.GrantAnnotation)
		return false
	}
	addr, ipv6Only := sharenat.EIPAddress(s.EIP)
	kept := sharenat.KeepsAddress(s.EIP, s.Service)
	switch {
	case ipv6Only:
		out.block(ReasonEIPIPv6Only, msgEIPIPv6Only, name)
	case s.EIP.DeletionTimestamp != nil && !kept:
		out.block(ReasonEIPNotReady, msgEIPDeleting, name)
	case s.Gateway == nil && s.EIP.Spec.NatGwDp != "":
		// An EIP without a gateway is not ready either, but this is why.
		out.block(ReasonGatewayNotFound, msgGatewayNotFound, s.EIP.Spec.NatGwDp, name)
	case !addr.IsValid(), !s.EIP.Status.Ready && !kept, s.Gateway == nil:
		out.block(ReasonEIPNotReady, "%s", eipNotReady(s.EIP))
	case s.EIP.DeletionTimestamp != nil:
		out.degrade(ReasonEIPNotReady, msgEIPDeletingInUse, name)
	case !s.EIP.Status.Ready:
		out.degrade(ReasonEIPNotReady, "%s", eipNotReady(s.EIP))
	}
	if out.Blocked == "" {
		out.Address = addr
	}
	return true
}

// eipNotReady repeats what the EIP says of itself: who made the Service may not be let read it.
func eipNotReady(eip *kubeovnv1.IptablesEIP) string {
	for i := range eip.Status.Conditions {
		if c := &eip.Status.Conditions[i]; c.Type == kubeovnv1.Ready && c.Status == corev1.ConditionFalse && c.Message != "" {
			return fmt.Sprintf(msgEIPNotReadySays, eip.Name, c.Message)
		}
	}
	return fmt.Sprintf(msgEIPNotReady, eip.Name)
}

// limit holds what the Service asks for against what the gateways' handler does. Source ranges that nobody enforces would let everybody
// in: there is nothing then, rather than that.
func limit(s *Snapshot, out *Outcome) {
	if ranges, restricted := sourceRanges(s.Service); restricted && len(ranges) > 0 && !s.Abilities.SourceRanges {
		out.Address = netip.Addr{}
		out.block(ReasonSourceRangesNotEnforceable, msgSourceRangesNotEnforceable, sharenat.FormatSources(ranges), s.Gateway.Name)
		return
	}
	if s.Gateway.Spec.Replicas > 1 && !s.Abilities.EveryPod {
		out.limit(ReasonGatewayPodsNotServed, msgGatewayPodsNotServed, s.Gateway.Name, s.Gateway.Spec.Replicas)
	}
	if affinity, _ := affinityOf(s.Service); affinity != sharenat.SessionAffinityNone && !s.Abilities.Affinity {
		out.limit(ReasonAffinityNotServed, msgAffinityNotServed, s.Gateway.Name)
	}
}

func decidePort(s *Snapshot, owned *sharenat.Ownership, port *corev1.ServicePort) PortOutcome {
	out := PortOutcome{Port: port.Port, Protocol: protocolOf(port.Protocol)}
	claim, ok := sharenat.ClaimOfPort(port)
	if !ok {
		out.Err = PortProtocolUnsupported
		return out
	}
	if holder, ok := owned.HeldByOther(claim, s.Key); ok {
		out.Err, out.Holder = PortConflict, holder
	}
	return out
}

// addRules resolves the endpoints and makes a rule of each backend of each port that is the Service's.
func addRules(s *Snapshot, owned *sharenat.Ownership, out *Outcome) {
	eps := resolveEndpoints(s, s.gatewayVPC())
	out.Skipped, out.Waiting, out.nodes = eps.skipped, eps.waiting, eps.nodes
	out.living, out.lack = eps.living, eps.lack()
	for _, subnet := range eps.strays {
		out.Notes = append(out.Notes, Note{Type: corev1.EventTypeWarning, Text: fmt.Sprintf(msgNoWayBack, subnet, s.Gateway.Name, s.Gateway.Spec.Subnet)})
	}
	sources, restricted := sourceRanges(s.Service)
	if out.Denied = restricted && len(sources) == 0; out.Denied {
		return
	}
	proto := newTemplate(s, out.Address, sources)
	for i := range s.Service.Spec.Ports {
		if out.Ports[i].Err != "" {
			continue
		}
		port := &s.Service.Spec.Ports[i]
		claim, _ := sharenat.ClaimOfPort(port)
		held := owned.OthersLive(claim, s.Key)
		for _, backend := range eps.backendsOf(port) {
			rule := proto.rule(claim, backend)
			rule.Held = held
			out.Rules = append(out.Rules, rule)
			out.Ports[i].Rules = append(out.Ports[i].Rules, rule.Name)
		}
	}
	slices.SortFunc(out.Rules, func(a, b Rule) int { return cmp.Compare(a.Name, b.Name) })
}

// template has what all rules of a Service have in common.
type template struct {
	owner           sharenat.Owner
	eip             string
	affinity        string
	affinityTimeout int32
	sourceIP        string
	labels          map[string]string
	annotations     map[string]string
}

func newTemplate(s *Snapshot, eip netip.Addr, sources []netip.Prefix) *template {
	t := &template{owner: s.Key, eip: s.EIP.Name, labels: s.Key.Labels()}
	t.affinity, t.affinityTimeout = sharenat.SessionAffinityNone, 0
	if s.Abilities.Affinity {
		// A rule asks for nothing that its handler does not do: one that learns it later would take what it finds for done.
		t.affinity, t.affinityTimeout = affinityOf(s.Service)
	}
	t.sourceIP, _ = sourceIPOverride(s.Service)
	t.labels[sharenat.GatewayLabel] = s.Gateway.Name
	t.labels[sharenat.EIPAddressLabel] = eip.String()
	t.annotations = map[string]string{sharenat.RuleEIPAnnotation: s.EIP.Name}
	if len(sources) > 0 {
		t.annotations[sharenat.SourceRangesAnnotation] = sharenat.FormatSources(sources)
	}
	return t
}

func (t *template) rule(claim sharenat.Claim, backend backend) Rule {
	port := strconv.Itoa(int(claim.Port))
	rule := Rule{
		Name:        sharenat.RuleName(t.owner, claim.Protocol, claim.Port, backend.Addr),
		Labels:      maps.Clone(t.labels),
		Annotations: maps.Clone(t.annotations),
		Spec: kubeovnv1.IptablesDnatRuleSpec{
			EIP:                           t.eip,
			ExternalPort:                  port,
			Protocol:                      string(claim.Protocol),
			InternalIP:                    backend.Addr.Addr().String(),
			InternalPort:                  strconv.Itoa(int(backend.Addr.Port())),
			Type:                          sharenat.TypeShare,
			SessionAffinity:               t.affinity,
			SessionAffinityTimeoutSeconds: t.affinityTimeout,
		},
	}
	rule.Labels[sharenat.ExternalPortLabel] = port
	rule.Annotations[sharenat.SourceIPAnnotation] = decideSourceIP(t.sourceIP, backend.Masquerade)
	if backend.pod != "" {
		rule.Annotations[sharenat.PodUIDAnnotation] = string(backend.pod)
	}
	return rule
}

// decideSourceIP: the Service's word counts, its override; without one, a backend whose NIC does not carry its default route needs the
// gateway's address, or its answers leave by the other NIC and the client never sees them. So does every backend of a gateway of
// several pods, or its answers reach a pod that does not know the connection.
func decideSourceIP(override string, masquerade bool) string {
	switch {
	case override != sharenat.SourceIPAuto:
		return override
	case masquerade:
		return sharenat.SourceIPMasquerade
	}
	return sharenat.SourceIPPreserve
}
