// SPDX-License-Identifier: Apache-2.0

package sharenat_test

import (
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

var sameState = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
	cmpopts.EquateEmpty(),
}

// What the controller writes is what the gateway reads.
func TestParseStateReadsWhatEncodeWrites(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	addr := func() netip.Addr {
		return netip.AddrFrom4([4]byte{10, 0, byte(random.IntN(256)), byte(random.IntN(256))})
	}
	for range 200 {
		var d sharenat.Delta
		for i := range random.IntN(5) {
			s := sharenat.Share{Identity: sharenat.Identity{EIP: addr(), Port: uint16(1 + i), Protocol: sharenat.TCP}}
			if random.IntN(2) == 0 {
				s.Protocol = sharenat.UDP
				s.Affinity = sharenat.Affinity{ClientIP: true, TimeoutSeconds: int32(1 + random.IntN(86400))}
			}
			for j := range 1 + random.IntN(4) {
				s.Backends = append(s.Backends, sharenat.Backend{Addr: netip.AddrPortFrom(addr(), uint16(1+j)), Masquerade: random.IntN(3) == 0})
			}
			for range random.IntN(3) {
				s.Sources = append(s.Sources, netip.PrefixFrom(addr(), random.IntN(33)))
			}
			s.Normalize()
			d.Set = append(d.Set, s)
		}
		for i := range random.IntN(3) {
			id := sharenat.Identity{EIP: addr(), Port: uint16(100 + i), Protocol: sharenat.TCP}
			d.Remove = append(d.Remove, id)
			if random.IntN(2) == 0 {
				d.Keep = map[sharenat.Identity]bool{id: true}
			}
			d.Forget = append(d.Forget, sharenat.Connections{Identity: id, Backend: netip.AddrPortFrom(addr(), 80)})
		}
		text, err := d.Encode()
		if err != nil {
			t.Fatal(err)
		}
		got, err := sharenat.ParseState(string(text))
		if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		if diff := cmp.Diff(&sharenat.State{Delta: d}, got, sameState); diff != "" {
			t.Fatalf("(-written +read):\n%s", diff)
		}
	}
	text, err := sharenat.EncodeFull(nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := sharenat.ParseState(string(text)); err != nil || !got.Full {
		t.Errorf("%+v, %v", got, err)
	}
}

// The error names the line and the input, so that nothing of it can be taken for more than input.
func TestParseStateNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	for input, want := range map[string]string{
		"":                                                 `line 0: cut short, no end line: ""`,
		"share-state v1 full\n":                            `line 1: cut short, no end line: "share-state v1 full"`,
		"share-state v2 full\nend\n":                       `line 1: not a share-state v1: "share-state v2 full"`,
		"share-state v1 full\n\x00\nend\n":                 `line 2: not plain ASCII: "?"`,
		"share-state v1 full\n\"é\n":                       `line 2: not plain ASCII: ""??"`,
		"share-state v1 full\nend\nx":                      `line 3: something after end: "x"`,
		"share-state v1 full\nbackend 1 2\n":               `line 2: backend of no identity: "backend 1 2"`,
		"share-state v1 full\n" + strings.Repeat("x", 300): `line 2: unknown line: "` + strings.Repeat("x", 200) + `..."`,
		"share-state v1 full\nidentity 10.0.0.1 80 tcp none 0\nend\n":                                `line 2: identity without a backend: "10.0.0.1 . tcp . 80"`,
		"share-state v1 full\nidentity 10.0.0.1 80 tcp clientip +5\n":                                `line 2: not a timeout (1-86400 seconds): "+5"`,
		"share-state v1 full\nidentity 10.0.0.1 80 tcp none 0\nbackend 1.1.1.1 1\nbackend 1.1.1.1 1": `line 4: cut short, no end line: "backend 1.1.1.1 1"`,
	} {
		_, err := sharenat.ParseState(input)
		if err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", input, err, want)
		}
	}
}

func TestParseArguments(t *testing.T) {
	t.Parallel()
	add, err := sharenat.ParseAdd([]string{"10.0.0.1,80,TCP,1.1.1.2:1@1.1.1.1:1@1.1.1.2:1", "10.0.0.1,80,tcp,none,0,1.1.1.1:1@1.1.1.2:1", "10.0.0.1,81,udp,clientip,9,1.1.1.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	eip, one, two := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddrPort("1.1.1.1:1"), netip.MustParseAddrPort("1.1.1.2:1")
	want := &sharenat.State{Delta: sharenat.Delta{Set: []sharenat.Share{
		{Identity: sharenat.Identity{EIP: eip, Port: 80, Protocol: sharenat.TCP}, Backends: []sharenat.Backend{{Addr: one}, {Addr: two}}},
		{Identity: sharenat.Identity{EIP: eip, Port: 81, Protocol: sharenat.UDP}, Affinity: sharenat.Affinity{ClientIP: true, TimeoutSeconds: 9}, Backends: []sharenat.Backend{{Addr: one}}},
	}}}
	if diff := cmp.Diff(want, add, sameState); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	remove, err := sharenat.ParseRemove([]string{"10.0.0.1,80,tcp", "10.0.0.1,80,TCP"})
	if err != nil || len(remove.Remove) != 1 {
		t.Errorf("%+v, %v", remove, err)
	}
	if _, err := sharenat.ParseAdd([]string{"10.0.0.1,80,tcp,1.1.1.1:1", "10.0.0.1,80,tcp,1.1.1.2:1"}); err == nil {
		t.Error("two that differ were accepted")
	}
}

// What the gateway prints is what the controller reads.
func TestListingIsReadAsItIsWritten(t *testing.T) {
	t.Parallel()
	id := sharenat.Identity{EIP: netip.MustParseAddr("10.0.0.1"), Port: 80, Protocol: sharenat.TCP}
	written := &sharenat.Listing{
		Initialized: true, Interfaces: "eth0,net1",
		EIPs:       []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")},
		Routes:     []sharenat.Route{{CIDR: netip.MustParsePrefix("10.2.0.0/16"), NextHop: netip.MustParseAddr("10.1.0.1")}},
		Exclusives: []sharenat.Exclusive{{Identity: id, Backend: netip.MustParseAddrPort("10.1.0.9:80")}},
		Shares:     map[sharenat.Identity]sharenat.Holding{id: {Digest: "0123456789abcdef", Backends: 2}},
		Stale:      2,
	}
	read, err := sharenat.ParseListing(strings.NewReader(string(written.AppendTo(nil, []string{"a", "b"}))))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(written, read, sameState); diff != "" {
		t.Errorf("(-written +read):\n%s", diff)
	}
}
