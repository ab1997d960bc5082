// SPDX-License-Identifier: Apache-2.0

package natgateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	utilexec "k8s.io/client-go/util/exec"
	"k8s.io/streaming/pkg/httpstream"
)

const (
	// containerName is the container of a gateway pod in which the script lives.
	containerName = "vpc-nat-gw"
	scriptPath    = "/kube-ovn/nat-gateway.sh"

	// maxKeptOutput bounds what an error keeps of each output stream.
	maxKeptOutput = 4 << 10
	// maxListing bounds the standard output that is read at all: a listing of half a million identities.
	maxListing = 32 << 20
)

// Call is one run of nat-gateway.sh in a gateway pod.
type Call struct {
	Pod types.NamespacedName
	// Container says which of the containers that a pod of this name has had is meant; empty: the one that it has.
	Container string
	Verb      string
	Args      []string
	Stdin     []byte
}

// Executor runs calls. It returns what the script printed on standard output once the script has succeeded, and else a
// *CallError. It must honour the context's deadline.
type Executor interface {
	Exec(ctx context.Context, call Call) (stdout []byte, err error)
}

// CallError is a call that failed.
type CallError struct {
	Pod  types.NamespacedName
	Verb string
	// ExitCode of the script; -1 where the script did not run to its end or that is not known.
	ExitCode int
	// Stdout and Stderr, each cut to 4 KiB.
	Stdout, Stderr string
	Err            error
}

// Error names the pod, the verb, the exit code and what the script said.
func (e *CallError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s in gateway pod %s: ", e.Verb, e.Pod)
	if e.ExitCode >= 0 {
		fmt.Fprintf(&b, "exit code %d", e.ExitCode)
	} else {
		b.WriteString(e.Err.Error())
	}
	if said := strings.TrimSpace(e.Stderr); said != "" {
		b.WriteString(": " + said)
	} else if said := strings.TrimSpace(e.Stdout); said != "" && e.ExitCode >= 0 {
		b.WriteString(": " + said)
	}
	return b.String()
}

// Unwrap gives the transport's error.
func (e *CallError) Unwrap() error { return e.Err }

// refused says that the script itself said no: the input, not the way to the pod, is to blame.
func refused(err error) bool {
	var callErr *CallError
	return errors.As(err, &callErr) && callErr.ExitCode > 0 && callErr.ExitCode < 126
}

// unknownVerb says that the script ended with its usage: stock's script does so at a verb it does not know.
func unknownVerb(err error) bool {
	var callErr *CallError
	if !refused(err) || !errors.As(err, &callErr) {
		return false
	}
	said := strings.ToLower(callErr.Stdout + callErr.Stderr)
	return strings.Contains(said, "usage:") || strings.Contains(said, "unknown verb")
}

// podExecutor reaches pods through the API server's pods/exec.
type podExecutor struct {
	client rest.Interface
	config *rest.Config
}

var _ Executor = (*podExecutor)(nil)

// NewExecutor returns the Executor of real clusters: WebSocket, and SPDY where the API server refuses the upgrade. It is an io.Closer
// as well, since it keeps calls begun that may be needed next.
func NewExecutor(client kubernetes.Interface, config *rest.Config) Executor {
	return newStandbyExecutor(&podExecutor{client: client.CoreV1().RESTClient(), config: config})
}

// Exec implements Executor.
func (e *podExecutor) Exec(ctx context.Context, call Call) ([]byte, error) {
	if len(call.Stdin) == 0 {
		return e.run(ctx, call, nil)
	}
	return e.run(ctx, call, bytes.NewReader(call.Stdin))
}

// run makes a call with this standard input; nil for none.
func (e *podExecutor) run(ctx context.Context, call Call, stdin io.Reader) ([]byte, error) {
	fail := func(err error) *CallError {
		return &CallError{Pod: call.Pod, Verb: call.Verb, ExitCode: -1, Err: err}
	}
	executor, err := e.executor(e.url(call, stdin != nil))
	if err != nil {
		return nil, fail(err)
	}
	stdout, stderr := &cutBuffer{max: maxListing}, &cutBuffer{max: maxKeptOutput}
	err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: stdin, Stdout: stdout, Stderr: stderr})
	if err == nil && stdout.cut {
		err = fmt.Errorf("more than %d bytes of output", maxListing)
	}
	if err == nil {
		return stdout.buf.Bytes(), nil
	}
	callErr := fail(err)
	var exit utilexec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		callErr.ExitCode = exit.ExitStatus()
	} else if ctx.Err() != nil {
		callErr.Err = noAnswer(ctx)
	}
	callErr.Stdout, callErr.Stderr = cutString(stdout.buf.String()), stderr.buf.String()
	return nil, callErr
}

func noAnswer(ctx context.Context) error { return fmt.Errorf("no answer in time: %w", ctx.Err()) }

func (e *podExecutor) url(call Call, stdin bool) *url.URL {
	return e.client.Post().Resource("pods").Namespace(call.Pod.Namespace).Name(call.Pod.Name).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{
			Container: containerName,
			Command:   append([]string{"bash", scriptPath, call.Verb}, call.Args...),
			Stdin:     stdin,
			Stdout:    true,
			Stderr:    true,
		}, scheme.ParameterCodec).URL()
}

func (e *podExecutor) executor(target *url.URL) (remotecommand.Executor, error) {
	spdy, err := remotecommand.NewSPDYExecutor(e.config, "POST", target)
	if err != nil {
		return nil, err
	}
	webSocket, err := remotecommand.NewWebSocketExecutor(e.config, "GET", target.String())
	if err != nil {
		return nil, err
	}
	return remotecommand.NewFallbackExecutor(webSocket, spdy, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
}

// cutBuffer keeps the first max bytes and swallows the rest, so that a talkative script is not blocked.
type cutBuffer struct {
	buf bytes.Buffer
	max int
	cut bool
}

var _ io.Writer = (*cutBuffer)(nil)

// Write implements io.Writer.
func (b *cutBuffer) Write(p []byte) (int, error) {
	n := len(p)
	if room := b.max - b.buf.Len(); n > room {
		b.cut = true
		p = p[:room]
	}
	b.buf.Write(p)
	return n, nil
}

func cutString(s string) string {
	if len(s) > maxKeptOutput {
		return s[:maxKeptOutput]
	}
	return s
}
