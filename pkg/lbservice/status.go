// SPDX-License-Identifier: Apache-2.0

package lbservice

import (
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/utils/ptr"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// maxNames is how many names a message lists.
const maxNames = 10

// Note tells the user how a part of the spec is served.
type Note struct {
	Type string
	Text string
}

// Event is something to tell the user once.
type Event struct {
	Type, Reason, Action, Text string
	// Key is the same as long as there is nothing new to tell.
	Key string
	// Told: the Service's status already says so, which is how a restarted controller knows.
	Told bool
}

func (o *Outcome) block(reason, format string, args ...any) {
	o.Blocked, o.BlockedMessage = reason, fmt.Sprintf(format, args...)
}

func (o *Outcome) degrade(reason, format string, args ...any) {
	o.Degraded, o.DegradedMessage = reason, fmt.Sprintf(format, args...)
}

// limit adds what is not done; the first reason stands for all.
func (o *Outcome) limit(reason, format string, args ...any) {
	message := fmt.Sprintf(format, args...)
	if o.Limited != "" {
		message = o.LimitedMessage + "; " + message
	}
	o.Limited, o.LimitedMessage = cmp.Or(o.Limited, reason), message
}

func notesOf(s *Snapshot) []Note {
	svc := s.Service
	var notes []Note
	if svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		notes = append(notes, Note{Type: corev1.EventTypeWarning, Text: msgExternalLocal})
	}
	if ptr.Deref(svc.Spec.InternalTrafficPolicy, "") == corev1.ServiceInternalTrafficPolicyLocal {
		notes = append(notes, Note{Type: corev1.EventTypeWarning, Text: msgInternalLocal})
	}
	if ranges, _ := sourceRanges(svc); len(ranges) > 0 && s.Abilities.SourceRanges {
		notes = append(notes, Note{Type: corev1.EventTypeNormal, Text: fmt.Sprintf(msgSourceRanges, sharenat.FormatSources(ranges))})
	}
	switch {
	case len(svc.Spec.IPFamilies) > 0 && !slices.Contains(svc.Spec.IPFamilies, corev1.IPv4Protocol):
		notes = append(notes, Note{Type: corev1.EventTypeWarning, Text: msgIPv6Alone})
	case ptr.Deref(svc.Spec.IPFamilyPolicy, "") == corev1.IPFamilyPolicyRequireDualStack:
		notes = append(notes, Note{Type: corev1.EventTypeWarning, Text: msgDualStack})
	}
	if s.Contested {
		rival := "somebody who is not on record"
		if s.Rival != "" {
			rival = strconv.Quote(s.Rival)
		}
		notes = append(notes, Note{Type: corev1.EventTypeWarning, Text: fmt.Sprintf(msgContested, rival, sharenat.LoadBalancerClass)})
	}
	if _, valid := sourceIPOverride(svc); !valid {
		notes = append(notes, Note{
			Type: corev1.EventTypeWarning,
			Text: fmt.Sprintf(msgBadOverride, sharenat.SourceIPAnnotation, svc.Annotations[sharenat.SourceIPAnnotation]),
		})
	}
	return notes
}

// verdict is what ConditionReady says.
type verdict struct {
	status  metav1.ConditionStatus
	reason  string
	message string
}

// judge looks for the first thing that keeps all of the Service from being served.
func judge(s *Snapshot, o *Outcome) verdict {
	no := func(reason, message string) verdict { return verdict{metav1.ConditionFalse, reason, message} }
	if o.Blocked != "" {
		return no(o.Blocked, o.BlockedMessage)
	}
	if reason, message := portErrors(s, o); reason != "" {
		return no(reason, message)
	}
	if o.Denied {
		return no(ReasonNoClientAllowed, noClientText(s.Service))
	}
	if o.Degraded != "" {
		return no(o.Degraded, o.DegradedMessage)
	}
	if ports := o.portsWithoutRules(); len(ports) > 0 {
		return no(ReasonNoBackend, noBackendText(s, o, strings.Join(ports, ", ")))
	}
	held := heldBy(s, o)
	switch {
	case o.Refused != "":
		return no(ReasonWriteRefused, fmt.Sprintf(msgWriteRefused, o.Refused))
	case held == heldAll && o.Limited != "":
		return no(o.Limited, o.LimitedMessage)
	case held == heldAll:
		return verdict{metav1.ConditionTrue, ReasonProgrammed, fmt.Sprintf(msgProgrammed, o.Address, s.Gateway.Name)}
	case !s.Gateway.Status.Ready:
		return no(ReasonGatewayNotReady, fmt.Sprintf(msgGatewayNotReady, s.Gateway.Name))
	case held == heldPart:
		return no(ReasonProgramming, fmt.Sprintf(msgProgrammingPart, o.Address, s.Gateway.Name))
	case held == heldMore:
		return no(ReasonProgramming, fmt.Sprintf(msgProgrammingMore, o.Address, s.Gateway.Name))
	}
	return no(ReasonProgramming, fmt.Sprintf(msgProgramming, s.Gateway.Name))
}

// noClientText says what is wrong with the ranges.
func noClientText(svc *corev1.Service) string {
	if bad := unreadableRange(svc); bad != "" {
		return fmt.Sprintf(msgUnreadableRange, bad)
	}
	return msgNoClientAllowed
}

// noBackendText: where endpoints are ready, and only masquerading is missing, that is what to say.
func noBackendText(s *Snapshot, o *Outcome, ports string) string {
	switch {
	case o.lack != "":
		return fmt.Sprintf(o.lack, ports)
	case slices.ContainsFunc(o.Skipped, func(skip Skip) bool { return skip.Unmasqueraded }):
		return fmt.Sprintf(msgNoBackendBack, ports, s.Gateway.Name)
	}
	return fmt.Sprintf(msgNoBackend, ports, s.gatewayVPC())
}

// portErrors says which ports the Service does not have, and why.
func portErrors(s *Snapshot, o *Outcome) (reason, message string) {
	var texts []string
	for i := range o.Ports {
		port := &o.Ports[i]
		switch {
		case port.Err == PortConflict:
			reason = ReasonPortConflict
		case port.Err != "" && reason == "":
			reason = ReasonProtocolNotSupported
		}
		if port.Err != "" {
			texts = append(texts, portText(s, port))
		}
	}
	return reason, strings.Join(texts, "; ")
}

func portText(s *Snapshot, port *PortOutcome) string {
	if port.Err == PortConflict {
		return fmt.Sprintf(msgConflict, port, sharenat.EIPName(s.Service), port.Holder)
	}
	return fmt.Sprintf(msgUnsupported, port.Port, port.Protocol)
}

// String gives "80/TCP".
func (p *PortOutcome) String() string { return fmt.Sprintf("%d/%s", p.Port, p.Protocol) }

func (o *Outcome) portsWithoutRules() []string {
	var out []string
	for i := range o.Ports {
		if o.Ports[i].Err == "" && len(o.Ports[i].Rules) == 0 {
			out = append(out, o.Ports[i].String())
		}
	}
	return out
}

// held is how much of a Service its gateway holds, by the rules' status.
type held int

const (
	// heldNone: a port of it does not answer.
	heldNone held = iota
	// heldPart: every port answers, but not by all of its backends.
	heldPart
	// heldMore: by all of them, and by some that are to go.
	heldMore
	heldAll
)

func heldBy(s *Snapshot, o *Outcome) held {
	ready := make(map[string]bool, len(s.OwnRules))
	for _, rule := range s.OwnRules {
		ready[rule.Name] = programmed(rule)
	}
	out := heldAll
	for i := range o.Ports {
		rules := o.Ports[i].Rules
		if !slices.ContainsFunc(rules, func(name string) bool { return ready[name] }) {
			return heldNone
		}
		if slices.ContainsFunc(rules, func(name string) bool { return !ready[name] }) {
			out = heldPart
		}
	}
	if out == heldAll && anyLeaving(s, o) {
		return heldMore
	}
	return out
}

// anyLeaving tells whether a rule of a port that is served is deleted and still there: its gateway may go on sending connections to its
// backend.
func anyLeaving(s *Snapshot, o *Outcome) bool {
	served := map[portKey]bool{}
	for i := range o.Rules {
		served[portKeyOf(&o.Rules[i].Spec)] = true
	}
	return slices.ContainsFunc(s.OwnRules, func(rule *kubeovnv1.IptablesDnatRule) bool {
		return rule.DeletionTimestamp != nil && served[portKeyOf(&rule.Spec)]
	})
}

// programmed tells whether a rule's handler says that its gateway holds the rule as it stands. The status names what was programmed: where
// that is not the spec any more, the handler has still to see it.
func programmed(rule *kubeovnv1.IptablesDnatRule) bool {
	same := func(said, spec string) bool { return said == "" || strings.EqualFold(said, spec) }
	status, spec := &rule.Status, &rule.Spec
	return status.Ready && rule.DeletionTimestamp == nil &&
		same(status.InternalIP, spec.InternalIP) && same(status.InternalPort, spec.InternalPort) &&
		same(status.ExternalPort, spec.ExternalPort) && same(status.Protocol, spec.Protocol)
}

// skippedTexts name the endpoints that are skipped, each in quotes, by what they lack.
func skippedTexts(s *Snapshot, o *Outcome) []string {
	var elsewhere, unmasqueraded []string
	for _, skip := range o.Skipped {
		if skip.Unmasqueraded {
			unmasqueraded = append(unmasqueraded, strconv.Quote(skip.Pod))
		} else {
			elsewhere = append(elsewhere, strconv.Quote(skip.Pod))
		}
	}
	var texts []string
	if len(elsewhere) > 0 {
		texts = append(texts, fmt.Sprintf(msgSkippedList, s.gatewayVPC(), listed(elsewhere)))
	}
	if len(unmasqueraded) > 0 {
		texts = append(texts, fmt.Sprintf(msgUnmasqueradeList, s.Gateway.Name, listed(unmasqueraded)))
	}
	return texts
}

// listed names the first of them.
func listed(names []string) string {
	if more := len(names) - maxNames; more > 0 {
		names = append(slices.Clone(names[:maxNames]), fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}

func skipText(s *Snapshot, skip *Skip) string {
	if !skip.Unmasqueraded {
		return fmt.Sprintf(msgSkipped, skip.Pod, s.gatewayVPC())
	}
	who := "Pod " + skip.Pod
	if skip.UID == "" {
		who = "endpoint " + skip.Pod
	}
	override, _ := sourceIPOverride(s.Service)
	switch {
	case override == sharenat.SourceIPMasquerade:
		return fmt.Sprintf(msgUnmasqueradedAsked, who, s.Gateway.Name, sharenat.SourceIPAnnotation)
	case s.Gateway.Spec.Replicas > 1:
		return fmt.Sprintf(msgUnmasqueradedPods, who, s.Gateway.Name)
	}
	return fmt.Sprintf(msgUnmasqueraded, who, s.Gateway.Name, s.gatewayVPC())
}

// message is the verdict's, with all else that there is to know.
func (v verdict) full(s *Snapshot, o *Outcome) string {
	parts := []string{v.message}
	if (o.Denied || o.Blocked == ReasonSourceRangesNotEnforceable) && len(s.OwnRules) > 0 {
		parts = append(parts, msgStillLetIn)
	}
	if o.Refused != "" && v.reason != ReasonWriteRefused {
		parts = append(parts, fmt.Sprintf(msgWriteRefused, o.Refused))
	}
	if o.Limited != "" && v.reason != o.Limited {
		parts = append(parts, o.LimitedMessage)
	}
	parts = append(parts, skippedTexts(s, o)...)
	for _, note := range o.Notes {
		parts = append(parts, note.Text)
	}
	return strings.Join(parts, "; ")
}

// DecideStatus gives the status that the Service should have, starting from the one it has: nothing that another provider set is
// changed. It also gives what there is to tell the user.
func DecideStatus(s *Snapshot, o *Outcome, now metav1.Time) (*corev1.ServiceStatus, []Event) {
	status := s.Service.Status.DeepCopy()
	old := sharenat.PublishedAddress(s.Service)
	if !o.Qualified {
		status.LoadBalancer.Ingress = mergeIngress(status.LoadBalancer.Ingress, old, nil)
		removeConditions(&status.Conditions, ConditionReady, sharenat.ConditionIngress)
		removePortsError(&status.Conditions)
		return status, nil
	}
	if o.Blocked == "" && o.Owned() {
		ingress := ingressOf(o, status.LoadBalancer.Ingress, old)
		status.LoadBalancer.Ingress = mergeIngress(status.LoadBalancer.Ingress, old, &ingress)
		setCondition(s, status, now, sharenat.ConditionIngress, verdict{metav1.ConditionTrue, reasonPublished, ingress.IP})
	} else {
		status.LoadBalancer.Ingress = mergeIngress(status.LoadBalancer.Ingress, old, nil)
		removeConditions(&status.Conditions, sharenat.ConditionIngress)
	}
	v := judge(s, o)
	events := eventsOf(s, o, v)
	v.message = v.full(s, o)
	setCondition(s, status, now, ConditionReady, v)
	setPortsError(s, o, status, now)
	return status, events
}

func ingressOf(o *Outcome, current []corev1.LoadBalancerIngress, old string) corev1.LoadBalancerIngress {
	ingress := corev1.LoadBalancerIngress{IP: o.Address.String()}
	mode := corev1.LoadBalancerIPModeVIP
	switch o.nodes {
	case unreachable:
		mode = corev1.LoadBalancerIPModeProxy
	case reachUnknown:
		// No endpoint to go by: as it was.
		for i := range current {
			if current[i].IP == old || current[i].IP == ingress.IP {
				mode = ipMode(&current[i])
			}
		}
	case reachable:
	}
	ingress.IPMode = &mode
	if !slices.ContainsFunc(o.Ports, func(p PortOutcome) bool { return p.Err != "" }) {
		return ingress
	}
	for i := range o.Ports {
		port := corev1.PortStatus{Port: o.Ports[i].Port, Protocol: o.Ports[i].Protocol}
		if o.Ports[i].Err != "" {
			port.Error = ptr.To(string(o.Ports[i].Err))
		}
		ingress.Ports = append(ingress.Ports, port)
	}
	return ingress
}

func ipMode(ingress *corev1.LoadBalancerIngress) corev1.LoadBalancerIPMode {
	return ptr.Deref(ingress.IPMode, corev1.LoadBalancerIPModeVIP)
}

// mergeIngress puts what we want in the place of what we published, and leaves the entries of others as they are.
func mergeIngress(current []corev1.LoadBalancerIngress, old string, want *corev1.LoadBalancerIngress) []corev1.LoadBalancerIngress {
	var out []corev1.LoadBalancerIngress
	for _, entry := range current {
		ours := old != "" && entry.IP == old || want != nil && entry.IP == want.IP
		switch {
		case !ours:
			out = append(out, entry)
		case want == nil:
		case sameIngress(&entry, want):
			out = append(out, entry)
			want = nil
			// A second entry with the same address is dropped.
			old = entry.IP
		default:
			out = append(out, *want)
			old, want = want.IP, nil
		}
	}
	if want != nil {
		out = append(out, *want)
	}
	return out
}

func sameIngress(a, b *corev1.LoadBalancerIngress) bool {
	return a.IP == b.IP && a.Hostname == b.Hostname && ipMode(a) == ipMode(b) && equality.Semantic.DeepEqual(a.Ports, b.Ports)
}

func setCondition(s *Snapshot, status *corev1.ServiceStatus, now metav1.Time, conditionType string, v verdict) {
	meta.SetStatusCondition(&status.Conditions, metav1.Condition{
		Type:               conditionType,
		Status:             v.status,
		Reason:             v.reason,
		Message:            v.message,
		ObservedGeneration: s.Service.Generation,
		LastTransitionTime: now,
	})
}

func removeConditions(conditions *[]metav1.Condition, conditionTypes ...string) {
	for _, conditionType := range conditionTypes {
		meta.RemoveStatusCondition(conditions, conditionType)
	}
}

// setPortsError keeps Kubernetes' own condition about ports, unless another provider has set it.
func setPortsError(s *Snapshot, o *Outcome, status *corev1.ServiceStatus, now metav1.Time) {
	reason, message := portErrors(s, o)
	if reason == "" {
		removePortsError(&status.Conditions)
		return
	}
	if c := meta.FindStatusCondition(status.Conditions, corev1.LoadBalancerPortsError); c != nil && !strings.HasPrefix(c.Reason, portsReasonPrefix) {
		return
	}
	setCondition(s, status, now, corev1.LoadBalancerPortsError, verdict{metav1.ConditionTrue, portsReasonPrefix + reason, message})
}

func removePortsError(conditions *[]metav1.Condition) {
	c := meta.FindStatusCondition(*conditions, corev1.LoadBalancerPortsError)
	if c != nil && strings.HasPrefix(c.Reason, portsReasonPrefix) {
		meta.RemoveStatusCondition(conditions, corev1.LoadBalancerPortsError)
	}
}

// eventsOf lists what there is to tell. What the Service's conditions already say has been told.
func eventsOf(s *Snapshot, o *Outcome, v verdict) []Event {
	before := meta.FindStatusCondition(s.Service.Status.Conditions, ConditionReady)
	said := ""
	if before != nil {
		said = before.Message
	}
	if c := meta.FindStatusCondition(s.Service.Status.Conditions, corev1.LoadBalancerPortsError); c != nil {
		said += "; " + c.Message
	}
	var out []Event
	for i := range o.Ports {
		if o.Ports[i].Err == PortConflict {
			text := portText(s, &o.Ports[i])
			out = append(out, Event{corev1.EventTypeWarning, EventConflict, actionClaim, text, text, strings.Contains(said, text)})
		}
	}
	// The condition names the first of them only. Where its list is still the same, all have been told.
	sameList := !slices.ContainsFunc(skippedTexts(s, o), func(text string) bool { return !strings.Contains(said, text) })
	for i := range o.Skipped {
		skip := &o.Skipped[i]
		text := skipText(s, skip)
		told := sameList || strings.Contains(said, strconv.Quote(skip.Pod))
		out = append(out, Event{corev1.EventTypeWarning, EventBackendSkipped, actionResolve, text, string(skip.UID) + text, told})
	}
	for _, note := range o.Notes {
		out = append(out, Event{note.Type, EventNote, actionServe, note.Text, note.Text, strings.Contains(said, note.Text)})
	}
	if o.Limited != "" {
		// Told once, however often the rules change.
		out = append(out, Event{corev1.EventTypeWarning, EventNote, actionServe, o.LimitedMessage, o.LimitedMessage, strings.Contains(said, o.LimitedMessage)})
	}
	same := before != nil && before.Status == v.status && before.Reason == v.reason
	switch v.reason {
	case ReasonProgramming, ReasonPortConflict, ReasonWriteRefused, o.Limited:
		// The first passes by itself, the others have been told for each port, each refusal, and above.
	case ReasonProgrammed:
		out = append(out, Event{corev1.EventTypeNormal, EventServed, actionServe, v.message, EventServed, same})
	default:
		reason := EventNotServed
		if v.reason == o.Degraded {
			reason = EventNote // it is served
		}
		out = append(out, Event{corev1.EventTypeWarning, reason, actionServe, v.message, v.message, same && strings.Contains(said, v.message)})
	}
	return out
}

// statusPatch gives the strategic merge patch of the status subresource that makes one status of another, nil when they are the same. It holds only for the
// Service as it was read, so that what another provider writes meanwhile is not overwritten.
func statusPatch(svc *corev1.Service, status *corev1.ServiceStatus) ([]byte, error) {
	if equality.Semantic.DeepEqual(&svc.Status, status) {
		return nil, nil
	}
	before, err := json.Marshal(corev1.Service{Status: svc.Status})
	if err != nil {
		return nil, fmt.Errorf("encode status: %w", err)
	}
	after, err := json.Marshal(corev1.Service{Status: *status})
	if err != nil {
		return nil, fmt.Errorf("encode status: %w", err)
	}
	raw, err := strategicpatch.CreateTwoWayMergePatch(before, after, corev1.Service{})
	if err != nil {
		return nil, fmt.Errorf("compare status: %w", err)
	}
	patch := map[string]any{}
	if err := json.Unmarshal(raw, &patch); err != nil {
		return nil, fmt.Errorf("decode status patch: %w", err)
	}
	if reflect.DeepEqual(patch, map[string]any{}) {
		return nil, nil
	}
	metadata := map[string]any{}
	if svc.UID != "" {
		metadata["uid"] = svc.UID
	}
	if svc.ResourceVersion != "" {
		metadata["resourceVersion"] = svc.ResourceVersion
	}
	if len(metadata) > 0 {
		patch["metadata"] = metadata
	}
	return json.Marshal(patch)
}
