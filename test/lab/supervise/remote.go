// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"syscall"
	"time"
)

// request is what a Remote asks of a Handler.
type request struct {
	Spec   Spec           `json:"spec,omitzero"`
	Name   string         `json:"name,omitempty"`
	Grace  time.Duration  `json:"grace,omitempty"`
	Signal syscall.Signal `json:"signal,omitempty"`
}

// errorKinds are the errors that keep their identity on the way to a Remote.
var errorKinds = map[int]error{
	http.StatusConflict: ErrRunning,
	http.StatusNotFound: ErrNotRunning,
}

// Handler serves a Supervisor to other processes.
func Handler(s *Supervisor) http.Handler {
	mux := http.NewServeMux()
	handle := func(path string, do func(context.Context, request) error) {
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
			var req request
			err := json.NewDecoder(r.Body).Decode(&req)
			if err == nil {
				err = do(r.Context(), req)
			}
			if err == nil {
				return
			}
			code := http.StatusInternalServerError
			for kindCode, kind := range errorKinds {
				if errors.Is(err, kind) {
					code = kindCode
				}
			}
			http.Error(w, err.Error(), code)
		})
	}
	handle("/start", func(_ context.Context, r request) error { return s.Start(r.Spec) })
	handle("/stop", func(ctx context.Context, r request) error { return s.Stop(ctx, r.Name, r.Grace) })
	handle("/kill", func(_ context.Context, r request) error { return s.Kill(r.Name) })
	handle("/signal", func(_ context.Context, r request) error { return s.Signal(r.Name, r.Signal) })
	handle("/running", func(_ context.Context, r request) error {
		_, err := s.PID(r.Name)
		return err
	})
	return mux
}

// Remote is a Supervisor in another process.
type Remote struct{ client *http.Client }

// Dial returns the Supervisor that is served at a Unix socket.
func Dial(socket string) *Remote {
	var dialer net.Dialer
	return &Remote{client: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", socket)
		},
	}}}
}

// Start is Supervisor.Start.
func (r *Remote) Start(ctx context.Context, spec Spec) error {
	return r.call(ctx, "/start", request{Spec: spec})
}

// Stop is Supervisor.Stop.
func (r *Remote) Stop(ctx context.Context, name string, grace time.Duration) error {
	return r.call(ctx, "/stop", request{Name: name, Grace: grace})
}

// Kill is Supervisor.Kill.
func (r *Remote) Kill(ctx context.Context, name string) error {
	return r.call(ctx, "/kill", request{Name: name})
}

// Signal is Supervisor.Signal.
func (r *Remote) Signal(ctx context.Context, name string, signal syscall.Signal) error {
	return r.call(ctx, "/signal", request{Name: name, Signal: signal})
}

// Running is Supervisor.Running.
func (r *Remote) Running(ctx context.Context, name string) (bool, error) {
	err := r.call(ctx, "/running", request{Name: name})
	if errors.Is(err, ErrNotRunning) {
		return false, nil
	}
	return err == nil, err
}

// remoteError is an error that a Handler reported.
type remoteError struct {
	message string
	kind    error
}

func (e *remoteError) Error() string { return e.message }
func (e *remoteError) Unwrap() error { return e.kind }

func (r *Remote) call(ctx context.Context, path string, body request) error {
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://lab"+path, bytes.NewReader(data))
	if err != nil {
		return err
	}
	response, err := r.client.Do(req)
	if err != nil {
		return fmt.Errorf("ask the lab: %w", err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return fmt.Errorf("ask the lab: %w", err)
	}
	if response.StatusCode == http.StatusOK {
		return nil
	}
	return &remoteError{message: string(bytes.TrimSpace(answer)), kind: errorKinds[response.StatusCode]}
}
