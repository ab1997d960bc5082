// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// sh makes a process of a shell script.
func sh(name, script string) Spec {
	return Spec{Name: name, Path: "/bin/sh", Args: []string{"-c", script}}
}

// newSupervisor returns a Supervisor and where it reports deaths.
func newSupervisor(t *testing.T) (*Supervisor, <-chan *DeathError) {
	t.Helper()
	deaths := make(chan *DeathError, 8)
	s := New(t.TempDir(), func(d *DeathError) { deaths <- d })
	t.Cleanup(s.KillAll)
	return s, deaths
}

func TestDeath(t *testing.T) {
	s, deaths := newSupervisor(t)
	if err := s.Start(sh("short", "echo last words; exit 3")); err != nil {
		t.Fatal(err)
	}
	death := <-deaths
	if got := death.Error(); !strings.Contains(got, "short ended: exit status 3") || !strings.Contains(got, "last words") {
		t.Errorf("it is reported as %q", got)
	}
	if s.Running("short") {
		t.Error("it still counts as running")
	}
}

func TestEndedOnRequest(t *testing.T) {
	tests := []struct {
		name, script string
		end          func(*Supervisor, string) error
	}{
		{"stop", "sleep 1000", func(s *Supervisor, name string) error { return s.Stop(t.Context(), name, time.Minute) }},
		{
			"stop, but it does not listen", "trap '' TERM; echo ready; while :; do sleep 1000; done",
			func(s *Supervisor, name string) error { return s.Stop(t.Context(), name, 10*time.Millisecond) },
		},
		{"kill", "sleep 1000", (*Supervisor).Kill},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s, deaths := newSupervisor(t)
			if err := s.Start(sh("p", test.script)); err != nil {
				t.Fatal(err)
			}
			if err := s.Start(sh("p", test.script)); !errors.Is(err, ErrRunning) {
				t.Errorf("a second start: %v, want %v", err, ErrRunning)
			}
			if err := test.end(s, "p"); err != nil {
				t.Fatal(err)
			}
			if s.Running("p") {
				t.Error("it still runs")
			}
			if err := s.Start(sh("p", test.script)); err != nil {
				t.Errorf("start it anew: %v", err)
			}
			select {
			case d := <-deaths:
				t.Errorf("reported as a death: %v", d)
			default:
			}
		})
	}
}

func TestRemote(t *testing.T) {
	s, _ := newSupervisor(t)
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: Handler(s), ReadHeaderTimeout: time.Second}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })

	ctx, remote := t.Context(), Dial(socket)
	if err := remote.Stop(ctx, "p", time.Second); !errors.Is(err, ErrNotRunning) {
		t.Errorf("stop of what does not run: %v, want %v", err, ErrNotRunning)
	}
	if err := remote.Start(ctx, sh("p", "sleep 1000")); err != nil {
		t.Fatal(err)
	}
	if err := remote.Start(ctx, sh("p", "sleep 1000")); !errors.Is(err, ErrRunning) {
		t.Errorf("a second start: %v, want %v", err, ErrRunning)
	}
	if err := remote.Signal(ctx, "p", syscall.SIGSTOP); err != nil {
		t.Error(err)
	}
	if running, err := remote.Running(ctx, "p"); err != nil || !running {
		t.Errorf("running: %v, %v", running, err)
	}
	if err := remote.Kill(ctx, "p"); err != nil {
		t.Error(err)
	}
	if running, err := remote.Running(ctx, "p"); err != nil || running {
		t.Errorf("running after kill: %v, %v", running, err)
	}
}
