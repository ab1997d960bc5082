// SPDX-License-Identifier: Apache-2.0

package vpcnatgateway_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// The tests run the real script on real nftables, in a room of namespaces of their own that ends with the test process:
//
//	ext  203.0.113.100…   ──┐             ┌── p1 10.1.0.11  default via the gateway
//	  (outside clients)     br0 ─ gw ─ br1 ┼── p2 10.1.0.12
//	                   net1 .2    eth0 .254├── p3 10.1.0.13
//	                   EIP .10             └── d1 10.1.0.21  default by another NIC
//
// Each topology is new, the bridges live apart from the gateway (bridge netfilter would show it frames it never routed).
const (
	eip       = "203.0.113.10"
	gatewayIP = "10.1.0.254"
	inRoom    = "VPCNATGATEWAY_TEST_ROOM"
)

func TestMain(m *testing.M) {
	if os.Getenv(inRoom) == "" {
		os.Exit(enterRoom())
	}
	for _, mount := range [][3]string{{"tmpfs", "/run", "mode=0755"}, {"tmpfs", "/dev/shm", "mode=1777"}} {
		if err := unix.Mount("tmpfs", mount[1], mount[0], 0, mount[2]); err != nil {
			fmt.Fprintf(os.Stderr, "mount %s: %v\n", mount[1], err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// enterRoom runs this test binary again in namespaces of its own.
func enterRoom() int {
	for _, tool := range []string{"unshare", "nft", "iptables", "ip", "conntrack", "arping", "awk", "flock"} {
		if _, err := exec.LookPath(tool); err != nil {
			fmt.Fprintf(os.Stderr, "these tests need %s: apt-get install nftables iptables iproute2 conntrack iputils-arping util-linux\n", tool)
			return 1
		}
	}
	args := []string{"-mnp", "--fork", "--kill-child", "--mount-proc", "--"}
	if os.Geteuid() != 0 {
		args = append([]string{"-Ur"}, args...)
	}
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	cmd := exec.Command("unshare", append(append(args, self), os.Args[1:]...)...)
	cmd.Env = append(os.Environ(), inRoom+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return exit.ExitCode()
		}
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// gateway is a network namespace in which the script runs.
type gateway struct {
	t      testing.TB
	ns     string
	script string
	env    []string
}

var namespaces atomic.Int32

func newNamespace(tb testing.TB, role string) string {
	tb.Helper()
	ns := fmt.Sprintf("%s-%d", role, namespaces.Add(1))
	shell(tb, "ip netns add "+ns+" && ip -n "+ns+" link set lo up")
	tb.Cleanup(func() { shell(tb, "ip netns del "+ns) })
	return ns
}

// newGateway is a gateway without a network around it.
func newGateway(tb testing.TB) *gateway {
	tb.Helper()
	ns := newNamespace(tb, "gw")
	shell(tb, fmt.Sprintf(`ip -n %[1]s link add eth0 type veth peer name eth0p
		ip -n %[1]s link add net1 type veth peer name net1p
		for i in eth0 net1 eth0p net1p; do ip -n %[1]s link set $i up; done
		ip -n %[1]s addr add %[2]s/24 dev eth0; ip -n %[1]s addr add 203.0.113.2/24 dev net1`, ns, gatewayIP))
	return &gateway{t: tb, ns: ns, script: scriptPath(tb), env: []string{"GATEWAY_V4=203.0.113.1"}}
}

func scriptPath(tb testing.TB) string {
	tb.Helper()
	path, err := filepath.Abs("nat-gateway.sh")
	if err != nil {
		tb.Fatal(err)
	}
	// go test sees what the tests themselves look at, not what bash reads: without this a changed script would get the cached result of the old one.
	if _, err := os.Stat(path); err != nil {
		tb.Fatal(err)
	}
	return path
}

// try runs the script and gives its output and its error, stderr included.
func (g *gateway) try(stdin string, args ...string) (string, error) {
	g.t.Helper()
	return g.exec(stdin, append([]string{"bash", g.script}, args...)...)
}

// run is a try that has to succeed.
func (g *gateway) run(stdin string, args ...string) string {
	g.t.Helper()
	out, err := g.try(stdin, args...)
	if err != nil {
		g.t.Fatalf("nat-gateway.sh %s: %v", strings.Join(args, " "), err)
	}
	return out
}

// command is one that will run in the gateway.
func (g *gateway) command(ctx context.Context, stdin string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", g.ns}, args...)...)
	cmd.Env = append(os.Environ(), g.env...)
	cmd.Stdin = strings.NewReader(stdin)
	return cmd
}

// exec runs a command in the gateway.
func (g *gateway) exec(stdin string, args ...string) (string, error) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := g.command(ctx, stdin, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%w: %s", err, strings.TrimSpace(stderr.String()))
	}
	if stderr.Len() > 0 {
		g.t.Logf("%s: stderr: %s", strings.Join(args, " "), stderr.String())
	}
	return stdout.String(), nil
}

// must is an exec that has to succeed.
func (g *gateway) must(args ...string) string {
	g.t.Helper()
	out, err := g.exec("", args...)
	if err != nil {
		g.t.Fatalf("%s: %v", strings.Join(args, " "), err)
	}
	return out
}

// iptables runs the one that Kube-OVN's own script takes: legacy iptables wherever it works.
func (g *gateway) iptables(args ...string) string {
	g.t.Helper()
	if _, err := g.exec("", "iptables-legacy", "-t", "nat", "-S", "INPUT", "1"); err == nil {
		return g.must(append([]string{"iptables-legacy"}, args...)...)
	}
	return g.must(append([]string{"iptables"}, args...)...)
}

func (g *gateway) nft(script string) {
	g.t.Helper()
	if _, err := g.exec(script, "nft", "-f", "-"); err != nil {
		g.t.Fatalf("nft: %v", err)
	}
}

// state is all that a call could change, for comparing before and after.
func (g *gateway) state() string {
	g.t.Helper()
	return g.must("bash", "-c", "nft -s list ruleset 2>/dev/null; iptables-save 2>/dev/null | grep -v '^#'; iptables-legacy-save 2>/dev/null | sed '/^#/d; s/\\[.*\\]//'; ip -4 addr; ip route; ls -A /dev/shm")
}

func (g *gateway) listing() *sharenat.Listing {
	g.t.Helper()
	out := g.run("", sharenat.ListVerb)
	l, err := sharenat.ParseListing(strings.NewReader(out))
	if err != nil {
		g.t.Fatalf("%v in\n%s", err, out)
	}
	return l
}

func (g *gateway) full(shares ...sharenat.Share) {
	g.t.Helper()
	in, err := sharenat.EncodeFull(normal(g.t, shares))
	if err != nil {
		g.t.Fatal(err)
	}
	g.run(string(in), sharenat.SyncVerb)
}

func (g *gateway) delta(set []sharenat.Share, remove ...sharenat.Identity) {
	g.t.Helper()
	in, err := sharenat.EncodeDelta(normal(g.t, set), remove)
	if err != nil {
		g.t.Fatal(err)
	}
	g.run(string(in), sharenat.SyncVerb)
}

func (g *gateway) set(shares ...sharenat.Share) {
	g.t.Helper()
	g.delta(shares)
}

// normal brings the shares into canonical form.
func normal(tb testing.TB, shares []sharenat.Share) []sharenat.Share {
	tb.Helper()
	for i := range shares {
		shares[i].Normalize()
		if err := shares[i].Validate(); err != nil {
			tb.Fatal(err)
		}
	}
	return shares
}

// holds checks that the kernel holds exactly these shares, by their digests.
func (g *gateway) holds(shares ...sharenat.Share) {
	g.t.Helper()
	want := map[sharenat.Identity]sharenat.Holding{}
	for _, s := range normal(g.t, shares) {
		want[s.Identity] = sharenat.Holding{Digest: s.Digest(), Backends: len(s.Backends)}
	}
	l := g.listing()
	for id, w := range want {
		if got := l.Shares[id]; got != w {
			g.t.Errorf("%s: holds %v, want %v", id, got, w)
		}
	}
	for id := range l.Shares {
		if _, ok := want[id]; !ok {
			g.t.Errorf("%s: still there", id)
		}
	}
	if l.Stale != 0 {
		g.t.Errorf("%d stale objects", l.Stale)
	}
	if g.t.Failed() {
		g.t.Fatalf("ruleset:\n%s", g.must("nft", "list", "ruleset", "ip"))
	}
}

// share builds one: share("tcp:80", "10.1.0.11:8080", "10.1.0.12:8080 masquerade").
func share(identity string, backends ...string) sharenat.Share {
	proto, port, _ := strings.Cut(identity, ":")
	n, _ := strconv.ParseUint(port, 10, 16)
	s := sharenat.Share{Identity: sharenat.Identity{EIP: netip.MustParseAddr(eip), Port: uint16(n), Protocol: sharenat.Protocol(proto)}}
	for _, b := range backends {
		addr, masquerade := strings.CutSuffix(b, " masquerade")
		s.Backends = append(s.Backends, sharenat.Backend{Addr: netip.MustParseAddrPort(addr), Masquerade: masquerade})
	}
	return s
}

func sticky(timeout int32, s sharenat.Share) sharenat.Share {
	s.Affinity = sharenat.Affinity{ClientIP: true, TimeoutSeconds: timeout}
	return s
}

func from(s sharenat.Share, prefixes ...string) sharenat.Share {
	for _, p := range prefixes {
		s.Sources = append(s.Sources, netip.MustParsePrefix(p))
	}
	return s
}

func shell(tb testing.TB, script string) {
	tb.Helper()
	if out, err := exec.Command("bash", "-euc", script).CombinedOutput(); err != nil {
		tb.Fatalf("%s: %v: %s", script, err, out)
	}
}

// network is a gateway with clients outside and pods in its VPC.
type network struct {
	*gateway
	ext  string
	pods map[string]string // name → namespace
}

var podIP = map[string]string{"p1": "10.1.0.11", "p2": "10.1.0.12", "p3": "10.1.0.13", "d1": "10.1.0.21"}

func newNetwork(t *testing.T, pods ...string) *network {
	t.Helper()
	n := &network{gateway: &gateway{t: t, ns: newNamespace(t, "gw"), script: scriptPath(t)}, ext: newNamespace(t, "ext"), pods: map[string]string{}}
	sw := newNamespace(t, "sw")
	var b strings.Builder
	fmt.Fprintf(&b, "ip -n %[1]s link add br0 type bridge; ip -n %[1]s link add br1 type bridge; ip -n %[1]s link set br0 up; ip -n %[1]s link set br1 up\n", sw)
	plug := func(ns, dev, bridge, cidr string) {
		peer := strings.ReplaceAll(ns, "-", "") + dev[:1]
		fmt.Fprintf(&b, "ip -n %s link add %s type veth peer name %s netns %s\n", ns, dev, peer, sw)
		fmt.Fprintf(&b, "ip -n %[1]s link set %[2]s master %[3]s; ip -n %[1]s link set %[2]s up\n", sw, peer, bridge)
		fmt.Fprintf(&b, "ip -n %[1]s link set %[2]s up; ip -n %[1]s addr add %[3]s dev %[2]s\n", ns, dev, cidr)
	}
	plug(n.ns, "eth0", "br1", gatewayIP+"/24")
	plug(n.ns, "net1", "br0", "203.0.113.2/24")
	plug(n.ext, "eth0", "br0", "203.0.113.100/24")
	for i := 101; i < 110; i++ {
		fmt.Fprintf(&b, "ip -n %s addr add 203.0.113.%d/24 dev eth0\n", n.ext, i)
	}
	for _, pod := range pods {
		ns := newNamespace(t, pod)
		n.pods[pod] = ns
		plug(ns, "eth0", "br1", podIP[pod]+"/24")
		if strings.HasPrefix(pod, "d") { // the default route leaves by another NIC
			fmt.Fprintf(&b, "ip -n %[1]s link add prim type veth peer name primp; ip -n %[1]s link set prim up; ip -n %[1]s link set primp up\n", ns)
			fmt.Fprintf(&b, "ip -n %[1]s addr add 10.16.0.5/16 dev prim; ip -n %[1]s route add default via 10.16.0.1 dev prim; ip -n %[1]s route add %[2]s via %[3]s dev eth0\n", ns, eip, gatewayIP)
		} else {
			fmt.Fprintf(&b, "ip -n %s route add default via %s\n", ns, gatewayIP)
		}
	}
	shell(t, b.String())
	for _, pod := range pods {
		n.serve(pod)
	}
	n.run("", "init")
	n.run("", "eip-add", eip+"/24")
	return n
}

// in runs f on a thread that is in a namespace; the thread ends with it.
func in(ns string, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked, so that the thread is thrown away
		fd, err := os.Open("/run/netns/" + ns)
		if err == nil {
			defer fd.Close()
			err = unix.Setns(int(fd.Fd()), unix.CLONE_NEWNET)
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// serve answers on TCP and UDP 8080 of a pod with the pod's name and the client's address as seen.
func (n *network) serve(pod string) {
	n.t.Helper()
	var tcp net.Listener
	var udp net.PacketConn
	err := in(n.pods[pod], func() (err error) {
		if tcp, err = net.Listen("tcp4", ":8080"); err != nil {
			return err
		}
		udp, err = net.ListenPacket("udp4", ":8080")
		return err
	})
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { tcp.Close(); udp.Close() })
	go func() {
		for {
			c, err := tcp.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				fmt.Fprintf(c, "%s %s\n", pod, c.RemoteAddr().(*net.TCPAddr).IP)
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	go func() {
		buf := make([]byte, 100)
		for {
			_, from, err := udp.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = udp.WriteTo([]byte(pod+" "+from.(*net.UDPAddr).IP.String()+"\n"), from)
		}
	}()
}

// patience is how long an answer may take that will come, impatience one that will not.
const (
	patience   = 10 * time.Second
	impatience = 400 * time.Millisecond
)

// dial opens a TCP connection from an address in a namespace and reads who answered, and what client it saw.
func dial(ns, src string, port int, wait time.Duration) (c net.Conn, pod, client string, err error) {
	err = in(ns, func() error {
		d := net.Dialer{Timeout: wait}
		if src != "" {
			d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(src)}
		}
		c, err = d.Dial("tcp4", net.JoinHostPort(eip, strconv.Itoa(port)))
		return err
	})
	if err != nil {
		return nil, "", "", err
	}
	_ = c.SetReadDeadline(time.Now().Add(wait))
	pod, client, err = answer(c)
	return c, pod, client, err
}

func answer(c io.Reader) (pod, client string, err error) {
	buf := make([]byte, 100)
	n, err := c.Read(buf)
	if err != nil {
		return "", "", err
	}
	pod, client, _ = strings.Cut(strings.TrimSpace(string(buf[:n])), " ")
	return pod, client, nil
}

// visit is one connection; who answered, and what client it saw.
func (n *network) visit(ns, src string, port int) (pod, client string) {
	n.t.Helper()
	c, pod, client, err := dial(ns, src, port, patience)
	if err != nil {
		n.t.Fatalf("from %s %s to %d: %v\n%s", ns, src, port, err, n.must("nft", "list", "ruleset", "ip"))
	}
	c.Close()
	return pod, client
}

// unanswered checks that a connection is not.
func (n *network) unanswered(ns, src string, port int) {
	n.t.Helper()
	if c, pod, _, err := dial(ns, src, port, impatience); err == nil {
		c.Close()
		n.t.Fatalf("from %s %s to %d: %s answered", ns, src, port, pod)
	}
}

// visits counts who answers some connections, eight at a time.
func (n *network) visits(ns, src string, port, times int) map[string]int {
	n.t.Helper()
	var mu sync.Mutex
	var wg sync.WaitGroup
	count := map[string]int{}
	slots := make(chan struct{}, 8)
	for range times {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			c, pod, _, err := dial(ns, src, port, patience)
			if err != nil {
				pod = err.Error()
			} else {
				c.Close()
			}
			mu.Lock()
			count[pod]++
			mu.Unlock()
		})
	}
	wg.Wait()
	return count
}

// eventually waits for a condition of the kernel's own clock.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !cond(); {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
