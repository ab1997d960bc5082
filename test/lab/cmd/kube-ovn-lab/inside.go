// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/kubeovn/kube-ovn/test/lab"
	"github.com/kubeovn/kube-ovn/test/lab/room"
)

// shell enters a running lab.
func shell(args []string) (int, error) {
	pids, err := room.Find()
	if err != nil {
		return 1, err
	}
	if len(args) > 0 && args[0] != "--" {
		pid, err := strconv.Atoi(args[0])
		if err != nil {
			return 2, errUsage
		}
		if !slices.Contains(pids, pid) {
			return 1, fmt.Errorf("process %d is no lab; running: %v", pid, pids)
		}
		pids, args = []int{pid}, args[1:]
	}
	if len(args) > 0 {
		args = args[1:] // --
	}
	switch len(pids) {
	case 0:
		return 1, room.ErrNoRoom
	case 1:
	default:
		return 1, fmt.Errorf("several labs are running: name one of %v, as in make lab-shell ARGS=%d", pids, pids[0])
	}
	argv := args
	if len(argv) == 0 {
		argv = []string{"bash", "--norc", "-i"}
	}
	self, err := os.Executable()
	if err != nil {
		return 1, err
	}
	// The rest happens inside: only there are the lab's files where they say they are.
	env := append(os.Environ(), "HISTFILE="+room.Dir+"/history", `PS1=\[\e[1m\]lab\[\e[0m\] \w \$ `)
	return 1, room.Enter(pids[0], append([]string{self, "run-attached"}, argv...), env)
}

// runAttached is the part of shell that happens inside.
func runAttached(args []string) (int, error) {
	h, err := lab.Attach("")
	if err != nil {
		return 1, fmt.Errorf("%w (is the lab still starting?)", err)
	}
	setenv(h)
	return replace(args)
}

// replace makes this process another program.
func replace(argv []string) (int, error) {
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return 127, err
	}
	return 1, syscall.Exec(path, argv, os.Environ())
}

// interruptible returns a context that ends with an interrupt.
func interruptible() (context.Context, context.CancelFunc) {
	return signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
}

func inClient(args []string) (int, error) {
	if len(args) < 2 {
		return 2, errUsage
	}
	h, err := lab.Attach("")
	if err != nil {
		return 1, err
	}
	return replace(h.ClientArgs(args[0], args[1:]...))
}

func inPod(args []string) (int, error) {
	if len(args) < 2 {
		return 2, errUsage
	}
	namespace, name, ok := strings.Cut(args[0], "/")
	if !ok {
		namespace, name = "default", namespace
	}
	h, err := lab.Attach("")
	if err != nil {
		return 1, err
	}
	ctx, stop := interruptible()
	defer stop()
	argv, err := h.PodArgs(ctx, namespace, name, args[1:]...)
	if err != nil {
		return 1, err
	}
	return replace(argv)
}

func inGateway(args []string) (int, error) {
	if len(args) < 2 {
		return 2, errUsage
	}
	h, err := lab.Attach("")
	if err != nil {
		return 1, err
	}
	ctx, stop := interruptible()
	defer stop()
	argv, err := h.GatewayArgs(ctx, args[0], args[1:]...)
	if err != nil {
		return 1, err
	}
	return replace(argv)
}

func controller(args []string) (int, error) {
	if len(args) == 0 {
		return 2, errUsage
	}
	h, err := lab.Attach("")
	if err != nil {
		return 1, err
	}
	ctx, stop := interruptible()
	defer stop()
	options := lab.ControllerOptions{Args: args[1:]}
	switch args[0] {
	case "start":
		err = h.StartController(ctx, options)
	case "stop":
		err = h.StopController(ctx)
	case "kill":
		err = h.KillController(ctx)
	case "restart":
		err = h.RestartController(ctx, options)
	default:
		return 2, errUsage
	}
	return 0, err
}

func dump(args []string) (int, error) {
	h, err := lab.Attach("")
	if err != nil {
		return 1, err
	}
	ctx, stop := interruptible()
	defer stop()
	switch len(args) {
	case 0:
		return 0, h.Dump(ctx, os.Stdout)
	case 1:
		return 0, h.DumpTo(ctx, args[0])
	}
	return 2, errUsage
}
