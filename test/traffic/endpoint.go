// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"
)

// Defaults of an Endpoint.
const (
	DefaultPath    = "/hostname"
	DefaultTimeout = 2 * time.Second

	// maxAnswer bounds what is read of an answer.
	maxAnswer = 64 << 10
)

// Endpoint is whom to ask, what, and as whom.
type Endpoint struct {
	// Target is the address and port to connect to.
	Target string
	// Source is the address to connect from. Default: the kernel's choice.
	Source netip.Addr
	// Path is asked for over HTTP. Default: DefaultPath.
	Path string
	// Timeout bounds an attempt, from the first packet to the end of the answer. Default: DefaultTimeout.
	Timeout time.Duration
}

func (e *Endpoint) defaults() {
	if e.Path == "" {
		e.Path = DefaultPath
	}
	if e.Timeout == 0 {
		e.Timeout = DefaultTimeout
	}
}

func (e *Endpoint) validate() error {
	if _, err := netip.ParseAddrPort(e.Target); err != nil {
		return fmt.Errorf("target %q is not ADDRESS:PORT", e.Target)
	}
	if !strings.HasPrefix(e.Path, "/") || strings.ContainsAny(e.Path, " \r\n") {
		return fmt.Errorf("path %q is not one of a URL", e.Path)
	}
	if e.Timeout < 0 {
		return fmt.Errorf("timeout %s is negative", e.Timeout)
	}
	return nil
}

// session is one TCP connection to an Endpoint.
type session struct {
	conn   net.Conn
	reader *bufio.Reader
}

// connect opens a TCP connection. The caller closes it.
func (e *Endpoint) connect(deadline time.Time) (*session, error) {
	// The kernel's keep-alive probes would hide what the requests are to find.
	dialer := net.Dialer{Deadline: deadline, KeepAlive: -1}
	if e.Source.IsValid() {
		dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(e.Source, 0))
	}
	conn, err := dialer.Dial("tcp", e.Target)
	if err != nil {
		return nil, err
	}
	return &session{conn: conn, reader: bufio.NewReader(conn)}, nil
}

// request asks once and returns the answer. The last request of a session makes the server close it.
func (s *session) request(e *Endpoint, deadline time.Time, last bool) (string, error) {
	if err := s.conn.SetDeadline(deadline); err != nil {
		return "", err
	}
	header := ""
	if last {
		header = "Connection: close\r\n"
	}
	if _, err := fmt.Fprintf(s.conn, "GET %s HTTP/1.1\r\nHost: %s\r\n%s\r\n", e.Path, e.Target, header); err != nil {
		return "", err
	}
	response, err := http.ReadResponse(s.reader, nil)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return "", err
	}
	if response.StatusCode != http.StatusOK {
		return "", badAnswer("%s: %s", response.Status, body)
	}
	if last {
		// It is the server that closes, so that TIME_WAIT is its own and the client does not run out of ports. The answer
		// was complete before; how the connection ends does not matter to it.
		_, _ = io.Copy(io.Discard, s.conn)
	}
	return strings.TrimSpace(string(body)), nil
}

// ask opens a connection, asks once, and closes it.
func (e *Endpoint) ask() (string, error) {
	deadline := time.Now().Add(e.Timeout)
	s, err := e.connect(deadline)
	if err != nil {
		return "", err
	}
	defer s.conn.Close()
	return s.request(e, deadline, true)
}

// hostnameRequest is what netexec answers over UDP with its host's name.
const hostnameRequest = "hostname"

// socket opens a UDP socket that talks to the Endpoint only, so that the kernel reports ICMP errors on it.
func (e *Endpoint) socket(port uint16) (*net.UDPConn, error) {
	target, err := netip.ParseAddrPort(e.Target)
	if err != nil {
		return nil, err
	}
	source := e.Source
	if !source.IsValid() {
		source = netip.IPv4Unspecified()
		if target.Addr().Is6() {
			source = netip.IPv6Unspecified()
		}
	}
	return net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(source, port)), net.UDPAddrFromAddrPort(target))
}

// askUDP sends one datagram from a new port and waits for the answer.
func (e *Endpoint) askUDP() (string, error) {
	conn, err := e.socket(0)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(e.Timeout)); err != nil {
		return "", err
	}
	if _, err := conn.Write([]byte(hostnameRequest)); err != nil {
		return "", err
	}
	answer := make([]byte, maxAnswer)
	n, err := conn.Read(answer)
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(answer[:n])), nil
}
