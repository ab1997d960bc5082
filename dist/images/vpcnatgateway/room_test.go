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
// A gateway has directories of its own where the script keeps what it has to remember, as each container has; those of
// the machine are not seen.
const (
	eip       = "203.0.113.10"
	gatewayIP = "10.1.0.254"
	inRoom    = "VPCNATGATEWAY_TEST_ROOM"
	// entry chooses what the tests run: "script", nat-gateway.sh as it is here, or "program", cmd/nat-gateway.
	entry = "VPCNATGATEWAY_TEST_ENTRY"
	// built is where the program was built.
	built = "VPCNATGATEWAY_TEST_PROGRAM"
	// gateways is where a gateway's own directories are, as the tests see them: below the namespace's name.
	gateways = "/run/gateways"
)

func TestMain(m *testing.M) {
	if os.Getenv(inRoom) == "" {
		os.Exit(enterRoom())
	}
	if err := furnish(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// furnish makes what all tests share: places for names of namespaces and for gateways, and in /etc the directory that
// the gateway's image has, whether the machine has it or not.
func furnish() error {
	const upper, work = "/run/etc/upper", "/run/etc/work"
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=0755"); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	for _, dir := range []string{upper, work, gateways} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	// userxattr is what an overlay needs in a user namespace.
	layers := "userxattr,lowerdir=/etc,upperdir=" + upper + ",workdir=" + work
	if err := unix.Mount("overlay", "/etc", "overlay", 0, layers); err != nil {
		return fmt.Errorf("mount an overlay on /etc: %w", err)
	}
	if err := os.MkdirAll(etcDir, 0o755); err != nil {
		return err
	}
	// The first one makes /run/netns, which two at once cannot.
	if out, err := exec.Command("bash", "-ec", "ip netns add first; ip netns del first").CombinedOutput(); err != nil {
		return fmt.Errorf("make a network namespace: %w: %s", err, out)
	}
	return nil
}

// enterRoom runs this test binary again in namespaces of its own.
func enterRoom() int {
	for _, tool := range []string{"unshare", "nsenter", "nft", "iptables", "ip", "conntrack", "arping", "awk", "flock"} {
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
	if ofProgram() {
		dir, err := buildProgram()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		os.Setenv(built, dir)
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

// etcDir is where the script keeps what it has to remember, where it can.
const etcDir = "/etc/kube-ovn"

// gateway is a network namespace in which the script runs, with some directories of its own.
type gateway struct {
	t      testing.TB
	ns     string
	mounts *os.File // the mount namespace; without one, that of the tests
	script string
	env    []string
}

// path is where the tests find what has this path in the gateway, in one of its own directories.
func (g *gateway) path(inside string) string { return filepath.Join(gateways, g.ns, inside) }

var namespaces atomic.Int32

func newNamespace(tb testing.TB, role string) string {
	tb.Helper()
	ns := fmt.Sprintf("%s-%d", role, namespaces.Add(1))
	shell(tb, "ip netns add "+ns+" && ip -n "+ns+" link set lo up")
	tb.Cleanup(func() { shell(tb, "ip netns del "+ns) })
	return ns
}

// newBareGateway is a gateway without any interface.
func newBareGateway(tb testing.TB) *gateway {
	tb.Helper()
	g := &gateway{t: tb, ns: newNamespace(tb, "gw"), script: scriptPath(tb)}
	own := []string{etcDir, "/dev/shm", "/run"} // /run last: it hides where the others come from
	for _, dir := range own {
		if err := os.MkdirAll(g.path(dir), 0o755); err != nil {
			tb.Fatal(err)
		}
	}
	err := onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("make mounts private: %w", err)
		}
		for _, dir := range own {
			if err := unix.Mount(g.path(dir), dir, "", unix.MS_BIND, ""); err != nil {
				return fmt.Errorf("mount %s: %w", dir, err)
			}
		}
		var err error
		g.mounts, err = os.Open("/proc/thread-self/ns/mnt")
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { g.mounts.Close() })
	return g
}

// newGateway is a gateway without a network around it.
func newGateway(tb testing.TB) *gateway {
	tb.Helper()
	g := newBareGateway(tb)
	g.env = []string{"GATEWAY_V4=203.0.113.1"}
	ip(tb, g.ns, `link add eth0 type veth peer name eth0p
		link add net1 type veth peer name net1p
		link set eth0 up
		link set net1 up
		link set eth0p up
		link set net1p up
		addr add `+gatewayIP+`/24 dev eth0
		addr add 203.0.113.2/24 dev net1`)
	return g
}

func ofProgram() bool { return os.Getenv(entry) == "program" }

// buildProgram builds the program, with what calls it beside it.
func buildProgram() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "nat-gateway-test"); err != nil {
		return "", err
	}
	build := exec.Command("go", "build", "-trimpath", "-o", dir, "../../../cmd/nat-gateway")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", errors.Join(fmt.Errorf("go build: %w: %s", err, out), os.RemoveAll(dir))
	}
	const script = "exec \"${BASH_SOURCE[0]%/*}/nat-gateway\" \"$@\"\n"
	return dir, os.WriteFile(filepath.Join(dir, "nat-gateway.sh"), []byte(script), 0o600)
}

// onlyScript skips what is about how the script does it, not about what it does.
func onlyScript(tb testing.TB, why string) {
	tb.Helper()
	if ofProgram() {
		tb.Skip("of the script only: " + why)
	}
}

func scriptPath(tb testing.TB) string {
	tb.Helper()
	if ofProgram() {
		return filepath.Join(os.Getenv(built), "nat-gateway.sh")
	}
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
	enter := []string{"--net=/run/netns/" + g.ns}
	if g.mounts != nil {
		enter = append(enter, fmt.Sprintf("--mount=/proc/%d/fd/%d", os.Getpid(), g.mounts.Fd()))
	}
	cmd := exec.CommandContext(ctx, "nsenter", append(append(enter, "--"), args...)...)
	cmd.Env = append(os.Environ(), g.env...)
	cmd.Stdin = strings.NewReader(stdin)
	return cmd
}

// exec runs a command in the gateway.
func (g *gateway) exec(stdin string, args ...string) (string, error) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
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

// ip runs a batch of commands of ip in a namespace.
func ip(tb testing.TB, ns, batch string) {
	tb.Helper()
	cmd := exec.Command("ip", "-n", ns, "-batch", "-")
	cmd.Stdin = strings.NewReader(batch)
	if out, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("ip -n %s: %s: %v: %s", ns, batch, err, out)
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
	n := &network{gateway: newBareGateway(t), ext: newNamespace(t, "ext"), pods: map[string]string{}}
	sw := newNamespace(t, "sw")
	plugs := "link add br0 type bridge\nlink add br1 type bridge\nlink set br0 up\nlink set br1 up\n"
	plug := func(ns, dev, bridge, cidr, more string) {
		peer := strings.ReplaceAll(ns, "-", "") + dev[:1]
		ip(t, ns, fmt.Sprintf("link add %[1]s type veth peer name %[2]s netns %[3]s\nlink set %[1]s up\naddr add %[4]s dev %[1]s\n", dev, peer, sw, cidr)+more)
		plugs += fmt.Sprintf("link set %[1]s master %[2]s\nlink set %[1]s up\n", peer, bridge)
	}
	plug(n.ns, "eth0", "br1", gatewayIP+"/24", "")
	plug(n.ns, "net1", "br0", "203.0.113.2/24", "")
	var more strings.Builder
	for i := 101; i < 110; i++ {
		fmt.Fprintf(&more, "addr add 203.0.113.%d/24 dev eth0\n", i)
	}
	plug(n.ext, "eth0", "br0", "203.0.113.100/24", more.String())
	for _, pod := range pods {
		ns := newNamespace(t, pod)
		n.pods[pod] = ns
		routes := "route add default via " + gatewayIP + "\n"
		if strings.HasPrefix(pod, "d") { // the default route leaves by another NIC
			routes = "link add prim type veth peer name primp\nlink set prim up\nlink set primp up\naddr add 10.16.0.5/16 dev prim\n" +
				"route add default via 10.16.0.1 dev prim\nroute add " + eip + " via " + gatewayIP + " dev eth0\n"
		}
		plug(ns, "eth0", "br1", podIP[pod]+"/24", routes)
	}
	ip(t, sw, plugs)
	for _, pod := range pods {
		n.serve(pod)
	}
	n.run("", "init")
	n.run("", "eip-add", eip+"/24")
	return n
}

// onThread runs f on a thread of its own, which may change its namespaces: it ends with f.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked, so that the thread is thrown away
		done <- f()
	}()
	return <-done
}

// in runs f on a thread that is in a network namespace.
func in(ns string, f func() error) error {
	return onThread(func() error {
		fd, err := os.Open("/run/netns/" + ns)
		if err != nil {
			return err
		}
		defer fd.Close()
		if err := unix.Setns(int(fd.Fd()), unix.CLONE_NEWNET); err != nil {
			return err
		}
		return f()
	})
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
			n, from, err := udp.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = udp.WriteTo(fmt.Appendf(nil, "%s %s %s\n", pod, from.(*net.UDPAddr).IP, buf[:n]), from)
		}
	}()
}

// patience is how long an answer may take that will come, impatience one that will not. A machine may be slow, and
// have more to do than these tests: what will come is waited for long.
const (
	patience    = time.Minute
	impatience  = 400 * time.Millisecond
	callTimeout = 10 * time.Minute
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
	for deadline := time.Now().Add(2 * patience); !cond(); {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
