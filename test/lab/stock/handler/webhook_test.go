// SPDX-License-Identifier: Apache-2.0

package handler

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/test/lab/stockrules"
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
	sticky := dnat("a", "share", "10.1.0.5", pinned(600))
	elsewhere := dnat("a", "share", "10.1.0.5", pinned(600), func(r *kubeovnv1.IptablesDnatRule) { r.Spec.ExternalPort = "81" })
	list := func(rules ...*kubeovnv1.IptablesDnatRule) (out []kubeovnv1.IptablesDnatRule) {
		for _, rule := range rules {
			out = append(out, *rule)
		}
		return out
	}
	for name, test := range map[string]struct {
		rule *kubeovnv1.IptablesDnatRule
		all  []kubeovnv1.IptablesDnatRule
		want string
	}{
		"the first":                        {plain, nil, ""},
		"one more":                         {plain, list(mate), ""},
		"another affinity":                 {sticky, list(mate), "differs from that of dnat b"},
		"another time":                     {sticky, list(dnat("b", "share", "10.1.0.6", pinned(60))), "dnat b"},
		"the default time, said and not":   {dnat("a", "share", "10.1.0.5", pinned(0)), list(dnat("b", "share", "10.1.0.6", pinned(10800))), ""},
		"those that are going count":       {sticky, list(dnat("b", "share", "10.1.0.6", deleting)), "dnat b"},
		"patched in place, one of several": {sticky, list(plain, mate), "dnat b"},
		"patched in place, alone":          {sticky, list(plain), ""},
		"another identity":                 {elsewhere, list(mate), ""},
		"an exclusive one":                 {dnat("a", "exclusive", "10.1.0.5", pinned(600)), list(mate), ""},
	} {
		t.Run(name, func(t *testing.T) { refused(t, refuseDNAT(test.rule, test.all), test.want) })
	}
}

// TestRefuse has each object held against the rules for it, but only where it says something new.
func TestRefuse(t *testing.T) {
	object := func(protocol string, meta fields) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: fields{"kind": "IptablesDnatRule", "metadata": meta, "spec": fields{
			"eip": "web", "externalPort": "80", "internalPort": "80", "internalIp": "10.1.0.5", "protocol": protocol,
		}}}
	}
	eip := &stockrules.IptablesEIP{}
	eip.Name = "web"
	in := &stockrules.Cluster{EIPs: []*stockrules.IptablesEIP{eip}}
	bad := object("sctp", fields{"name": "r"})
	refused(t, refuse(nil, object("tcp", fields{"name": "r"}), in), "")
	refused(t, refuse(nil, bad, in), "spec.protocol")
	refused(t, refuse(object("tcp", fields{"name": "r"}), bad, in), "spec.protocol")
	refused(t, refuse(object("sctp", fields{"name": "r", "finalizers": []any{"x"}}), bad, in), "")
	refused(t, refuse(object("tcp", fields{"name": "r"}), object("sctp", fields{"name": "r", "deletionTimestamp": "2026-01-01T00:00:00Z"}), in), "")
	refused(t, refuse(nil, object("tcp", fields{"name": "r"}), &stockrules.Cluster{}), "spec.eip")
}

func TestRefuseMove(t *testing.T) {
	eip := func(address string, ready bool) *kubeovnv1.IptablesEIP {
		return &kubeovnv1.IptablesEIP{Spec: kubeovnv1.IptablesEIPSpec{V4ip: address}, Status: kubeovnv1.IptablesEIPStatus{Ready: ready}}
	}
	refused(t, refuseMove(eip("203.0.113.9", true), eip("203.0.113.8", true)), "cannot be changed")
	refused(t, refuseMove(eip("203.0.113.9", false), eip("203.0.113.8", false)), "")
	refused(t, refuseMove(eip("", false), eip("203.0.113.8", false)), "")
}

func TestRefuseReplicas(t *testing.T) {
	gateway := func(replicas int32) *kubeovnv1.VpcNatGateway {
		return &kubeovnv1.VpcNatGateway{Spec: kubeovnv1.VpcNatGatewaySpec{Replicas: replicas}}
	}
	for _, test := range []struct {
		from, to int32
		want     string
	}{{1, 2, "replicas"}, {2, 1, "replicas"}, {2, 0, "replicas"}, {2, 3, ""}, {0, 1, ""}} {
		refused(t, refuseReplicas(gateway(test.from), gateway(test.to)), test.want)
	}
}
