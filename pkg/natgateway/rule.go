// SPDX-License-Identifier: Apache-2.0

package natgateway

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// syncRule writes what has become of one rule: finalizer and labels before it is programmed, the status after it, and
// nothing at all when that is there already.
func (c *Controller) syncRule(ctx context.Context, name string) error {
	rule, err := c.ruleLister.Get(name)
	if err != nil {
		c.waits.ruleDone(name)
		c.written.forget("rule/" + name)
		return ignoreNotFound(err)
	}
	if lag := c.written.behind("rule/"+name, rule, c.Clock.Now()); lag > 0 {
		c.ruleQueue.AddAfter(name, lag)
		return nil
	}
	if rule.DeletionTimestamp != nil {
		return c.releaseRule(ctx, rule)
	}
	eip, err := c.eipLister.Get(rule.Spec.EIP)
	if err != nil {
		return c.pendRule(ctx, rule, "", ReasonEIPNotFound, fmt.Sprintf("IptablesEIP %q does not exist", rule.Spec.EIP))
	}
	gateway := eip.Spec.NatGwDp
	if gateway == "" {
		return c.pendRule(ctx, rule, "", ReasonGatewayNotFound, fmt.Sprintf("IptablesEIP %q names no gateway", rule.Spec.EIP))
	}
	state := c.state(gateway)
	verdict := state.Verdict(rule)
	if verdict == nil || verdict.Outcome == Deleting {
		return nil // the caches run ahead of the events, one of which is on its way
	}
	switch verdict.Outcome {
	case Pending:
		return c.pendRule(ctx, rule, gateway, verdict.Reason, verdict.Message)
	case Lost, Invalid:
		return c.failRule(ctx, rule, verdict.Reason, verdict.Message)
	case Unclaimed, Wanted, Deleting:
	}
	if claimed, err := c.claimRule(ctx, rule, gateway, verdict); err != nil || claimed {
		return err
	}
	return c.publishRule(ctx, rule, state, verdict)
}

// claimRule puts the finalizer, the labels and the annotation on a rule that lacks some of them. It is programmed after
// that; a rule that says from birth what it should needs no such write.
func (c *Controller) claimRule(ctx context.Context, rule *kubeovnv1.IptablesDnatRule, gateway string, v *Verdict) (bool, error) {
	p, err := claimPatch(&rule.ObjectMeta, map[string]string{
		sharenat.GatewayLabel:      gateway,
		sharenat.ExternalPortLabel: strconv.Itoa(int(v.Rule.Port)),
		sharenat.EIPAddressLabel:   v.Rule.EIP.String(),
	}, map[string]string{sharenat.RuleEIPAnnotation: rule.Spec.EIP}, nil)
	if err != nil || p == nil {
		return false, err
	}
	return true, c.patchRule(ctx, rule, p)
}

// publishRule says that a rule is ready, once every pod that counts holds its identity as wanted. A rule that was ready
// stays so while the gateway's pods come and go, since they are filled as a whole, but not while none of them serves.
func (c *Controller) publishRule(ctx context.Context, rule *kubeovnv1.IptablesDnatRule, state *State, v *Verdict) error {
	after := rule.Status
	after.Ready = true
	after.V4ip = v.Rule.EIP.String()
	after.NatGwDp = state.Gateway
	after.Protocol = rule.Spec.Protocol // as it is spelled there: who compares the two sees no change
	after.ExternalPort = strconv.Itoa(int(v.Rule.Port))
	after.InternalIP = v.Rule.Backend.Addr.Addr().String()
	after.InternalPort = strconv.Itoa(int(v.Rule.Backend.Addr.Port()))
	after.Conditions = setReady(rule.Status.Conditions, true, ReasonProgrammed, v.Message, rule.Generation, c.now())
	p, err := statusPatch(rule.Status, after)
	if err != nil {
		return err
	}
	down := c.outages.isDeclared(state.Gateway)
	if p == nil && !down {
		c.waits.ruleDone(rule.Name)
		return nil
	}
	since := c.waits.rule(rule.Name, state.Gateway, c.Clock.Now())
	agreed, pods := c.agree(state, v.Rule.Identity)
	if agreed && pods > 0 {
		c.waits.ruleDone(rule.Name)
		if p == nil {
			return nil
		}
		return c.patchRule(ctx, rule, p, "status")
	}
	if why := c.rejection(state.Gateway, v.Rule.Identity); why != "" {
		// It goes on waiting: what is rejected is tried again.
		return c.writeNotReady(ctx, rule, ReasonRejectedByGateway, why)
	}
	if left := c.grace - c.Clock.Since(since); left > 0 && !down {
		c.ruleQueue.AddAfter(rule.Name, left)
		return nil
	}
	message := "not every pod of gateway " + state.Gateway + " holds the rule yet; the gateway's events say why"
	if pods == 0 {
		message = "gateway " + state.Gateway + " has no pod that is ready"
	}
	return c.writeNotReady(ctx, rule, ReasonGatewayNotReady, message)
}

// rejection gives the reason for which a pod does not take an identity.
func (c *Controller) rejection(gateway string, id sharenat.Identity) string {
	for _, pod := range c.podsOf(gateway) {
		p := c.programs.get(keyOf(pod))
		why := ""
		p.update(func(p *program) { why = p.rejected[id] })
		if why != "" && counts(pod) {
			return why
		}
	}
	return ""
}

// pendRule deals with a rule that something is missing for. That is written down when it lasts, or when the rule was ready before.
func (c *Controller) pendRule(ctx context.Context, rule *kubeovnv1.IptablesDnatRule, gateway, reason, message string) error {
	since := c.waits.rule(rule.Name, gateway, c.Clock.Now())
	if left := c.grace - c.Clock.Since(since); left > 0 && !rule.Status.Ready {
		c.ruleQueue.AddAfter(rule.Name, left)
		return nil
	}
	return c.writeNotReady(ctx, rule, reason, message)
}

// failRule deals with a rule that cannot be programmed as things are.
func (c *Controller) failRule(ctx context.Context, rule *kubeovnv1.IptablesDnatRule, reason, message string) error {
	c.waits.ruleDone(rule.Name)
	return c.writeNotReady(ctx, rule, reason, message)
}

// writeNotReady says on the rule why it is not ready, and sends an event when that is new.
func (c *Controller) writeNotReady(ctx context.Context, rule *kubeovnv1.IptablesDnatRule, reason, message string) error {
	after := rule.Status
	after.Ready = false
	after.Conditions = setReady(rule.Status.Conditions, false, reason, message, rule.Generation, c.now())
	p, err := statusPatch(rule.Status, after)
	if err != nil || p == nil {
		return err
	}
	if err := c.patchRule(ctx, rule, p, "status"); err != nil {
		return err
	}
	c.Recorder.Eventf(rule, nil, corev1.EventTypeWarning, reason, sharenat.EventAction(actionProgram, message), "%s", message)
	return nil
}

// releaseRule takes the finalizer off once no pod that counts holds the rule; at once when there is no gateway any more.
func (c *Controller) releaseRule(ctx context.Context, rule *kubeovnv1.IptablesDnatRule) error {
	p, err := releasePatch(&rule.ObjectMeta)
	if err != nil || p == nil {
		c.waits.ruleDone(rule.Name)
		return err
	}
	gateway, address := c.whereabouts(rule)
	if gateway != "" {
		c.waits.rule(rule.Name, gateway, c.Clock.Now())
		if !c.gone(rule, gateway, address) {
			return nil
		}
	}
	c.waits.ruleDone(rule.Name)
	return c.patchRule(ctx, rule, p)
}

// whereabouts says in which gateway, and at which address, a rule is or was.
func (c *Controller) whereabouts(rule *kubeovnv1.IptablesDnatRule) (gateway string, address netip.Addr) {
	if eip, err := c.eipLister.Get(rule.Spec.EIP); err == nil {
		return eip.Spec.NatGwDp, allocated(eip)
	}
	address, _ = netip.ParseAddr(rule.Labels[sharenat.EIPAddressLabel])
	return rule.Labels[sharenat.GatewayLabel], address
}

// gone says that no pod of the gateway that counts holds a deleted rule.
func (c *Controller) gone(rule *kubeovnv1.IptablesDnatRule, gateway string, address netip.Addr) bool {
	state := c.state(gateway)
	if state.Blocked != nil {
		return true
	}
	if v := state.Verdict(rule); v != nil && v.Outcome != Deleting {
		return false // the event of the deletion is still on its way
	}
	port, portErr := sharenat.ParsePort(rule.Spec.ExternalPort)
	protocol, protocolErr := sharenat.ParseProtocol(rule.Spec.Protocol)
	if portErr != nil || protocolErr != nil || !address.IsValid() {
		return true // it cannot have been programmed
	}
	agreed, _ := c.agree(state, sharenat.Identity{EIP: address, Port: port, Protocol: protocol})
	return agreed
}

func (c *Controller) patchRule(ctx context.Context, rule *kubeovnv1.IptablesDnatRule, p *patch, subresources ...string) error {
	c.written.note("rule/"+rule.Name, rule, c.Clock.Now())
	_, err := c.KubeOvnClient.KubeovnV1().IptablesDnatRules().Patch(ctx, rule.Name, p.kind, p.data,
		metav1.PatchOptions{FieldManager: fieldManager}, subresources...)
	if err != nil {
		c.written.forget("rule/" + rule.Name)
		return ignoreNotFound(fmt.Errorf("patch rule %s: %w", rule.Name, err))
	}
	return nil
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
