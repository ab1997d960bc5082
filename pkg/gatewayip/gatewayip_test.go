// SPDX-License-Identifier: Apache-2.0

package gatewayip

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRestore(t *testing.T) {
	t.Parallel()
	have := []string{"-P PREROUTING ACCEPT", "-N OURS", "-A OURS -j ACCEPT", "-A OURS -j DROP", "-A OURS -j DROP"}
	for name, tc := range map[string]struct {
		want []string
		in   string
	}{
		"all there":      {[]string{"-N OURS", "-A OURS -j ACCEPT", "-D OURS -j RETURN"}, ""},
		"chain and rule": {[]string{"-N MORE", "-A MORE -j OURS", "-A MORE -j OURS"}, "*nat\n:MORE - [0:0]\n-A MORE -j OURS\nCOMMIT\n"},
		"twice there":    {[]string{"-D OURS -j DROP", "-D OURS -j DROP", "-D OURS -j DROP"}, "*nat\n-D OURS -j DROP\n-D OURS -j DROP\nCOMMIT\n"},
	} {
		if diff := cmp.Diff(tc.in, restore("nat", have, tc.want)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	want := []string{"-N MORE", "-A MORE -j OURS", "-A OURS -j ACCEPT", "-D OURS -j DROP"}
	if diff := cmp.Diff([]string{"-A OURS -j DROP", "-D MORE -j OURS"}, undone(have, want)); diff != "" {
		t.Errorf("undone (-want +got):\n%s", diff)
	}
}

func TestMoved(t *testing.T) {
	t.Parallel()
	want, undo := moved("nat", []string{
		"-P PREROUTING ACCEPT", "-N DNAT_FILTER", "-N THEIRS",
		"-A PREROUTING -j DNAT_FILTER", "-A PREROUTING -p tcp -j ACCEPT", "-A DNAT_FILTER -j THEIRS", "-A THEIRS -j RETURN",
	})
	if diff := cmp.Diff([]string{"-N DNAT_FILTER", "-A PREROUTING -j DNAT_FILTER", "-A DNAT_FILTER -j THEIRS"}, want); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff("*nat\n-D PREROUTING -j DNAT_FILTER\n-F DNAT_FILTER\n-X DNAT_FILTER\nCOMMIT\n", undo); diff != "" {
		t.Errorf("undo (-want +got):\n%s", diff)
	}
}

// Rules are known whoever has written them.
func TestRulesAreRead(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"-A SHARED_DNAT -d 203.0.113.10/32 -p tcp -m tcp --dport 22 -j DNAT --to-destination 10.1.0.9:23":                   "203.0.113.10:22/tcp 10.1.0.9:23",
		"-A SHARED_DNAT -d 203.0.113.10/32 -p udp -m udp --dport 22 -j DNAT --to-destination 10.1.0.9:23 --random":          "203.0.113.10:22/udp 10.1.0.9:23",
		"-A SHARED_DNAT -d 203.0.113.10/32 -p tcp -m tcp --dport 22 -j ACCEPT":                                              "",
		"-A EXCLUSIVE_DNAT -d 203.0.113.10/32 -j DNAT --to-destination 10.1.0.9":                                            "",
		"-A SHARED_DNAT -d 203.0.113.0/24 -p tcp -m tcp --dport 22 -j DNAT --to-destination 10.1.0.9:23":                    "",
		"-A SHARED_DNAT -d 203.0.113.10/32 -p tcp -m tcp --dport 22:23 -j DNAT --to-destination 10.1.0.9:23-24 --random":    "",
		"-D SHARED_DNAT -d 203.0.113.10/32 -p tcp -m tcp --dport 22 -j DNAT --to-destination 10.1.0.9:23":                   "",
		"-A SHARED_DNAT -d 203.0.113.10/32 -p icmp -m tcp --dport 22 -j DNAT --to-destination 10.1.0.9:23 -m comment --c x": "",
	} {
		got := ""
		if e, ok := dnatOf(line); ok {
			got = e.String() + " " + e.Backend.String()
		}
		if got != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
	in, ok := markedIn([]string{"-N VPC_MARK", `-A VPC_MARK -i net1.7 -m comment --comment "external-eth0" -j MARK --set-xmark 0x1/0xffffffff`})
	if !ok || in != (Interfaces{"net1.7", "eth0"}) {
		t.Errorf("%+v %v", in, ok)
	}
}

func TestDefaultRoutes(t *testing.T) {
	t.Parallel()
	for env, want := range map[string]string{
		"":                    "",
		"203.0.113.1 fd00::1": "203.0.113.1 fd00::1",
		"999.1.1.1 ":          "GATEWAY_V4 is not an IPv4 address",
		"fd00::1 ":            "GATEWAY_V4 is not an IPv4 address",
		"0.0.0.0 ":            "GATEWAY_V4 is not an IPv4 address",
		" fd00::1%net1":       "GATEWAY_V6 is not an IPv6 address",
		" 203.0.113.1":        "GATEWAY_V6 is not an IPv6 address",
	} {
		v4, v6, _ := strings.Cut(env, " ")
		g := &Gateway{Environ: func(name string) string { return map[string]string{"GATEWAY_V4": v4, "GATEWAY_V6": v6}[name] }}
		via, err := g.defaultRoutes()
		var got []string
		for _, a := range via {
			got = append(got, a.String())
		}
		if text := strings.Join(got, " "); err == nil && text != want || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %q, %v", env, text, err)
		}
	}
}

func TestParseEIPs(t *testing.T) {
	t.Parallel()
	got, err := ParseEIPs([]string{"203.0.113.10/24", "203.0.113.11/24", "203.0.113.10/24"}, false)
	if err != nil || len(got) != 2 || got[0] != netip.MustParsePrefix("203.0.113.10/24") {
		t.Errorf("%v, %v", got, err)
	}
	for _, arg := range []string{"0.0.0.0/0", "224.0.0.5/24", "127.0.0.1/8", "255.255.255.255/32", "203.0.113.10/0"} {
		if _, err := ParseEIPs([]string{arg}, false); err == nil {
			t.Errorf("%s was accepted", arg)
		}
		if _, err := ParseEIPs([]string{arg}, true); err != nil {
			t.Errorf("%s cannot be taken away: %v", arg, err)
		}
	}
}
