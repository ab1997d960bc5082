// SPDX-License-Identifier: Apache-2.0

package natgateway

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// kubelet runs one call after the other as it is told, by default well, and tells of each when it begins.
type kubelet struct {
	begun chan *begunCall
	plan  []execution
}

type begunCall struct {
	execution
	done chan struct{}
}

func (k *kubelet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	call := &begunCall{done: make(chan struct{})}
	if len(k.plan) > 0 {
		call.execution, k.plan = k.plan[0], k.plan[1:]
	}
	defer close(call.done)
	k.begun <- call
	call.serveWebSocket(w, r)
}

// newKubelet makes a kubelet, and an executor that reaches it.
func newKubelet(t *testing.T, plan ...execution) (*kubelet, *standbyExecutor) {
	t.Helper()
	k := &kubelet{begun: make(chan *begunCall, 8), plan: plan}
	server := httptest.NewServer(k)
	t.Cleanup(server.Close)
	config := &rest.Config{Host: server.URL}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	e := newStandbyExecutor(&podExecutor{client: client.CoreV1().RESTClient(), config: config})
	t.Cleanup(func() { _ = e.Close() })
	return k, e
}

// none fails the test when a call was begun that nobody has asked for.
func (k *kubelet) none(t *testing.T, e *standbyExecutor) {
	t.Helper()
	if n := e.count(); n != 0 || len(k.begun) > 0 {
		t.Errorf("%d calls wait, %d were begun", n, len(k.begun))
	}
}

func (e *standbyExecutor) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.waiting)
}

func syncCall(container, stdin string) Call {
	return Call{
		Pod: types.NamespacedName{Namespace: "kube-system", Name: "vpc-nat-gw-gw1-0"}, Container: container,
		Verb: sharenat.SyncVerb, Stdin: []byte(stdin),
	}
}

func mustExec(t *testing.T, e Executor, call Call) {
	t.Helper()
	if _, err := e.Exec(t.Context(), call); err != nil {
		t.Fatal(err)
	}
}

func TestStandby(t *testing.T) {
	k, e := newKubelet(t)
	mustExec(t, e, syncCall("a", "one"))
	first, waiting := <-k.begun, <-k.begun
	mustExec(t, e, syncCall("a", "two"))
	next := <-k.begun
	<-waiting.done
	if diff := cmp.Diff([]string{"one", "two"}, []string{first.stdin, waiting.stdin}); diff != "" {
		t.Errorf("input (-want +got):\n%s", diff)
	}

	// Of another container, what waits for input is of no use.
	mustExec(t, e, syncCall("b", "three"))
	<-next.done
	if next.stdin != "" {
		t.Errorf("the call that waited in another container was sent %q", next.stdin)
	}
	fresh := <-k.begun
	<-fresh.done
	if fresh.stdin != "three" {
		t.Errorf("sent %q, want three", fresh.stdin)
	}
}

func TestStandbyThatEnded(t *testing.T) {
	k, e := newKubelet(t, execution{}, execution{quit: true})
	mustExec(t, e, syncCall("a", "one"))
	<-k.begun
	<-(<-k.begun).done
	for e.count() > 0 {
		runtime.Gosched()
	}
	mustExec(t, e, syncCall("a", "two"))
	fresh := <-k.begun
	<-fresh.done
	if fresh.stdin != "two" {
		t.Errorf("sent %q, want two", fresh.stdin)
	}
}

func TestStandbyOnlyForSyncs(t *testing.T) {
	k, e := newKubelet(t)
	call := syncCall("a", "")
	call.Verb, call.Stdin = sharenat.ListVerb, nil
	mustExec(t, e, call)
	<-k.begun
	mustExec(t, e, syncCall("", "no container is known"))
	<-k.begun
	k.none(t, e)
}

func TestStandbyAfterARefusal(t *testing.T) {
	k, e := newKubelet(t, execution{exitCode: 1})
	if _, err := e.Exec(t.Context(), syncCall("a", "one")); !refused(err) {
		t.Fatalf("error %v, want a refusal", err)
	}
	<-k.begun
	k.none(t, e)
}

func TestStandbyHonoursTheDeadline(t *testing.T) {
	k, e := newKubelet(t, execution{}, execution{hang: true})
	mustExec(t, e, syncCall("a", "one"))
	<-k.begun
	<-k.begun
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := e.Exec(ctx, syncCall("a", "two")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want one of the deadline", err)
	}
	k.none(t, e)
}

func TestStandbyClose(t *testing.T) {
	k, e := newKubelet(t)
	mustExec(t, e, syncCall("a", "one"))
	<-k.begun
	waiting := <-k.begun
	_ = e.Close()
	<-waiting.done
	mustExec(t, e, syncCall("a", "two"))
	<-k.begun
	k.none(t, e)
}
