// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// Spec is a process to run.
type Spec struct {
	// Name names the process and its log file.
	Name string `json:"name"`
	// Path is the executable, Args its arguments without its name.
	Path string   `json:"path"`
	Args []string `json:"args,omitempty"`
	// Env is added to the lab's own environment.
	Env []string `json:"env,omitempty"`
}

// DeathError is a process that ended without having been asked to.
type DeathError struct {
	Name string
	// Err says how; Log is the path of its log, Tail the log's last lines.
	Err       error
	Log, Tail string
}

// Error makes it an error that says all there is to know.
func (d *DeathError) Error() string {
	return fmt.Sprintf("%s ended: %v; the end of its log (%s):\n%s", d.Name, d.Err, d.Log, d.Tail)
}

// Unwrap returns how the process ended.
func (d *DeathError) Unwrap() error { return d.Err }

// Errors of a Supervisor's methods.
var (
	ErrRunning    = errors.New("is running already")
	ErrNotRunning = errors.New("is not running")
)

// Supervisor keeps processes by name.
type Supervisor struct {
	logs    string
	onDeath func(*DeathError)

	mu        sync.Mutex
	processes map[string]*process
}

type process struct {
	spec  Spec
	cmd   *exec.Cmd
	done  chan struct{} // closed when it has ended, after err is set
	err   error
	asked bool // to end; guarded by Supervisor.mu
}

// New returns a Supervisor that keeps logs in a directory and calls onDeath, from a goroutine of its own, for each
// process that ends unasked.
func New(logs string, onDeath func(*DeathError)) *Supervisor {
	return &Supervisor{logs: logs, onDeath: onDeath, processes: map[string]*process{}}
}

// Log returns the path of a process's log file.
func (s *Supervisor) Log(name string) string {
	return filepath.Join(s.logs, name+".log")
}

// Start starts a process. Its log is appended to what an earlier process of the same name wrote.
func (s *Supervisor) Start(spec Spec) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.processes[spec.Name]; p != nil && p.running() {
		return fmt.Errorf("start %s: it %w", spec.Name, ErrRunning)
	}
	log, err := os.OpenFile(s.Log(spec.Name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("start %s: %w", spec.Name, err)
	}
	defer log.Close()

	cmd := exec.Command(spec.Path, spec.Args...)
	cmd.Env = append(os.Environ(), spec.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	// In a group of its own, so that an interrupt typed at the terminal reaches the lab alone, which then ends in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p := &process{spec: spec, cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go s.watch(p, started)
	if err := <-started; err != nil {
		return fmt.Errorf("start %s: %w", spec.Name, err)
	}
	s.processes[spec.Name] = p
	return nil
}

// watch runs a process from a thread that stays until it has ended, because the kernel ends it with its thread.
func (s *Supervisor) watch(p *process, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	err = p.cmd.Wait()
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) // Its children, if it left any.
	s.mu.Lock()
	p.err = err
	close(p.done)
	asked := p.asked
	s.mu.Unlock()
	if asked || s.onDeath == nil {
		return
	}
	if err == nil {
		err = errors.New("exit status 0")
	}
	log := s.Log(p.spec.Name)
	s.onDeath(&DeathError{Name: p.spec.Name, Err: err, Log: log, Tail: Tail(log, 30)})
}

func (p *process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// find returns a running process.
func (s *Supervisor) find(name string) (*process, error) {
	p := s.processes[name]
	if p == nil || !p.running() {
		return nil, fmt.Errorf("%s %w", name, ErrNotRunning)
	}
	return p, nil
}

// Running tells whether a process is running.
func (s *Supervisor) Running(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.find(name)
	return err == nil
}

// PID returns the process id of a running process.
func (s *Supervisor) PID(name string) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, err := s.find(name)
	if err != nil {
		return 0, err
	}
	return p.cmd.Process.Pid, nil
}

// Stop asks a process to end, kills it when it takes longer than grace, and returns when it is gone.
func (s *Supervisor) Stop(ctx context.Context, name string, grace time.Duration) error {
	p, err := s.end(name, syscall.SIGTERM)
	if err != nil {
		return err
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.done:
		return nil
	case <-timer.C:
	case <-ctx.Done():
	}
	return s.Kill(name)
}

// Kill ends a process the hard way and returns when it is gone.
func (s *Supervisor) Kill(name string) error {
	p, err := s.end(name, syscall.SIGKILL)
	if errors.Is(err, ErrNotRunning) {
		return nil
	}
	if err != nil {
		return err
	}
	<-p.done
	return nil
}

// end sends a process the signal it is to end by.
func (s *Supervisor) end(name string, signal syscall.Signal) (*process, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, err := s.find(name)
	if err != nil {
		return nil, err
	}
	p.asked = true
	if err := p.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return nil, fmt.Errorf("signal %s: %w", name, err)
	}
	return p, nil
}

// Signal sends a process a signal that does not end it, such as SIGSTOP.
func (s *Supervisor) Signal(name string, signal syscall.Signal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, err := s.find(name)
	if err != nil {
		return err
	}
	return p.cmd.Process.Signal(signal)
}

// KillAll ends every process the hard way and returns when they are gone.
func (s *Supervisor) KillAll() {
	s.mu.Lock()
	// All are asked before the first one goes: none of them is to be missed by the others.
	var running []*process
	for _, p := range s.processes {
		if p.running() {
			p.asked = true
			running = append(running, p)
		}
	}
	s.mu.Unlock()
	for _, p := range running {
		_ = p.cmd.Process.Kill() // It has ended: all the better.
	}
	for _, p := range running {
		<-p.done
	}
}
