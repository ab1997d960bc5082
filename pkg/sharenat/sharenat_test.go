// SPDX-License-Identifier: Apache-2.0

package sharenat

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
)

var (
	eip        = netip.MustParseAddr("203.0.113.10")
	web        = Identity{EIP: eip, Port: 80, Protocol: TCP}
	dns        = Identity{EIP: eip, Port: 53, Protocol: UDP}
	netipEqual = cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{})
)

func backend(s string, masquerade bool) Backend {
	return Backend{Addr: netip.MustParseAddrPort(s), Masquerade: masquerade}
}

// The names must be those of stock, or a takeover would recreate every rule. The expected values were computed with sha256sum and md5sum.
func TestNames(t *testing.T) {
	long := strings.Repeat("a", 63)
	for _, tc := range []struct {
		owner Owner
		want  string
	}{
		{Owner{"default", "web"}, "lb-web-2eaff6fa6ee8"},
		{Owner{"default", long}, "lb-" + long[:47] + "-c5ee399d5656"},
	} {
		got := RuleName(tc.owner, TCP, 80, netip.MustParseAddrPort("10.1.0.4:8080"))
		if got != tc.want {
			t.Errorf("RuleName(%s) = %s, want %s", tc.owner, got, tc.want)
		}
		if len(got) > 63 {
			t.Errorf("RuleName(%s) has %d characters, want at most 63", tc.owner, len(got))
		}
	}
	if got, want := web.Hash(), "fa4b02e8a7b8"; got != want {
		t.Errorf("Hash() = %s, want %s", got, want)
	}
}

func TestParsePort(t *testing.T) {
	for s, want := range map[string]uint16{"1": 1, "80": 80, "65535": 65535, "": 0, "0": 0, "080": 0, "65536": 0, "-1": 0, "+80": 0, " 80": 0, "8x": 0, "0x50": 0} {
		got, err := ParsePort(s)
		if got != want || (err == nil) != (want != 0) {
			t.Errorf("ParsePort(%q) = %d, %v; want %d", s, got, err, want)
		}
	}
}

func TestOwnerOf(t *testing.T) {
	web := Owner{Namespace: "shop", Name: "web"}
	if got, found, err := OwnerOf(web.Labels()); got != web || !found || err != nil {
		t.Errorf("OwnerOf(own labels) = %v, %v, %v", got, found, err)
	}
	if _, found, err := OwnerOf(nil); found || err != nil {
		t.Errorf("OwnerOf(nil) = %v, %v; want not found", found, err)
	}
	if _, _, err := OwnerOf(map[string]string{OwnerNameLabel: "web"}); err == nil {
		t.Error("half an owner: want an error")
	}
}

// The order is that of the strings, not of the parts: whoever computes it from a key must come to the same winner.
func TestOwnerOrder(t *testing.T) {
	want := []Owner{{"a-b", "x"}, {"a", "x"}, {"a", "y"}, {"b", "a"}}
	got := slices.SortedFunc(slices.Values([]Owner{want[3], want[1], want[0], want[2]}), Owner.Compare)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestParseRule(t *testing.T) {
	newRule := func(tweaks ...func(*kubeovnv1.IptablesDnatRule)) *kubeovnv1.IptablesDnatRule {
		r := &kubeovnv1.IptablesDnatRule{
			ObjectMeta: metav1.ObjectMeta{Name: "r"},
			Spec: kubeovnv1.IptablesDnatRuleSpec{
				EIP: "e", ExternalPort: "80", Protocol: "TCP", InternalIP: "10.1.0.4", InternalPort: "8080", Type: TypeShare,
			},
		}
		for _, tweak := range tweaks {
			tweak(r)
		}
		return r
	}
	base := Rule{Identity: web, Backend: backend("10.1.0.4:8080", false), Share: true}
	for _, tc := range []struct {
		name    string
		tweak   func(*kubeovnv1.IptablesDnatRule)
		want    Rule
		wantErr []string
	}{
		{"protocol in capitals", func(*kubeovnv1.IptablesDnatRule) {}, base, nil},
		{
			"affinity with default timeout", func(r *kubeovnv1.IptablesDnatRule) { r.Spec.SessionAffinity = SessionAffinityIP },
			func() Rule { r := base; r.Affinity = Affinity{true, 10800}; return r }(), nil,
		},
		{"managed, masqueraded, with sources", func(r *kubeovnv1.IptablesDnatRule) {
			r.Labels = Owner{"shop", "web"}.Labels()
			r.Annotations = map[string]string{SourceIPAnnotation: "masquerade", SourceRangesAnnotation: "192.0.2.0/24, 10.9.9.9/8"}
		}, func() Rule {
			r := base
			r.Owner, r.Managed, r.Backend.Masquerade = Owner{"shop", "web"}, true, true
			r.Sources = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("192.0.2.0/24")}
			return r
		}(), nil},
		{"no type is exclusive", func(r *kubeovnv1.IptablesDnatRule) { r.Spec.Type = "" }, func() Rule { r := base; r.Share = false; return r }(), nil},
		{"everything wrong is told at once", func(r *kubeovnv1.IptablesDnatRule) {
			r.Spec.ExternalPort, r.Spec.Protocol, r.Spec.InternalIP, r.Spec.SessionAffinity = "0", "sctp", "::1", "Cookie"
		}, Rule{}, []string{`port "0"`, `protocol "sctp"`, `address "::1"`, `session affinity "Cookie"`}},
		{
			"exclusive with affinity", func(r *kubeovnv1.IptablesDnatRule) {
				r.Spec.Type, r.Spec.SessionAffinity = TypeExclusive, SessionAffinityIP
			},
			Rule{},
			[]string{"only with type share"},
		},
		{
			"exclusive with annotations of share", func(r *kubeovnv1.IptablesDnatRule) {
				r.Spec.Type = TypeExclusive
				r.Annotations = map[string]string{SourceIPAnnotation: "masquerade", SourceRangesAnnotation: "10.0.0.0/8"}
			},
			Rule{},
			[]string{SourceIPAnnotation + "=masquerade: only with type share", SourceRangesAnnotation + ": only with type share"},
		},
		{
			"exclusive with annotations that cannot be read", func(r *kubeovnv1.IptablesDnatRule) {
				r.Spec.Type = TypeExclusive
				r.Annotations = map[string]string{SourceIPAnnotation: "what", SourceRangesAnnotation: "10"}
			},
			Rule{},
			[]string{SourceIPAnnotation + `="what"`, `source range "10"`},
		},
		{
			"exclusive with annotations that ask for nothing", func(r *kubeovnv1.IptablesDnatRule) {
				r.Spec.Type = TypeExclusive
				r.Annotations = map[string]string{SourceIPAnnotation: "preserve", SourceRangesAnnotation: ""}
			},
			func() Rule { r := base; r.Share = false; return r }(), nil,
		},
		{"half an owner", func(r *kubeovnv1.IptablesDnatRule) { r.Labels = map[string]string{OwnerNamespaceLabel: "shop"} }, Rule{}, []string{"both or none"}},
		{
			"a source range of the other family", func(r *kubeovnv1.IptablesDnatRule) { r.Annotations = map[string]string{SourceRangesAnnotation: "::/0"} },
			Rule{},
			[]string{`source range "::/0"`},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := ParseRule(newRule(tc.tweak), eip)
			if readable := Readable(newRule(tc.tweak)); readable != (err == nil) {
				t.Errorf("readable: %v, error: %v", readable, err)
			}
			for _, part := range tc.wantErr {
				if err == nil || !strings.Contains(err.Error(), part) {
					t.Errorf("error %v lacks %q", err, part)
				}
			}
			if tc.wantErr != nil {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got, netipEqual); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestEncode(t *testing.T) {
	shares := []Share{
		{Identity: web, Backends: []Backend{backend("10.1.0.10:8080", true), backend("10.1.0.9:8080", false)}},
		{
			Identity: dns, Affinity: Affinity{true, 10800}, Backends: []Backend{backend("10.1.0.7:5353", false)},
			Sources: []netip.Prefix{netip.MustParsePrefix("192.0.2.7/24"), netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("192.0.2.0/24")},
		},
	}
	for i := range shares {
		shares[i].Normalize()
	}
	got, err := EncodeFull(shares)
	if err != nil {
		t.Fatal(err)
	}
	const want = `share-state v1 full
identity 203.0.113.10 80 tcp none 0
backend 10.1.0.9 8080
backend 10.1.0.10 8080 masquerade
identity 203.0.113.10 53 udp clientip 10800 sources=10.0.0.0/8,192.0.2.0/24
backend 10.1.0.7 5353
end
`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	got, err = EncodeDelta(shares[:1], []Identity{dns})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(string(got), "\nremove 203.0.113.10 53 udp\nend\n") || !strings.HasPrefix(string(got), "share-state v1 delta\n") {
		t.Errorf("delta:\n%s", got)
	}
}

func TestEncodeRefuses(t *testing.T) {
	ok := Share{Identity: web, Backends: []Backend{backend("10.1.0.9:8080", false)}}
	for name, tweak := range map[string]func(*Share){
		"no backends":         func(s *Share) { s.Backends = nil },
		"backends disordered": func(s *Share) { s.Backends = []Backend{backend("10.1.0.9:2", false), backend("10.1.0.9:1", false)} },
		"backend twice":       func(s *Share) { s.Backends = append(slices.Clone(s.Backends), s.Backends[0]) },
		"IPv6 EIP":            func(s *Share) { s.EIP = netip.MustParseAddr("::1") },
		"IPv6 backend":        func(s *Share) { s.Backends = []Backend{backend("[::1]:1", false)} },
		"protocol":            func(s *Share) { s.Protocol = "TCP;" },
		"timeout":             func(s *Share) { s.Affinity = Affinity{true, 86401} },
		"timeout alone":       func(s *Share) { s.Affinity = Affinity{false, 1} },
	} {
		s := ok
		tweak(&s)
		if out, err := EncodeFull([]Share{s}); err == nil {
			t.Errorf("%s: encoded as\n%s", name, out)
		}
	}
	if _, err := EncodeFull([]Share{ok, ok}); err == nil {
		t.Error("an identity twice: want an error")
	}
	if _, err := EncodeDelta([]Share{ok}, []Identity{web}); err == nil {
		t.Error("an identity set and removed: want an error")
	}
}

func TestDigestDoesNotDependOnOrder(t *testing.T) {
	s := Share{Identity: web}
	for i := range 50 {
		s.Backends = append(s.Backends, Backend{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}), 80)})
	}
	s.Normalize()
	want := s.Digest()
	shuffled := s
	shuffled.Backends = slices.Clone(s.Backends)
	rand.Shuffle(50, func(i, j int) {
		shuffled.Backends[i], shuffled.Backends[j] = shuffled.Backends[j], shuffled.Backends[i]
	})
	shuffled.Normalize()
	if got := shuffled.Digest(); got != want {
		t.Errorf("digest after a shuffle %s, want %s", got, want)
	}
	shuffled.Backends[7].Masquerade = true
	if shuffled.Digest() == want {
		t.Error("a changed backend left the digest as it was")
	}
}

func TestParseListing(t *testing.T) {
	const in = `gateway-state v1
init eth0,net1
eip 203.0.113.10/24
route 10.1.0.0/16 10.1.0.1
dnat 203.0.113.11 22 tcp 10.1.0.9 22
identity 203.0.113.10 80 tcp 5a1c4f0e9b77d210 2
identity 203.0.113.10 53 udp - 0
stale dnat-0123456789ab
end
`
	want := &Listing{
		Initialized: true, Interfaces: "eth0,net1",
		EIPs:       []netip.Prefix{netip.MustParsePrefix("203.0.113.10/24")},
		Routes:     []Route{{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParseAddr("10.1.0.1")}},
		Exclusives: []Exclusive{{Identity{netip.MustParseAddr("203.0.113.11"), 22, TCP}, netip.MustParseAddrPort("10.1.0.9:22")}},
		Shares:     map[Identity]Holding{web: {"5a1c4f0e9b77d210", 2}, dns: {UnknownDigest, 0}},
		Stale:      1,
	}
	got, err := ParseListing(strings.NewReader(in))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, netipEqual); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, bad := range []string{"", "gateway-state v2\nend\n", strings.TrimSuffix(in, "end\n"), "gateway-state v1\nfoo\nend\n", "gateway-state v1\nidentity 1.2.3 80 tcp - 0\nend\n"} {
		if _, err := ParseListing(strings.NewReader(bad)); err == nil {
			t.Errorf("listing %q: want an error", bad)
		}
	}
}

func BenchmarkDigest1000(b *testing.B) {
	s := Share{Identity: web}
	for i := range 1000 {
		s.Backends = append(s.Backends, Backend{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 80)})
	}
	s.Normalize()
	for b.Loop() {
		s.Digest()
	}
}
