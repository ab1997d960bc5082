// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"fmt"
	"net/http"

	"golang.org/x/sys/unix"

	"github.com/kubeovn/kube-ovn/test/lab/fabric"
)

// Exec runs a command in a Pod's container, without the API server.
func (n *Node) Exec(ctx context.Context, namespace, name, containerName string, command Command) error {
	w, c, err := n.find(namespace, name, containerName)
	if err != nil {
		return err
	}
	w.mu.Lock()
	p := c.prober
	w.mu.Unlock()
	if p == nil {
		return fmt.Errorf("container %s of pod %s is not running", c.spec.Name, w.key)
	}
	command.Env = append(p.env[:len(p.env):len(p.env)], command.Env...)
	if command.TTY {
		command.Env = append(command.Env, "TERM=xterm")
	}
	if command.Dir == "" {
		command.Dir = c.spec.WorkingDir
	}
	return runIn(ctx, p.process.enterContainer, command)
}

// ExecIn runs a command in a network namespace of the lab, such as a client's, a router's, or a Pod's (PodNamespace), and
// gives what it printed.
func ExecIn(ctx context.Context, network string, args ...string) (stdout, stderr string, err error) {
	var out, errs bytes.Buffer
	command := Command{Args: args, Env: []string{defaultPath, "HOME=/root"}, Stdout: &out, Stderr: &errs}
	err = runIn(ctx, (fabric.Namespace{Name: network}).Enter, command)
	return out.String(), errs.String(), err
}

// ExecInPod runs a command in the network namespace of a Pod, with the node's own files, and gives what it printed.
func (n *Node) ExecInPod(ctx context.Context, namespace, name string, args ...string) (stdout, stderr string, err error) {
	network, err := n.PodNamespace(namespace, name)
	if err != nil {
		return "", "", err
	}
	return ExecIn(ctx, network, args...)
}

func (n *Node) sandboxOf(namespace, name string) (*sandbox, error) {
	w, _, err := n.find(namespace, name, "")
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sandbox == nil {
		return nil, fmt.Errorf("pod %s has no sandbox at the moment", w.key)
	}
	return w.sandbox, nil
}

// PodNamespace gives the name under /run/netns of the Pod's network namespace.
func (n *Node) PodNamespace(namespace, name string) (string, error) {
	box, err := n.sandboxOf(namespace, name)
	if err != nil {
		return "", err
	}
	if box.network == nil {
		return "", fmt.Errorf("pod %s/%s is in the node's network", namespace, name)
	}
	return box.network.Name, nil
}

// SandboxPID gives the process that stands for the Pod's sandbox.
func (n *Node) SandboxPID(namespace, name string) (int, error) {
	box, err := n.sandboxOf(namespace, name)
	if err != nil {
		return 0, err
	}
	return box.pause.pid, nil
}

// CrashSandbox kills the Pod's sandbox: the network namespace goes with all that is in it, and the Pod is brought up anew
// under the same Pod object, with the same addresses and the restart counts up.
func (n *Node) CrashSandbox(namespace, name string) error {
	box, err := n.sandboxOf(namespace, name)
	if err != nil {
		return err
	}
	box.pause.kill(unix.SIGKILL)
	return nil
}

// KillContainer sends a signal to a container's first process. The sandbox stays.
func (n *Node) KillContainer(namespace, name, containerName string, signal unix.Signal) error {
	w, c, err := n.find(namespace, name, containerName)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.process == nil {
		return fmt.Errorf("container %s of pod %s is not running", c.spec.Name, w.key)
	}
	c.process.kill(signal)
	return nil
}

// serveFaults offers the same to specs in other processes, by the API server's node proxy: POST
// /api/v1/nodes/NODE/proxy/lab/crash-sandbox/NAMESPACE/POD and /lab/kill-container/NAMESPACE/POD/CONTAINER.
func (n *Node) serveFaults(handler *http.ServeMux) {
	answer := func(w http.ResponseWriter, err error) {
		if err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}
	handler.HandleFunc("POST /lab/crash-sandbox/{namespace}/{pod}", func(w http.ResponseWriter, r *http.Request) {
		answer(w, n.CrashSandbox(r.PathValue("namespace"), r.PathValue("pod")))
	})
	handler.HandleFunc("POST /lab/kill-container/{namespace}/{pod}/{container}", func(w http.ResponseWriter, r *http.Request) {
		answer(w, n.KillContainer(r.PathValue("namespace"), r.PathValue("pod"), r.PathValue("container"), unix.SIGKILL))
	})
}
