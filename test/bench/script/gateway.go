// SPDX-License-Identifier: Apache-2.0

package script

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
	"github.com/kubeovn/kube-ovn/test/bench"
	"github.com/kubeovn/kube-ovn/test/lab/fabric"
)

// The network of a gateway under measurement: a client, the gateway, and one host that has every address of 10.0.0.0/8,
// so that any backend answers.
//
//	client 198.51.100.2 ── ext [gateway] vpc ── 10.255.255.2 backends: 10.0.0.0/8
const (
	wiring = `
		ip link add ext type veth peer name eth0 netns %[2]s
		ip link add vpc type veth peer name eth0 netns %[3]s
		ip addr add 198.51.100.1/24 dev ext; ip link set ext up
		ip addr add 10.255.255.1/30 dev vpc; ip link set vpc up
		ip route add 10.0.0.0/8 via 10.255.255.2
		ip -n %[2]s addr add 198.51.100.2/24 dev eth0; ip -n %[2]s link set eth0 up; ip -n %[2]s route add default via 198.51.100.1
		ip -n %[3]s link set lo up; ip -n %[3]s addr add 10.255.255.2/30 dev eth0; ip -n %[3]s link set eth0 up
		ip -n %[3]s route add default via 10.255.255.1; ip -n %[3]s route add local 10.0.0.0/8 dev lo
		: %[1]s`
	backendPort = 8080
	patience    = 10 * time.Second
)

var gateways atomic.Int32

// gateway is a network namespace that the script programs.
type gateway struct {
	ns, client fabric.Namespace
	script     string
}

func newGateway(ctx context.Context, env *bench.Env) (*gateway, error) {
	script, err := findScript()
	if err != nil {
		return nil, err
	}
	n := gateways.Add(1)
	spaces := make([]fabric.Namespace, 3)
	for i, role := range []string{"gateway", "client", "backends"} {
		ns, err := fabric.NewNamespace(fmt.Sprintf("bench-%s-%d", role, n), fabric.Sysctl{Path: "net/ipv4/ip_forward", Value: "1"})
		if err != nil {
			return nil, err
		}
		env.Cleanup(func() { _ = ns.Delete() }) // the room goes with it, if need be
		spaces[i] = ns
	}
	g := &gateway{ns: spaces[0], client: spaces[1], script: script}
	if _, err := g.run(ctx, nil, "sh", "-euc", fmt.Sprintf(wiring, g.ns.Name, g.client.Name, spaces[2].Name)); err != nil {
		return nil, err
	}
	return g, serve(env, spaces[2])
}

// findScript returns the script of this tree, wherever in it we are.
func findScript() (string, error) {
	const inTree = "dist/images/vpcnatgateway/nat-gateway.sh"
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		path := filepath.Join(dir, inTree)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("neither %s nor a directory above it has %s", start, inTree)
		}
	}
}

// serve has the backends tell whoever connects which of them they are.
func serve(env *bench.Env, backends fabric.Namespace) error {
	var listener net.Listener
	err := backends.Do(func() (err error) {
		listener, err = net.Listen("tcp4", fmt.Sprintf(":%d", backendPort))
		return err
	})
	if err != nil {
		return err
	}
	env.Cleanup(func() { listener.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return // closed
			}
			_, _ = io.WriteString(c, c.LocalAddr().String()) // the client sees what is missing
			c.Close()
		}
	}()
	return nil
}

// visit connects to an identity and returns which backend answered.
func (g *gateway) visit(ctx context.Context, id sharenat.Identity) (backend string, err error) {
	err = g.client.Do(func() error {
		dialer := net.Dialer{Timeout: patience}
		c, err := dialer.DialContext(ctx, "tcp4", fmt.Sprintf("%s:%d", id.EIP, id.Port))
		if err != nil {
			return err
		}
		defer c.Close()
		if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		answer, err := io.ReadAll(c)
		backend = string(answer)
		return err
	})
	return backend, err
}

// call is a run of a command in the gateway.
type call struct {
	took   time.Duration
	cpu    time.Duration // of all its processes
	stdout []byte
	// memory is the most that the processes of the call had resident together, where it was asked for.
	memory int64
}

// run runs a command in the gateway and times it; entering the namespace is not part of it.
func (g *gateway) run(ctx context.Context, stdin []byte, argv ...string) (call, error) {
	return g.runWatched(ctx, stdin, false, argv...)
}

func (g *gateway) runWatched(ctx context.Context, stdin []byte, watch bool, argv ...string) (call, error) {
	var c call
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &stdout, &stderr
	err := g.ns.Do(func() error {
		start := time.Now()
		if err := cmd.Start(); err != nil {
			return err
		}
		stop := func() int64 { return 0 }
		if watch {
			stop = watchMemory(cmd.Process.Pid)
		}
		err := cmd.Wait()
		c.took = time.Since(start)
		c.cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
		c.memory = stop()
		return err
	})
	c.stdout = stdout.Bytes()
	if err != nil {
		return c, fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, strings.TrimSpace(stderr.String()))
	}
	return c, nil
}

// sync hands the script a state.
func (g *gateway) sync(ctx context.Context, input []byte) (call, error) {
	return g.run(ctx, input, "bash", g.script, sharenat.SyncVerb)
}

// list has the script say what there is.
func (g *gateway) list(ctx context.Context) (call, error) {
	return g.run(ctx, nil, "bash", g.script, sharenat.ListVerb)
}

// load has nft do a transaction that is in a file, as the script does it.
func (g *gateway) load(ctx context.Context, file string) (call, error) {
	return g.run(ctx, nil, "nft", "-f", file)
}

// set writes shares beside what is there.
func (g *gateway) set(ctx context.Context, shares ...sharenat.Share) error {
	input, err := sharenat.EncodeDelta(shares, nil)
	if err != nil {
		return err
	}
	_, err = g.sync(ctx, input)
	return err
}

// full writes shares, and removes all others.
func (g *gateway) full(ctx context.Context, shares []sharenat.Share) error {
	input, err := sharenat.EncodeFull(shares)
	if err != nil {
		return err
	}
	_, err = g.sync(ctx, input)
	return err
}

// holds checks by the listing that the gateway holds exactly these shares, and by connections that one of them works.
func (g *gateway) holds(ctx context.Context, shares []sharenat.Share, sampled sharenat.Share) error {
	out, err := g.list(ctx)
	if err != nil {
		return err
	}
	listing, err := sharenat.ParseListing(bytes.NewReader(out.stdout))
	if err != nil {
		return err
	}
	if len(listing.Shares) != len(shares) || listing.Stale != 0 {
		return fmt.Errorf("%d identities and %d stale objects in the kernel, want %d and none", len(listing.Shares), listing.Stale, len(shares))
	}
	for i := range shares {
		want := sharenat.Holding{Digest: shares[i].Digest(), Backends: len(shares[i].Backends)}
		if got := listing.Shares[shares[i].Identity]; got != want {
			return fmt.Errorf("%s: the kernel holds %v, want %v", shares[i].Identity, got, want)
		}
	}
	return g.carries(ctx, sampled)
}

// carries checks by connections that an identity leads to its backends, and to one only where clients stay with theirs.
func (g *gateway) carries(ctx context.Context, s sharenat.Share) error {
	const visits = 20
	backends := map[string]bool{}
	for _, b := range s.Backends {
		backends[b.Addr.String()] = true
	}
	met := map[string]bool{}
	for range visits {
		backend, err := g.visit(ctx, s.Identity)
		if err != nil {
			return fmt.Errorf("connect to %s: %w", s.Identity, err)
		}
		if !backends[backend] {
			return fmt.Errorf("%s: answered by %q, which is not a backend of it", s.Identity, backend)
		}
		met[backend] = true
	}
	if s.Affinity.ClientIP && len(met) != 1 {
		return fmt.Errorf("%s: one client met %d backends", s.Identity, len(met))
	}
	if !s.Affinity.ClientIP && len(met) == 1 && len(backends) > 1 {
		return fmt.Errorf("%s: %d connections met one backend of %d", s.Identity, visits, len(backends))
	}
	return nil
}

// ruleset leaves in a file what nft reads to replace the gateway's table by itself.
func (g *gateway) ruleset(ctx context.Context, env *bench.Env) (string, error) {
	out, err := g.run(ctx, nil, "nft", "list", "table", "ip", "kube-ovn")
	if err != nil {
		return "", err
	}
	return tempFile(env, append([]byte("add table ip kube-ovn\ndelete table ip kube-ovn\n"), out.stdout...))
}

func tempFile(env *bench.Env, content []byte) (string, error) {
	dir, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return "", err
	}
	env.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "rules.nft")
	return path, os.WriteFile(path, content, 0o600)
}

// clear takes all rules away.
func (g *gateway) clear(ctx context.Context) error {
	_, err := g.run(ctx, nil, "nft", "flush ruleset")
	return err
}
