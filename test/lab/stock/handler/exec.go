// SPDX-License-Identifier: Apache-2.0

package handler

import (
	"bytes"
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
)

const (
	scriptPath = "/kube-ovn/nat-gateway.sh"
	// callDeadline is when a call is given up.
	callDeadline = 30 * time.Second
)

// runner runs the script in a gateway pod.
type runner interface {
	run(ctx context.Context, pod *corev1.Pod, c call) error
}

// podRunner does so by pods/exec.
type podRunner struct {
	client kubernetes.Interface
	config *rest.Config
}

func (r *podRunner) run(ctx context.Context, pod *corev1.Pod, c call) error {
	ctx, cancel := context.WithTimeout(ctx, callDeadline)
	defer cancel()
	request := r.client.CoreV1().RESTClient().Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{
			Container: containerName, Command: []string{"bash", scriptPath, c.verb, c.rule}, Stdout: true, Stderr: true,
		}, scheme.ParameterCodec)
	executor, err := remotecommand.NewWebSocketExecutor(r.config, "GET", request.URL().String())
	if err != nil {
		return err
	}
	var stdout, stderr bytes.Buffer
	if err := executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &stdout, Stderr: &stderr}); err != nil {
		return fmt.Errorf("exec %s in pod %s: %w: %s%s", c, pod.Name, err, stdout.String(), stderr.String())
	}
	if said := complaint(stderr.String()); said != "" {
		return fmt.Errorf("exec %s in pod %s: %s", c, pod.Name, said)
	}
	return nil
}
