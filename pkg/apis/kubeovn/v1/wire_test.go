// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
)

// TestEmptyFieldsStayOffTheWire: a null is refused by the API server and a zero
// is below some minima, so what is not set must not be written, at any depth.
// Whether an object is ready is always written, so that it can turn false.
func TestEmptyFieldsStayOffTheWire(t *testing.T) {
	conditions := Conditions{{Type: Ready}}
	tests := []struct {
		name string
		obj  runtime.Object
		want string
	}{
		{"empty rule", &IptablesDnatRule{}, `{"metadata":{}}`},
		{"empty gateway", &VpcNatGateway{}, `{"metadata":{}}`},
		{
			"rule", &IptablesDnatRule{Status: IptablesDnatRuleStatus{Conditions: conditions}},
			`{"metadata":{},"status":{"ready":false,"conditions":[{"type":"Ready"}]}}`,
		},
		{
			"eip", &IptablesEIP{Status: IptablesEIPStatus{Conditions: conditions}},
			`{"metadata":{},"status":{"ready":false,"conditions":[{"type":"Ready"}]}}`,
		},
		{
			"fip", &IptablesFIPRule{Status: IptablesFIPRuleStatus{Conditions: conditions}},
			`{"metadata":{},"status":{"ready":false,"conditions":[{"type":"Ready"}]}}`,
		},
		{
			"gateway", &VpcNatGateway{Spec: VpcNatGatewaySpec{
				Vpc:        "v",
				BgpSpeaker: VpcBgpSpeaker{Enabled: true},
				BFD:        VpcNatGatewayBFDConfig{Enabled: true},
				Routes:     []Route{{}},
			}, Status: VpcNatGatewayStatus{LanIP: "10.0.0.1"}},
			`{"metadata":{},"spec":{"vpc":"v","bgpSpeaker":{"enabled":true},"bfd":{"enabled":true},"routes":[{}]},"status":{"ready":false,"lanIp":"10.0.0.1"}}`,
		},
		{
			"vpc", &Vpc{Spec: VpcSpec{BFDPort: &BFDPort{}}, Status: VpcStatus{Conditions: conditions}},
			`{"metadata":{},"spec":{"bfdPort":{}},"status":{"standby":false,"conditions":[{"type":"Ready"}]}}`,
		},
		{"subnet", &Subnet{Spec: SubnetSpec{Acls: []ACL{{}}, NatOutgoingPolicyRules: []NatOutgoingPolicyRule{{}}}, Status: SubnetStatus{
			NatOutgoingPolicyRules: []NatOutgoingPolicyRuleStatus{{RuleID: "1", NatOutgoingPolicyRule: NatOutgoingPolicyRule{Action: "nat"}}},
		}}, `{"metadata":{},"spec":{"acls":[{}],"natOutgoingPolicyRules":[{}]},"status":{"natOutgoingPolicyRules":[{"ruleID":"1","action":"nat"}]}}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			data, err := json.Marshal(tt.obj)
			if err != nil {
				t.Fatal(err)
			}
			var got, want any
			if err := json.Unmarshal(data, &got); err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal([]byte(tt.want), &want); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("JSON (-want +got):\n%s", diff)
			}
		})
	}
}

// TestSchemeKnowsEveryKind: every kind of the table, and its list.
func TestSchemeKnowsEveryKind(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	for kind := range readTable(t) {
		for _, name := range []string{kind, kind + "List"} {
			if !scheme.Recognizes(SchemeGroupVersion.WithKind(name)) {
				t.Errorf("the scheme does not know %s", name)
			}
		}
	}
}
