// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeovn/kube-ovn/test/lab/fabric"
)

// mount is something of the machine that a container sees.
type mount struct {
	// Source is a path of the machine; empty: an empty directory of the container's own.
	Source   string
	Target   string
	ReadOnly bool
}

// processSpec is a container's process, all decided.
type processSpec struct {
	// Scratch is an empty directory for the container's layer.
	Scratch  string
	Network  *fabric.Namespace // nil: the node's own
	Hostname string
	Mounts   []mount
	Args     []string
	Env      []string
	Dir      string
	Output   [2]io.Writer // stdout, stderr

	Restrictions restrictions
}

// process is a container's first process; all others in the container end with it.
type process struct {
	cmd   *exec.Cmd
	pid   int
	pidfd int
	// done is closed when it has ended; exit and finished are set then.
	done     chan struct{}
	exit     int
	signal   int
	finished time.Time
}

// startContainer starts the process in namespaces of its own.
func startContainer(spec processSpec) (*process, error) {
	for i := range spec.Mounts {
		if spec.Mounts[i].Source == "" {
			continue
		}
		source, err := filepath.EvalSymlinks(spec.Mounts[i].Source)
		if err != nil {
			return nil, fmt.Errorf("mount at %s: %w", spec.Mounts[i].Target, err)
		}
		spec.Mounts[i].Source = source
	}
	cmd := &exec.Cmd{Env: spec.Env, Stdout: spec.Output[0], Stderr: spec.Output[1], WaitDelay: 2 * time.Second}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: unix.CLONE_NEWPID}
	err := fabric.InThread(func() error {
		if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS | unix.CLONE_NEWUTS); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		if err := unix.Sethostname([]byte(spec.Hostname)); err != nil {
			return fmt.Errorf("set hostname: %w", err)
		}
		if spec.Network != nil {
			if err := spec.Network.Enter(); err != nil {
				return err
			}
		}
		if err := enterRoot(spec); err != nil {
			return err
		}
		program, err := lookProgram(spec.Args[0], spec.Env, spec.Dir)
		if err != nil {
			return err
		}
		command, err := spec.Restrictions.wrap(append([]string{program}, spec.Args[1:]...))
		if err != nil {
			return err
		}
		// The new pid namespace's /proc can only be mounted from inside it.
		cmd.Path = "/bin/sh"
		cmd.Args = append([]string{"sh", "-c", `mount -t proc proc /proc && exec "$@"`, "sh"}, command...)
		cmd.Dir = spec.Dir
		return cmd.Start()
	})
	if err != nil {
		return nil, err
	}
	return newProcess(cmd)
}

func newProcess(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, pid: cmd.Process.Pid, done: make(chan struct{})}
	var err error
	if p.pidfd, err = unix.PidfdOpen(p.pid, 0); err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return nil, fmt.Errorf("open process %d: %w", p.pid, err)
	}
	go func() {
		_ = cmd.Wait()
		if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			p.signal, p.exit = int(status.Signal()), 128+int(status.Signal())
		} else {
			p.exit = cmd.ProcessState.ExitCode()
		}
		p.finished = time.Now()
		close(p.done)
	}()
	return p, nil
}

// kill sends a signal; to a process that has ended it does nothing.
func (p *process) kill(signal unix.Signal) {
	select {
	case <-p.done:
	default:
		_ = unix.PidfdSendSignal(p.pidfd, signal, nil, 0)
	}
}

func (p *process) release() { _ = unix.Close(p.pidfd) }

const oldRoot = "/.machine"

// enterRoot makes the container's root and moves the calling thread there. Targets are resolved inside the new root, so
// that a symbolic link in it cannot lead a mount out of it.
func enterRoot(spec processSpec) error {
	steps := []func() error{
		func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") },
		func() error { return mountOverlay("/", spec.Scratch, filepath.Join(spec.Scratch, "root")) },
		func() error {
			root := filepath.Join(spec.Scratch, "root")
			if err := os.MkdirAll(filepath.Join(root, oldRoot), 0o700); err != nil {
				return err
			}
			return unix.PivotRoot(root, filepath.Join(root, oldRoot))
		},
		func() error { return os.Chdir("/") },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("make root: %w", err)
		}
	}
	if err := mountSystem(); err != nil {
		return err
	}
	if err := mountBelowRoot(oldRoot + spec.Scratch); err != nil {
		return err
	}
	for _, m := range spec.Mounts {
		if err := mountOne(m); err != nil {
			return fmt.Errorf("mount at %s: %w", m.Target, err)
		}
	}
	if err := unix.Unmount(oldRoot, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the machine's root: %w", err)
	}
	if err := os.Remove(oldRoot); err != nil {
		return err
	}
	if spec.Restrictions.ReadOnly {
		return closeRoot(spec.Mounts)
	}
	return nil
}

// closeRoot makes all of the root read-only but what is mounted for the container, and what no image has in it.
func closeRoot(mounts []mount) error {
	data, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) < 6 {
			continue
		}
		// Here these are overlays of the machine's, and tmpfs.
		target := fields[4]
		within := func(dir string) bool { return target == dir || strings.HasPrefix(target, dir+"/") }
		if within("/proc") || within("/dev") || within("/sys") || slices.ContainsFunc(mounts, func(m mount) bool { return within(filepath.Clean(m.Target)) }) {
			continue
		}
		var stat unix.Statfs_t
		if err := unix.Statfs(target, &stat); err != nil {
			return fmt.Errorf("make %s read-only: %w", target, err)
		}
		kept := uintptr(stat.Flags) & (unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC) // A user namespace may not take them off.
		if err := unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|kept, ""); err != nil {
			return fmt.Errorf("make %s read-only: %w", target, err)
		}
	}
	return nil
}

// mountOverlay makes a tree appear at target, where what is written goes to scratch.
func mountOverlay(lower, scratch, target string) error {
	upper, work := filepath.Join(scratch, "upper"), filepath.Join(scratch, "work")
	for _, dir := range []string{upper, work, target} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", lower, upper, work)
	err := unix.Mount("overlay", target, "overlay", 0, options)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) {
		err = unix.Mount("overlay", target, "overlay", 0, options+",userxattr") // in a user namespace
	}
	if err != nil {
		return fmt.Errorf("mount overlay of %s: %w", lower, err)
	}
	return nil
}

// mountSystem gives the new root what no image has in it.
func mountSystem() error {
	for _, dir := range []string{"/proc", "/dev"} {
		if err := unix.Mount(oldRoot+dir, dir, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("mount %s: %w", dir, err)
		}
	}
	if err := unix.Mount("sysfs", "/sys", "sysfs", 0, ""); err != nil {
		if err := unix.Mount(oldRoot+"/sys", "/sys", "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("mount /sys: %w", err)
		}
	}
	for _, dir := range []string{"/run", "/tmp"} {
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=1777"); err != nil {
			return fmt.Errorf("mount %s: %w", dir, err)
		}
	}
	return nil
}

// mountBelowRoot brings in the directories right below the root that are file systems of their own: /usr, /home, a work
// directory, and all of them in a user namespace's room. Where the kernel refuses an overlay, they are read-only.
func mountBelowRoot(scratch string) error {
	entries, err := os.ReadDir(oldRoot)
	if err != nil {
		return err
	}
	var root unix.Stat_t
	if err := unix.Stat(oldRoot, &root); err != nil {
		return err
	}
	for _, entry := range entries {
		var stat unix.Stat_t
		path := "/" + entry.Name()
		if !entry.IsDir() || strings.Contains(" /proc /dev /sys /run /tmp ", " "+path+" ") {
			continue
		}
		if err := unix.Lstat(oldRoot+path, &stat); err != nil || stat.Dev == root.Dev {
			continue
		}
		if mountOverlay(oldRoot+path, filepath.Join(scratch, "below"+path), path) == nil {
			continue
		}
		if err := unix.Mount(oldRoot+path, path, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("mount %s: %w", path, err)
		}
		_ = unix.Mount("", path, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "") // flags may be locked
	}
	return nil
}

func mountOne(m mount) error {
	if m.Source == "" {
		if err := os.MkdirAll(m.Target, 0o755); err != nil {
			return err
		}
		return unix.Mount("tmpfs", m.Target, "tmpfs", 0, "mode=755")
	}
	source := oldRoot + m.Source
	info, err := os.Stat(source)
	if err != nil {
		return err
	}
	if info.IsDir() {
		err = os.MkdirAll(m.Target, 0o755)
	} else if err = os.MkdirAll(filepath.Dir(m.Target), 0o755); err == nil {
		var file *os.File
		if file, err = os.OpenFile(m.Target, os.O_CREATE|os.O_RDONLY, 0o644); err == nil {
			err = file.Close()
		}
	}
	if err != nil {
		return err
	}
	if err := unix.Mount(source, m.Target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	if m.ReadOnly {
		return unix.Mount("", m.Target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
	}
	return nil
}

// lookProgram finds a program in the calling thread's root by the given environment's PATH.
func lookProgram(name string, env []string, dir string) (string, error) {
	if strings.Contains(name, "/") {
		path := name
		if !filepath.IsAbs(path) {
			path = filepath.Join("/", dir, path)
		}
		if info, err := os.Stat(path); err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
			return "", fmt.Errorf("exec: %q: no such program", name)
		}
		return path, nil
	}
	path := defaultPath
	for _, entry := range env {
		if strings.HasPrefix(entry, "PATH=") {
			path = entry
		}
	}
	for _, dir := range filepath.SplitList(strings.TrimPrefix(path, "PATH=")) {
		candidate := filepath.Join(dir, name)
		if info, err := os.Stat(candidate); err == nil && !info.IsDir() && info.Mode()&0o111 != 0 {
			return candidate, nil
		}
	}
	return "", fmt.Errorf("exec: %q: executable file not found in $PATH", name)
}
