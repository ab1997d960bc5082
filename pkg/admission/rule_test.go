// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

type ruleSpec = kubeovnv1.IptablesDnatRuleSpec

const (
	eachPort = "must be a number from 1 to 65535 without leading zeros"
	forged   = "Forbidden: names the Service that owns the rule: only the load balancer's controller may set, change or remove it"
	nsLabel  = "metadata.labels[" + sharenat.OwnerNamespaceLabel + "]: "
	svcLabel = "metadata.labels[" + sharenat.OwnerNameLabel + "]: "
)

func TestRuleFields(t *testing.T) {
	for _, tc := range []decisionTest{
		{name: "share", req: creating(newRule("r"))},
		{name: "exclusive", req: creating(newRule("r", exclusive))},
		{name: "no type is exclusive", req: creating(newRule("r", spec(func(s *ruleSpec) { s.Type = "" })))},
		{name: "protocol in capitals", req: creating(newRule("r", spec(func(s *ruleSpec) { s.Protocol = "TCP" })))},
		{name: "protocol in any case", req: creating(newRule("r", spec(func(s *ruleSpec) { s.Protocol = "Udp" })))},
		{name: "affinity, default timeout", req: creating(newRule("r", pinned(0)))},
		{name: "affinity, longest timeout", req: creating(newRule("r", pinned(86400)))},
		{name: "highest ports", req: creating(newRule("r", spec(func(s *ruleSpec) { s.ExternalPort, s.InternalPort = "65535", "65535" })))},
		{name: "annotations", req: creating(newRule("r",
			annotation(sharenat.SourceIPAnnotation, "masquerade"), annotation(sharenat.SourceRangesAnnotation, "10.0.0.0/8, 192.0.2.0/24")))},
		{name: "annotations that ask for nothing, with exclusive", req: creating(newRule("r", exclusive,
			annotation(sharenat.SourceIPAnnotation, "preserve"), annotation(sharenat.SourceRangesAnnotation, " ")))},
		{
			name: "nothing is there", req: creating(&kubeovnv1.IptablesDnatRule{}),
			refusals: []string{
				"spec.eip: Required value: must name an IptablesEIP",
				"spec.externalPort: Required value: " + eachPort,
				"spec.protocol: Required value: must be tcp or udp",
				"spec.internalIp: Required value: must be an IPv4 address",
				"spec.internalPort: Required value: " + eachPort,
			},
		},
		{
			name: "everything is wrong",
			req: creating(newRule("r", spec(func(s *ruleSpec) {
				*s = ruleSpec{
					EIP: "Not a name", ExternalPort: "0", Protocol: "sctp", InternalIP: "10.1.0.256", InternalPort: "65536", Type: "shared",
					SessionAffinity: "Cookie", SessionAffinityTimeoutSeconds: 86401,
				}
			}))),
			refusals: []string{
				`spec.eip: Invalid value: "Not a name": must be the name of an IptablesEIP`,
				`spec.externalPort: Invalid value: "0": ` + eachPort,
				`spec.protocol: Invalid value: "sctp": must be tcp or udp`,
				`spec.internalIp: Invalid value: "10.1.0.256": must be an IPv4 address`,
				`spec.internalPort: Invalid value: "65536": ` + eachPort,
				`spec.type: Unsupported value: "shared": supported values: "exclusive", "share"`,
				`spec.sessionAffinity: Unsupported value: "Cookie": supported values: "", "ClientIP"`,
				`spec.sessionAffinityTimeoutSeconds: Invalid value: 86401: must be from 0 to 86400 seconds`,
			},
		},
		{
			name: "ports as nat-gateway.sh does not take them",
			req:  creating(newRule("r", spec(func(s *ruleSpec) { s.ExternalPort, s.InternalPort = "080", "+8080" }))),
			refusals: []string{
				`spec.externalPort: Invalid value: "080": ` + eachPort,
				`spec.internalPort: Invalid value: "+8080": ` + eachPort,
			},
		},
		{
			name: "IPv6 backend", req: creating(newRule("r", backend("2001:db8::4"))),
			refusals: []string{`spec.internalIp: Invalid value: "2001:db8::4": must be an IPv4 address`},
		},
		{
			name: "shell characters", req: creating(newRule("r", backend("10.1.0.4;reboot"), port("80 drop"))),
			refusals: []string{
				`spec.externalPort: Invalid value: "80 drop": ` + eachPort,
				`spec.internalIp: Invalid value: "10.1.0.4;reboot": must be an IPv4 address`,
			},
		},
		{
			name: "affinity of an exclusive rule", req: creating(newRule("r", exclusive, pinned(60))),
			refusals: []string{`spec.sessionAffinity: Forbidden: only with type share`},
		},
		{
			name: "timeout without affinity",
			req:  creating(newRule("r", spec(func(s *ruleSpec) { s.SessionAffinityTimeoutSeconds = 60 }))),
			refusals: []string{
				`spec.sessionAffinityTimeoutSeconds: Forbidden: only with sessionAffinity ClientIP`,
			},
		},
		{
			name: "negative timeout", req: creating(newRule("r", pinned(-1))),
			refusals: []string{`spec.sessionAffinityTimeoutSeconds: Invalid value: -1: must be from 0 to 86400 seconds`},
		},
		{
			name: "annotations that cannot be read",
			req: creating(newRule("r",
				annotation(sharenat.SourceIPAnnotation, "auto"), annotation(sharenat.SourceRangesAnnotation, "10.0.0.0/8,2001:db8::/32"))),
			refusals: []string{
				`metadata.annotations[` + sharenat.SourceIPAnnotation + `]: Invalid value: "auto": must be preserve or masquerade`,
				`metadata.annotations[` + sharenat.SourceRangesAnnotation + `]: Invalid value: "10.0.0.0/8,2001:db8::/32": must be IPv4 prefixes, separated by commas`,
			},
		},
		{
			name: "annotations of an exclusive rule",
			req: creating(newRule("r", exclusive,
				annotation(sharenat.SourceIPAnnotation, "masquerade"), annotation(sharenat.SourceRangesAnnotation, "10.0.0.0/8"))),
			refusals: []string{
				`metadata.annotations[` + sharenat.SourceIPAnnotation + `]: Forbidden: only with type share`,
				`metadata.annotations[` + sharenat.SourceRangesAnnotation + `]: Forbidden: only with type share`,
			},
		},
		{
			name: "annotations of an exclusive rule that cannot be read",
			req:  creating(newRule("r", exclusive, annotation(sharenat.SourceIPAnnotation, "what"), annotation(sharenat.SourceRangesAnnotation, "10"))),
			refusals: []string{
				`metadata.annotations[` + sharenat.SourceIPAnnotation + `]: Invalid value: "what": must be preserve or masquerade`,
				`metadata.annotations[` + sharenat.SourceRangesAnnotation + `]: Invalid value: "10": must be IPv4 prefixes, separated by commas`,
			},
		},
	} {
		tc.run(t)
	}
}

func TestRuleEIP(t *testing.T) {
	const lacksIPv4 = `spec.eip: Invalid value: "eip-6": has only an IPv6 address: name an IptablesEIP with an IPv4 address`
	fip := newFIP("fip", eipA)
	belongs := `spec.eip: Invalid value: "eip-a": belongs to IptablesFIPRule fip with all its ports: delete that, or name another IptablesEIP`
	for _, tc := range []decisionTest{
		{
			name: "one that is not there yet", req: creating(newRule("r", onEIP("later"))),
			warnings: []string{`IptablesEIP "later" does not exist: the rule waits until it does`},
		},
		{name: "one without an address yet", req: creating(newRule("r", onEIP("new"))), cluster: aCluster(newEIP("new", "", gwA))},
		{
			name: "one that is being deleted", req: creating(newRule("r", onEIP("old"))), cluster: aCluster(deleting(newEIP("old", "203.0.113.30", gwA))),
			warnings: []string{`IptablesEIP "old" is being deleted`},
		},
		{name: "IPv6 only, share", req: creating(newRule("r", onEIP(eip6))), refusals: []string{lacksIPv4}, evidence: []Ref{{KindEIP, eip6}}},
		{name: "IPv6 only, exclusive", req: creating(newRule("r", onEIP(eip6), exclusive)), refusals: []string{lacksIPv4}, evidence: []Ref{{KindEIP, eip6}}},
		{
			name: "both families", req: creating(newRule("r", onEIP("dual"))), cluster: aCluster(newEIP("dual", "203.0.113.30,2001:db8::30", gwA)),
		},
		{name: "a FIP has it", req: creating(newRule("r")), cluster: aCluster(fip), refusals: []string{belongs}, evidence: []Ref{{KindFIP, "fip"}}},
		{
			name: "a FIP has the one it is moved to", req: updating(newRule("r", onEIP(eipB)), newRule("r")), cluster: aCluster(fip),
			refusals: []string{belongs}, evidence: []Ref{{KindFIP, "fip"}},
		},
		{name: "a FIP is being deleted", req: creating(newRule("r")), cluster: aCluster(deleting(newFIP("fip", eipA)))},
		{name: "a FIP has another", req: creating(newRule("r")), cluster: aCluster(newFIP("fip", eipB))},
		{name: "a FIP had it before the update", req: updating(newRule("r"), newRule("r", backend("10.1.0.9"))), cluster: aCluster(fip)},
	} {
		tc.run(t)
	}
}

func TestRuleIdentity(t *testing.T) {
	byHand := newRule("hand", backend("10.1.0.5"))
	ofWeb := newRule("lb-web", owned(web), backend("10.1.0.5"))
	onlyOne := newRule("sole", exclusive, backend("10.1.0.5"))
	sticky := newRule("sticky", pinned(60), backend("10.1.0.5"))
	limited := newRule("limited", annotation(sharenat.SourceRangesAnnotation, "10.0.0.0/8"), backend("10.1.0.5"))
	const identity = "80/TCP of IptablesEIP eip-a"
	for _, tc := range []decisionTest{
		{name: "another backend by hand", req: creating(newRule("r")), cluster: aCluster(byHand)},
		{name: "another port beside an exclusive rule", req: creating(newRule("r", port("81"))), cluster: aCluster(onlyOne)},
		{
			name: "the same port of another protocol", cluster: aCluster(onlyOne),
			req: creating(newRule("r", spec(func(s *ruleSpec) { s.Protocol = "udp" }))),
		},
		{name: "the same port of another EIP", req: creating(newRule("r", onEIP(eipB))), cluster: aCluster(onlyOne)},
		{
			name: "share beside exclusive, whatever the protocol's case", cluster: aCluster(onlyOne),
			req:      creating(newRule("r", spec(func(s *ruleSpec) { s.Protocol = "TCP" }))),
			refusals: []string{`spec.type: Invalid value: "share": ` + identity + ` is of type exclusive by IptablesDnatRule sole`},
			evidence: []Ref{{KindRule, "sole"}},
		},
		{
			name: "exclusive beside share", req: creating(newRule("r", exclusive)), cluster: aCluster(byHand),
			refusals: []string{`spec.type: Invalid value: "exclusive": ` + identity + ` is of type share by IptablesDnatRule hand`},
			evidence: []Ref{{KindRule, "hand"}},
		},
		{
			name: "exclusive beside exclusive", req: creating(newRule("r", exclusive)), cluster: aCluster(onlyOne),
			refusals: []string{`spec.externalPort: Invalid value: "80": ` + identity + ` is taken by IptablesDnatRule sole of type exclusive`},
			evidence: []Ref{{KindRule, "sole"}},
		},
		{
			name: "by hand beside managed", req: creating(newRule("r")), cluster: aCluster(ofWeb),
			refusals: []string{`spec.externalPort: Invalid value: "80": ` + identity + ` is owned by Service shop/web`},
			evidence: []Ref{{KindRule, "lb-web"}},
		},
		{
			name: "exclusive by hand beside managed", req: creating(newRule("r", exclusive)), cluster: aCluster(ofWeb),
			refusals: []string{`spec.externalPort: Invalid value: "80": ` + identity + ` is owned by Service shop/web`},
			evidence: []Ref{{KindRule, "lb-web"}},
		},
		{
			name: "managed beside by hand", req: byController(creating(newRule("r", owned(web)))), cluster: aCluster(byHand),
			refusals: []string{`spec.externalPort: Invalid value: "80": ` + identity + ` is owned by IptablesDnatRule hand (made by hand)`},
			evidence: []Ref{{KindRule, "hand"}},
		},
		{
			name: "of another Service", req: byController(creating(newRule("r", owned(api)))), cluster: aCluster(ofWeb),
			refusals: []string{`spec.externalPort: Invalid value: "80": ` + identity + ` is owned by Service shop/web`},
			evidence: []Ref{{KindRule, "lb-web"}},
		},
		{name: "of the same Service", req: byController(creating(newRule("r", owned(web)))), cluster: aCluster(ofWeb)},
		{name: "of another Service, whose rule is being deleted", req: byController(creating(newRule("r", owned(api)))), cluster: aCluster(deleting(newRule("lb-web", owned(web))))},
		{name: "beside an exclusive rule that is being deleted", req: creating(newRule("r")), cluster: aCluster(deleting(newRule("sole", exclusive)))},
		{name: "beside a rule that cannot be read and so claims nothing", req: creating(newRule("r")), cluster: aCluster(newRule("broken", exclusive, backend("x")))},
		{
			name: "another affinity", req: creating(newRule("r")), cluster: aCluster(sticky),
			refusals: []string{
				`spec.sessionAffinity: Invalid value: "": ` + identity + ` has affinity "clientip 60" by IptablesDnatRule sticky: the rules of an identity have the same affinity and timeout`,
			},
			evidence: []Ref{{KindRule, "sticky"}},
		},
		{
			name: "another timeout", req: creating(newRule("r", pinned(61))), cluster: aCluster(sticky),
			refusals: []string{
				`spec.sessionAffinity: Invalid value: "ClientIP": ` + identity + ` has affinity "clientip 60" by IptablesDnatRule sticky: the rules of an identity have the same affinity and timeout`,
			},
			evidence: []Ref{{KindRule, "sticky"}},
		},
		{name: "the default timeout spelled out", req: creating(newRule("r", pinned(10800))), cluster: aCluster(newRule("sticky", pinned(0)))},
		{
			name: "other source ranges", req: creating(newRule("r")), cluster: aCluster(limited),
			refusals: []string{
				`metadata.annotations[` + sharenat.SourceRangesAnnotation + `]: Invalid value: "": ` + identity + ` has source ranges "10.0.0.0/8" by IptablesDnatRule limited: the rules of an identity have the same`,
			},
			evidence: []Ref{{KindRule, "limited"}},
		},
		{
			name: "the same source ranges, spelled otherwise", cluster: aCluster(limited),
			req: creating(newRule("r", annotation(sharenat.SourceRangesAnnotation, "10.0.0.0/8, 10.9.9.9/8"))),
		},
		{
			name: "each problem is told once, with all others",
			req:  creating(newRule("r", exclusive, backend("x"), pinned(60))), cluster: aCluster(byHand, newRule("hand2"), fipOn(eipA)),
			refusals: []string{
				`spec.internalIp: Invalid value: "x": must be an IPv4 address`,
				`spec.sessionAffinity: Forbidden: only with type share`,
				`spec.eip: Invalid value: "eip-a": belongs to IptablesFIPRule fip with all its ports: delete that, or name another IptablesEIP`,
				`spec.type: Invalid value: "exclusive": ` + identity + ` is of type share by IptablesDnatRule hand`,
			},
			evidence: []Ref{{KindRule, "hand"}, {KindFIP, "fip"}},
		},
		{
			name: "both Services that stand against it are named", req: creating(newRule("r")), cluster: aCluster(ofWeb, newRule("lb-api", owned(api))),
			refusals: []string{
				`spec.externalPort: Invalid value: "80": ` + identity + ` is owned by Service shop/api`,
				`spec.externalPort: Invalid value: "80": ` + identity + ` is owned by Service shop/web`,
			},
			evidence: []Ref{{KindRule, "lb-api"}, {KindRule, "lb-web"}},
		},
		{
			name: "a port that a Service without backends claims", req: creating(newRule("r")), cluster: aCluster(newService(web), newService(api)),
			warnings: []string{"80/TCP of IptablesEIP eip-a is claimed by Service shop/api, shop/web, which does not get it as long as this rule is there"},
		},
		{name: "a port that no Service claims", req: creating(newRule("r", port("81"))), cluster: aCluster(newService(web))},
	} {
		tc.run(t)
	}
}

func fipOn(eip string) *kubeovnv1.IptablesFIPRule { return newFIP("fip", eip) }

func TestRuleUpdate(t *testing.T) {
	bad := func(r *kubeovnv1.IptablesDnatRule) { r.Spec.InternalIP = "x" }
	withoutFinalizers := func(r *kubeovnv1.IptablesDnatRule) { r.Finalizers = nil }
	onlyOne := newRule("sole", exclusive, backend("10.1.0.5"))
	const identity = "80/TCP of IptablesEIP eip-a"
	for _, tc := range []decisionTest{
		{name: "finalizer of a bad rule", req: updating(newRule("r", bad), newRule("r", bad, withoutFinalizers))},
		{name: "finalizer of a rule that is being deleted", req: updating(deleting(newRule("r", bad)), deleting(newRule("r", bad, withoutFinalizers)))},
		{name: "anything of a rule that is being deleted", req: updating(deleting(newRule("r")), deleting(newRule("r", bad)))},
		{name: "labels of a bad rule", req: updating(newRule("r", bad), newRule("r", bad, label("team", "net")))},
		{name: "annotations of a bad rule", req: updating(newRule("r", bad), newRule("r", bad, annotation("note", "x")))},
		{
			name: "the handler's labels of a rule in conflict", cluster: aCluster(onlyOne),
			req: byController(updating(newRule("r"), newRule("r", label(sharenat.GatewayLabel, gwA), annotation(sharenat.RuleEIPAnnotation, eipA)))),
		},
		{
			name: "an annotation that is programmed", req: updating(newRule("r"), newRule("r", annotation(sharenat.SourceIPAnnotation, "x"))),
			refusals: []string{`metadata.annotations[` + sharenat.SourceIPAnnotation + `]: Invalid value: "x": must be preserve or masquerade`},
		},
		{
			name: "the spec of a bad rule", req: updating(newRule("r", bad), newRule("r", bad, port("81"))),
			refusals: []string{`spec.internalIp: Invalid value: "x": must be an IPv4 address`},
		},
		{
			name: "onto a port that is taken", req: updating(newRule("r", port("81")), newRule("r")), cluster: aCluster(onlyOne),
			refusals: []string{`spec.type: Invalid value: "share": ` + identity + ` is of type exclusive by IptablesDnatRule sole`},
			evidence: []Ref{{KindRule, "sole"}},
		},
		{
			name: "of type", req: updating(newRule("r"), newRule("r", exclusive)), cluster: aCluster(newRule("hand", backend("10.1.0.5"))),
			refusals: []string{`spec.type: Invalid value: "exclusive": ` + identity + ` is of type share by IptablesDnatRule hand`},
			evidence: []Ref{{KindRule, "hand"}},
		},
		{
			name: "of affinity, by hand", req: updating(newRule("r"), newRule("r", pinned(60))),
			cluster:  aCluster(newRule("r"), newRule("hand", backend("10.1.0.5")), newRule("s")),
			warnings: []string{identity + " has the affinity of IptablesDnatRule hand, which is the first by name: change that as well"},
		},
		{
			name: "of affinity, by hand, of the first by name", req: updating(newRule("a"), newRule("a", pinned(60))),
			cluster:  aCluster(newRule("a"), newRule("r", pinned(60)), newRule("s"), newRule("t"), newRule("u"), newRule("v")),
			warnings: []string{identity + ` gets affinity "clientip 60", by this rule, which is the first by name: change IptablesDnatRule s, t, u and 1 more as well`},
		},
		{
			name: "of affinity and source ranges, by hand", req: updating(newRule("r"), newRule("r", pinned(60), annotation(sharenat.SourceRangesAnnotation, "10.0.0.0/8"))),
			cluster: aCluster(newRule("r"), newRule("hand", backend("10.1.0.5"))),
			refusals: []string{
				`spec.sessionAffinity: Invalid value: "ClientIP": ` + identity + ` has affinity "none 0" by IptablesDnatRule hand: the rules of an identity have the same affinity and timeout`,
			},
			evidence: []Ref{{KindRule, "hand"}},
		},
		{name: "of affinity, of the only rule", req: updating(newRule("r"), newRule("r", pinned(60))), cluster: aCluster(newRule("r"))},
		{name: "of affinity, back to the others'", req: updating(newRule("r", pinned(60)), newRule("r")), cluster: aCluster(newRule("r", pinned(60)), newRule("hand"))},
		{name: "of the backend, where the conflict is old", req: updating(newRule("r"), newRule("r", backend("10.1.0.9"))), cluster: aCluster(newRule("r"), onlyOne)},
		{
			name: "of affinity, by the controller", cluster: aCluster(newRule("r", owned(web)), newRule("lb-web", owned(web), backend("10.1.0.5"))),
			req: byController(updating(newRule("r", owned(web)), newRule("r", owned(web), pinned(60)))),
		},
		{
			name: "of affinity of a managed rule, by somebody else", cluster: aCluster(newRule("lb-web", owned(web), backend("10.1.0.5"))),
			req: updating(newRule("r", owned(web)), newRule("r", owned(web), pinned(60))),
			refusals: []string{
				`spec.sessionAffinity: Invalid value: "ClientIP": ` + identity + ` has affinity "none 0" by IptablesDnatRule lb-web: the rules of an identity have the same affinity and timeout`,
			},
			warnings: []string{"the rule belongs to Service shop/web, whose controller will undo the change"},
			evidence: []Ref{{KindRule, "lb-web"}},
		},
		{
			name: "of the backend of a managed rule, by somebody else", req: updating(newRule("r", owned(web)), newRule("r", owned(web), backend("10.1.0.9"))),
			warnings: []string{"the rule belongs to Service shop/web, whose controller will undo the change"},
		},
		{name: "deletion", req: removing(newRule("r", owned(web)))},
	} {
		tc.run(t)
	}
}

func TestOwnerLabels(t *testing.T) {
	half := label(sharenat.OwnerNameLabel, "web")
	peer := newRule("hand", backend("10.1.0.5"))
	for _, tc := range []decisionTest{
		{name: "set by the controller", req: byController(creating(newRule("r", owned(web))))},
		{name: "set by somebody else", req: creating(newRule("r", owned(web))), refusals: []string{nsLabel + forged, svcLabel + forged}},
		{name: "one of them", req: creating(newRule("r", half)), refusals: []string{svcLabel + forged}},
		{name: "empty", req: creating(newRule("r", label(sharenat.OwnerNameLabel, ""))), refusals: []string{svcLabel + forged}},
		{name: "changed", req: updating(newRule("r", owned(api)), newRule("r", owned(web))), refusals: []string{svcLabel + forged}},
		{name: "removed", req: updating(newRule("r", owned(web)), newRule("r")), refusals: []string{nsLabel + forged, svcLabel + forged}},
		{name: "removed while being deleted", req: updating(deleting(newRule("r", owned(web))), deleting(newRule("r"))), refusals: []string{nsLabel + forged, svcLabel + forged}},
		{name: "kept", req: updating(newRule("r", owned(web)), newRule("r", owned(web), label("team", "net")))},
		{
			name: "kept, with another backend", req: updating(newRule("r", owned(web)), newRule("r", owned(web), backend("10.1.0.9"))),
			warnings: []string{"the rule belongs to Service shop/web, whose controller will undo the change"},
		},
		{
			name: "put back by the controller, though others have not been yet", cluster: aCluster(peer),
			req: byController(updating(newRule("r"), newRule("r", owned(web)))),
		},
		{
			name: "one of them, by the controller", req: byController(creating(newRule("r", half))),
			refusals: []string{nsLabel + "Required value: must be set together with the other label of the owner, or not at all"},
		},
		{
			name: "on a rule with other problems", req: creating(newRule("r", owned(web), backend("x"))),
			refusals: []string{nsLabel + forged, svcLabel + forged, `spec.internalIp: Invalid value: "x": must be an IPv4 address`},
		},
	} {
		tc.run(t)
	}
	other := Policy{Controllers: []string{"system:serviceaccount:net:lb", "system:serviceaccount:kube-system:ovn"}}
	req := creating(newRule("r", owned(web)))
	for _, req.User = range other.Controllers {
		if v := other.Decide(req, aCluster()); len(v.Refusals) > 0 {
			t.Errorf("%s is refused: %v", req.User, v.Refusals)
		}
	}
}

func TestRuleWhoseTypeIsNotOurs(t *testing.T) {
	if v := policy.Decide(creating(&metav1.PartialObjectMetadata{}), &Snapshot{}); len(v.Refusals)+len(v.Warnings) > 0 {
		t.Errorf("a kind that is not looked at gets %+v", v)
	}
	if v := policy.Decide(Request{}, &Snapshot{}); len(v.Refusals)+len(v.Warnings) > 0 {
		t.Errorf("a request without objects gets %+v", v)
	}
}
