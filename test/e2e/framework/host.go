// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"fmt"
	"net"

	. "github.com/onsi/ginkgo/v2"
)

// hostClient connects from where the specs run: in the lab that is the node.
type hostClient struct{}

// Node is the lab's node as a client. Its connections to a Service are kube-proxy's.
func (c *Cluster) Node() Client {
	GinkgoHelper()
	if c.Lab == nil {
		Fail("only the lab's specs run on its node")
	}
	return hostClient{}
}

// Name implements Client.
func (hostClient) Name() string { return "the node" }

// Ask implements Client.
func (h hostClient) Ask(ctx context.Context, to Target, question string, count int) ([]string, error) {
	var answers []string
	for range count {
		answer, err := h.ask(ctx, to, question)
		if err != nil {
			return answers, fmt.Errorf("%s asks %s: %w", h.Name(), to, err)
		}
		answers = append(answers, answer)
	}
	return answers, nil
}

func (hostClient) ask(ctx context.Context, to Target, question string) (string, error) {
	dialer := net.Dialer{Timeout: answerDeadline}
	conn, err := dialer.DialContext(ctx, to.Network(), to.AddrPort.String())
	if err != nil {
		return "", err
	}
	defer conn.Close()
	return AskOn(conn, to.UDP, question)
}
