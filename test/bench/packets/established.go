// SPDX-License-Identifier: Apache-2.0

package packets

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
	"github.com/kubeovn/kube-ovn/test/bench"
)

// The sides of an established connection: through a gateway that holds many identities, through a router whose only rule
// translates this one, and through a router without rules, which does not track connections.
const through, plain = "gateway", "plain forwarding"

// Ports of the servers in pods; they are the same at the EIP.
const (
	iperfPort = 5201
	httpPort  = 8000
)

// atLeast is what is to be left of plain forwarding.
const atLeast = 0.95

// bystanders are identities that a gateway holds beside the one that is used.
const bystanders = 1000

// path is a lane, and where its server is reached.
type path struct {
	name   string
	lane   *lane
	server string
}

// paths builds the sides, the first and the last of which are the gateway and plain forwarding; the server is at this port.
func paths(env *bench.Env, port uint16) ([]path, error) {
	shares := []sharenat.Share{{
		Identity: sharenat.Identity{EIP: firstEIP, Port: port, Protocol: sharenat.TCP}, Affinity: clientIP,
		Backends: []sharenat.Backend{{Addr: netip.AddrPortFrom(netip.MustParseAddr(podsAddr), port)}},
	}}
	for i := range bystanders {
		shares = append(shares, share(1, uint16(1+i), someBackends, none))
	}
	g, err := newGateway(env.Cleanup, shares...)
	if err != nil {
		return nil, err
	}
	l, err := newLane(env.Cleanup)
	if err != nil {
		return nil, err
	}
	d, err := newBare(env.Cleanup, shares[0])
	if err != nil {
		return nil, err
	}
	return []path{{through, g.lane, firstEIP.String()}, {bare, d, firstEIP.String()}, {plain, l, podsAddr}}, nil
}

// throughputMeasure compares the throughput of one long TCP connection.
func throughputMeasure() bench.Measure {
	return bench.Measure{
		Name: "packets/throughput", Title: "one TCP connection, iperf3", Unit: "bit/s", Rounds: 5,
		Aims: []bench.Aim{{Of: through, Over: plain, Min: atLeast}},
		Prepare: func(_ context.Context, env *bench.Env) ([]bench.Side, func(context.Context) error, error) {
			all, err := paths(env, iperfPort)
			if err != nil {
				return nil, nil, err
			}
			var out []bench.Side
			all = []path{all[0], all[len(all)-1]}
			for _, p := range all {
				server := exec.Command("ip", "netns", "exec", p.lane.pods.Name, "iperf3", "--server", "--port", strconv.Itoa(iperfPort))
				if err := server.Start(); err != nil {
					return nil, nil, err
				}
				env.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() })
				if err := p.await(iperfPort); err != nil {
					return nil, nil, err
				}
				out = append(out, bench.Side{Name: p.name, Sample: p.iperf})
			}
			return out, translated(all, iperfPort), nil
		},
	}
}

// latencyMeasure compares how long a request takes on a connection that is kept.
func latencyMeasure() bench.Measure {
	return bench.Measure{
		Name: "packets/latency", Title: "median of the requests on one kept connection, wrk", Unit: "s", Rounds: 5,
		Aims: []bench.Aim{{Of: through, Over: plain, Max: 1 / atLeast}},
		Prepare: func(_ context.Context, env *bench.Env) ([]bench.Side, func(context.Context) error, error) {
			all, err := paths(env, httpPort)
			if err != nil {
				return nil, nil, err
			}
			var out []bench.Side
			all = []path{all[0], all[len(all)-1]}
			for _, p := range all {
				if err := p.serve(env.Cleanup); err != nil {
					return nil, nil, err
				}
				out = append(out, bench.Side{Name: p.name, Sample: p.wrk})
			}
			return out, translated(all, httpPort), nil
		},
	}
}

// client runs a command where the clients are.
func (p path) client(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", p.lane.clients.Name}, args...)...)
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, exit.Stderr)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", args[0], err)
	}
	return out, err
}

// iperf gives what has arrived in a second.
func (p path) iperf(ctx context.Context) ([]float64, error) {
	out, err := p.client(ctx, "iperf3", "--client", p.server, "--port", strconv.Itoa(iperfPort), "--time", "1", "--json")
	if err != nil {
		return nil, err
	}
	var report struct {
		End struct {
			Received struct {
				Rate float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		} `json:"end"`
	}
	if err := json.Unmarshal(out, &report); err != nil {
		return nil, fmt.Errorf("read iperf3's report: %w", err)
	}
	return []float64{report.End.Received.Rate}, nil
}

var wrkMedian = regexp.MustCompile(`(?m)^ +50% +([0-9.]+[mu]?s)$`)

// wrk gives the median of a second's requests.
func (p path) wrk(ctx context.Context) ([]float64, error) {
	out, err := p.client(ctx, "wrk", "--threads", "1", "--connections", "1", "--duration", "1s", "--latency", fmt.Sprintf("http://%s:%d/", p.server, httpPort))
	if err != nil {
		return nil, err
	}
	found := wrkMedian.FindSubmatch(out)
	if found == nil || strings.Contains(string(out), "Non-2xx") || strings.Contains(string(out), "Socket errors") {
		return nil, fmt.Errorf("wrk had errors, or no median:\n%s", out)
	}
	d, err := time.ParseDuration(string(found[1]))
	return []float64{d.Seconds()}, err
}

// serve answers HTTP requests in pods.
func (p path) serve(undo func(func())) error {
	var listener net.Listener
	err := p.lane.pods.Do(func() (err error) {
		listener, err = net.Listen("tcp4", fmt.Sprintf(":%d", httpPort))
		return err
	})
	if err != nil {
		return err
	}
	server := &http.Server{ReadHeaderTimeout: patience, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("ok\n")) // The client sees what did not arrive.
	})}
	undo(func() { _ = server.Close() })
	go func() { _ = server.Serve(listener) }() // It ends when it is closed.
	return nil
}

// await waits until the server answers.
func (p path) await(port int) error {
	address := net.JoinHostPort(p.server, strconv.Itoa(port))
	deadline := time.Now().Add(patience)
	for {
		err := p.lane.clients.Do(func() error {
			c, err := net.DialTimeout("tcp4", address, time.Second)
			if err == nil {
				err = c.Close()
			}
			return err
		})
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// translated checks that the connections were translated, and that plain forwarding does not even track its own.
func translated(all []path, port uint16) func(context.Context) error {
	return func(context.Context) error {
		for _, p := range all {
			tracked, err := p.lane.tracked()
			if err != nil {
				return err
			}
			if p.name == plain {
				if tracked != 0 {
					return fmt.Errorf("%s: %d connections are tracked", p.name, tracked)
				}
				continue
			}
			out, err := run(p.lane.router.Name, "", "conntrack", "-L", "-p", "tcp")
			if err != nil {
				return err
			}
			to, from := fmt.Sprintf("dst=%s sport=", p.server), fmt.Sprintf("src=%s dst=%s sport=%d", podsAddr, clientAddr, port)
			if out == "" {
				return fmt.Errorf("%s: no connection is tracked", p.name)
			}
			for line := range strings.Lines(out) {
				if !strings.Contains(line, to) || !strings.Contains(line, from) {
					return fmt.Errorf("%s: a connection is not translated to %s: %s", p.name, podsAddr, line)
				}
			}
		}
		return nil
	}
}
