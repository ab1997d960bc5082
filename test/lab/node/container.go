// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
)

// Restarts wait from the second one on, twice as long each time. A kubelet's figures are 10 s and 5 min.
const (
	firstBackoff = 250 * time.Millisecond
	maxBackoff   = 5 * time.Second
	calmAfter    = 20 * time.Second
)

// container is one container of a Pod, over all its starts. Its fields are guarded by the Pod's lock.
type container struct {
	containerView

	starts   int
	process  *process
	prober   *prober
	logs     *logBook
	previous *logBook
	// stopping tells the supervisor not to start it again.
	stopping bool
	// shutdown ends the probes that make no sense any more once the container was told to end.
	shutdown context.CancelFunc
}

func waitingState(reason, message string) corev1.ContainerState {
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
}

// stateError is a reason why a container cannot be started, as its state shows it.
type stateError struct{ Reason, Message string }

func (e *stateError) Error() string { return e.Reason + ": " + e.Message }

// supervise runs the container until it is done or the context ends. once is for init containers: success ends it.
func (w *worker) supervise(ctx context.Context, c *container, once bool) {
	backoff := time.Duration(0)
	for !w.isStopping(ctx, c) {
		begin := time.Now()
		err := w.runOnce(ctx, c)
		if w.isStopping(ctx, c) {
			break
		}
		if err == nil && !w.shouldRestart(c, once) {
			break
		}
		if time.Since(begin) > calmAfter {
			backoff = 0
		}
		w.showBackoff(c, err, backoff)
		if !wait(ctx, max(backoff, 10*time.Millisecond)) {
			break
		}
		backoff = min(max(backoff*2, firstBackoff), maxBackoff)
	}
	w.mu.Lock()
	if ctx.Err() == nil || c.stopping {
		c.done = true
	}
	w.mu.Unlock()
	w.touch()
}

func (w *worker) isStopping(ctx context.Context, c *container) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return c.stopping || ctx.Err() != nil
}

func (w *worker) shouldRestart(c *container, once bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	policy := w.pod.Spec.RestartPolicy
	switch {
	case c.sidecar():
		return true
	case once:
		return !c.succeeded() && policy != corev1.RestartPolicyNever
	case policy == corev1.RestartPolicyAlways:
		return true
	case policy == corev1.RestartPolicyOnFailure:
		return !c.succeeded()
	default:
		return false
	}
}

// showBackoff puts why the container is not running into its state.
func (w *worker) showBackoff(c *container, err error, backoff time.Duration) {
	w.mu.Lock()
	var problem *stateError
	switch {
	case errors.As(err, &problem):
		if problem.Reason == reasonImagePull && backoff > 0 {
			problem = &stateError{Reason: "ImagePullBackOff", Message: problem.Message}
		}
		c.state = waitingState(problem.Reason, problem.Message)
	case err == nil && backoff > 0:
		c.last = c.state
		message := fmt.Sprintf("back-off %s restarting failed container=%s pod=%s", backoff, c.spec.Name, w.key)
		c.state = waitingState("CrashLoopBackOff", message)
	}
	w.mu.Unlock()
	if problem != nil {
		w.event(corev1.EventTypeWarning, "Failed", problem.Error())
	} else if backoff > 0 {
		w.event(corev1.EventTypeWarning, "BackOff", "Back-off restarting failed container "+c.spec.Name)
	}
	w.touch()
}

const reasonImagePull = "ErrImagePull"

// runOnce starts the container and waits for its end. An error says that it did not start.
func (w *worker) runOnce(ctx context.Context, c *container) error {
	image, found := findImage(w.node.config.Images, c.spec.Image)
	if !found {
		return &stateError{reasonImagePull, fmt.Sprintf("the lab has no image %q; it knows: %s", c.spec.Image, knownImages(w.node.config.Images))}
	}
	w.mu.Lock()
	facts, podSandbox, volumes := w.facts(), w.sandbox, w.volumes
	w.mu.Unlock()
	env, err := environment(ctx, w.node.objects, facts, c.spec, image)
	if err != nil {
		return &stateError{"CreateContainerConfigError", err.Error()}
	}
	mounts, err := containerMounts(c.spec, image, w.dir, volumes, env)
	if err != nil {
		return &stateError{"CreateContainerConfigError", err.Error()}
	}
	limits, err := restrict(facts.pod, c.spec, image)
	if err != nil {
		return err
	}
	id := rand.String(16)
	scratch := filepath.Join(w.dir, "containers", id)
	if err := os.MkdirAll(scratch, 0o755); err != nil {
		return &stateError{"CreateContainerError", err.Error()}
	}
	defer os.RemoveAll(scratch)
	logs := newLogBook()
	stdout, stderr := logs.stream(), logs.stream()
	spec := processSpec{
		Scratch: scratch, Network: podSandbox.network, Hostname: hostname(facts.pod), Mounts: mounts, Env: env, Dir: c.spec.WorkingDir,
		Args:   commandLine(image, expandAll(c.spec.Command, env), expandAll(c.spec.Args, env)),
		Output: [2]io.Writer{stdout, stderr}, Restrictions: limits,
	}
	begin := time.Now()
	var p *process
	if len(spec.Args) == 0 {
		err = errors.New("no command specified")
	} else {
		p, err = startContainer(spec)
	}
	if err != nil {
		w.recordFailedStart(c, id, begin, err)
		return nil
	}
	w.runProcess(ctx, c, p, &prober{network: podSandbox.network, podIP: w.probeIP(facts), spec: c.spec, process: p, env: env}, id, logs)
	stdout.flush()
	stderr.flush()
	logs.close()
	return nil
}

func (w *worker) probeIP(facts podFacts) string {
	if len(facts.ips) == 0 {
		return "127.0.0.1"
	}
	return facts.ips[0]
}

func hostname(pod *corev1.Pod) string {
	name := pod.Spec.Hostname
	if name == "" {
		name = pod.Name
	}
	return name[:min(len(name), 63)]
}

// recordFailedStart shows a container that could not be started as one that ended at once, as a container runtime does.
func (w *worker) recordFailedStart(c *container, id string, begin time.Time, err error) {
	w.mu.Lock()
	w.countStart(c, id)
	c.state = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		ExitCode: 128, Reason: "StartError", Message: err.Error(), ContainerID: c.id,
		StartedAt: metav1.NewTime(begin), FinishedAt: metav1.Now(),
	}}
	w.mu.Unlock()
	w.event(corev1.EventTypeWarning, "Failed", "Error: "+err.Error())
	w.touch()
}

// countStart counts a start. The Pod's lock is held.
func (w *worker) countStart(c *container, id string) {
	if c.state.Terminated != nil {
		c.last = c.state
	}
	c.starts++
	c.restarts = int32(c.starts - 1)
	c.id = "lab://" + id
	c.done = false
}

// runProcess shows the process as running, probes it, and waits for its end.
func (w *worker) runProcess(ctx context.Context, c *container, p *process, pr *prober, id string, logs *logBook) {
	probes, stopProbes := context.WithCancel(ctx)
	defer stopProbes()
	health, shutdown := context.WithCancel(probes)
	defer shutdown()
	w.mu.Lock()
	w.countStart(c, id)
	c.state = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}
	c.process, c.prober, c.shutdown = p, pr, shutdown
	c.previous, c.logs = c.logs, logs
	c.started = c.spec.StartupProbe == nil
	c.ready = c.started && c.spec.ReadinessProbe == nil
	if c.stopping {
		p.kill(unix.SIGKILL)
	}
	w.mu.Unlock()
	w.touch()
	w.event(corev1.EventTypeNormal, "Started", "Started container "+c.spec.Name)
	go w.probeContainer(probes, health, c, pr)
	if lifecycle := c.spec.Lifecycle; lifecycle != nil && lifecycle.PostStart != nil {
		go w.runHook(health, c, pr, lifecycle.PostStart, "PostStart")
	}
	select {
	case <-p.done:
	case <-ctx.Done(): // the sandbox is gone, or the lab ends
		p.kill(unix.SIGKILL)
		<-p.done
	}
	stopProbes()
	w.mu.Lock()
	started := c.state.Running.StartedAt
	c.state = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		ExitCode: int32(p.exit), Signal: 0, Reason: exitReason(p.exit), ContainerID: c.id,
		StartedAt: started, FinishedAt: metav1.NewTime(p.finished),
	}}
	c.process, c.prober, c.shutdown = nil, nil, nil
	c.started, c.ready = false, false
	w.mu.Unlock()
	p.release()
	w.touch()
}

func exitReason(code int) string {
	if code == 0 {
		return "Completed"
	}
	return "Error"
}

// probeContainer runs the container's probes: startup first, then liveness, until health ends, and readiness, which goes
// on while the container is terminating.
func (w *worker) probeContainer(ctx, health context.Context, c *container, p *prober) {
	unhealthy := func(kind string) func(error) {
		return func(err error) {
			w.event(corev1.EventTypeWarning, "Unhealthy", fmt.Sprintf("%s probe failed: %v", kind, err))
		}
	}
	fatal := func(kind string, probe *corev1.Probe) func(bool) {
		return func(healthy bool) {
			if !healthy {
				w.event(corev1.EventTypeNormal, "Killing", fmt.Sprintf("Container %s failed %s probe, will be restarted", c.spec.Name, kind))
				go w.stopProcess(ctx, c, p, w.gracePeriod(probe))
			}
		}
	}
	if probe := c.spec.StartupProbe; probe != nil {
		started := make(chan struct{})
		startup, cancel := context.WithCancel(health)
		go p.watch(startup, probe, func(healthy bool) {
			fatal("startup", probe)(healthy)
			if healthy {
				close(started)
			}
		}, unhealthy("Startup"))
		select {
		case <-started:
			cancel()
		case <-health.Done():
			cancel()
			return
		}
	}
	if probe := c.spec.LivenessProbe; probe != nil {
		go p.watch(health, probe, fatal("liveness", probe), unhealthy("Liveness"))
	}
	w.mark(c, p, func() { c.started, c.ready = true, c.spec.ReadinessProbe == nil })
	if probe := c.spec.ReadinessProbe; probe != nil {
		p.watch(ctx, probe, func(healthy bool) { w.mark(c, p, func() { c.ready = healthy }) }, unhealthy("Readiness"))
	}
}

// mark changes the container's state, unless the probed process is no longer its process.
func (w *worker) mark(c *container, p *prober, change func()) {
	w.mu.Lock()
	if c.prober == p {
		change()
	}
	w.mu.Unlock()
	w.touch()
}

func (w *worker) gracePeriod(probe *corev1.Probe) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case probe != nil && probe.TerminationGracePeriodSeconds != nil:
		return seconds(*probe.TerminationGracePeriodSeconds)
	case w.pod.DeletionGracePeriodSeconds != nil:
		return seconds(*w.pod.DeletionGracePeriodSeconds)
	case w.pod.Spec.TerminationGracePeriodSeconds != nil:
		return seconds(*w.pod.Spec.TerminationGracePeriodSeconds)
	default:
		return 30 * time.Second
	}
}

// stopProcess ends the container's process: its preStop hook, SIGTERM, and SIGKILL when the grace period is over.
func (w *worker) stopProcess(ctx context.Context, c *container, p *prober, grace time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	ended := p.process.done
	if lifecycle := c.spec.Lifecycle; lifecycle != nil && lifecycle.PreStop != nil && grace > 0 {
		hook := make(chan struct{})
		go func() {
			defer close(hook)
			w.runHook(ctx, c, p, lifecycle.PreStop, "PreStop")
		}()
		select {
		case <-hook:
		case <-ended:
		}
	}
	if grace > 0 {
		p.process.kill(stopSignal(c.spec))
		select {
		case <-ended:
			return
		case <-ctx.Done():
		}
	}
	p.process.kill(unix.SIGKILL)
	<-ended
}

func stopSignal(spec *corev1.Container) unix.Signal {
	if spec.Lifecycle != nil && spec.Lifecycle.StopSignal != nil {
		if signal := unix.SignalNum(string(*spec.Lifecycle.StopSignal)); signal != 0 {
			return signal
		}
	}
	return unix.SIGTERM
}

func (w *worker) runHook(ctx context.Context, c *container, p *prober, handler *corev1.LifecycleHandler, kind string) {
	var err error
	switch {
	case handler.Sleep != nil:
		wait(ctx, seconds(handler.Sleep.Seconds))
	case handler.Exec != nil:
		err = runIn(ctx, p.process.enterContainer, Command{Args: handler.Exec.Command, Env: p.env, Dir: c.spec.WorkingDir})
	case handler.HTTPGet != nil:
		err = p.httpGet(ctx, handler.HTTPGet)
	}
	if err != nil && ctx.Err() == nil {
		w.event(corev1.EventTypeWarning, "Failed"+kind+"Hook", fmt.Sprintf("%s hook of container %s failed: %v", kind, c.spec.Name, err))
	}
}

// stopAll ends the Pod's main containers at once, then its sidecars in reverse order.
func (w *worker) stopAll(ctx context.Context) {
	w.mu.Lock()
	var main, sidecars []*container
	for _, c := range w.main {
		c.stopping = true
		main = append(main, c)
	}
	for _, c := range slices.Backward(w.init) {
		c.stopping = true
		sidecars = append(sidecars, c)
	}
	w.mu.Unlock()
	done := make(chan struct{})
	for _, c := range main {
		go func() {
			w.stopOne(ctx, c)
			done <- struct{}{}
		}()
	}
	for range main {
		<-done
	}
	for _, c := range sidecars {
		w.stopOne(ctx, c)
	}
}

func (w *worker) stopOne(ctx context.Context, c *container) {
	w.mu.Lock()
	p := c.prober
	if c.shutdown != nil {
		c.shutdown()
	}
	w.mu.Unlock()
	if p == nil {
		return
	}
	w.event(corev1.EventTypeNormal, "Killing", "Stopping container "+c.spec.Name)
	w.stopProcess(ctx, c, p, w.remainingGrace())
}
