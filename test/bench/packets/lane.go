// SPDX-License-Identifier: Apache-2.0

package packets

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
	"github.com/kubeovn/kube-ovn/test/lab/fabric"
)

// Who is where. Backends are behind a hop that does not exist: what is sent to it ends, unread, at the NIC of pods. A
// real server, and a real client, have the addresses of the NICs.
const (
	clientNIC, routerNIC, podsNIC = "02:00:00:00:00:01", "02:00:00:00:00:02", "02:00:00:00:00:04"
	insideNIC, nobodyNIC          = "02:00:00:00:00:03", "02:00:00:00:00:05"

	clientAddr, routerAddr = "203.0.113.100", "203.0.113.2"
	insideAddr, podsAddr   = "10.1.0.254", "10.1.0.2"
	nobodyAddr             = "10.1.0.3"

	clientNet  = "100.64.0.0/10"
	backendNet = "10.2.0.0/16"
)

// lane is a router with clients on one side and pods on the other.
type lane struct {
	clients, router, pods fabric.Namespace
	// clientIndex and podsIndex are the indices of the NICs that frames are sent from and arrive at.
	clientIndex, podsIndex int
	conntrack              *netlink.Handle
}

var lanes atomic.Int32

// newLane builds a lane; undo gets what takes it away again.
func newLane(undo func(func())) (*lane, error) {
	l := &lane{}
	n := lanes.Add(1)
	for _, s := range []struct {
		ns   *fabric.Namespace
		role string
	}{{&l.clients, "clients"}, {&l.router, "router"}, {&l.pods, "pods"}} {
		ns, err := fabric.NewNamespace(fmt.Sprintf("bench-%s-%d", s.role, n),
			fabric.Sysctl{Path: "net/ipv4/conf/all/rp_filter", Value: "0"}, fabric.Sysctl{Path: "net/ipv4/conf/default/rp_filter", Value: "0"},
			fabric.Sysctl{Path: "net/ipv6/conf/all/disable_ipv6", Value: "1"}, fabric.Sysctl{Path: "net/ipv6/conf/default/disable_ipv6", Value: "1"},
			fabric.Sysctl{Path: "net/ipv4/ip_forward", Value: "1"}, fabric.Sysctl{Path: "net/ipv4/conf/all/send_redirects", Value: "0"})
		if err != nil {
			return nil, err
		}
		undo(func() { _ = ns.Delete() })
		*s.ns = ns
	}
	return l, errors.Join(l.wire(), l.open(undo))
}

// wire lays the cables. Neighbours are known beforehand, nobody asks for them.
func (l *lane) wire() error {
	c, r, p := l.clients.Name, l.router.Name, l.pods.Name
	for _, batch := range []struct{ ns, text string }{
		{c, fmt.Sprintf("link add net1 address %s type veth peer name net1 address %s netns %s\n", clientNIC, routerNIC, r)},
		{p, fmt.Sprintf("link add eth0 address %s type veth peer name eth0 address %s netns %s\n", podsNIC, insideNIC, r)},
		{c, lines("link set lo up", "link set net1 up", "addr add "+clientAddr+"/24 dev net1",
			"neigh replace "+routerAddr+" lladdr "+routerNIC+" dev net1 nud permanent", "route add default via "+routerAddr)},
		{p, lines("link set lo up", "link set eth0 up", "addr add "+podsAddr+"/24 dev eth0",
			"neigh replace "+insideAddr+" lladdr "+insideNIC+" dev eth0 nud permanent", "route add default via "+insideAddr)},
		{r, lines("link set lo up", "link set net1 up", "link set eth0 up", "addr add "+routerAddr+"/24 dev net1", "addr add "+insideAddr+"/24 dev eth0",
			"neigh replace "+clientAddr+" lladdr "+clientNIC+" dev net1 nud permanent", "neigh replace "+podsAddr+" lladdr "+podsNIC+" dev eth0 nud permanent",
			"neigh replace "+nobodyAddr+" lladdr "+nobodyNIC+" dev eth0 nud permanent",
			"route add "+backendNet+" via "+nobodyAddr, "route add "+clientNet+" via "+clientAddr)},
	} {
		if _, err := run(batch.ns, batch.text, "ip", "-batch", "-"); err != nil {
			return err
		}
	}
	return nil
}

func lines(l ...string) string { return strings.Join(l, "\n") + "\n" }

func (l *lane) open(undo func(func())) error {
	var err error
	if l.clientIndex, err = l.index(l.clients, "net1"); err != nil {
		return err
	}
	if l.podsIndex, err = l.index(l.pods, "eth0"); err != nil {
		return err
	}
	fd, err := netns.GetFromPath(l.router.Path())
	if err != nil {
		return err
	}
	defer fd.Close()
	if l.conntrack, err = netlink.NewHandleAt(fd, unix.NETLINK_NETFILTER); err != nil {
		return fmt.Errorf("open conntrack of %s: %w", l.router.Name, err)
	}
	undo(l.conntrack.Close)
	return nil
}

func (l *lane) index(ns fabric.Namespace, name string) (index int, err error) {
	err = ns.Do(func() error {
		nic, err := net.InterfaceByName(name)
		if err == nil {
			index = nic.Index
		}
		return err
	})
	return index, err
}

// bare is the side of newBare.
const bare = "one DNAT rule"

// newBare builds a lane whose router has a single rule, which leads an identity to its only backend: what the kernel itself
// takes for translating a connection.
func newBare(undo func(func()), s sharenat.Share) (*lane, error) {
	l, err := newLane(undo)
	if err != nil {
		return nil, err
	}
	rule := fmt.Sprintf(`table ip bare {
	chain prerouting {
		type nat hook prerouting priority -100;
		ip daddr %s %s dport %d dnat to %s
	}
}
`, s.EIP, s.Protocol, s.Port, s.Backends[0].Addr)
	if _, err := run(l.router.Name, rule, "nft", "-f", "-"); err != nil {
		return nil, err
	}
	_, err = run(l.router.Name, "", "ip", "address", "add", s.EIP.String()+"/24", "dev", "net1")
	return l, err
}

// flush empties the conntrack table of the router.
func (l *lane) flush() error {
	return l.conntrack.ConntrackTableFlush(netlink.ConntrackTable)
}

// tracked is the number of connections that the router knows.
func (l *lane) tracked() (n int, err error) {
	err = l.router.Do(func() error {
		text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_count")
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err == nil {
			n, err = strconv.Atoi(strings.TrimSpace(string(text)))
		}
		return err
	})
	return n, err
}

// received is the number of packets that have come to pods.
func (l *lane) received() (n uint64, err error) {
	err = l.pods.Do(func() error {
		text, err := os.ReadFile("/proc/thread-self/net/dev")
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); f[0] == "eth0:" {
				n, err = strconv.ParseUint(f[2], 10, 64)
				return err
			}
		}
		return errors.New("no eth0")
	})
	return n, err
}

// run runs a command in a namespace, or in this one where ns is empty, and returns what it printed.
func run(ns, stdin string, args ...string) (string, error) {
	if ns != "" {
		args = append([]string{"ip", "netns", "exec", ns}, args...)
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin = strings.NewReader(stdin)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}
