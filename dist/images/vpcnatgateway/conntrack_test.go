// SPDX-License-Identifier: Apache-2.0

package vpcnatgateway_test

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// talker is a UDP client that keeps its source port.
type talker struct {
	t testing.TB
	net.Conn
	asked int
}

func (n *network) talk(src string, port int) *talker {
	n.t.Helper()
	var c net.Conn
	err := in(n.ext, func() (err error) {
		c, err = (&net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(src)}}).Dial("udp4", net.JoinHostPort(eip, strconv.Itoa(port)))
		return err
	})
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { c.Close() })
	return &talker{t: n.t, Conn: c}
}

// ask sends until somebody answers, or gives up. On a slow machine more may be sent than is answered at once: what comes late is the
// answer to another question, and not to the next.
func (c *talker) ask(wait time.Duration) string {
	c.t.Helper()
	c.asked++
	question := fmt.Sprintf("?%d", c.asked)
	for deadline := time.Now().Add(wait); time.Now().Before(deadline); {
		if _, err := c.Write([]byte(question)); err != nil {
			continue // port unreachable, heard from the one before
		}
		_ = c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		for {
			pod, rest, err := answer(c)
			if err != nil {
				break
			}
			if strings.HasSuffix(rest, " "+question) {
				return pod
			}
		}
	}
	return ""
}

func (g *gateway) conntrack(match string) int {
	g.t.Helper()
	count := 0
	for _, line := range strings.Split(g.must("bash", "-c", "conntrack -L 2>/dev/null"), "\n") {
		if strings.Contains(line, match) {
			count++
		}
	}
	return count
}

func TestUDPLeavesARemovedBackend(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, "p1", "p2")
	for _, s := range []sharenat.Share{share("udp:53", p1, p2), sticky(300, share("udp:54", p1, p2))} {
		n.set(s, share("udp:55", p1))
		all := map[string][]*talker{}
		for len(all["p1"]) == 0 || len(all["p2"]) == 0 {
			for _, src := range clients() {
				c := n.talk(src, int(s.Port))
				pod := c.ask(patience)
				all[pod] = append(all[pod], c)
			}
		}
		bystander := n.talk("203.0.113.109", 55)
		if pod := bystander.ask(patience); pod != "p1" {
			t.Fatalf("%q", pod)
		}
		stays := n.conntrack("src=10.1.0.12")
		s.Backends = s.Backends[1:]
		n.set(s)
		if left := n.conntrack("dport=" + strconv.Itoa(int(s.Port)) + " src=10.1.0.11"); left != 0 {
			t.Errorf("%d entries to the removed backend", left)
		}
		if now := n.conntrack("src=10.1.0.12"); now != stays {
			t.Errorf("%d of %d entries to the other", now, stays)
		}
		if n.conntrack("dport=55 src=10.1.0.11") == 0 {
			t.Error("another identity's entry to the same backend is gone")
		}
		for _, c := range all["p1"] {
			if pod := c.ask(patience); pod != "p2" {
				t.Errorf("answered by %q", pod)
			}
		}
	}
}

func TestUDPStartedBeforeTheFirstBackend(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, "p1")
	c := n.talk("203.0.113.101", 53)
	if pod := c.ask(impatience); pod != "" {
		t.Fatalf("answered by %q", pod)
	}
	n.set(share("udp:53", p1))
	if pod := c.ask(patience); pod != "p1" {
		t.Errorf("answered by %q", pod)
	}
	// And again, by a full state, after it was gone.
	n.full()
	if pod := c.ask(impatience); pod != "" {
		t.Fatalf("answered by %q", pod)
	}
	n.full(share("udp:53", p1))
	if pod := c.ask(patience); pod != "p1" {
		t.Errorf("answered by %q", pod)
	}
}

// alive tells whether a connection still carries data both ways.
func alive(c net.Conn, wait time.Duration) bool {
	_ = c.SetDeadline(time.Now().Add(wait))
	if _, err := c.Write([]byte("echo\n")); err != nil {
		return false
	}
	text, _, err := answer(c)
	return err == nil && strings.HasPrefix(text, "echo")
}

// A removal that keeps TCP cuts no connection, until the backend is forgotten; that cuts those to it and no others.
func TestKeptUntilForgotten(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, "p1", "p2")
	open := func(port int) net.Conn {
		t.Helper()
		c, _, _, err := dial(n.ext, "203.0.113.101", port, patience)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	n.set(share("tcp:80", p1), share("tcp:81", p1), share("udp:80", p1))
	kept, other := open(80), open(81)
	talk := n.talk("203.0.113.101", 80)
	if pod := talk.ask(patience); pod != "p1" {
		t.Fatalf("%q", pod)
	}
	n.run(delta("remove "+eip+" 80 tcp keep-tcp", "remove "+eip+" 80 udp keep-tcp"), "nft-dnat-map-sync")
	n.unanswered(n.ext, "203.0.113.102", 80)
	if !alive(kept, patience) {
		t.Error("a connection that was to be kept was cut")
	}
	if n.conntrack("src=10.1.0.11 dst=203.0.113.101 sport=8080") != 2 {
		t.Error("not the two TCP connections that stay, or UDP was kept too")
	}
	// It comes back with another backend, and the first one is forgotten.
	n.set(share("tcp:80", p2))
	n.run(delta("forget "+eip+" 80 tcp 10.1.0.12 8081"), "nft-dnat-map-sync")
	if !alive(kept, patience) {
		t.Error("forgetting another backend cut the connection")
	}
	fresh := open(80)
	n.run(delta("forget "+eip+" 80 TCP "+strings.ReplaceAll(p1, ":", " ")), "nft-dnat-map-sync")
	if alive(kept, impatience) {
		t.Error("a connection to a forgotten backend lives")
	}
	if !alive(fresh, patience) || !alive(other, patience) {
		t.Error("others were cut")
	}
}

// conntrack deletes by a connection's original addresses and ports. Of a connection that is over, these can be those of a new one to another
// backend by then: it is left alone.
func TestConnectionsThatAreOverAreLeft(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	add := func(state, port string) {
		g.must("conntrack", "-I", "-p", "tcp", "--state", state, "-s", "203.0.113.101", "--sport", port, "-d", eip, "--dport", "80",
			"-r", "10.1.0.11", "--reply-port-src", "8080", "-q", "203.0.113.101", "--reply-port-dst", port, "--timeout", "100")
	}
	over := map[string]string{"TIME_WAIT": "1001", "CLOSE": "1002"}
	going := map[string]string{"ESTABLISHED": "1003", "FIN_WAIT": "1004", "CLOSE_WAIT": "1005", "LAST_ACK": "1006", "SYN_RECV": "1007", "SYN_SENT": "1008"}
	for name, forget := range map[string]string{
		"forgotten": "forget " + eip + " 80 tcp " + strings.ReplaceAll(p1, ":", " "),
		"removed":   "remove " + eip + " 80 tcp",
	} {
		g.set(share("tcp:80", p1))
		g.must("bash", "-c", "conntrack -F 2>/dev/null")
		for _, states := range []map[string]string{over, going} {
			for state, port := range states {
				add(state, port)
			}
		}
		if name == "forgotten" {
			g.set(share("tcp:80", p2))
		}
		g.run(delta(forget), "nft-dnat-map-sync")
		for state, port := range over {
			if g.conntrack(state+" src=203.0.113.101 dst="+eip+" sport="+port+" ") != 1 {
				t.Errorf("%s: %s was taken", name, state)
			}
		}
		for state, port := range going {
			if g.conntrack(" sport="+port+" ") != 0 {
				t.Errorf("%s: %s is still there", name, state)
			}
		}
	}
}

func TestTCPStaysUntilTheIdentityGoes(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, "p1", "p2")
	n.set(share("tcp:80", p1), share("tcp:81", p1))
	c, _, _, err := dial(n.ext, "203.0.113.101", 80, patience)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	other, _, _, err := dial(n.ext, "203.0.113.101", 81, patience)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	// The backend leaves the identity, as a terminating Pod does: its connections stay.
	n.set(share("tcp:80", p2))
	n.full(share("tcp:80", p2), share("tcp:81", p1))
	if !alive(c, patience) {
		t.Error("a connection to a backend that left was cut")
	}
	out := n.run("", "nft-dnat-map-del", eip+",80,tcp", eip+",4711,udp")
	if out != "" {
		t.Errorf("printed %q", out)
	}
	if left := n.conntrack("dport=80 "); left != 0 {
		t.Errorf("%d entries of the deleted identity", left)
	}
	if alive(c, impatience) {
		t.Error("a connection outlived its identity")
	}
	if !alive(other, patience) {
		t.Error("another identity's connection was cut")
	}
	n.holds(share("tcp:81", p1))
}

// An identity that is not there is not cleaned up after: its address and port may be somebody else's, here an exclusive DNAT.
func TestRemovingWhatIsNotThereTouchesNothing(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, "p1")
	n.run("", "dnat-add", eip+",53,udp,10.1.0.11,8080")
	c := n.talk("203.0.113.101", 53)
	if pod := c.ask(patience); pod != "p1" {
		t.Fatalf("%q", pod)
	}
	n.run("", "nft-dnat-map-del", eip+",53,udp")
	if n.conntrack("dport=53 ") != 1 {
		t.Error("its entry is gone")
	}
	n.run("", "dnat-del", eip+",53,udp,10.1.0.11,8080")
	if n.conntrack("dport=53 src=10.1.0.11") != 0 {
		t.Error("the entry of a deleted exclusive DNAT is still there")
	}
}
