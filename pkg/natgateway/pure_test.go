// SPDX-License-Identifier: Apache-2.0

package natgateway

import (
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

func TestLowestFree(t *testing.T) {
	tests := []struct {
		name    string
		spec    kubeovnv1.SubnetSpec
		using   string
		taken   []string
		want    string
		wantErr error
	}{
		{name: "first host", spec: kubeovnv1.SubnetSpec{CIDRBlock: "203.0.113.0/24"}, want: "203.0.113.1"},
		{name: "gateway skipped", spec: kubeovnv1.SubnetSpec{CIDRBlock: "203.0.113.0/24", Gateway: "203.0.113.1"}, want: "203.0.113.2"},
		{
			name: "ranges and single excludes", want: "203.0.113.12",
			spec: kubeovnv1.SubnetSpec{CIDRBlock: "203.0.113.0/24", Gateway: "203.0.113.1", ExcludeIps: []string{"203.0.113.11", "203.0.113.1..203.0.113.10"}},
		},
		{
			name: "a wide range around a narrow one", want: "203.0.113.101",
			spec: kubeovnv1.SubnetSpec{CIDRBlock: "203.0.113.0/24", ExcludeIps: []string{"203.0.113.1..203.0.113.100", "203.0.113.5..203.0.113.6"}},
		},
		{name: "taken skipped", spec: kubeovnv1.SubnetSpec{CIDRBlock: "203.0.113.0/24"}, taken: []string{"203.0.113.1", "203.0.113.3"}, want: "203.0.113.2"},
		{name: "used by stock's own", spec: kubeovnv1.SubnetSpec{CIDRBlock: "203.0.113.0/24"}, using: "203.0.113.1-203.0.113.4,203.0.113.6", want: "203.0.113.5"},
		{name: "dual stack", spec: kubeovnv1.SubnetSpec{CIDRBlock: "fd00::/64,203.0.113.0/29", Gateway: "fd00::1,203.0.113.1"}, want: "203.0.113.2"},
		{name: "neither network nor broadcast", spec: kubeovnv1.SubnetSpec{CIDRBlock: "203.0.113.0/30"}, taken: []string{"203.0.113.1", "203.0.113.2"}, wantErr: errNoFreeAddress},
		{name: "point to point has both", spec: kubeovnv1.SubnetSpec{CIDRBlock: "203.0.113.0/31"}, want: "203.0.113.0"},
		{name: "one address", spec: kubeovnv1.SubnetSpec{CIDRBlock: "203.0.113.7/32"}, taken: []string{"203.0.113.7"}, wantErr: errNoFreeAddress},
		{name: "garbage excludes are no ranges", spec: kubeovnv1.SubnetSpec{CIDRBlock: "203.0.113.0/24", ExcludeIps: []string{"x..y", "203.0.113.9..203.0.113.1"}}, want: "203.0.113.1"},
		{
			name: "a huge range is jumped over", want: "10.200.0.1",
			spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.0.0.0/8", ExcludeIps: []string{"10.0.0.1..10.200.0.0"}},
		},
		{name: "IPv6 only", spec: kubeovnv1.SubnetSpec{CIDRBlock: "fd00::/64"}, wantErr: errNoIPv4},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			pool, err := newAddressPool(&kubeovnv1.Subnet{Spec: tt.spec, Status: kubeovnv1.SubnetStatus{V4UsingIPRange: tt.using}})
			var got netip.Addr
			if err == nil {
				taken := map[netip.Addr]string{}
				for _, s := range tt.taken {
					taken[netip.MustParseAddr(s)] = "somebody"
				}
				got, err = pool.lowestFree(taken)
			}
			if !errors.Is(err, tt.wantErr) {
				t.Fatalf("error %v, want %v", err, tt.wantErr)
			}
			if tt.wantErr == nil && got.String() != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func TestAddressCheck(t *testing.T) {
	pool, err := newAddressPool(&kubeovnv1.Subnet{Spec: kubeovnv1.SubnetSpec{
		CIDRBlock: "203.0.113.0/24", Gateway: "203.0.113.1", ExcludeIps: []string{"203.0.113.2..203.0.113.9"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for addr, ok := range map[string]bool{
		"203.0.113.10": true, "203.0.113.5": true, "203.0.113.1": false, "203.0.113.0": false, "203.0.113.255": false, "198.51.100.1": false, "fd00::1": false,
	} {
		if got := pool.check(netip.MustParseAddr(addr)) == nil; got != ok {
			t.Errorf("check(%s) ok = %v, want %v", addr, got, ok)
		}
	}
}

const planEIP = "203.0.113.10"

func snapshotOf(rules ...*kubeovnv1.IptablesDnatRule) Snapshot {
	groups := map[GroupKey][]*kubeovnv1.IptablesDnatRule{}
	for _, r := range rules {
		groups[GroupOf(r)] = append(groups[GroupOf(r)], r)
	}
	return Snapshot{
		Gateway: testGateway,
		Rules:   groups,
		EIPs:    []SnapshotEIP{{Name: "e", CIDR: netip.MustParsePrefix(planEIP + "/24")}},
		Routes:  []sharenat.Route{{CIDR: netip.MustParsePrefix("10.2.0.0/16"), NextHop: netip.MustParseAddr("10.1.0.1")}},
	}
}

func describe(s *State) map[string]string {
	out := map[string]string{}
	for id, share := range s.Shares {
		var backends []string
		for _, b := range share.Backends {
			text := b.Addr.String()
			if b.Masquerade {
				text += "m"
			}
			backends = append(backends, text)
		}
		out[id.String()] = share.Affinity.String() + " " + strings.Join(backends, " ")
	}
	for id, target := range s.Exclusives {
		out[id.String()] += "exclusive " + target.String()
	}
	return out
}

func TestDesiredContest(t *testing.T) {
	const id = planEIP + ":80/tcp"
	owned := func(service string) func(*kubeovnv1.IptablesDnatRule) { return managedBy(service, planEIP) }
	deleting := func(r *kubeovnv1.IptablesDnatRule) { r.DeletionTimestamp = &metav1.Time{} }
	upper := func(r *kubeovnv1.IptablesDnatRule) { r.Spec.Protocol = "TCP" }
	badPort := func(r *kubeovnv1.IptablesDnatRule) { r.Spec.ExternalPort = "080" }
	masquerade := func(r *kubeovnv1.IptablesDnatRule) {
		r.Annotations = map[string]string{sharenat.SourceIPAnnotation: sharenat.SourceIPMasquerade}
	}
	tests := []struct {
		name     string
		fip      string
		rules    []*kubeovnv1.IptablesDnatRule
		want     map[string]string
		verdicts map[string]Outcome
	}{
		{
			name: "several backends", want: map[string]string{id: "none 0 10.1.0.4:80 10.1.0.5:80m"},
			rules:    []*kubeovnv1.IptablesDnatRule{rule("b", "e", "10.1.0.5:80", claimed, masquerade), rule("a", "e", "10.1.0.4:80", claimed, upper)},
			verdicts: map[string]Outcome{"a": Wanted, "b": Wanted},
		},
		{
			name: "not before it is claimed", want: map[string]string{},
			rules:    []*kubeovnv1.IptablesDnatRule{rule("a", "e", "10.1.0.4:80")},
			verdicts: map[string]Outcome{"a": Unclaimed},
		},
		{
			name: "a bad rule harms nobody", want: map[string]string{id: "none 0 10.1.0.4:80"},
			rules:    []*kubeovnv1.IptablesDnatRule{rule("a", "e", "10.1.0.4:80", claimed), rule("b", "e", "10.1.0.5:80", claimed, badPort)},
			verdicts: map[string]Outcome{"a": Wanted, "b": Invalid},
		},
		{
			name: "made by hand beats managed", want: map[string]string{id: "none 0 10.1.0.9:80"},
			rules:    []*kubeovnv1.IptablesDnatRule{rule("a", "e", "10.1.0.4:80", owned("a")), rule("z", "e", "10.1.0.9:80", claimed)},
			verdicts: map[string]Outcome{"a": Lost, "z": Wanted},
		},
		{
			name: "smallest owner, whatever the rules are called", want: map[string]string{id: "none 0 10.1.0.5:80 10.1.0.6:80"},
			rules: []*kubeovnv1.IptablesDnatRule{
				rule("a", "e", "10.1.0.4:80", owned("svc-b")), rule("b", "e", "10.1.0.5:80", owned("svc-a")), rule("c", "e", "10.1.0.6:80", owned("svc-a")),
			},
			verdicts: map[string]Outcome{"a": Lost, "b": Wanted, "c": Wanted},
		},
		{
			name: "by hand, under way to another affinity", want: map[string]string{id: "clientip 60 10.1.0.4:80 10.1.0.5:80"},
			rules:    []*kubeovnv1.IptablesDnatRule{rule("a", "e", "10.1.0.4:80", claimed, clientIP(60)), rule("b", "e", "10.1.0.5:80", claimed)},
			verdicts: map[string]Outcome{"a": Wanted, "b": Wanted},
		},
		{
			name: "one Service under way to another affinity keeps all backends", want: map[string]string{id: "clientip 60 10.1.0.4:80 10.1.0.5:80"},
			rules:    []*kubeovnv1.IptablesDnatRule{rule("a", "e", "10.1.0.4:80", owned("s"), clientIP(60)), rule("b", "e", "10.1.0.5:80", owned("s"))},
			verdicts: map[string]Outcome{"a": Wanted, "b": Wanted},
		},
		{
			name: "share beside exclusive", want: map[string]string{id: "exclusive 10.1.0.4:80"},
			rules:    []*kubeovnv1.IptablesDnatRule{rule("a", "e", "10.1.0.4:80", claimed, exclusive), rule("b", "e", "10.1.0.5:80", claimed)},
			verdicts: map[string]Outcome{"a": Wanted, "b": Lost},
		},
		{
			name: "two exclusives", want: map[string]string{id: "exclusive 10.1.0.4:80"},
			rules:    []*kubeovnv1.IptablesDnatRule{rule("a", "e", "10.1.0.4:80", claimed, exclusive), rule("b", "e", "10.1.0.5:80", claimed, exclusive)},
			verdicts: map[string]Outcome{"a": Wanted, "b": Lost},
		},
		{
			name: "the same backend twice", want: map[string]string{id: "none 0 10.1.0.4:80"},
			rules:    []*kubeovnv1.IptablesDnatRule{rule("a", "e", "10.1.0.4:80", claimed), rule("b", "e", "10.1.0.4:80", claimed)},
			verdicts: map[string]Outcome{"a": Wanted, "b": Wanted},
		},
		{
			name: "deleted ones own nothing", want: map[string]string{id: "none 0 10.1.0.5:80"},
			rules:    []*kubeovnv1.IptablesDnatRule{rule("a", "e", "10.1.0.4:80", claimed, deleting), rule("b", "e", "10.1.0.5:80", owned("s"))},
			verdicts: map[string]Outcome{"a": Deleting, "b": Wanted},
		},
		{
			name: "a FIP beats all", fip: "f", want: map[string]string{},
			rules:    []*kubeovnv1.IptablesDnatRule{rule("a", "e", "10.1.0.4:80", claimed), rule("b", "e", "10.1.0.5:80", claimed, badPort)},
			verdicts: map[string]Outcome{"a": Lost, "b": Invalid},
		},
		{
			name: "half an owner", want: map[string]string{},
			rules: []*kubeovnv1.IptablesDnatRule{rule("a", "e", "10.1.0.4:80", claimed, func(r *kubeovnv1.IptablesDnatRule) {
				r.Labels = map[string]string{sharenat.OwnerNameLabel: "s"}
			})},
			verdicts: map[string]Outcome{"a": Invalid},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := snapshotOf(tt.rules...)
			in.EIPs[0].FIP = tt.fip
			first := Desired(in, nil)
			partial := in
			partial.Partial = true
			for _, s := range []*State{first, Desired(in, first), Desired(partial, first)} {
				if diff := cmp.Diff(tt.want, describe(s)); diff != "" {
					t.Errorf("identities (-want +got):\n%s", diff)
				}
				got := map[string]Outcome{}
				for _, r := range tt.rules {
					v := s.Verdict(r)
					got[r.Name] = v.Outcome
					if (v.Outcome == Lost || v.Outcome == Invalid) && (v.Reason == "" || v.Message == "") {
						t.Errorf("rule %s: outcome %d without a reason", r.Name, v.Outcome)
					}
				}
				if diff := cmp.Diff(tt.verdicts, got); diff != "" {
					t.Errorf("verdicts (-want +got):\n%s", diff)
				}
			}
		})
	}
}

func TestDesiredReusesWhatHasNotChanged(t *testing.T) {
	rules := []*kubeovnv1.IptablesDnatRule{rule("a", "e", "10.1.0.4:80", claimed), rule("b", "e", "10.1.0.4:80", claimed, port("81"))}
	before := Desired(snapshotOf(rules...), nil)
	changed := rule("b", "e", "10.1.0.7:80", claimed, port("81"))
	partial := Snapshot{Gateway: testGateway, Partial: true, Rules: map[GroupKey][]*kubeovnv1.IptablesDnatRule{GroupOf(changed): {changed}}}
	after := Desired(partial, before)
	if diff := cmp.Diff(describe(Desired(snapshotOf(rules[0], changed), nil)), describe(after)); diff != "" {
		t.Errorf("the partial way differs from the full one (-full +partial):\n%s", diff)
	}
	partial.Rules[GroupOf(changed)] = nil
	if none := Desired(partial, after); len(none.Shares) != 1 || none.Users["e"] != 1 || none.Counts[Wanted] != 1 {
		t.Errorf("after the removal: %v, %v, %v", describe(none), none.Users, none.Counts)
	}
	same, other := mustIdentity(planEIP, "80", "tcp"), mustIdentity(planEIP, "81", "tcp")
	if before.Shares[same] != after.Shares[same] {
		t.Error("the unchanged identity was computed again")
	}
	if before.Shares[other].Digest == after.Shares[other].Digest {
		t.Error("the changed identity was not")
	}
}

func TestPlan(t *testing.T) {
	want := Desired(snapshotOf(
		rule("a", "e", "10.1.0.4:80", claimed), rule("b", "e", "10.1.0.5:80", claimed),
		rule("c", "e", "10.1.0.4:53", claimed, port("53")), rule("x", "e", "10.1.0.9:22", claimed, exclusive, port("22")),
	), nil)
	web, dns := mustIdentity(planEIP, "80", "tcp"), mustIdentity(planEIP, "53", "tcp")
	listing := func(lines ...string) *Content {
		l, err := sharenat.ParseListing(strings.NewReader("gateway-state v1\n" + strings.Join(lines, "\n") + "\nend\n"))
		if err != nil {
			t.Fatal(err)
		}
		return NewContent(l)
	}
	line := func(id sharenat.Identity, digest string) string {
		return fmt.Sprintf("identity %s %d %s %s 1", id.EIP, id.Port, id.Protocol, digest)
	}
	base := []string{"init eth0,net1", "eip 203.0.113.10/24", "route 10.2.0.0/16 10.1.0.1", "dnat 203.0.113.10 22 tcp 10.1.0.9 22"}
	good := append(base[:len(base):len(base)], line(web, want.Shares[web].Digest), line(dns, want.Shares[dns].Digest))
	with := func(lines ...string) *Content { return listing(append(good[:len(good):len(good)], lines...)...) }
	tests := []struct {
		name string
		have *Content
		want []string
	}{
		{name: "all in place", have: listing(good...)},
		{
			name: "nothing there", have: listing("init eth0,net1"), want: []string{
				"subnet-route-add 10.2.0.0/16,10.1.0.1", "nft-dnat-map-sync full set 203.0.113.10:53/tcp 203.0.113.10:80/tcp",
				"dnat-add 203.0.113.10,22,tcp,10.1.0.9,22", "eip-add 203.0.113.10/24",
			},
		},
		{name: "one differs", have: listing(append(base[:len(base):len(base)], line(web, want.Shares[web].Digest), line(dns, "-"))...), want: []string{"nft-dnat-map-sync delta set 203.0.113.10:53/tcp"}},
		{name: "one too many", have: with("identity 203.0.113.10 99 udp 5a1c4f0e9b77d210 2"), want: []string{"nft-dnat-map-sync delta remove 203.0.113.10:99/udp"}},
		{name: "stale objects", have: with("stale dnat-0123456789ab"), want: []string{"nft-dnat-map-sync full set 203.0.113.10:53/tcp 203.0.113.10:80/tcp"}},
		{
			name: "things that nobody asked for", have: with("eip 203.0.113.77/24", "route 10.9.0.0/16 10.1.0.1", "dnat 203.0.113.10 23 tcp 10.1.0.9 22"),
			want: []string{"dnat-del 203.0.113.10,23,tcp,10.1.0.9,22", "subnet-route-del 10.9.0.0/16", "eip-del 203.0.113.77/24"},
		},
		{
			name: "an exclusive with another backend", want: []string{"dnat-del 203.0.113.10,22,tcp,10.1.0.8,22", "dnat-add 203.0.113.10,22,tcp,10.1.0.9,22"},
			have: listing(append(good[:3:3], "dnat 203.0.113.10 22 tcp 10.1.0.8 22", line(web, want.Shares[web].Digest), line(dns, want.Shares[dns].Digest))...),
		},
		{name: "another prefix length", have: listing(append([]string{"init eth0,net1", "eip 203.0.113.10/32"}, good[2:]...)...), want: []string{"eip-del 203.0.113.10/32", "eip-add 203.0.113.10/24"}},
		{name: "another next hop", have: listing(append([]string{"init eth0,net1", good[1], "route 10.2.0.0/16 10.1.0.7"}, good[3:]...)...), want: []string{"subnet-route-add 10.2.0.0/16,10.1.0.1"}},
		{
			name: "never initialized", have: listing(good[1:]...), want: []string{"init"},
		},
		{
			name: "an older script", have: NewLegacyContent(want), want: []string{
				"init", "subnet-route-add 10.2.0.0/16,10.1.0.1",
				"nft-dnat-map-add 203.0.113.10,53,tcp,none,0,10.1.0.4:53 203.0.113.10,80,tcp,none,0,10.1.0.4:80@10.1.0.5:80", "dnat-add 203.0.113.10,22,tcp,10.1.0.9,22",
				"eip-add 203.0.113.10/24",
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			actions := Plan(want, tt.have)
			if diff := cmp.Diff(tt.want, describeActions(actions)); diff != "" {
				t.Errorf("actions (-want +got):\n%s", diff)
			}
			for i := range actions {
				actions[i].Apply(tt.have)
			}
			if again := Plan(want, tt.have); len(again) != 0 {
				t.Errorf("after all that there is still to do: %v", describeActions(again))
			}
			if !tt.have.matches(want, web) || !tt.have.matches(want, mustIdentity(planEIP, "22", "tcp")) || !tt.have.matches(want, mustIdentity(planEIP, "99", "udp")) {
				t.Error("the content does not match")
			}
		})
	}
}

func describeActions(actions []Action) []string {
	var out []string
	for _, a := range actions {
		words := append([]string{a.Verb}, a.Args...)
		if a.Verb == sharenat.SyncVerb {
			words = append(words, map[bool]string{true: "full", false: "delta"}[a.Full])
		}
		if len(a.Set) > 0 {
			words = append(words, "set")
		}
		for _, s := range a.Set {
			words = append(words, s.String())
		}
		if len(a.Remove) > 0 {
			words = append(words, "remove")
		}
		for _, id := range a.Remove {
			words = append(words, id.String())
		}
		out = append(out, strings.Join(words, " "))
	}
	return out
}

func TestPlanBoundsArguments(t *testing.T) {
	var rules []*kubeovnv1.IptablesDnatRule
	for i := range 5000 {
		rules = append(rules, rule(fmt.Sprintf("r%04d", i), "e", "10.1.0.4:80", claimed, exclusive, port(strconv.Itoa(1000+i))))
	}
	actions := Plan(Desired(snapshotOf(rules...), nil), &Content{Initialized: true})
	total := 0
	for _, a := range actions {
		size := 0
		for _, arg := range a.Args {
			size += len(arg)
		}
		if size > maxArgBytes {
			t.Errorf("%s has %d bytes of arguments", a.Verb, size)
		}
		if a.Verb == verbExclusiveAdd {
			total += len(a.Args)
		}
	}
	if total != 5000 || len(actions) < 3 {
		t.Errorf("%d rules in %d calls", total, len(actions))
	}
}

func TestLegacyContentRemovesWhatIsOnItsWayOut(t *testing.T) {
	gone := rule("a", "e", "10.1.0.4:80", claimed, func(r *kubeovnv1.IptablesDnatRule) { r.DeletionTimestamp = &metav1.Time{} })
	want := Desired(snapshotOf(gone), nil)
	have := NewLegacyContent(want)
	got := describeActions(Plan(want, have))
	if diff := cmp.Diff([]string{"init", "subnet-route-add 10.2.0.0/16,10.1.0.1", "nft-dnat-map-del 203.0.113.10,80,tcp", "eip-add 203.0.113.10/24"}, got); diff != "" {
		t.Errorf("actions (-want +got):\n%s", diff)
	}
}

func TestGatewayRoutes(t *testing.T) {
	home := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "inner"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.1.0.0/16", Gateway: "10.1.0.1,fd00::1"}}
	inside := []*kubeovnv1.Subnet{
		home,
		{ObjectMeta: metav1.ObjectMeta{Name: "second"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "fd00:2::/64,10.2.0.0/16"}},
		{ObjectMeta: metav1.ObjectMeta{Name: "ext"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "203.0.113.0/24"}},
	}
	gw := gateway(func(gw *kubeovnv1.VpcNatGateway) {
		gw.Spec.InternalCIDRs = []string{"10.3.0.1/16", "nonsense"}
		gw.Spec.Routes = []kubeovnv1.Route{{CIDR: "10.2.0.0/16", NextHopIP: "10.1.0.7"}, {CIDR: "10.4.0.0/16", NextHopIP: "gateway"}, {CIDR: "10.5.0.0/16", NextHopIP: "x"}}
	})
	var got []string
	for _, r := range planGatewayRoutes(gw, home, inside, []string{"ext"}) {
		got = append(got, r.CIDR.String()+" "+r.NextHop.String())
	}
	if diff := cmp.Diff([]string{"10.2.0.0/16 10.1.0.7", "10.3.0.0/16 10.1.0.1", "10.4.0.0/16 10.1.0.1"}, got); diff != "" {
		t.Errorf("routes (-want +got):\n%s", diff)
	}
}

func TestCallError(t *testing.T) {
	err := error(&CallError{Pod: types.NamespacedName{Namespace: "ns", Name: "p"}, Verb: "init", ExitCode: 3, Stderr: "eth0: no such device\n", Err: errors.New("x")})
	wrapped := fmt.Errorf("program: %w", err)
	if got, want := err.Error(), "init in gateway pod ns/p: exit code 3: eth0: no such device"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if !refused(wrapped) || unknownVerb(wrapped) {
		t.Error("a script that says no is one that refuses, not one that is old")
	}
	lost := &CallError{Verb: "init", ExitCode: -1, Err: errors.New("connection reset")}
	if refused(lost) || unknownVerb(lost) {
		t.Error("a lost connection is no refusal")
	}
	if !unknownVerb(&CallError{ExitCode: 1, Stdout: "Usage: nat-gateway.sh [init|...]", Err: errors.New("x")}) {
		t.Error("usage means that the verb is not known")
	}
}

func TestCutBuffer(t *testing.T) {
	b := &cutBuffer{max: 4}
	for _, s := range []string{"ab", "cde", "f"} {
		if n, err := b.Write([]byte(s)); n != len(s) || err != nil {
			t.Errorf("Write(%q) = %d, %v", s, n, err)
		}
	}
	if b.buf.String() != "abcd" || !b.cut {
		t.Errorf("kept %q, cut %v", b.buf.String(), b.cut)
	}
}

func TestWorkloadGolden(t *testing.T) {
	externals := []*kubeovnv1.Subnet{{
		ObjectMeta: metav1.ObjectMeta{Name: "ext"},
		Spec:       kubeovnv1.SubnetSpec{Provider: "ovn-vpc-external-network.kube-system", Gateway: "203.0.113.1,fd00::1"},
	}}
	build := func(tweaks ...func(*kubeovnv1.VpcNatGateway)) string {
		w, err := buildWorkload(workloadInput{
			gateway: gateway(tweaks...), externals: externals, edition: edition{testImage, defaultNamePrefix}, namespace: testNamespace,
		})
		if err != nil {
			t.Fatal(err)
		}
		w.meta().Annotations = nil
		text, err := yaml.Marshal(w.object())
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	single := build(func(gw *kubeovnv1.VpcNatGateway) {
		gw.Spec.Selector = []string{"kubernetes.io/hostname: node-1"}
		gw.Spec.Annotations = map[string]string{"example.com/a": "b", sharenat.GatewayPodAnnotation: "forged"}
	})
	golden(t, "statefulset.yaml", single)
	several := build(func(gw *kubeovnv1.VpcNatGateway) { gw.Spec.Replicas, gw.Spec.Namespace = 3, "tenant" })
	golden(t, "deployment.yaml", several)
}

var update = flag.Bool("update", false, "write the golden files anew")

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

func TestWorkloadErrors(t *testing.T) {
	good := []*kubeovnv1.Subnet{{ObjectMeta: metav1.ObjectMeta{Name: "ext"}, Spec: kubeovnv1.SubnetSpec{Provider: "nad.ns.ovn"}}}
	tests := []struct {
		name      string
		gateway   *kubeovnv1.VpcNatGateway
		externals []*kubeovnv1.Subnet
		image     string
		wantErr   string
	}{
		{name: "no image", gateway: gateway(), externals: good, wantErr: "names no image"},
		{name: "selector", gateway: gateway(func(gw *kubeovnv1.VpcNatGateway) { gw.Spec.Selector = []string{"nonsense"} }), externals: good, image: "i", wantErr: `selector "nonsense"`},
		{name: "provider", gateway: gateway(), externals: []*kubeovnv1.Subnet{{Spec: kubeovnv1.SubnetSpec{Provider: "ovn"}}}, image: "i", wantErr: `provider "ovn"`},
		{name: "fine", gateway: gateway(), externals: good, image: "i"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := buildWorkload(workloadInput{gateway: tt.gateway, externals: tt.externals, edition: edition{tt.image, "p-"}, namespace: "ns"})
			if (err == nil) != (tt.wantErr == "") || err != nil && !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("error %v, want one with %q", err, tt.wantErr)
			}
		})
	}
}

// A gateway of 5000 identities with ClientIP takes bare nft up to 92 s to replace.
func TestLargeStateHasTime(t *testing.T) {
	var many []*DesiredShare
	for i := range 5000 {
		many = append(many, &DesiredShare{Share: sharenat.Share{
			Identity: mustIdentity(eipAddress, strconv.Itoa(1+i), "tcp"), Affinity: sharenat.Affinity{ClientIP: true, TimeoutSeconds: 10800},
			Backends: []sharenat.Backend{{Addr: netip.MustParseAddrPort("10.1.0.1:80")}},
		}})
	}
	o := &Options{CallTimeout: DefaultCallTimeout}
	for _, tc := range []struct {
		shares      []*DesiredShare
		least, most time.Duration
	}{
		{nil, 30 * time.Second, 31 * time.Second},
		{many[:10], 30 * time.Second, 31 * time.Second},
		{many, 100 * time.Second, 5 * time.Minute},
	} {
		action := Action{Verb: sharenat.SyncVerb, Full: true, Set: tc.shares}
		stdin, err := action.stdin()
		if err != nil {
			t.Fatal(err)
		}
		if got := o.timeFor(&Call{Stdin: stdin}); got < tc.least || got > tc.most {
			t.Errorf("%d identities have %s, want %s to %s", len(tc.shares), got, tc.least, tc.most)
		}
	}
}

// Only the word false and the lack of the ConfigMap switch gateways off.
func TestSwitch(t *testing.T) {
	for _, tc := range []struct {
		gates map[string]string
		want  bool
	}{
		{nil, false},
		{map[string]string{switchKey: "false"}, false},
		{map[string]string{switchKey: " false\n"}, false},
		{map[string]string{switchKey: "true"}, true},
		{map[string]string{switchKey: "True"}, true},
		{map[string]string{switchKey: "flase"}, true},
		{map[string]string{}, true},
	} {
		if got := newConfig(nil, tc.gates).Enabled; got != tc.want {
			t.Errorf("%v: %v", tc.gates, got)
		}
	}
}

// What the API server answers to a JSON patch whose test does not hold, and to one that says something wrong.
func TestRaces(t *testing.T) {
	resource := schema.GroupResource{Group: "kubeovn.io", Resource: "iptables-dnat-rules"}
	failedTest := apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", "testing value failed", 0, false)
	invalid := apierrors.NewInvalid(schema.GroupKind{Group: "kubeovn.io", Kind: "IptablesDnatRule"}, "r",
		field.ErrorList{field.Invalid(field.NewPath("status"), "x", "must be y")})
	for _, tc := range []struct {
		err  error
		want bool
	}{
		{apierrors.NewConflict(resource, "r", errors.New("changed")), true},
		{apierrors.NewNotFound(resource, "r"), true},
		{fmt.Errorf("patch: %w", failedTest), true},
		{invalid, false},
		{errors.New("other"), false},
	} {
		if got := isRace(tc.err); got != tc.want {
			t.Errorf("%v: %v", tc.err, got)
		}
	}
}
