// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
)

// ExecError is a command in a Pod that failed.
type ExecError struct {
	Args           []string
	Stdout, Stderr string
	Err            error
}

// Error implements error.
func (e *ExecError) Error() string {
	return fmt.Sprintf("%s: %v: %s", strings.Join(e.Args, " "), e.Err, strings.TrimSpace(e.Stderr))
}

// Unwrap gives what the API server said.
func (e *ExecError) Unwrap() error { return e.Err }

// Exec runs a command in a Pod's first container and returns its standard output; stdin may be nil.
func (c *Cluster) Exec(ctx context.Context, pod *corev1.Pod, stdin io.Reader, args ...string) (string, error) {
	request := c.Kube.CoreV1().RESTClient().Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{
			Container: pod.Spec.Containers[0].Name, Command: args, Stdin: stdin != nil, Stdout: true, Stderr: true,
		}, scheme.ParameterCodec)
	executor, err := remotecommand.NewWebSocketExecutor(c.Config, "GET", request.URL().String())
	if err != nil {
		return "", err
	}
	var stdout, stderr bytes.Buffer
	err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: stdin, Stdout: &stdout, Stderr: &stderr})
	if err != nil {
		err = &ExecError{Args: args, Stdout: stdout.String(), Stderr: stderr.String(), Err: err}
	}
	return stdout.String(), err
}
