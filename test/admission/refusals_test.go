// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// wish is something that a user tries.
type wish func(t *testing.T, dry []string) error

func creating(u func() *user, obj metav1.Object) wish {
	return func(t *testing.T, dry []string) error {
		t.Helper()
		return u().create(t.Context(), obj, dry)
	}
}

func patching(u func() *user, obj metav1.Object, change any) wish {
	return func(t *testing.T, dry []string) error {
		t.Helper()
		return u().patch(t.Context(), obj, change, dry)
	}
}

func removing(u func() *user, obj metav1.Object) wish {
	return func(t *testing.T, dry []string) error {
		t.Helper()
		return u().remove(t.Context(), obj, dry)
	}
}

func alice() *user      { return shared.alice }
func controller() *user { return shared.controller }

type refusal struct {
	name    string
	cluster []metav1.Object
	wish    wish
	// want is what kubectl prints after "Error from server (…): ".
	want     string
	warnings []string
}

// invalid is how the API server words an answer of one of the webhook's hooks.
func invalid(hook, object string, errs ...string) string {
	list := strings.Join(errs, ", ")
	if len(errs) > 1 {
		list = "[" + list + "]"
	}
	return fmt.Sprintf("admission webhook %q denied the request: %s is invalid: %s", hook, object, list)
}

func badRule(errs ...string) string {
	return invalid("dnat.kubeovn.io", `IptablesDnatRule.kubeovn.io "r"`, errs...)
}

const (
	eachPort = "must be a number from 1 to 65535 without leading zeros"
	forged   = "Forbidden: names the Service that owns the rule: only the load balancer's controller may set, change or remove it"
	nsLabel  = "metadata.labels[" + sharenat.OwnerNamespaceLabel + "]: "
	svcLabel = "metadata.labels[" + sharenat.OwnerNameLabel + "]: "
)

// TestRefusals: each thing that is refused is, and in these words. What the cluster has to hold for it is created a moment before, so it is
// tried, dry, until the webhook has seen it.
func TestRefusals(t *testing.T) {
	for _, tc := range slices.Concat(ruleRefusals(), eipRefusals()) {
		t.Run(tc.name, func(t *testing.T) {
			aCluster(t, tc.cluster...)
			err := poll(t.Context(), func() error {
				alice().warnings.take()
				switch err := tc.wish(t, dryRun); {
				case err == nil:
					return errors.New("admitted")
				case err.Error() != tc.want:
					return fmt.Errorf("refused by %w", err)
				}
				return nil
			})
			if err != nil {
				t.Fatalf("%v\nwant: %s", err, tc.want)
			}
			if diff := cmp.Diff(tc.warnings, alice().warnings.take()); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
			if err := tc.wish(t, nil); err == nil || err.Error() != tc.want {
				t.Errorf("not dry: %v", err)
			}
			alice().warnings.take()
		})
	}
}

func ruleRefusals() []refusal {
	const identity = "80/TCP of IptablesEIP eip-a"
	create := func(tweaks ...ruleTweak) wish { return creating(alice, newRule("r", tweaks...)) }
	other := backend("10.1.0.5")
	return []refusal{
		{name: "nothing is there", wish: create(func(r *rule) { r.Spec = ruleSpec{} }), want: badRule(
			"spec.eip: Required value: must name an IptablesEIP",
			"spec.externalPort: Required value: "+eachPort,
			"spec.protocol: Required value: must be tcp or udp",
			"spec.internalIp: Required value: must be an IPv4 address",
			"spec.internalPort: Required value: "+eachPort)},
		{
			name: "fields", wish: create(port("080"), backend("10.1.0.256"), onEIP("Not a name"), spec(func(s *ruleSpec) { s.Protocol, s.InternalPort = "sctp", "65536" })),
			want: badRule(
				`spec.eip: Invalid value: "Not a name": must be the name of an IptablesEIP`,
				`spec.externalPort: Invalid value: "080": `+eachPort,
				`spec.protocol: Invalid value: "sctp": must be tcp or udp`,
				`spec.internalIp: Invalid value: "10.1.0.256": must be an IPv4 address`,
				`spec.internalPort: Invalid value: "65536": `+eachPort),
		},
		{
			name: "a type, by the CRD", wish: create(spec(func(s *ruleSpec) { s.Type = "both" })),
			want: `IptablesDnatRule.kubeovn.io "r" is invalid: spec.type: Unsupported value: "both": supported values: "exclusive", "share"`,
		},
		{
			name: "an affinity, by the CRD", wish: create(spec(func(s *ruleSpec) { s.SessionAffinity = "Cookie" })),
			want: `IptablesDnatRule.kubeovn.io "r" is invalid: spec.sessionAffinity: Unsupported value: "Cookie": supported values: "", "ClientIP"`,
		},
		{
			name: "a timeout, by the CRD", wish: create(pinned(86401)),
			want: `IptablesDnatRule.kubeovn.io "r" is invalid: spec.sessionAffinityTimeoutSeconds: Invalid value: 86401: ` +
				`spec.sessionAffinityTimeoutSeconds in body should be less than or equal to 86400`,
		},
		{name: "affinity of an exclusive rule", wish: create(exclusive, pinned(60)), want: badRule("spec.sessionAffinity: Forbidden: only with type share")},
		{
			name: "timeout without affinity", wish: create(spec(func(s *ruleSpec) { s.SessionAffinityTimeoutSeconds = 60 })),
			want: badRule("spec.sessionAffinityTimeoutSeconds: Forbidden: only with sessionAffinity ClientIP"),
		},
		{
			name: "annotations", wish: create(annotation(sharenat.SourceIPAnnotation, "auto"), annotation(sharenat.SourceRangesAnnotation, "all")), want: badRule(
				`metadata.annotations[`+sharenat.SourceIPAnnotation+`]: Invalid value: "auto": must be preserve or masquerade`,
				`metadata.annotations[`+sharenat.SourceRangesAnnotation+`]: Invalid value: "all": must be IPv4 prefixes, separated by commas`),
		},
		{
			name: "IPv6-only EIP", wish: create(onEIP(eip6)),
			want: badRule(`spec.eip: Invalid value: "eip-6": has only an IPv6 address: name an IptablesEIP with an IPv4 address`),
		},
		{
			name: "EIP of a FIP", cluster: []metav1.Object{newFIP("fip", eipA)}, wish: create(),
			want: badRule(`spec.eip: Invalid value: "eip-a": belongs to IptablesFIPRule fip with all its ports: delete that, or name another IptablesEIP`),
		},
		{
			name: "share beside exclusive", cluster: []metav1.Object{newRule("sole", exclusive)}, wish: create(spec(func(s *ruleSpec) { s.Protocol = "TCP" })),
			want: badRule(`spec.type: Invalid value: "share": ` + identity + ` is of type exclusive by IptablesDnatRule sole`),
		},
		{
			name: "exclusive beside share", cluster: []metav1.Object{newRule("hand", other)}, wish: create(exclusive),
			want: badRule(`spec.type: Invalid value: "exclusive": ` + identity + ` is of type share by IptablesDnatRule hand`),
		},
		{
			name: "exclusive beside exclusive", cluster: []metav1.Object{newRule("sole", exclusive)}, wish: create(exclusive),
			want: badRule(`spec.externalPort: Invalid value: "80": ` + identity + ` is taken by IptablesDnatRule sole of type exclusive`),
		},
		{
			name: "by hand beside managed", cluster: []metav1.Object{newRule("lb-web", owned("web"))}, wish: create(),
			want: badRule(`spec.externalPort: Invalid value: "80": ` + identity + ` is owned by Service default/web`),
		},
		{
			name: "of another Service", cluster: []metav1.Object{newRule("lb-web", owned("web"))}, wish: creating(controller, newRule("r", owned("api"))),
			want: badRule(`spec.externalPort: Invalid value: "80": ` + identity + ` is owned by Service default/web`),
		},
		{
			name: "managed beside by hand", cluster: []metav1.Object{newRule("hand")}, wish: creating(controller, newRule("r", owned("api"))),
			want: badRule(`spec.externalPort: Invalid value: "80": ` + identity + ` is owned by IptablesDnatRule hand (made by hand)`),
		},
		{
			name: "another affinity", cluster: []metav1.Object{newRule("sticky", other, pinned(60))}, wish: create(),
			want: badRule(`spec.sessionAffinity: Invalid value: "": ` + identity + ` has affinity "clientip 60" by IptablesDnatRule sticky: the rules of an identity have the same affinity and timeout`),
		},
		{
			name: "another timeout", cluster: []metav1.Object{newRule("sticky", other, pinned(60)), newRule("r", pinned(61), port("81"))},
			wish: patching(alice, newRule("r"), specOf(map[string]any{"externalPort": "80"})),
			want: badRule(`spec.sessionAffinity: Invalid value: "ClientIP": ` + identity + ` has affinity "clientip 60" by IptablesDnatRule sticky: the rules of an identity have the same affinity and timeout`),
		},
		{
			name: "other source ranges", cluster: []metav1.Object{newRule("limited", other, annotation(sharenat.SourceRangesAnnotation, "10.0.0.0/8"))}, wish: create(),
			want: badRule(`metadata.annotations[` + sharenat.SourceRangesAnnotation + `]: Invalid value: "": ` + identity +
				` has source ranges "10.0.0.0/8" by IptablesDnatRule limited: the rules of an identity have the same`),
		},
		{name: "owner labels forged", wish: create(owned("web")), want: badRule(nsLabel+forged, svcLabel+forged)},
		{
			name: "owner labels dropped", cluster: []metav1.Object{newRule("r", owned("web"))},
			wish: patching(alice, newRule("r"), metadataOf("labels", nil)), want: badRule(nsLabel+forged, svcLabel+forged),
		},
		{
			name: "an owner label changed", cluster: []metav1.Object{newRule("r", owned("web"))},
			wish: patching(alice, newRule("r"), metadataOf("labels", map[string]any{sharenat.OwnerNameLabel: "api"})), want: badRule(svcLabel + forged),
		},
		{
			name: "half an owner, by the controller", wish: creating(controller, newRule("r", func(r *rule) { r.Labels = map[string]string{sharenat.OwnerNameLabel: "web"} })),
			want: badRule(nsLabel + "Required value: must be set together with the other label of the owner, or not at all"),
		},
		{
			name: "all at once", cluster: []metav1.Object{newRule("lb-web", owned("web"))}, wish: create(owned("api"), exclusive, pinned(0), backend("x")), want: badRule(
				nsLabel+forged, svcLabel+forged,
				`spec.internalIp: Invalid value: "x": must be an IPv4 address`,
				"spec.sessionAffinity: Forbidden: only with type share",
				`spec.externalPort: Invalid value: "80": `+identity+` is owned by Service default/web`),
		},
		{
			name: "a managed rule by hand", cluster: []metav1.Object{newRule("r", owned("web"))},
			wish: patching(alice, newRule("r"), specOf(map[string]any{"internalIp": "x"})),
			want: badRule(`spec.internalIp: Invalid value: "x": must be an IPv4 address`), warnings: []string{"the rule belongs to Service default/web, whose controller will undo the change"},
		},
	}
}

func eipRefusals() []refusal {
	badEIP := func(name string, errs ...string) string {
		return invalid("eip.kubeovn.io", fmt.Sprintf("IptablesEIP.kubeovn.io %q", name), errs...)
	}
	badGateway := func(name string, errs ...string) string {
		return invalid("vpc-nat-gw.kubeovn.io", fmt.Sprintf("VpcNatGateway.kubeovn.io %q", name), errs...)
	}
	const fixed = "Forbidden: cannot be changed once the IptablesEIP has an address: make another IptablesEIP"
	used := []metav1.Object{newRule("lb-web", owned("web")), newRule("hand", port("81"))}
	bad := newEIP("new", "")
	bad.Spec.V4ip, bad.Spec.MacAddress = "x", "y"
	selector := newGateway("new")
	selector.Spec.LanIP, selector.Spec.Selector = "x", []string{"zone"}
	return []refusal{
		{name: "FIP beside DNAT", cluster: used, wish: creating(alice, newFIP("fip", eipA)), want: invalid("fip.kubeovn.io", `IptablesFIPRule.kubeovn.io "fip"`,
			`spec.eip: Invalid value: "eip-a": is used by Service default/web, IptablesDnatRule hand, and an IptablesFIPRule needs the whole of it: name another IptablesEIP`)},
		{name: "a FIP of nothing", wish: creating(alice, newFIP("fip", "")), want: invalid("fip.kubeovn.io", `IptablesFIPRule.kubeovn.io "fip"`,
			"spec.eip: Required value: must name an IptablesEIP")},
		{
			name: "an EIP in use is deleted", cluster: used, wish: removing(alice, newEIP(eipA, "")),
			want: `admission webhook "eip.kubeovn.io" denied the request: iptables-eips.kubeovn.io "eip-a" is forbidden: is used by Service default/web, IptablesDnatRule hand: remove that first`,
		},
		{
			name: "an EIP in use is moved", cluster: used, wish: patching(alice, newEIP(eipA, ""), specOf(map[string]any{"natGwDp": gwB})),
			want: badEIP(eipA, "spec.natGwDp: Forbidden: is used by Service default/web, IptablesDnatRule hand, and cannot be moved to another gateway: remove that first"),
		},
		{
			name: "an EIP's address is changed", wish: patching(alice, newEIP(eipA, ""), specOf(map[string]any{"v4ip": "203.0.113.99", "externalSubnet": "other"})),
			want: badEIP(eipA, "spec.externalSubnet: "+fixed, "spec.v4ip: "+fixed),
		},
		{name: "an EIP's fields", wish: creating(alice, bad), want: badEIP("new",
			`spec.v4ip: Invalid value: "x": must be an IPv4 address`, `spec.macAddress: Invalid value: "y": must be a MAC address`,
			"spec.natGwDp: Required value: must name a VpcNatGateway")},
		{
			name: "a gateway with EIPs in use is deleted", cluster: used, wish: removing(alice, newGateway(gwA)),
			want: `admission webhook "vpc-nat-gw.kubeovn.io" denied the request: vpc-nat-gateways.kubeovn.io "gw-a" is forbidden: ` +
				`carries IptablesEIP eip-a (used by Service default/web, IptablesDnatRule hand): remove what uses it first`,
		},
		{
			name: "a gateway is moved", wish: patching(alice, newGateway(gwA), specOf(map[string]any{"vpc": "vpc-b", "subnet": "sub-b"})),
			want: badGateway(gwA, "spec.vpc: Forbidden: cannot be changed: make another VpcNatGateway", "spec.subnet: Forbidden: cannot be changed: make another VpcNatGateway"),
		},
		{
			name: "an external subnet in use is taken out", cluster: used, wish: patching(alice, newGateway(gwA), specOf(map[string]any{"externalSubnets": []string{"other"}})),
			want: badGateway(gwA, "spec.externalSubnets: Forbidden: subnet ovn-vpc-external-network carries IptablesEIP eip-a, which is used by Service default/web, IptablesDnatRule hand: remove that first"),
		},
		{name: "a gateway's fields", wish: creating(alice, selector), want: badGateway("new",
			`spec.lanIp: Invalid value: "x": must be an IPv4 address`, `spec.selector[0]: Invalid value: "zone": must be "key: value"`)},
	}
}

// TestInvalidIsInvalid: programs can tell a refusal, and read which fields it is about.
func TestInvalidIsInvalid(t *testing.T) {
	aCluster(t)
	err := alice().create(t.Context(), newRule("r", port("0"), backend("x")), nil)
	var status apierrors.APIStatus
	if !apierrors.IsInvalid(err) || !errors.As(err, &status) || status.Status().Details == nil {
		t.Fatalf("error %#v", err)
	}
	var fields []string
	for _, cause := range status.Status().Details.Causes {
		fields = append(fields, cause.Field)
	}
	if diff := cmp.Diff([]string{"spec.externalPort", "spec.internalIp"}, fields); diff != "" {
		t.Errorf("fields (-want +got):\n%s", diff)
	}
	if err := alice().remove(t.Context(), newEIP(eipA, ""), dryRun); err != nil {
		t.Errorf("an EIP that is not used: %v", err)
	}
}

// TestWarnings: what will not be as a user thinks is said at once, and nothing is refused for it.
func TestWarnings(t *testing.T) {
	sctp := func(svc *corev1.Service) {
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: "sctp", Port: 99, Protocol: corev1.ProtocolSCTP})
	}
	missing := func(svc *corev1.Service) { svc.Annotations[sharenat.EIPAnnotation] = "later" }
	for _, tc := range []struct {
		name    string
		cluster []metav1.Object
		wish    wish
		want    []string
	}{
		{name: "nothing to say", wish: creating(alice, newService("web"))},
		{
			name: "no such EIP, and a protocol", wish: creating(alice, newService("web", missing, sctp)), want: []string{
				"port 99/SCTP is not served: only TCP and UDP are",
				`IptablesEIP "later", which annotation ovn.kubernetes.io/eip names, does not exist: the Service gets its EXTERNAL-IP once it does`,
			},
		},
		{
			name: "a port of a rule made by hand", cluster: []metav1.Object{newRule("hand")}, wish: creating(alice, newService("web")),
			want: []string{"port 80/TCP of IptablesEIP eip-a belongs to IptablesDnatRule hand (made by hand)"},
		},
		{
			name: "a port of another Service", cluster: []metav1.Object{newService("api")}, wish: creating(alice, newService("web")),
			want: []string{"port 80/TCP of IptablesEIP eip-a belongs to Service default/api"},
		},
		{
			name: "on update", cluster: []metav1.Object{newService("web")},
			wish: patching(alice, newService("web"), metadataOf("annotations", map[string]any{sharenat.EIPAnnotation: "later"})),
			want: []string{`IptablesEIP "later", which annotation ovn.kubernetes.io/eip names, does not exist: the Service gets its EXTERNAL-IP once it does`},
		},
		{
			name: "a rule for an EIP that comes later", wish: creating(alice, newRule("r", onEIP("later"))),
			want: []string{`IptablesEIP "later" does not exist: the rule waits until it does`},
		},
		{
			name: "an EIP for a gateway that comes later", wish: creating(alice, newEIP("new", "later")),
			want: []string{`VpcNatGateway "later" does not exist: the IptablesEIP waits until it does`},
		},
		{
			name: "an EIP that a Service names is deleted", cluster: []metav1.Object{newService("web")}, wish: removing(alice, newEIP(eipA, "")),
			want: []string{"IptablesEIP eip-a is named by Service default/web, which loses its EXTERNAL-IP"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			aCluster(t, tc.cluster...)
			err := poll(t.Context(), func() error {
				alice().warnings.take()
				if err := tc.wish(t, dryRun); err != nil {
					return fatalError{err}
				}
				if diff := cmp.Diff(tc.want, alice().warnings.take()); diff != "" {
					return fmt.Errorf("warnings (-want +got):\n%s", diff)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}
