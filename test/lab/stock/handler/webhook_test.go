// SPDX-License-Identifier: Apache-2.0

package handler

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
)

func refused(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("refused: %v", err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Errorf("%v, want %q", err, want)
	}
}

func TestRefuseDNAT(t *testing.T) {
	plain, mate := dnat("a", "share", "10.1.0.5"), dnat("b", "share", "10.1.0.6")
	spec := func(change func(*kubeovnv1.IptablesDnatRuleSpec)) *kubeovnv1.IptablesDnatRule {
		return dnat("a", "share", "10.1.0.5", func(rule *kubeovnv1.IptablesDnatRule) { change(&rule.Spec) })
	}
	released := dnat("a", "share", "10.1.0.5", pinned(600), func(r *kubeovnv1.IptablesDnatRule) { r.Finalizers = nil })
	for name, test := range map[string]struct {
		old, rule *kubeovnv1.IptablesDnatRule
		all       []kubeovnv1.IptablesDnatRule
		want      string
	}{
		"the first":                               {nil, plain, nil, ""},
		"one more":                                {nil, plain, []kubeovnv1.IptablesDnatRule{*mate}, ""},
		"another affinity":                        {nil, dnat("a", "share", "10.1.0.5", pinned(600)), []kubeovnv1.IptablesDnatRule{*mate}, "differs from that of dnat b"},
		"another time":                            {nil, dnat("a", "share", "10.1.0.5", pinned(600)), []kubeovnv1.IptablesDnatRule{*dnat("b", "share", "10.1.0.6", pinned(60))}, "dnat b"},
		"the default time, said and not":          {nil, dnat("a", "share", "10.1.0.5", pinned(0)), []kubeovnv1.IptablesDnatRule{*dnat("b", "share", "10.1.0.6", pinned(10800))}, ""},
		"those that are going count":              {nil, dnat("a", "share", "10.1.0.5", pinned(600)), []kubeovnv1.IptablesDnatRule{*dnat("b", "share", "10.1.0.6", deleting)}, "dnat b"},
		"patched in place, one of several":        {plain, dnat("a", "share", "10.1.0.5", pinned(600)), []kubeovnv1.IptablesDnatRule{*plain, *mate}, "dnat b"},
		"patched in place, alone":                 {plain, dnat("a", "share", "10.1.0.5", pinned(600)), []kubeovnv1.IptablesDnatRule{*plain}, ""},
		"only the finalizer, at odds with others": {dnat("a", "share", "10.1.0.5", pinned(600)), released, []kubeovnv1.IptablesDnatRule{*mate}, ""},
		"going, at odds with others":              {plain, dnat("a", "share", "10.1.0.5", pinned(600), deleting), []kubeovnv1.IptablesDnatRule{*mate}, ""},
		"another identity":                        {nil, spec(func(s *kubeovnv1.IptablesDnatRuleSpec) { s.SessionAffinity, s.ExternalPort = "ClientIP", "81" }), []kubeovnv1.IptablesDnatRule{*mate}, ""},
		"an exclusive one":                        {nil, dnat("a", "exclusive", "10.1.0.5", pinned(600)), []kubeovnv1.IptablesDnatRule{*mate}, ""},
		"no EIP":                                  {nil, spec(func(s *kubeovnv1.IptablesDnatRuleSpec) { s.EIP = "" }), nil, `"eip"`},
		"no port":                                 {nil, spec(func(s *kubeovnv1.IptablesDnatRuleSpec) { s.ExternalPort = "0" }), nil, `"externalPort"`},
		"no internal port":                        {nil, spec(func(s *kubeovnv1.IptablesDnatRuleSpec) { s.InternalPort = "x" }), nil, `"internalPort"`},
		"no address":                              {nil, spec(func(s *kubeovnv1.IptablesDnatRuleSpec) { s.InternalIP = "x" }), nil, `"internalIp"`},
		"no protocol":                             {nil, spec(func(s *kubeovnv1.IptablesDnatRuleSpec) { s.Protocol = "sctp" }), nil, `"protocol"`},
		"the protocol in capitals":                {nil, spec(func(s *kubeovnv1.IptablesDnatRuleSpec) { s.Protocol = "TCP" }), nil, ""},
	} {
		t.Run(name, func(t *testing.T) { refused(t, refuseDNAT(test.old, test.rule, test.all), test.want) })
	}
}

func TestRefuseEIP(t *testing.T) {
	external := subnet("ext", "", "203.0.113.0/24", "203.0.113.1")
	eip := func(address, gateway string) *kubeovnv1.IptablesEIP {
		return &kubeovnv1.IptablesEIP{Spec: kubeovnv1.IptablesEIPSpec{V4ip: address, NatGwDp: gateway}}
	}
	ready := eip("203.0.113.9", "gw")
	ready.Status.Ready = true
	for name, test := range map[string]struct {
		old, eip *kubeovnv1.IptablesEIP
		subnet   *kubeovnv1.Subnet
		want     string
	}{
		"as it should be":   {nil, eip("", "gw"), external, ""},
		"gets its address":  {eip("", "gw"), eip("203.0.113.9", "gw"), external, ""},
		"no gateway":        {nil, eip("", ""), external, `"natGwDp"`},
		"no subnet":         {nil, eip("", "gw"), nil, "no external subnet ovn-vpc-external-network"},
		"not an address":    {nil, eip("x", "gw"), external, "not a valid address"},
		"elsewhere":         {nil, eip("198.51.100.1", "gw"), external, "not in subnet ext"},
		"moves while ready": {ready, eip("203.0.113.8", "gw"), external, "cannot be changed"},
		"nothing changes":   {eip("x", ""), eip("x", ""), nil, ""},
	} {
		t.Run(name, func(t *testing.T) { refused(t, refuseEIP(test.old, test.eip, test.subnet), test.want) })
	}
}

func TestRefuseGateway(t *testing.T) {
	vpc, lan := &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "v"}}, subnet("a", "v", "10.1.0.0/24", "10.1.0.1")
	gateway := func(address string, replicas int32) *kubeovnv1.VpcNatGateway {
		return &kubeovnv1.VpcNatGateway{Spec: kubeovnv1.VpcNatGatewaySpec{Vpc: "v", Subnet: "a", LanIP: address, Replicas: replicas}}
	}
	for name, test := range map[string]struct {
		old, gw *kubeovnv1.VpcNatGateway
		vpc     *kubeovnv1.Vpc
		subnet  *kubeovnv1.Subnet
		want    string
	}{
		"as it should be": {nil, gateway("10.1.0.254", 1), vpc, lan, ""},
		"no vpc":          {nil, gateway("10.1.0.254", 1), nil, lan, "no vpc"},
		"no subnet":       {nil, gateway("10.1.0.254", 1), vpc, nil, "no subnet"},
		"elsewhere":       {nil, gateway("10.2.0.254", 1), vpc, lan, `"lanIp"`},
		"from 1 to 2":     {gateway("", 1), gateway("", 2), vpc, lan, "replicas"},
		"from 2 to 1":     {gateway("", 2), gateway("", 0), vpc, lan, "replicas"},
		"from 2 to 3":     {gateway("", 2), gateway("", 3), vpc, lan, ""},
		"from 0 to 1":     {gateway("", 0), gateway("", 1), vpc, lan, ""},
	} {
		t.Run(name, func(t *testing.T) { refused(t, refuseGateway(test.old, test.gw, test.vpc, test.subnet), test.want) })
	}
}
