// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The address plan: two VPCs with the same prefix, one of them with a second Subnet, and the default VPC.
//
//	vpc-a: net-a 10.1.0.0/24 (a1 .2, a2 .3), net-a2 10.2.0.0/24 (a3 .2)
//	vpc-b: net-b 10.1.0.0/24 (b1 .2)
//	ovn-cluster: ovn-default 10.16.0.0/16 (d1 .2, d2 .3)
//	external: gw 203.0.113.254
func testSubnet(name, vpc, provider, cidr string) *Subnet {
	prefix := netip.MustParsePrefix(cidr)
	return &Subnet{
		Name: name, VPC: vpc, Provider: provider, Prefixes: []netip.Prefix{prefix}, Gateways: []netip.Addr{prefix.Addr().Next()},
		Default: name == DefaultSubnet, NATOutgoing: vpc == DefaultVPC,
	}
}

var (
	testSubnets = []*Subnet{
		testSubnet("net-a", "a", "ovn", "10.1.0.0/24"),
		testSubnet("net-a2", "a", "ovn", "10.2.0.0/24"),
		testSubnet("net-b", "b", "ovn", "10.1.0.0/24"),
		testSubnet(DefaultSubnet, DefaultVPC, "ovn", "10.16.0.0/16"),
		testSubnet("external", "", "external.kube-system", "203.0.113.0/24"),
	}
	testVPCs = []*VPC{{Name: "a"}, {Name: "b"}, {Name: DefaultVPC}}
)

// bed is a fabric with Pods in it that answer with their name and the address they were asked from.
type bed struct {
	*Fabric

	t *testing.T
}

func (b bed) pod(name string, subnets ...*Subnet) {
	b.t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "test", UID: types.UID("uid-" + name), Annotations: map[string]string{}}}
	ns, err := b.PodNamespace(name)
	if err != nil {
		b.t.Fatal(err)
	}
	var found []chosen
	for i, subnet := range subnets {
		a := Attachment{Providers: []string{OVNProvider}, Interface: primaryInterface}
		if i > 0 {
			a = Attachment{Providers: []string{fmt.Sprintf("net%d.test.ovn", i)}, Interface: fmt.Sprintf("net%d", i), Network: "test/net"}
		}
		found = append(found, chosen{Attachment: a, Provider: a.Providers[0], Subnet: subnet})
	}
	resolution, err := assign(pod, found, b.ipam)
	if err != nil {
		b.t.Fatal(err)
	}
	placeDefaultRoute(pod, resolution.NICs)
	begin := time.Now()
	for _, nic := range resolution.NICs {
		if err := b.Attach(string(pod.UID), ns, nic); err != nil {
			b.t.Fatal(err)
		}
	}
	b.t.Logf("%s: %d NICs in %v", name, len(resolution.NICs), time.Since(begin).Round(time.Microsecond))
	b.answer(name)
}

func (b bed) answer(network string) {
	b.t.Helper()
	var listener net.Listener
	err := b.in(network, func() (err error) {
		listener, err = net.Listen("tcp", ":8080")
		return err
	})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			host, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
			_, _ = io.WriteString(conn, network+" "+host)
			_ = conn.Close()
		}
	}()
}

func (b bed) in(network string, fn func() error) error {
	if network == "node" {
		return fn()
	}
	return Namespace{Name: network}.Do(fn)
}

// ask gives the answer that somebody at an address gives; empty when nobody does.
func (b bed) ask(from, to string) string {
	var conn net.Conn
	err := b.in(from, func() (err error) {
		conn, err = net.DialTimeout("tcp", net.JoinHostPort(to, "8080"), 300*time.Millisecond)
		return err
	})
	if err != nil {
		return ""
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	answer, _ := io.ReadAll(conn)
	return string(answer)
}

// wantAnswer asks until it gets an answer, and once where it wants none.
func (b bed) wantAnswer(t *testing.T, what, from, to, want string) {
	t.Helper()
	got := b.ask(from, to)
	for deadline := time.Now().Add(time.Minute); want != "" && got == "" && time.Now().Before(deadline); {
		got = b.ask(from, to)
	}
	if got != want {
		t.Errorf("%s: %s asks %s: got %q, want %q", what, from, to, got, want)
	}
}

func TestReachability(t *testing.T) {
	f, err := sharedFabric()
	if err != nil {
		t.Fatal(err)
	}
	b := bed{Fabric: f, t: t}
	begin := time.Now()
	if err := f.apply(t.Context(), planTopology(f.config.External.Prefix, testSubnets, testVPCs)); err != nil {
		t.Fatal(err)
	}
	t.Logf("topology: %v", time.Since(begin).Round(time.Millisecond))
	netA, netA2, netB, def, external := testSubnets[0], testSubnets[1], testSubnets[2], testSubnets[3], testSubnets[4]
	b.pod("a1", netA)
	b.pod("a2", netA)
	b.pod("a3", netA2)
	b.pod("b1", netB)
	b.pod("d1", def)
	b.pod("d2", def, netA)      // dual: 10.16.0.3 and 10.1.0.4
	b.pod("gw", netA, external) // 10.1.0.5 and 203.0.113.254
	b.answer("client1")
	b.answer("upstream")
	b.answer("node")

	tests := []struct {
		name, from, to, want string
	}{
		{"same subnet", "a1", "10.1.0.3", "a2 10.1.0.2"},
		{"other subnet of the vpc", "a1", "10.2.0.2", "a3 10.1.0.2"},
		{"and back", "a3", "10.1.0.2", "a1 10.2.0.2"},
		{"overlapping address is the own vpc's", "b1", "10.1.0.2", "b1 10.1.0.2"},
		{"other vpc has no such host", "b1", "10.1.0.3", ""},
		{"other vpc's subnet", "b1", "10.2.0.2", ""},
		{"custom vpc to default vpc", "a1", "10.16.0.2", ""},
		{"custom vpc to node", "a1", "203.0.113.2", ""},
		{"custom vpc to outside without gateway", "a1", "203.0.113.101", ""},
		{"node to custom vpc", "node", "10.1.0.2", ""},
		{"outside to custom vpc", "client1", "10.1.0.2", ""},
		{"default vpc to custom vpc", "d1", "10.1.0.2", ""},
		{"node to default vpc", "node", "10.16.0.2", "d1 100.64.0.2"},
		{"default vpc to node", "d1", "203.0.113.2", "node 10.16.0.2"},
		{"default vpc to node's join address", "d1", "100.64.0.2", "node 10.16.0.2"},
		{"default vpc to outside, masqueraded", "d1", "203.0.113.101", "client1 203.0.113.2"},
		{"default vpc to far away", "d1", UpstreamHost.String(), "upstream 203.0.113.2"},
		{"default vpc within", "d1", "10.16.0.3", "d2 10.16.0.2"},
		{"primary NIC of a dual pod", "node", "10.16.0.3", "d2 100.64.0.2"},
		{"second NIC of a dual pod", "a1", "10.1.0.4", "d2 10.1.0.2"},
		{"second NIC from another subnet: the answer leaves by the first", "a3", "10.1.0.4", ""},
		{"outside to a gateway", "client1", "203.0.113.254", "gw 203.0.113.101"},
		{"node to a gateway", "node", "203.0.113.254", "gw 203.0.113.2"},
		{"clients among themselves", "client2", "203.0.113.101", "client1 203.0.113.102"},
		{"outside to node", "client1", "203.0.113.2", "node 203.0.113.101"},
		{"outside to far away", "client1", UpstreamHost.String(), "upstream 203.0.113.101"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			b.wantAnswer(t, test.name, test.from, test.to, test.want)
		})
	}

	t.Run("static route to a gateway pod, and its end", func(t *testing.T) {
		if err := f.apply(t.Context(), planTopology(f.config.External.Prefix, testSubnets, []*VPC{
			{Name: "a", Routes: []Route{{Dst: anywhere(netip.IPv4Unspecified()), Via: []netip.Addr{netip.MustParseAddr("10.1.0.5")}}}}, {Name: "b"}, {Name: DefaultVPC},
		})); err != nil {
			t.Fatal(err)
		}
		if err := b.in("gw", func() error {
			return writeSysctls([]Sysctl{{"net/ipv4/ip_forward", "1"}})
		}); err != nil {
			t.Fatal(err)
		}
		// The client knows no way back: it is enough that the packet comes, so ask the gateway's outer address.
		b.wantAnswer(t, "with the route", "a3", "203.0.113.254", "gw 10.2.0.2")
		if err := f.apply(t.Context(), planTopology(f.config.External.Prefix, testSubnets, testVPCs)); err != nil {
			t.Fatal(err)
		}
		b.wantAnswer(t, "without the route", "a3", "203.0.113.254", "")
	})

	t.Run("a subnet moves to the other vpc", func(t *testing.T) {
		moved := *netA2
		moved.VPC = "b"
		subnets := []*Subnet{netA, &moved, netB, def, external}
		if err := f.apply(t.Context(), planTopology(f.config.External.Prefix, subnets, testVPCs)); err != nil {
			t.Fatal(err)
		}
		b.wantAnswer(t, "from the new vpc", "b1", "10.2.0.2", "a3 10.1.0.2")
		b.wantAnswer(t, "from the old vpc", "a1", "10.2.0.2", "")
	})

	t.Run("detached", func(t *testing.T) {
		if err := f.Detach("uid-a2"); err != nil {
			t.Fatal(err)
		}
		f.Release("uid-a2")
		b.wantAnswer(t, "nobody has the address", "a1", "10.1.0.3", "")
		b.pod("a4", netA)
		b.wantAnswer(t, "the address's next owner", "a1", "10.1.0.3", "a4 10.1.0.2")
	})

	t.Run("extra client address", func(t *testing.T) {
		extra := netip.MustParseAddr("203.0.113.150")
		if err := f.AddClientAddress("client1", extra); err != nil {
			t.Fatal(err)
		}
		b.wantAnswer(t, "a second address of a client", "client2", extra.String(), "client1 203.0.113.102")
		_, err := f.ipam.Assign(external, Owner{PodUID: "x"}, []netip.Addr{extra})
		if err == nil {
			t.Error("the address was given to a Pod, too")
		}
	})
}
