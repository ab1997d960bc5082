// SPDX-License-Identifier: Apache-2.0

package stock

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeovn/kube-ovn/test/lab/room"
)

// TestMain runs the tests in a room: the script makes rules and addresses.
func TestMain(m *testing.M) {
	room.Main(func() (int, error) { return m.Run(), nil })
}

// gateway runs commands in a gateway of their own, where "gw VERB ARG…" is the script, and gives what they print.
func gateway(t *testing.T, commands string) string {
	t.Helper()
	dir := t.TempDir()
	script := strings.ReplaceAll(Script, "/etc/kube-ovn/", dir+"/")
	if script == Script {
		t.Fatal("the script has its environment elsewhere")
	}
	path := filepath.Join(dir, "nat-gateway.sh")
	if err := os.WriteFile(path, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	const wiring = `set -e
for nic in eth0 net1; do ip link add "$nic" type veth peer name "peer-$nic"; ip link set "peer-$nic" up; ip link set "$nic" up; done
ip addr add 10.1.0.254/24 dev eth0
ip addr add 203.0.113.9/24 dev net1
export GATEWAY_V4=203.0.113.1
gw() { bash "$script" "$@" 2>&1; }
nat() { if iptables-legacy -t nat -S INPUT 1 >/dev/null 2>&1; then iptables-legacy -t nat "$@"; else iptables -t nat "$@"; fi; }
`
	cmd := exec.CommandContext(t.Context(), "unshare", "-n", "bash", "-c", wiring+commands)
	cmd.Env = append(os.Environ(), "script="+path)
	output, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	return string(output)
}

// shares tells of a table in lines.
func shares(t *testing.T, table string) []string {
	t.Helper()
	all, err := Shares(table)
	if err != nil {
		t.Fatalf("%v: %s", err, table)
	}
	var lines []string
	for _, share := range all {
		words := []string{share.String(), share.Affinity.String()}
		for _, backend := range share.Backends {
			words = append(words, backend.Addr.String())
		}
		lines = append(lines, strings.Join(words, " "))
	}
	return lines
}

func TestShares(t *testing.T) {
	const list = "\nnft -n -T list table ip kube-ovn"
	for name, test := range map[string]struct {
		commands string
		want     []string
		clean    bool
	}{
		"four fields":    {"gw nft-dnat-map-add 203.0.113.10,80,tcp,10.1.0.5:81@10.1.0.6:82", []string{"203.0.113.10:80/tcp none 0 10.1.0.5:81 10.1.0.6:82"}, true},
		"one backend":    {"gw nft-dnat-map-add 203.0.113.10,53,udp,10.1.0.5:81", []string{"203.0.113.10:53/udp none 0 10.1.0.5:81"}, true},
		"six":            {"gw nft-dnat-map-add 203.0.113.10,80,tcp,none,0,10.1.0.5:81", []string{"203.0.113.10:80/tcp none 0 10.1.0.5:81"}, true},
		"six, of two":    {"gw nft-dnat-map-add 203.0.113.10,80,tcp,clientip,600,10.1.0.5:81@10.1.0.6:81", []string{"203.0.113.10:80/tcp clientip 600 10.1.0.5:81 10.1.0.6:81"}, false},
		"another time":   {"for s in 600 60; do gw nft-dnat-map-add 203.0.113.10,80,tcp,clientip,$s,10.1.0.5:81; done", []string{"203.0.113.10:80/tcp clientip 60 10.1.0.5:81"}, false},
		"no longer six":  {"for a in clientip,600 none,0; do gw nft-dnat-map-add 203.0.113.10,80,tcp,$a,10.1.0.5:81; done", []string{"203.0.113.10:80/tcp none 0 10.1.0.5:81"}, true},
		"other backends": {"for b in 5 6; do gw nft-dnat-map-add 203.0.113.10,80,tcp,10.1.0.$b:81; done", []string{"203.0.113.10:80/tcp none 0 10.1.0.6:81"}, true},
		"gone":           {"gw nft-dnat-map-add 203.0.113.10,80,tcp,clientip,600,10.1.0.5:81; gw nft-dnat-map-del 203.0.113.10,80,tcp", nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			table := gateway(t, test.commands+list)
			if diff := cmp.Diff(test.want, shares(t, table)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if strings.Contains(table, "aff-") == test.clean {
				t.Errorf("clients' pins: %s", table)
			}
		})
	}
}

// TestVerbs has what comes go again, and the chains as they were laid.
func TestVerbs(t *testing.T) {
	before, after, _ := strings.Cut(gateway(t, `gw init eth0,net1
gw eip-add 203.0.113.10/24
nat -S; ip -4 addr show net1; ip route
echo ====
gw dnat-add 203.0.113.10,22,tcp,10.1.0.5,23
gw snat-add 203.0.113.10,10.1.0.0/24
gw floating-ip-add 203.0.113.10,10.1.0.9
gw eip-add 203.0.113.11/24
gw subnet-route-add 10.2.0.0/24,10.1.0.1
test "$(nat -S | wc -l)" = 24
gw dnat-del 203.0.113.10,22,tcp
gw snat-del 203.0.113.10,10.1.0.0/24
gw floating-ip-del 203.0.113.10,10.1.0.9
gw eip-del 203.0.113.11/24
gw subnet-route-del 10.2.0.0/24
gw init eth0,net1
nat -S; ip -4 addr show net1; ip route`), "====\n")
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("before and after (-want +got):\n%s", diff)
	}
	if !strings.Contains(before, "default via 203.0.113.1 dev net1") || !strings.Contains(before, "--ctorigdst 203.0.113.10 -j SNAT --to-source 203.0.113.10 --random-fully") {
		t.Errorf("an EIP was added, but there is: %s", before)
	}
}

func TestNeedsInit(t *testing.T) {
	for _, call := range []string{"eip-add 203.0.113.10/24", "dnat-del 203.0.113.10,22,tcp", "snat-add 203.0.113.10,10.1.0.0/24", "floating-ip-add 203.0.113.10,10.1.0.9"} {
		if got := gateway(t, "gw "+call+" && exit 1 || true"); got != "nat gateway not initialized\n" {
			t.Errorf("%s: %q", call, got)
		}
	}
}

// TestInterfaces has the other verbs use those that init was told.
func TestInterfaces(t *testing.T) {
	rules := gateway(t, `ip link set net1 name ext1
gw init eth0,ext1
gw eip-add 203.0.113.10/24
gw snat-add 203.0.113.10,10.1.0.0/24
nat -S SHARED_SNAT; ip -4 addr show ext1`)
	if !strings.Contains(rules, "-A SHARED_SNAT -s 10.1.0.0/24 -o ext1 -j SNAT --to-source 203.0.113.10") || !strings.Contains(rules, "203.0.113.10/24") {
		t.Errorf("%s", rules)
	}
}
