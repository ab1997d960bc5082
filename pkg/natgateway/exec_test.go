// SPDX-License-Identifier: Apache-2.0

package natgateway

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// execution is what a fake kubelet gets and gives.
type execution struct {
	command               []string
	stdin, stdout, stderr string
	exitCode              int
	// hang: never end; quit: end before there is any input.
	hang, quit bool
}

func (e *execution) status() []byte {
	status := metav1.Status{Status: metav1.StatusSuccess}
	if e.exitCode != 0 {
		status = metav1.Status{
			Status: metav1.StatusFailure, Reason: "NonZeroExitCode",
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: "ExitCode", Message: string(rune('0' + e.exitCode))}}},
		}
	}
	text, _ := json.Marshal(status)
	return text
}

// serveWebSocket speaks v5.channel.k8s.io: the first byte of a message is its channel; 255 closes one.
func (e *execution) serveWebSocket(w http.ResponseWriter, r *http.Request) {
	upgrader := websocket.Upgrader{Subprotocols: []string{"v5.channel.k8s.io"}}
	conn, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return
	}
	defer conn.Close()
	e.command = r.URL.Query()["command"]
	var stdin strings.Builder
	for !e.quit && r.URL.Query().Get("stdin") == "true" {
		_, message, err := conn.ReadMessage()
		if err != nil || message[0] == 255 {
			break
		}
		stdin.Write(message[1:])
	}
	e.stdin = stdin.String()
	if e.hang {
		_, _, _ = conn.ReadMessage()
		return
	}
	send := func(channel byte, data []byte) {
		_ = conn.WriteMessage(websocket.BinaryMessage, append([]byte{channel}, data...))
	}
	send(1, []byte(e.stdout))
	send(2, []byte(e.stderr))
	send(3, e.status())
	_ = conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""), time.Now().Add(time.Second))
}

// serveSPDY speaks v4.channel.k8s.io.
func (e *execution) serveSPDY(w http.ResponseWriter, r *http.Request) {
	w.Header().Set(httpstream.HeaderProtocolVersion, "v4.channel.k8s.io")
	streams := make(chan httpstream.Stream, 4)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, _ <-chan struct{}) error {
		streams <- s
		return nil
	})
	if conn == nil {
		return
	}
	defer conn.Close()
	e.command = r.URL.Query()["command"]
	byType := map[string]httpstream.Stream{}
	want := 3
	if r.URL.Query().Get("stdin") == "true" {
		want = 4
	}
	for len(byType) < want {
		s := <-streams
		byType[s.Headers().Get(corev1.StreamType)] = s
	}
	if s := byType[corev1.StreamTypeStdin]; s != nil {
		text, _ := io.ReadAll(s)
		e.stdin = string(text)
	}
	for kind, text := range map[string]string{
		corev1.StreamTypeStdout: e.stdout, corev1.StreamTypeStderr: e.stderr, corev1.StreamTypeError: string(e.status()),
	} {
		_, _ = io.WriteString(byType[kind], text)
		_ = byType[kind].Close()
	}
}

func TestExecutor(t *testing.T) {
	long := strings.Repeat("x", 10000)
	tests := []struct {
		name     string
		give     execution
		spdyOnly bool
		timeout  time.Duration
		want     string
		wantErr  *CallError
	}{
		{name: "success", give: execution{stdout: "out\n", stderr: "some warning"}, want: "out\n"},
		{name: "script refuses", give: execution{stdout: "o", stderr: "port 0: no\n", exitCode: 3}, wantErr: &CallError{ExitCode: 3, Stdout: "o", Stderr: "port 0: no\n"}},
		{name: "output is cut", give: execution{stdout: long, stderr: long, exitCode: 1}, wantErr: &CallError{ExitCode: 1, Stdout: long[:4096], Stderr: long[:4096]}},
		{name: "no answer", give: execution{hang: true}, timeout: 2 * time.Second, wantErr: &CallError{ExitCode: -1}},
		{name: "API server without WebSocket", spdyOnly: true, give: execution{stdout: "out\n"}, want: "out\n"},
		{name: "script refuses over SPDY", spdyOnly: true, give: execution{stderr: "no", exitCode: 2}, wantErr: &CallError{ExitCode: 2, Stderr: "no"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			done := make(chan struct{}, 2)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				defer func() { done <- struct{}{} }()
				switch {
				case r.URL.Path != "/api/v1/namespaces/ns/pods/p/exec" || r.URL.Query().Get("container") != containerName:
					http.Error(w, "not found", http.StatusNotFound)
				case websocket.IsWebSocketUpgrade(r) && tt.spdyOnly:
					http.Error(w, "no WebSocket here", http.StatusBadRequest)
				case websocket.IsWebSocketUpgrade(r):
					tt.give.serveWebSocket(w, r)
				default:
					tt.give.serveSPDY(w, r)
				}
			}))
			defer server.Close()
			config := &rest.Config{Host: server.URL}
			client, err := kubernetes.NewForConfig(config)
			if err != nil {
				t.Fatal(err)
			}
			timeout := tt.timeout
			if timeout == 0 {
				timeout = time.Minute
			}
			ctx, cancel := context.WithTimeout(context.Background(), timeout)
			defer cancel()
			call := Call{Pod: types.NamespacedName{Namespace: "ns", Name: "p"}, Verb: "some-verb", Args: []string{"a,b", "c d"}, Stdin: []byte("line\nend\n")}
			out, err := NewExecutor(client, config).Exec(ctx, call)
			<-done
			if string(out) != tt.want {
				t.Errorf("stdout %q, want %q", out, tt.want)
			}
			if diff := cmp.Diff([]string{"bash", scriptPath, "some-verb", "a,b", "c d"}, tt.give.command); diff != "" {
				t.Errorf("command (-want +got):\n%s", diff)
			}
			if tt.give.stdin != "line\nend\n" {
				t.Errorf("stdin %q", tt.give.stdin)
			}
			var callErr *CallError
			if errors.As(err, &callErr) != (tt.wantErr != nil) {
				t.Fatalf("error %v, want %v", err, tt.wantErr)
			}
			if tt.wantErr != nil && (callErr.ExitCode != tt.wantErr.ExitCode || callErr.Stdout != tt.wantErr.Stdout || callErr.Stderr != tt.wantErr.Stderr) {
				t.Errorf("error %+v, want %+v", callErr, tt.wantErr)
			}
			if tt.give.hang && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error %v, want one of the deadline", err)
			}
		})
	}
}
