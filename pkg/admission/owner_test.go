// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/lbservice"
	"github.com/kubeovn/kube-ovn/pkg/natgateway"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// TestOneOwner: the Service controller, the webhook and the gateways' handler say the same of whose 80/TCP of eip-a is that
// Service shop/web claims.
func TestOneOwner(t *testing.T) {
	const ours = "Service shop/web"
	shopB := sharenat.Owner{Namespace: "shop-b", Name: "web"}
	published := func(svc *corev1.Service) {
		svc.Status.Conditions = append(svc.Status.Conditions, metav1.Condition{
			Type: sharenat.ConditionIngress, Status: metav1.ConditionTrue, Message: "203.0.113.10",
		})
	}
	notReady := func(e *kubeovnv1.IptablesEIP) { e.Status.Ready = false }
	ruleOf := func(owner sharenat.Owner) *kubeovnv1.IptablesDnatRule {
		return newRule(sharenat.RuleName(owner, "tcp", 80, mustBackend("10.1.0.4:8080")), owned(owner))
	}
	unlabelled := ruleOf(web)
	unlabelled.Labels = nil
	type list = []metav1.Object
	for _, tc := range []struct {
		name   string
		web    func(*corev1.Service)
		eip    func(*kubeovnv1.IptablesEIP)
		others list
		want   string
	}{
		{name: "alone", want: ours},
		{name: "an earlier Service", others: list{newService(api), ruleOf(api), ruleOf(web)}, want: "Service shop/api"},
		{name: "a later Service", others: list{newService(sharenat.Owner{Namespace: "zoo", Name: "a"}), ruleOf(web)}, want: ours},
		{
			name:   "the strings namespace/name are compared, not their parts",
			others: list{newService(shopB), ruleOf(shopB), ruleOf(web)}, want: "Service shop-b/web",
		},
		{name: "an earlier Service that is going", others: list{deleting(newService(api)), ruleOf(web)}, want: ours},
		{
			name: "an earlier Service that may not use the EIP", eip: granted("shop"),
			others: list{newService(sharenat.Owner{Namespace: "billing", Name: "web"}), ruleOf(web)}, want: ours,
		},
		{
			name: "an earlier Service that is not served, on an EIP that serves ours while it is not ready",
			eip:  notReady, web: published, others: list{newService(api), ruleOf(web)}, want: ours,
		},
		{
			name: "an earlier Service that is served, on an EIP that is not ready",
			eip:  notReady, web: published, others: list{newService(api, published), ruleOf(api), ruleOf(web)}, want: "Service shop/api",
		},
		{name: "a rule by hand", others: list{newRule("m"), ruleOf(web)}, want: "IptablesDnatRule m (made by hand)"},
		{name: "an exclusive rule by hand", others: list{newRule("m", exclusive), ruleOf(web)}, want: "IptablesDnatRule m (made by hand)"},
		{name: "of two rules by hand the first", others: list{newRule("n"), newRule("m", backend("10.1.0.9"))}, want: "IptablesDnatRule m (made by hand)"},
		{name: "a rule by hand and an earlier Service", others: list{newService(api), ruleOf(api), newRule("m")}, want: "IptablesDnatRule m (made by hand)"},
		{name: "a rule by hand that cannot be read", others: list{newRule("m", backend("x")), ruleOf(web)}, want: ours},
		{name: "a rule by hand that is going", others: list{deleting(newRule("m")), ruleOf(web)}, want: ours},
		{name: "a rule by hand of another EIP", others: list{newRule("m", onEIP(eipB)), ruleOf(web)}, want: ours},
		{name: "a FIP", others: list{newFIP("f", eipA), newRule("m"), ruleOf(web)}, want: "IptablesFIPRule f"},
		{name: "a FIP that is going", others: list{deleting(newFIP("f", eipA)), ruleOf(web)}, want: ours},
	} {
		t.Run(tc.name, func(t *testing.T) {
			svc, eip := newService(web), newEIP(eipA, "203.0.113.10", gwA)
			if tc.web != nil {
				tc.web(svc)
			}
			if tc.eip != nil {
				tc.eip(eip)
			}
			s := objects(append(list{eip, newGateway(gwA), svc}, tc.others...)...)

			port := lbservice.Desired(&lbservice.Snapshot{
				Key: web, Service: svc, EIP: eip, Gateway: s.Gateways[0], Claimants: s.Services, EIPRules: s.Rules, FIPs: s.FIPs,
			}).Ports[0]
			if port.Err == "" {
				port.Holder = sharenat.Holder{Service: web}
			}
			if got := port.Holder.String(); got != tc.want {
				t.Errorf("the controller says %s, want %s", got, tc.want)
			}

			wantWarning := fmt.Sprintf("port 80/TCP of IptablesEIP eip-a belongs to %s", tc.want)
			v := policy.Decide(creating(svc), s)
			if warned := len(v.Warnings) > 0; warned != (tc.want != ours) || warned && v.Warnings[0] != wantWarning {
				t.Errorf("the webhook says %q, want %s", v.Warnings, tc.want)
			}

			state := handlerState(s.Rules, s.FIPs)
			for _, rule := range s.Rules {
				r := state.Verdict(rule)
				holder := sharenat.HolderOf(&r.Rule, rule.Name).String()
				switch {
				case rule.Spec.EIP != eipA:
				case holder == tc.want && r.Outcome != natgateway.Wanted:
					t.Errorf("the handler does not program %s of %s: %s", rule.Name, holder, r.Message)
				case holder != tc.want && r.Outcome == natgateway.Wanted && r.Rule.Managed:
					t.Errorf("the handler programs %s of %s", rule.Name, holder)
				}
			}
		})
	}
	t.Run("a rule that lost its labels is its Service's", func(t *testing.T) {
		s := objects(newEIP(eipA, "203.0.113.10", gwA), newGateway(gwA), newService(web), unlabelled)
		if v := policy.Decide(creating(newService(web)), s); len(v.Warnings) > 0 {
			t.Errorf("the webhook says %q", v.Warnings)
		}
		out := lbservice.Desired(&lbservice.Snapshot{
			Key: web, Service: s.Services[0], EIP: s.EIPs[0], Gateway: s.Gateways[0], Claimants: s.Services, EIPRules: s.Rules,
		})
		if out.Ports[0].Err != "" {
			t.Errorf("the controller says %s", out.Ports[0].Holder)
		}
	})
}
