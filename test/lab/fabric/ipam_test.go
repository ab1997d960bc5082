// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeovn/kube-ovn/test/lab/stockrules"
)

func addrs(texts ...string) []netip.Addr {
	var result []netip.Addr
	for _, text := range texts {
		result = append(result, netip.MustParseAddr(text))
	}
	return result
}

func excluding(t *testing.T, subnet *Subnet, ranges ...string) *Subnet {
	t.Helper()
	for _, text := range ranges {
		excluded, err := stockrules.ParseRange(text)
		if err != nil {
			t.Fatal(err)
		}
		subnet.Exclude = append(subnet.Exclude, excluded)
	}
	return subnet
}

func TestAssign(t *testing.T) {
	overlay := func() *Subnet { return testSubnet("net", "a", "ovn", "10.0.0.0/29") } // .1 is the gateway, .2 to .6 are free
	external := func() *Subnet { return testSubnet("ext", "", "ext.kube-system", "203.0.113.0/29") }
	dual := testSubnet("dual", "a", "ovn", "10.0.0.0/29")
	dual.Prefixes = append(dual.Prefixes, netip.MustParsePrefix("fd00::/120"))
	dual.Gateways = append(dual.Gateways, netip.MustParseAddr("fd00::1"))
	type request struct {
		pod     string
		wanted  []string
		want    []string
		wantErr error // its type counts
	}
	tests := []struct {
		name     string
		subnet   *Subnet
		reserved []string
		requests []request
	}{
		{name: "lowest first, and the same again", subnet: overlay(), requests: []request{
			{pod: "a", want: []string{"10.0.0.2"}},
			{pod: "b", want: []string{"10.0.0.3"}},
			{pod: "a", want: []string{"10.0.0.2"}},
		}},
		{name: "excluded addresses are left out", subnet: excluding(t, overlay(), "10.0.0.1..10.0.0.3", "10.0.0.5"), requests: []request{
			{pod: "a", want: []string{"10.0.0.4"}},
			{pod: "b", want: []string{"10.0.0.6"}},
			{pod: "c", wantErr: &ExhaustedError{}},
		}},
		{name: "wanted, even if excluded", subnet: excluding(t, overlay(), "10.0.0.5"), requests: []request{
			{pod: "a", wanted: []string{"10.0.0.5"}, want: []string{"10.0.0.5"}},
			{pod: "b", wanted: []string{"10.0.0.5"}, wantErr: &TakenError{}},
			{pod: "b", want: []string{"10.0.0.2"}},
		}},
		{name: "not in the subnet", subnet: overlay(), requests: []request{{pod: "a", wanted: []string{"10.0.1.2"}, wantErr: &OutsideError{}}}},
		{name: "both families", subnet: dual, requests: []request{
			{pod: "a", want: []string{"10.0.0.2", "fd00::2"}},
			{pod: "b", wanted: []string{"fd00::9"}, want: []string{"10.0.0.3", "fd00::9"}},
		}},
		{name: "external: from above, around what is reserved", subnet: external(), reserved: []string{"203.0.113.6", "203.0.113.4"}, requests: []request{
			{pod: "a", want: []string{"203.0.113.5"}},
			{pod: "b", want: []string{"203.0.113.3"}},
			{pod: "c", wanted: []string{"203.0.113.6"}, wantErr: &TakenError{}},
		}},
		{name: "an overlay may have the addresses of the outside", subnet: overlay(), reserved: []string{"10.0.0.2"}, requests: []request{
			{pod: "a", want: []string{"10.0.0.2"}},
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			ipam := NewIPAM(func(addr netip.Addr) (string, bool) {
				for _, reserved := range addrs(test.reserved...) {
					if reserved == addr {
						return "somebody", true
					}
				}
				return "", false
			})
			for i, request := range test.requests {
				got, err := ipam.Assign(test.subnet, Owner{PodUID: request.pod, Pod: request.pod, Provider: "ovn"}, addrs(request.wanted...))
				if got, want := kindOf(err), kindOf(request.wantErr); got != want {
					t.Fatalf("request %d: error %v, want %s", i, err, want)
				}
				if diff := cmp.Diff(addrs(request.want...), got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
					t.Errorf("request %d (-want +got):\n%s", i, diff)
				}
			}
		})
	}
}

func kindOf(err error) string {
	switch {
	case err == nil:
		return "none"
	case errors.As(err, new(*TakenError)):
		return "taken"
	case errors.As(err, new(*ExhaustedError)):
		return "exhausted"
	case errors.As(err, new(*OutsideError)):
		return "outside"
	}
	return err.Error()
}

func TestRelease(t *testing.T) {
	ipam := NewIPAM(nil)
	subnet := testSubnet("net", "a", "ovn", "10.0.0.0/30")
	if _, err := ipam.Assign(subnet, Owner{PodUID: "a"}, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := ipam.Assign(subnet, Owner{PodUID: "b"}, nil); err == nil {
		t.Fatal("two owners for one address")
	}
	ipam.Release("a")
	if _, err := ipam.Assign(subnet, Owner{PodUID: "b"}, nil); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"10.0.0.2"}, texts(ipam.Held("net"))); diff != "" {
		t.Errorf("held (-want +got):\n%s", diff)
	}
}

func texts(addrs []netip.Addr) []string {
	var result []string
	for _, addr := range addrs {
		result = append(result, addr.String())
	}
	return result
}
