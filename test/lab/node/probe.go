// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/kubeovn/kube-ovn/test/lab/fabric"
)

// prober runs a container's probes. They run inside the Pod's own network: the node does not reach custom VPCs, and where
// a real kubelet has the same trouble Kube-OVN solves it elsewhere.
type prober struct {
	network *fabric.Namespace
	podIP   string
	spec    *corev1.Container
	process *process
	env     []string
}

// dial connects from inside the Pod's network.
func (p *prober) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if p.network == nil {
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	var conn net.Conn
	err := p.network.Do(func() error {
		var err error
		conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// check runs a probe once.
func (p *prober) check(ctx context.Context, probe *corev1.Probe) error {
	ctx, cancel := context.WithTimeout(ctx, seconds(max(probe.TimeoutSeconds, 1)))
	defer cancel()
	switch {
	case probe.HTTPGet != nil:
		return p.httpGet(ctx, probe.HTTPGet)
	case probe.TCPSocket != nil:
		conn, err := p.dial(ctx, "tcp", net.JoinHostPort(p.host(probe.TCPSocket.Host), p.port(probe.TCPSocket.Port)))
		if err != nil {
			return err
		}
		return conn.Close()
	case probe.Exec != nil:
		var output bytes.Buffer
		command := Command{Args: probe.Exec.Command, Env: p.env, Stdout: &output, Stderr: &output}
		if err := runIn(ctx, p.process.enterContainer, command); err != nil {
			return fmt.Errorf("%w: %s", err, bytes.TrimSpace(output.Bytes()[:min(output.Len(), 1024)]))
		}
		return nil
	}
	return errors.New("this kind of probe is beyond this lab")
}

func (p *prober) host(host string) string {
	if host == "" {
		return p.podIP
	}
	return host
}

func (p *prober) port(port intstr.IntOrString) string {
	if port.Type == intstr.Int {
		return strconv.Itoa(port.IntValue())
	}
	for _, named := range p.spec.Ports {
		if named.Name == port.StrVal {
			return strconv.Itoa(int(named.ContainerPort))
		}
	}
	return port.StrVal
}

func (p *prober) httpGet(ctx context.Context, action *corev1.HTTPGetAction) error {
	target, err := url.Parse(action.Path)
	if err != nil {
		return fmt.Errorf("probe path: %w", err)
	}
	target.Scheme, target.Host = "http", net.JoinHostPort(p.host(action.Host), p.port(action.Port))
	if action.Scheme == corev1.URISchemeHTTPS {
		target.Scheme = "https"
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return err
	}
	request.Header.Set("User-Agent", "kube-probe/lab")
	for _, header := range action.HTTPHeaders {
		request.Header.Add(header.Name, header.Value)
		if header.Name == "Host" {
			request.Host = header.Value
		}
	}
	client := http.Client{Transport: &http.Transport{
		DialContext: p.dial, DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // as a kubelet does
	}}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, _ = io.CopyN(io.Discard, response.Body, 10<<10)
	if response.StatusCode < 200 || response.StatusCode >= 400 {
		return fmt.Errorf("HTTP probe failed with statuscode: %d", response.StatusCode)
	}
	return nil
}

// eager is how often a probe that has not succeeded yet is tried: a kubelet waits for the whole period, which would only
// make the lab slow.
const eager = 100 * time.Millisecond

// watch runs the probe until the context ends, and reports each change of the verdict, and each failed try. The first
// verdict comes as soon as there is one.
func (p *prober) watch(ctx context.Context, probe *corev1.Probe, report func(healthy bool), failed func(error)) {
	if !wait(ctx, seconds(probe.InitialDelaySeconds)) {
		return
	}
	period := seconds(max(probe.PeriodSeconds, 1))
	begin := time.Now()
	healthy, known := false, false
	successes, failures := int32(0), int32(0)
	for {
		err := p.check(ctx, probe)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			successes, failures = successes+1, 0
		} else {
			successes, failures = 0, failures+1
		}
		switch {
		case err == nil && successes >= max(probe.SuccessThreshold, 1) && (!known || !healthy):
			known, healthy = true, true
			report(true)
		case err != nil && known && failures >= max(probe.FailureThreshold, 1):
			failed(err)
			if healthy {
				healthy = false
				report(false)
			}
		case err != nil && !known && time.Since(begin) >= time.Duration(max(probe.FailureThreshold, 1))*period:
			known = true
			failed(err)
			report(false)
		}
		pause := period
		if !known || (!healthy && successes > 0) {
			pause = min(period, eager)
		}
		if !wait(ctx, pause) {
			return
		}
	}
}

func seconds[T int32 | int64](n T) time.Duration { return time.Duration(n) * time.Second }

// wait waits, and tells whether the context still lives.
func wait(ctx context.Context, duration time.Duration) bool {
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
