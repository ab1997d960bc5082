// SPDX-License-Identifier: Apache-2.0

package vpcnatgateway_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeovn/kube-ovn/pkg/natgateway"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// many is a share with so many backends.
func many(identity string, backends int) sharenat.Share {
	s := share(identity)
	for i := range backends {
		s.Backends = append(s.Backends, sharenat.Backend{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 2, byte(i / 250), byte(i%250 + 1)}), 8080), Masquerade: i%7 == 0})
	}
	return s
}

// shim puts a command in front of the one of that name.
func (g *gateway) shim(name, script string) {
	g.t.Helper()
	dir := g.t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil { //nolint:gosec // a command has to be executable
		g.t.Fatal(err)
	}
	path := os.Getenv("PATH")
	for _, e := range g.env {
		if p, ok := strings.CutPrefix(e, "PATH="); ok {
			path = p
		}
	}
	g.env = append(g.env, "PATH="+dir+":"+path)
}

func pathOf(tb testing.TB, name string) string {
	tb.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		tb.Fatal(err)
	}
	return path
}

func TestFailureChangesNothing(t *testing.T) {
	t.Parallel()
	nft, restore := "nft", "iptables-restore"
	for name, tc := range map[string]struct {
		tool, script string
		args         []string
		stdin, want  string
	}{
		"nft refuses":            {nft, `[ "$1" != -f ] || { echo "Error: no room" >&2; exit 1; }`, []string{"nft-dnat-map-sync"}, full(goodIdentity, goodBackend), "nft refused: Error: no room"},
		"nft cannot list":        {nft, `case "$*" in *list*) echo "netlink: no" >&2; exit 1;; esac`, []string{"nft-dnat-map-sync"}, full(goodIdentity, goodBackend), "reading the kernel: chains: netlink: no"},
		"nft cannot list, delta": {nft, `case "$*" in *list*) exit 1;; esac`, []string{"nft-dnat-map-del", eip + ",80,tcp"}, "", "reading the kernel"},
		"listing":                {nft, `case "$*" in *list*) echo "netlink: no" >&2; exit 1;; esac`, []string{"nft-dnat-map-list"}, "", "reading the kernel: ruleset: netlink: no"},
		"half a ruleset":         {nft, `case "$*" in *ruleset*) echo "table ip kube-ovn {"; exit 1;; esac`, []string{"nft-dnat-map-list"}, "", "reading the kernel"},
		"md5sum missing":         {"md5sum", `exit 127`, []string{"nft-dnat-map-add", eip + ",82,tcp," + p3}, "", "reading the kernel: chains"},
		"iptables refuses":       {restore, `echo no >&2; exit 4`, []string{"dnat-add", eip + ",99,tcp,10.1.0.9,99"}, "", "iptables refused: no"},
		"iptables cannot list":   {"iptables", `exit 4`, []string{"dnat-add", eip + ",99,tcp,10.1.0.9,99"}, "", "iptables cannot list nat"},
	} {
		t.Run(name, func(t *testing.T) {
			if !strings.HasPrefix(tc.tool, "iptables") {
				onlyScript(t, "it calls "+tc.tool)
			}
			t.Parallel()
			g := newGateway(t)
			g.withoutLegacy()
			g.run("", "init")
			g.run("", "eip-add", eip+"/24")
			g.set(share("tcp:80", p1, p2), sticky(60, share("udp:81", p1)))
			before := g.state()
			good := len(g.env)
			g.shim(tc.tool, tc.script+"\nexec "+pathOf(t, tc.tool)+` "$@"`)
			out, err := g.try(tc.stdin, tc.args...)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
			if out != "" {
				t.Errorf("printed %q", out)
			}
			g.env = g.env[:good]
			if diff := cmp.Diff(before, g.state()); diff != "" {
				t.Errorf("changed (-before +after):\n%s", diff)
			}
		})
	}
}

// The controller tells users of a failure once, as long as it says the same.
func TestFailureSaysTheSameAgain(t *testing.T) {
	onlyScript(t, "it calls nft and ip")
	t.Parallel()
	g := newGateway(t)
	g.run("", "init")
	for tool, call := range map[string]struct{ script, stdin, verb, arg string }{
		"nft": {`[ "$1" != -f ] || { echo "$2:7:1-20: Error: no room" >&2; exit 1; }`, full(goodIdentity, goodBackend), "nft-dnat-map-sync", ""},
		"ip":  {`[ "$1" != -batch ] || { echo "Command failed $2:1" >&2; exit 1; }`, "", "eip-add", eip + "/24"},
	} {
		good := len(g.env)
		g.shim(tool, call.script+"\nexec "+pathOf(t, tool)+` "$@"`)
		args := slices.DeleteFunc([]string{call.verb, call.arg}, func(s string) bool { return s == "" })
		_, first := g.try(call.stdin, args...)
		_, second := g.try(call.stdin, args...)
		if first == nil || second == nil || first.Error() != second.Error() {
			t.Errorf("%s: %v, then %v", tool, first, second)
		}
		g.env = g.env[:good]
	}
}

// A call that was given up must not wake up behind those that were made after it.
func TestCallDoesNotOutwaitItsCaller(t *testing.T) {
	onlyScript(t, "it calls flock")
	t.Parallel()
	g := newGateway(t)
	asked := filepath.Join(t.TempDir(), "asked")
	g.shim("flock", `echo "$2" >`+asked+"; exit 1")
	if _, err := g.try("", "init"); err == nil {
		t.Error("went on without the lock")
	}
	text, err := os.ReadFile(asked)
	if err != nil {
		t.Fatal(err)
	}
	if wait, err := time.ParseDuration(strings.TrimSpace(string(text)) + "s"); err != nil || wait > natgateway.DefaultCallTimeout-5*time.Second {
		t.Errorf("waits %s for the lock (%v), its caller %s for the call", wait, err, natgateway.DefaultCallTimeout)
	}
}

// Kernels before 6.2 refuse to delete a chain that a map element pointed to a moment ago: the change is in effect all
// the same, and what is left is nothing but empty chains that the next full state takes.
func TestChainsThatCannotBeDeletedYet(t *testing.T) {
	onlyScript(t, "it calls nft")
	t.Parallel()
	g := newGateway(t)
	g.set(share("tcp:80", p1, p2+" masquerade"), sticky(60, share("tcp:81", p1)))
	good := len(g.env)
	g.shim("nft", `[ "$1" != -f ] || [ "$2" = - ] || ! grep -q "^delete chain" "$2" || { echo "Error: Device or resource busy" >&2; exit 1; }`+"\nexec "+pathOf(t, "nft")+` "$@"`)
	g.shim("sleep", "exit 0")
	g.run("", "nft-dnat-map-del", eip+",80,tcp", eip+",81,tcp")
	l := g.listing()
	if len(l.Shares) != 0 || l.Stale == 0 {
		t.Errorf("%+v", l)
	}
	g.env = g.env[:good]
	// Their names can be taken up again as they are.
	g.set(share("tcp:80", p1), sticky(61, share("tcp:81", p1)))
	g.full(share("tcp:80", p1), sticky(61, share("tcp:81", p1)))
	g.holds(share("tcp:80", p1), sticky(61, share("tcp:81", p1)))
}

func TestCallsTakeTurns(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.run("", "init")
	var wg sync.WaitGroup
	var want []sharenat.Share
	const each = 4 // the last of them waits for all others, and the script not forever
	for i := range each {
		s := share("tcp:"+strconv.Itoa(100+i), p1, p2)
		want = append(want, s)
		wg.Go(func() {
			if _, err := g.try("", "nft-dnat-map-add", fmt.Sprintf("%s,%d,tcp,%s@%s", eip, s.Port, p1, p2)); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			if _, err := g.try("", "dnat-add", fmt.Sprintf("%s,%d,udp,10.1.0.9,%d", eip, s.Port, s.Port)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	g.holds(want...)
	if got := len(g.listing().Exclusives); got != each {
		t.Errorf("%d exclusive DNATs", got)
	}

	if ofProgram() {
		g.holdsUp(want...)
		return
	}
	// One that is held up holds up the next; and it does not hold it up by not reading its input.
	blocked := make(chan struct{})
	g2 := *g
	fifo := filepath.Join(t.TempDir(), "hold")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	g2.shim("md5sum", "cat "+fifo+"\nexec "+pathOf(t, "md5sum")+` "$@"`)
	first, second := make(chan error, 1), make(chan error, 1)
	go func() {
		close(blocked)
		_, err := g2.try("", "nft-dnat-map-add", eip+",90,tcp,"+p1)
		first <- err
	}()
	<-blocked
	hold, err := os.OpenFile(fifo, os.O_WRONLY, 0) // opens when md5sum is waiting, the lock taken
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_, err := g.try("", "nft-dnat-map-del", eip+",90,tcp")
		second <- err
	}()
	select {
	case err := <-second:
		t.Errorf("did not wait: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	hold.Close()
	if err := <-first; err != nil {
		t.Error(err)
	}
	if err := <-second; err != nil {
		t.Error(err)
	}
	g.holds(want...)
}

// holdsUp checks that a call waits for its turn, and one that only reads its input keeps nobody waiting.
func (g *gateway) holdsUp(want ...sharenat.Share) {
	g.t.Helper()
	fifo := filepath.Join(g.t.TempDir(), "hold")
	must(g.t, syscall.Mkfifo(fifo, 0o600))
	reading := g.command(g.t.Context(), "", "bash", g.script, sharenat.SyncVerb)
	input, output, err := os.Pipe()
	must(g.t, err)
	reading.Stdin = input
	must(g.t, reading.Start())
	held, called := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := g.exec("", "flock", "/proc/self/ns/net", "cat", fifo)
		held <- err
	}()
	hold, err := os.OpenFile(fifo, os.O_WRONLY, 0) // opens when cat is reading, the lock taken
	must(g.t, err)
	go func() {
		_, err := g.try("", "nft-dnat-map-del", eip+",90,tcp")
		called <- err
	}()
	select {
	case err := <-called:
		g.t.Errorf("did not wait: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	must(g.t, hold.Close())
	must(g.t, <-held)
	must(g.t, <-called)
	_, err = output.WriteString(delta("remove " + eip + " 90 tcp"))
	must(g.t, errors.Join(err, output.Close(), reading.Wait()))
	g.holds(want...)
}

// processes counts those that a call starts, in a process namespace of its own.
func (g *gateway) processes(stdin string, args ...string) int {
	g.t.Helper()
	out, err := g.exec(stdin, append([]string{"unshare", "-pm", "--fork", "--mount-proc", "bash", "-c", `bash "$@" >/dev/null && read -r n </proc/sys/kernel/ns_last_pid && echo $n`, "-", g.script}, args...)...)
	if err != nil {
		g.t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(out))
	if err != nil {
		g.t.Fatal(err)
	}
	return n
}

func TestProcessesDoNotGrow(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.run("", "init")
	encode := func(identities, backends int) string {
		var shares []sharenat.Share
		for i := range identities {
			s := many("tcp:"+strconv.Itoa(1+i), backends)
			if i%2 == 1 {
				s = sticky(60, s)
			}
			if i%3 == 0 {
				s.Protocol = "udp"
			}
			shares = append(shares, s)
		}
		in, err := sharenat.EncodeFull(normal(t, shares))
		if err != nil {
			t.Fatal(err)
		}
		return string(in)
	}
	list := func(n int, format string) (args []string) {
		for i := range n {
			args = append(args, fmt.Sprintf(format, i+1))
		}
		return args
	}
	small, large := encode(2, 1), encode(120, 40)
	g.run(encode(1, 1), "nft-dnat-map-sync")
	counts := map[string][2]int{
		"create": {g.processes(small, "nft-dnat-map-sync"), g.processes(large, "nft-dnat-map-sync")},
	}
	largeList, same := g.processes("", "nft-dnat-map-list"), g.processes(large, "nft-dnat-map-sync")
	shrink := g.processes(small, "nft-dnat-map-sync")
	counts["list"] = [2]int{g.processes("", "nft-dnat-map-list"), largeList}
	counts["same again"] = [2]int{g.processes(small, "nft-dnat-map-sync"), same}
	counts["add"] = [2]int{
		g.processes("", "nft-dnat-map-add", eip+",1000,tcp,"+p1),
		g.processes("", append([]string{"nft-dnat-map-add"}, list(50, eip+",%d,udp,clientip,9,"+p1+"@"+p2)...)...),
	}
	counts["remove"] = [2]int{
		g.processes("", "nft-dnat-map-del", eip+",1000,tcp"),
		g.processes("", append([]string{"nft-dnat-map-del"}, list(50, eip+",%d,udp")...)...),
	}
	counts["routes"] = [2]int{
		g.processes("", "subnet-route-add", "10.9.0.0/24,10.1.0.1"),
		g.processes("", append([]string{"subnet-route-add"}, list(50, "10.9.%d.0/24,10.1.0.1")...)...),
	}
	counts["dnats"] = [2]int{
		g.processes("", "dnat-add", eip+",2000,tcp,10.1.0.9,80"),
		g.processes("", append([]string{"dnat-add"}, list(50, eip+",%d,tcp,10.1.0.9,80")...)...),
	}
	for what, n := range counts {
		t.Logf("%s: %d processes for few, %d for many", what, n[0], n[1])
		if n[1] > n[0]+1 || n[0] > 30 {
			t.Errorf("%s: %d processes for few, %d for many", what, n[0], n[1])
		}
	}
	t.Logf("shrink: %d", shrink)
}

// maxRSS runs a call and gives the most memory that it or one of its children took, in KiB, and how long it was.
func (g *gateway) maxRSS(stdin string, args ...string) (int64, time.Duration) {
	g.t.Helper()
	cmd := g.command(g.t.Context(), stdin, append([]string{"bash", g.script}, args...)...)
	start := time.Now()
	if out, err := cmd.CombinedOutput(); err != nil {
		g.t.Fatalf("%v: %s", err, out)
	} else if strings.Contains(string(out), " timeout ") {
		g.t.Error("printed pins")
	}
	return cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss, time.Since(start)
}

// A map full of clients is neither read nor printed, by a listing or by an update of its identity. Not beside other
// tests: the memory of this process counts as its children's until they exec.
func TestPinsAreNotRead(t *testing.T) {
	g := newGateway(t)
	s := sticky(3600, many("tcp:80", 100))
	g.set(s)
	in, err := sharenat.EncodeDelta(normal(t, []sharenat.Share{sticky(3600, many("tcp:80", 101))}), nil)
	if err != nil {
		t.Fatal(err)
	}
	emptyUpdate, _ := g.maxRSS(string(in), "nft-dnat-map-sync")
	emptyList, _ := g.maxRSS("", "nft-dnat-map-list")

	// Not made here, for the same reason. And in portions, which fit into one message of a user namespace as well.
	const pins = 150_000
	g.must("awk", "-v", fmt.Sprint("n=", pins), "-v", "map=aff-"+hash(s), `BEGIN { for (i = 0; i < n; i += 2000) {
		printf "add element ip kube-ovn %s {", map | "nft -f -"
		for (j = i; j < i + 2000; j++) printf "%s20.%d.%d.%d timeout 3600s : 0x1", (j > i ? "," : ""), j / 65536, j / 256 % 256, j % 256 | "nft -f -"
		print "}" | "nft -f -"
		close("nft -f -") } }`)
	update, updateTime := g.maxRSS(string(in), "nft-dnat-map-sync")
	list, listTime := g.maxRSS("", "nft-dnat-map-list")
	t.Logf("update: %d KiB empty, %d KiB with %d pins (%v); list: %d KiB, %d KiB (%v)", emptyUpdate, update, pins, updateTime, emptyList, list, listTime)
	if update > emptyUpdate+8<<10 || list > emptyList+8<<10 {
		t.Error("memory grows with the pins")
	}
	// Eventually: a dump can miss an element while the kernel resizes the table.
	eventually(t, "all pins are there", func() bool {
		return strings.Count(g.must("nft", "list", "map", "ip", "kube-ovn", "aff-"+hash(s)), "expires") == pins
	})
}

// The script keeps to what all awks agree on.
func TestEveryAwk(t *testing.T) {
	onlyScript(t, "it is written in awk")
	t.Parallel()
	var tried []string
	for _, awk := range []string{"mawk", "gawk", "busybox"} {
		path, err := exec.LookPath(awk)
		if err != nil {
			continue
		}
		tried = append(tried, awk)
		command := "exec " + path
		if awk == "busybox" {
			command += " awk"
		}
		t.Run(awk, func(t *testing.T) {
			g := newGateway(t)
			g.shim("awk", command+` "$@"`)
			g.run("", "init")
			g.run("", "eip-add", eip+"/24", "203.0.113.11/24")
			g.run("", "subnet-route-add", "10.2.0.0/16,10.1.0.1")
			g.run("", "dnat-add", eip+",2222,tcp,10.1.0.9,22")
			g.run("", "dnat-add", eip+",2222,tcp,10.1.0.8,22")
			big := sticky(7200, many("udp:80", 700))
			odd := from(share("tcp:81", "255.255.255.255:65535", "0.0.0.1:1 masquerade", "128.0.0.0:32768"), "128.0.0.0/1", "192.168.0.0/16", "192.168.0.0/17", "10.0.0.9/32")
			g.run("", "nft-dnat-map-add", eip+",99,tcp,"+p1)
			g.full(big, odd)
			g.holds(big, odd)
			big.Affinity.TimeoutSeconds = 100
			g.set(big)
			g.holds(big, odd)
			l := g.listing()
			if l.Interfaces != "eth0,net1" || len(l.EIPs) != 2 || len(l.Routes) != 1 || len(l.Exclusives) != 1 {
				t.Errorf("%+v", l)
			}
			for _, b := range badStates() {
				if _, err := g.try(b.stdin, b.args...); err == nil || !strings.Contains(err.Error(), b.want) {
					t.Errorf("%q: %v, want %s", b.stdin, err, b.want)
				}
			}
			g.run("", "nft-dnat-map-del", eip+",80,udp", eip+",81,tcp")
			g.run("", "eip-del", eip+"/24")
			g.run("", "subnet-route-del", "10.2.0.0/16,10.1.0.1")
			g.run("", "dnat-del", eip+",2222,tcp")
			if l := g.listing(); len(l.Exclusives) != 0 {
				t.Errorf("%+v", l)
			}
			g.holds()
		})
	}
	t.Logf("tried %v", tried)
}

// Clients are pinned to marks; two backends that make the same mark must still be two.
func TestMarksThatCollide(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	// 2654435761 * 2 - 2654435761 * 1 = 2654435761 = 158.55.121.177.
	s := sticky(60, share("tcp:80", "158.55.121.178:1", "0.0.0.1:2"))
	g.set(s)
	g.holds(s)
}

// Leaves nothing in the room it worked in, whatever the outcome.
func TestLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.run("", "init")
	g.set(share("tcp:80", p1))
	// The tree may be in /tmp, too.
	g.must("bash", "-c", "cp ${0%/*}/nat-gateway* /run", g.script)
	g.script = "/run/nat-gateway.sh"
	g.must("mount", "-t", "tmpfs", "tmpfs", "/tmp")
	// Of a call that was killed.
	g.must("bash", "-ec", "mkdir -p /dev/shm/nat-gateway.1.2/hash; touch -d '1 hour ago' /dev/shm/nat-gateway.1.2")
	g.run("", "init")
	_, _ = g.try("nonsense", "nft-dnat-map-sync")
	_, _ = g.try("", "nft-dnat-map-add", "x")
	if left := g.must("ls", "-A", "/dev/shm", "/tmp"); left != "/dev/shm:\n\n/tmp:\n" {
		t.Errorf("left %s", left)
	}
}
