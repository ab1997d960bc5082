// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/kubeovn/kube-ovn/test/lab"
	"github.com/kubeovn/kube-ovn/test/lab/fabric"
)

// answerDeadline is how long a client waits for one answer.
const answerDeadline = 2 * time.Second

// Questions that agnhost netexec answers, by TCP (HTTP) and by UDP.
const (
	AskHostname = "hostname"
	AskClientIP = "clientip"
)

// Client is a place that connections come from.
type Client interface {
	// Name is for messages.
	Name() string
	// Ask makes count new connections, one after the other, asks each the question, and returns the answers in order. With an
	// error, the answers are those before it.
	Ask(ctx context.Context, to Target, question string, count int) ([]string, error)
}

// Target is where a client connects to.
type Target struct {
	netip.AddrPort

	UDP bool
}

// At is a Service port at an address.
func At(addr netip.Addr, port corev1.ServicePort) Target {
	return Target{AddrPort: netip.AddrPortFrom(addr, uint16(port.Port)), UDP: port.Protocol == corev1.ProtocolUDP}
}

// Network is the target's protocol as package net has it.
func (t Target) Network() string {
	if t.UDP {
		return "udp4"
	}
	return "tcp4"
}

// String implements fmt.Stringer.
func (t Target) String() string {
	return t.AddrPort.String() + "/" + strings.TrimSuffix(t.Network(), "4")
}

// OutsideClients are clients of the external network. Asked again, they are the same.
func (s *Scene) OutsideClients(ctx context.Context, count int) []Client {
	GinkgoHelper()
	for i := len(s.outside); i < count; i++ {
		if s.Lab != nil {
			s.outside = append(s.outside, &SpaceClient{name: lab.Clients[i], space: fabric.Namespace{Name: lab.Clients[i]}})
			continue
		}
		pod := s.Pod(ctx, Workload{Name: "outside" + strconv.Itoa(i+1), Annotations: map[string]string{
			"k8s.v1.cni.cncf.io/networks": SystemNamespace + "/" + ExternalSubnet,
		}})
		s.outside = append(s.outside, &podClient{cluster: s.Cluster, pod: pod})
	}
	return s.outside[:count]
}

// Outside is one client of the external network.
func (s *Scene) Outside(ctx context.Context) Client {
	GinkgoHelper()
	return s.OutsideClients(ctx, 1)[0]
}

// ClientIn makes a Pod in a Subnet and returns it as a client.
func (s *Scene) ClientIn(ctx context.Context, name, subnet string) Client {
	GinkgoHelper()
	return s.ClientOf(ctx, s.Pod(ctx, Workload{Name: name, Annotations: Primary(subnet)}))
}

// ClientOf returns a Pod of agnhost netexec as a client.
func (s *Scene) ClientOf(ctx context.Context, pod *corev1.Pod) Client {
	GinkgoHelper()
	if s.Lab == nil {
		return &podClient{cluster: s.Cluster, pod: pod}
	}
	return &SpaceClient{name: pod.Name, space: s.Space(ctx, pod)}
}

// Space is the network namespace of a Pod in the lab.
func (c *Cluster) Space(ctx context.Context, pod *corev1.Pod) fabric.Namespace {
	GinkgoHelper()
	args, err := c.Lab.PodArgs(ctx, pod.Namespace, pod.Name, "true")
	must(err, "find the network namespace of Pod %s", pod.Name)
	// ip netns exec NAME true
	return fabric.Namespace{Name: args[len(args)-2]}
}

// SpaceClient connects from a network namespace of the lab.
type SpaceClient struct {
	name  string
	space fabric.Namespace
}

// Name implements Client.
func (c *SpaceClient) Name() string { return c.name }

// Dial makes a connection. The local address may be the zero value.
func (c *SpaceClient) Dial(ctx context.Context, to Target, from netip.AddrPort) (net.Conn, error) {
	dialer := net.Dialer{Timeout: answerDeadline}
	switch {
	case !from.IsValid():
	case to.UDP:
		dialer.LocalAddr = net.UDPAddrFromAddrPort(from)
	default:
		dialer.LocalAddr = net.TCPAddrFromAddrPort(from)
	}
	var conn net.Conn
	err := c.space.Do(func() error {
		var err error
		conn, err = dialer.DialContext(ctx, to.Network(), to.AddrPort.String())
		return err
	})
	return conn, err
}

// Ask implements Client.
func (c *SpaceClient) Ask(ctx context.Context, to Target, question string, count int) ([]string, error) {
	var answers []string
	for range count {
		answer, err := c.ask(ctx, to, question)
		if err != nil {
			return answers, fmt.Errorf("%s asks %s: %w", c.name, to, err)
		}
		answers = append(answers, answer)
	}
	return answers, nil
}

func (c *SpaceClient) ask(ctx context.Context, to Target, question string) (string, error) {
	conn, err := c.Dial(ctx, to, netip.AddrPort{})
	if err != nil {
		return "", err
	}
	defer conn.Close()
	return AskOn(conn, to.UDP, question)
}

// AskOn asks a question on a connection to agnhost netexec.
func AskOn(conn net.Conn, udp bool, question string) (string, error) {
	if err := conn.SetDeadline(time.Now().Add(answerDeadline)); err != nil {
		return "", err
	}
	if udp {
		buffer := make([]byte, 512)
		if _, err := conn.Write([]byte(question)); err != nil {
			return "", err
		}
		n, err := conn.Read(buffer)
		return strings.TrimSpace(string(buffer[:n])), err
	}
	if _, err := fmt.Fprintf(conn, "GET /%s HTTP/1.1\r\nHost: e2e\r\n\r\n", question); err != nil {
		return "", err
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %s", response.Status)
	}
	return strings.TrimSpace(string(body)), err
}

// podClient asks by way of agnhost netexec in a Pod.
type podClient struct {
	cluster *Cluster
	pod     *corev1.Pod
}

// Name implements Client.
func (c *podClient) Name() string { return c.pod.Name }

// Ask implements Client.
func (c *podClient) Ask(ctx context.Context, to Target, question string, count int) ([]string, error) {
	protocol := "http"
	if to.UDP {
		protocol = "udp"
	}
	query := url.Values{
		"host": {to.Addr().String()}, "port": {strconv.Itoa(int(to.Port()))}, "protocol": {protocol},
		"request": {question}, "tries": {strconv.Itoa(count)},
	}
	out, err := c.cluster.Exec(ctx, c.pod, nil, "curl", "-sS", fmt.Sprintf("http://127.0.0.1:%d/dial?%s", HTTPPort, query.Encode()))
	if err != nil {
		return nil, err
	}
	var result struct{ Responses, Errors []string }
	if err := json.Unmarshal([]byte(out), &result); err != nil {
		return nil, fmt.Errorf("answer of %s: %w", c.pod.Name, err)
	}
	if len(result.Errors) > 0 {
		return result.Responses, fmt.Errorf("%s asks %s: %w", c.pod.Name, to, errors.New(strings.Join(result.Errors, "; ")))
	}
	return result.Responses, nil
}

// Spread counts who answered.
type Spread map[string]int

// Count makes a Spread of answers.
func Count(answers []string) Spread {
	spread := Spread{}
	for _, answer := range answers {
		spread[answer]++
	}
	return spread
}

// Who lists who answered at all, sorted.
func (s Spread) Who() []string { return slices.Sorted(maps.Keys(s)) }

// String implements fmt.Stringer, in the order of the names.
func (s Spread) String() string {
	var items []string
	for _, who := range s.Who() {
		items = append(items, fmt.Sprintf("%s: %d", who, s[who]))
	}
	return strings.Join(items, ", ")
}

// AskAll has a client make count connections, none of which may fail, and counts who answered.
func AskAll(ctx context.Context, client Client, to Target, count int) Spread {
	GinkgoHelper()
	answers, err := client.Ask(ctx, to, AskHostname, count)
	must(err, "%d of %d connections of %s to %s were answered", len(answers), count, client.Name(), to)
	return Count(answers)
}

// WaitAnswers waits until exactly these Pods answer a client: the last tries all succeed, and every Pod is among them.
func WaitAnswers(ctx context.Context, client Client, to Target, pods ...string) {
	GinkgoHelper()
	slices.Sort(pods)
	// Chances that one of n is not drawn in 12n tries: n(1-1/n)^(12n) ≈ n·e^-12; then it is tried again.
	tries := 12 * len(pods)
	Wait(ctx, func(g Gomega, ctx context.Context) {
		answers, err := client.Ask(ctx, to, AskHostname, tries)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(Count(answers).Who()).To(Equal(pods), "who answers %s at %s", client.Name(), to)
	}).Should(Succeed())
}
