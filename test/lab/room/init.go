// SPDX-License-Identifier: Apache-2.0

package room

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Init has to be the first call of main. In a room's process 1 it sets the room up, runs the program the room was made
// for and does not return; elsewhere it does nothing.
func Init() {
	if len(os.Args) == 0 || os.Args[0] != initName || os.Getpid() != 1 {
		return
	}
	if err := furnish(); err != nil {
		fmt.Fprintf(os.Stderr, "error: set up the lab's namespaces: %v\n", err)
		os.Exit(125)
	}
	status, err := serve(os.Args[1:])
	if err != nil {
		fmt.Fprintf(os.Stderr, "error: %v\n", err)
		os.Exit(125)
	}
	os.Exit(status)
}

// furnish gives the room mounts of its own, a host name and a loopback interface.
func furnish() error {
	if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if inside, err := inUserNamespace(); err != nil {
		return err
	} else if inside {
		if err := rebuildRoot(); err != nil {
			return err
		}
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	if path, err := filepath.EvalSymlinks("/var/run"); err == nil && path != "/run" {
		if err := unix.Mount("/run", "/var/run", "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount /var/run: %w", err)
		}
	}
	for _, dir := range []string{"/run/netns", "/run/lock", TempDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Sethostname([]byte("kube-ovn-lab")); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find loopback: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set loopback up: %w", err)
	}
	return nil
}

// serve runs argv and does what falls to a process 1: hand signals on, and reap the orphans of all others.
func serve(argv []string) (int, error) {
	signals := make(chan os.Signal, 64)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGCHLD)

	env := append(os.Environ(), insideEnv+"=1", "TMPDIR="+TempDir)
	process, err := os.StartProcess("/proc/self/exe", argv, &os.ProcAttr{Env: env, Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}})
	if err != nil {
		return 0, err
	}
	for s := range signals {
		if s != syscall.SIGCHLD {
			if !typed(s) {
				_ = process.Signal(s)
			}
			continue
		}
		for {
			var status syscall.WaitStatus
			pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
			if errors.Is(err, syscall.EINTR) {
				continue
			}
			if err != nil || pid <= 0 {
				break
			}
			if pid == process.Pid && status.Signaled() {
				return 128 + int(status.Signal()), nil
			}
			if pid == process.Pid {
				return status.ExitStatus(), nil
			}
		}
	}
	return 0, errors.New("signals ended")
}
