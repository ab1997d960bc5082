// SPDX-License-Identifier: Apache-2.0

package room

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

const (
	// Dir is the directory inside a room that is the room's own.
	Dir = "/run/kube-ovn-lab"
	// TempDir is what TMPDIR names in a room.
	TempDir = Dir + "/tmp"

	// initName is what a room's process 1 is called: how it knows itself, and how Find knows it.
	initName = "kube-ovn-lab-room"
	// insideEnv is set in every process of a room.
	insideEnv = "KUBE_OVN_LAB_ROOM"
)

// Inside tells whether this process is in a room.
func Inside() bool {
	return os.Getenv(insideEnv) != ""
}

// Run starts this program once more, with argv (its name included), in a new room and with this process's standard
// streams, waits for it and returns its exit status. The program's main has to begin with Init.
func Run(argv []string) (int, error) {
	return run(argv, !privileged())
}

// Main is the main function of a program that does all it does in a room: it starts itself there, does it, and ends the
// process with the exit status. It never returns.
func Main(inside func() (int, error)) {
	Init()
	var status int
	var err error
	if Inside() {
		status, err = inside()
	} else {
		status, err = Run(os.Args)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = 1
	}
	os.Exit(status)
}

// run is Run, in a user namespace or not.
func run(argv []string, userNamespace bool) (int, error) {
	// The room's life hangs on the thread that started it (PDEATHSIG), which must not end early.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	cmd := exec.Command("/proc/self/exe")
	cmd.Args = append([]string{initName}, argv...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
		Pdeathsig:  syscall.SIGKILL,
	}
	if userNamespace {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}

	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("make namespaces: %w%s", err, whyNot())
	}
	go forward(signals, cmd.Process)
	return ExitStatus(cmd.Wait())
}

// forward hands signals on, but for those that everybody got already.
func forward(signals <-chan os.Signal, to *os.Process) {
	for s := range signals {
		if !typed(s) {
			_ = to.Signal(s) // It has ended: nothing left to tell.
		}
	}
}

// typed tells whether a signal came from the terminal, which tells everybody in the room as well.
func typed(s os.Signal) bool {
	return s == syscall.SIGINT && term.IsTerminal(int(os.Stdin.Fd()))
}

// ExitStatus turns what Wait returns into a status as a shell would report it.
func ExitStatus(err error) (int, error) {
	var exit *exec.ExitError
	if err == nil {
		return 0, nil
	}
	if !errors.As(err, &exit) {
		return 0, err
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return exit.ExitCode(), nil
}

// privileged tells whether namespaces can be made without a user namespace around them.
func privileged() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return os.Geteuid() == 0
	}
	const needed = 1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_NET_ADMIN
	return os.Geteuid() == 0 && data[0].Effective&needed == needed
}

// whyNot names the settings by which a kernel keeps users from making namespaces.
func whyNot() string {
	if privileged() {
		return ""
	}
	refusals := []struct{ path, refused, hint string }{
		{"/proc/sys/user/max_user_namespaces", "0", "sysctl -w user.max_user_namespaces=10000"},
		{"/proc/sys/kernel/unprivileged_userns_clone", "0", "sysctl -w kernel.unprivileged_userns_clone=1"},
		{"/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1", "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"},
	}
	for _, r := range refusals {
		if value, err := os.ReadFile(r.path); err == nil && strings.TrimSpace(string(value)) == r.refused {
			return fmt.Sprintf("; %s is %s here, so the lab needs root, or root has to allow it: %s", r.path, r.refused, r.hint)
		}
	}
	return "; not root, and this kernel does not let users make namespaces of their own: the lab needs root here"
}

// ErrNoRoom says that no room is running.
var ErrNoRoom = errors.New("no lab is running: start one with make lab")

// Find returns the process ids (as seen from here) of the first process of every room, in ascending order.
func Find() ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		cmdline, err := os.ReadFile("/proc/" + entry.Name() + "/cmdline")
		if err != nil {
			continue // It ended meanwhile.
		}
		if name, _, _ := strings.Cut(string(cmdline), "\x00"); name == initName {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// Enter replaces this process by argv inside the room whose first process is pid, in the current directory.
func Enter(pid int, argv, env []string) error {
	nsenter, err := exec.LookPath("nsenter")
	if err != nil {
		return err
	}
	args := []string{"nsenter", "--target", strconv.Itoa(pid), "--mount", "--pid", "--net", "--uts", "--ipc"}
	if theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/user", pid)); err != nil {
		return fmt.Errorf("enter room of process %d: %w", pid, err)
	} else if ours, err := os.Readlink("/proc/self/ns/user"); err != nil || ours != theirs {
		args = append(args, "--user", "--preserve-credentials")
	}
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	// Entering a mount namespace leads to its root; the tree of the outside is there, too.
	args = append(args, "--", "sh", "-c", `cd "$0" && exec "$@"`, dir)
	return syscall.Exec(nsenter, append(args, argv...), append(env, insideEnv+"=1"))
}
