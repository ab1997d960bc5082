// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/virtual-kubelet/virtual-kubelet/errdefs"
	"github.com/virtual-kubelet/virtual-kubelet/node/api"
	corev1 "k8s.io/api/core/v1"
)

// serve opens the kubelet's endpoint: exec and logs, for clients with a certificate.
func (n *Node) serve(ctx context.Context) error {
	certificate, err := tls.LoadX509KeyPair(n.config.ServingCert, n.config.ServingKey)
	if err != nil {
		return fmt.Errorf("load serving certificate: %w", err)
	}
	pem, err := os.ReadFile(n.config.ClientCA)
	if err != nil {
		return fmt.Errorf("load client CA: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return fmt.Errorf("no certificate in %s", n.config.ClientCA)
	}
	// Exec upgrades the connection, which HTTP/2 does not have.
	listener, err := tls.Listen("tcp", net.JoinHostPort(n.config.NodeIP.String(), strconv.Itoa(n.config.KubeletPort)), &tls.Config{
		Certificates: []tls.Certificate{certificate}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
		MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
	})
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	handler := http.NewServeMux()
	handler.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	n.serveFaults(handler)
	handler.Handle("/", api.PodHandler(api.PodHandlerConfig{
		RunInContainer: n.runInContainer, GetContainerLogs: n.containerLogs,
		AttachToContainer: func(context.Context, string, string, string, api.AttachIO) error {
			return errors.New("attach is beyond this lab; use exec")
		},
		PortForward: func(context.Context, string, string, int32, io.ReadWriteCloser) error {
			return errors.New("port-forward is beyond this lab")
		},
		GetPods: n.pods, GetPodsFromKubernetes: n.pods,
		StreamIdleTimeout: 4 * time.Hour, StreamCreationTimeout: 30 * time.Second,
	}, true))
	quiet := log.New(io.Discard, "", 0) // probing clients without a certificate
	server := &http.Server{Handler: handler, ErrorLog: quiet, ReadHeaderTimeout: 10 * time.Second, BaseContext: func(net.Listener) context.Context { return ctx }}
	n.background("kubelet endpoint", func() error { return server.Serve(listener) })
	context.AfterFunc(ctx, func() { _ = server.Close() })
	return nil
}

func (n *Node) pods(context.Context) ([]*corev1.Pod, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	pods := make([]*corev1.Pod, 0, len(n.workers))
	for _, w := range n.workers {
		w.mu.Lock()
		pods = append(pods, w.pod.DeepCopy())
		w.mu.Unlock()
	}
	return pods, nil
}

// find gives the Pod's worker and container; an empty name is the first container's.
func (n *Node) find(namespace, name, containerName string) (*worker, *container, error) {
	w := n.worker(namespace, name)
	if w == nil {
		return nil, nil, errdefs.NotFoundf("no pod %s/%s on this node", namespace, name)
	}
	if containerName == "" {
		return w, w.main[0], nil
	}
	for _, list := range [][]*container{w.main, w.init} {
		for _, c := range list {
			if c.spec.Name == containerName {
				return w, c, nil
			}
		}
	}
	return nil, nil, errdefs.NotFoundf("pod %s/%s has no container %s", namespace, name, containerName)
}

func (n *Node) runInContainer(ctx context.Context, namespace, name, containerName string, args []string, attach api.AttachIO) error {
	command := Command{Args: args, TTY: attach.TTY(), Resize: attach.Resize()}
	// A nil stream in an interface would not be nil any more.
	if stdin := attach.Stdin(); stdin != nil {
		command.Stdin = stdin
	}
	if stdout := attach.Stdout(); stdout != nil {
		command.Stdout = stdout
	}
	if stderr := attach.Stderr(); stderr != nil {
		command.Stderr = stderr
	}
	return n.Exec(ctx, namespace, name, containerName, command)
}

func (n *Node) containerLogs(ctx context.Context, namespace, name, containerName string, opts api.ContainerLogOpts) (io.ReadCloser, error) {
	w, c, err := n.find(namespace, name, containerName)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	book := c.logs
	if opts.Previous {
		if book = c.previous; book == nil {
			return nil, errdefs.InvalidInputf("previous terminated container %q in pod %q not found", c.spec.Name, name)
		}
	}
	if book == nil {
		return nil, errdefs.InvalidInputf("container %q in pod %q is waiting to start", c.spec.Name, name)
	}
	return book.read(ctx, opts), nil
}
