// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"net/netip"
	"regexp"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// The grammar of docs/gateway-protocol.md, written down once more, apart from the code that makes and reads it.
const (
	octetPattern = `(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])`
	ipv4Pattern  = octetPattern + `(\.` + octetPattern + `){3}`
	portPattern  = `(6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5][0-9]{4}|[1-9][0-9]{0,3})`
	cidrPattern  = ipv4Pattern + `/(3[0-2]|[12]?[0-9])`
	agePattern   = `(86400|86[0-3][0-9]{2}|8[0-5][0-9]{3}|[1-7][0-9]{4}|[1-9][0-9]{0,3})`
)

var syncGrammar = regexp.MustCompile(`\Ashare-state v1 full
identity ` + ipv4Pattern + ` ` + portPattern + ` (tcp|udp) (none 0|clientip ` + agePattern + `)( sources=` + cidrPattern + `(,` + cidrPattern + `)*)?
backend ` + ipv4Pattern + ` ` + portPattern + `( masquerade)?
end
\z`)

// FuzzRule: whatever is in a rule, there is an answer; what is admitted, the controllers can read and the gateway's script takes; and what
// both take is admitted.
func FuzzRule(f *testing.F) {
	for _, seed := range []ruleSpec{
		{EIP: eipA, ExternalPort: "80", Protocol: "tcp", InternalIP: "10.1.0.4", InternalPort: "8080", Type: "share"},
		{EIP: eipA, ExternalPort: "65535", Protocol: "UDP", InternalIP: "255.255.255.255", InternalPort: "1", Type: "share", SessionAffinity: "ClientIP", SessionAffinityTimeoutSeconds: 86400},
		{EIP: eipB, ExternalPort: "080", Protocol: "sctp", InternalIP: "10.1.0.4;", InternalPort: "-1", Type: "exclusive", SessionAffinityTimeoutSeconds: -1},
		{EIP: "a/b", ExternalPort: "0", InternalIP: "::1", Type: "both", SessionAffinity: "clientip"},
		{},
	} {
		for _, annotation := range []string{"", "masquerade", "10.0.0.0/8,192.0.2.1/24"} {
			f.Add(seed.EIP, seed.ExternalPort, seed.Protocol, seed.InternalIP, seed.InternalPort, seed.Type, seed.SessionAffinity, seed.SessionAffinityTimeoutSeconds,
				annotation, annotation, "", "", false)
			f.Add(seed.EIP, seed.ExternalPort, seed.Protocol, seed.InternalIP, seed.InternalPort, seed.Type, seed.SessionAffinity, seed.SessionAffinityTimeoutSeconds,
				"", annotation, "shop", "web", true)
		}
	}
	address := netip.MustParseAddr("203.0.113.10")
	f.Fuzz(func(t *testing.T, eip, eport, protocol, ip, iport, kind, affinity string, timeout int32, sourceIP, sources, namespace, name string, trusted bool) {
		rule := &kubeovnv1.IptablesDnatRule{ObjectMeta: metav1.ObjectMeta{Name: "r"}, Spec: ruleSpec{
			EIP: eip, ExternalPort: eport, Protocol: protocol, InternalIP: ip, InternalPort: iport, Type: kind,
			SessionAffinity: affinity, SessionAffinityTimeoutSeconds: timeout,
		}}
		if sourceIP != "" || sources != "" {
			rule.Annotations = map[string]string{sharenat.SourceIPAnnotation: sourceIP, sharenat.SourceRangesAnnotation: sources}
		}
		labelled := namespace != "" || name != ""
		if labelled {
			rule.Labels = map[string]string{sharenat.OwnerNamespaceLabel: namespace, sharenat.OwnerNameLabel: name}
		}
		req := creating(rule)
		if trusted {
			req = byController(req)
		}
		admitted := len(policy.Decide(req, aCluster()).Refusals) == 0
		parsed, err := sharenat.ParseRule(rule, address)
		if admitted {
			if err != nil {
				t.Fatalf("admitted, but: %v", err)
			}
			checkScriptInput(t, rule, &parsed)
			if labelled && !trusted {
				t.Fatal("owner labels are admitted from anybody")
			}
		}
		// An EIP's name is no business of the script's. It takes no timeout without affinity; sharenat passes over one.
		wanted := err == nil && isName(eip) && eip != eip6 && (!labelled || trusted) && (timeout == 0 || affinity != "")
		if wanted && !admitted {
			t.Fatalf("refused, but the controllers and the script take it: %v", policy.Decide(req, aCluster()).Refusals)
		}

		// Whatever stands beside it, and whatever it was before, there is an answer too.
		crowd := aCluster(newRule("hand"), newRule("sole", exclusive, port("81")), newRule("lb-web", owned(web), port("82")), newFIP("fip", eipB), newService(api))
		policy.Decide(req, crowd)
		policy.Decide(updating(newRule("r"), rule), crowd)
		policy.Decide(updating(rule, newRule("r")), crowd)
		crowd.Rules = append(crowd.Rules, rule)
		policy.Decide(creating(newRule("other")), crowd)
		policy.Decide(removing(newEIP(eip, "", gwA)), crowd)
	})
}

func checkScriptInput(t *testing.T, rule *kubeovnv1.IptablesDnatRule, parsed *sharenat.Rule) {
	t.Helper()
	if !parsed.Share {
		arg := strings.Join([]string{rule.Spec.ExternalPort, strings.ToLower(rule.Spec.Protocol), rule.Spec.InternalIP, rule.Spec.InternalPort}, ",")
		if !regexp.MustCompile(`\A` + portPattern + `,(tcp|udp),` + ipv4Pattern + `,` + portPattern + `\z`).MatchString(arg) {
			t.Fatalf("admitted, but dnat-add would refuse %q", arg)
		}
		return
	}
	share := sharenat.Share{Identity: parsed.Identity, Affinity: parsed.Affinity, Sources: parsed.Sources, Backends: []sharenat.Backend{parsed.Backend}}
	share.Normalize()
	input, err := sharenat.EncodeFull([]sharenat.Share{share})
	if err != nil {
		t.Fatalf("admitted, but cannot be sent: %v", err)
	}
	if !syncGrammar.Match(input) {
		t.Fatalf("admitted, but nft-dnat-map-sync would refuse:\n%s", input)
	}
}
