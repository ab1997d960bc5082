// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/kubeovn/kube-ovn/test/lab"
	"github.com/kubeovn/kube-ovn/test/lab/controlplane"
	"github.com/kubeovn/kube-ovn/test/lab/room"
	"github.com/kubeovn/kube-ovn/test/lab/stock/handler"
	"github.com/kubeovn/kube-ovn/test/lab/supervise"
)

// commandGrace is how long a command may go on after the lab was told to end.
const commandGrace = 10 * time.Second

// session is a lab and what the command line said about it.
type session struct {
	options   lab.Options
	artifacts string
	quiet     bool
	failures  atomic.Int32
	fatal     chan struct{}
}

func newSession(name string, args []string) (*session, []string, error) {
	s := &session{fatal: make(chan struct{}, 1)}
	s.options.Progress = func(format string, args ...any) {
		if !s.quiet {
			fmt.Fprintf(os.Stderr, "lab: "+format+"\n", args...)
		}
	}
	s.options.OnFailure = s.failed
	flags := pflag.NewFlagSet(name, pflag.ContinueOnError)
	flags.SetInterspersed(false)
	flags.StringVar(&s.options.ProxyMode, "proxy-mode", controlplane.ProxyNFTables, "mode of kube-proxy: nftables or iptables")
	flags.StringVar(&s.options.KubeOVN, "kube-ovn", lab.OwnCRDs, "what of Kube-OVN is there: own (this project's CRDs), stock (a stand-in for its own release, this project beside it) or none")
	flags.StringVar(&s.options.StockRelease, "stock-release", string(handler.V117), "which of its releases stock is: v1.17, or newer (affinity, a webhook)")
	flags.BoolVar(&s.options.NoStockWebhook, "no-stock-webhook", false, "leave out the webhook that the newer one has")
	flags.BoolVar(&s.options.NoController, "no-controller", false, "start no kube-ovn-controller")
	flags.StringArrayVar(&s.options.Controller.Args, "controller-arg", nil, "one more flag for kube-ovn-controller")
	flags.StringVar(&s.artifacts, "artifacts", "", "directory that gets everything there is to know when the command fails")
	flags.BoolVar(&s.quiet, "quiet", false, "say only what went wrong")
	if err := flags.Parse(args); err != nil {
		return nil, nil, err
	}
	return s, flags.Args(), nil
}

// failed reports a part of the lab that ended unasked. Of those, only kube-ovn-controller can be missed.
func (s *session) failed(err error) {
	s.failures.Add(1)
	fmt.Fprintf(os.Stderr, "lab: error: %v\n", err)
	var death *supervise.DeathError
	if !errors.As(err, &death) || slices.Contains(controlplane.Processes, death.Name) {
		select {
		case s.fatal <- struct{}{}:
		default:
		}
	}
}

// enterRoom runs the same command line in a room.
func enterRoom(name string, args []string) (int, error) {
	return room.Run(append([]string{os.Args[0], name}, args...))
}

func up(args []string) (int, error) {
	s, rest, err := newSession("up", args)
	if errors.Is(err, pflag.ErrHelp) {
		return 0, nil
	}
	if err != nil || len(rest) > 0 {
		return 2, errors.Join(err, errUsage)
	}
	if !room.Inside() {
		return enterRoom("up", args)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	l, err := lab.Start(ctx, s.options)
	if err != nil {
		return 1, err
	}
	defer l.Stop()
	fmt.Print(greeting)
	select {
	case <-ctx.Done():
		return 0, nil
	case <-s.fatal:
		return 1, errors.New("the lab lost a part that it cannot do without")
	}
}

const greeting = `
The lab is up. It is gone without a trace when this command ends (Ctrl-C).

In another terminal:

  make lab-shell                        a shell in it, kubectl set up
  kubectl get nodes,vpcs,subnets
  client1 curl http://203.0.113.20      as a client of the external network (client1, client2, client3)
  in-pod NAMESPACE/NAME ip address      in a Pod's namespaces
  in-gateway NAME nft list ruleset      in the pod of a VPC NAT gateway
  lab-controller restart                kube-ovn-controller; stop, kill and start as well
  lab-dump                              everything, when something went wrong
`

func run(args []string) (int, error) {
	s, argv, err := newSession("run", args)
	if errors.Is(err, pflag.ErrHelp) {
		return 0, nil
	}
	if err != nil || len(argv) == 0 {
		return 2, errors.Join(err, errUsage)
	}
	if !room.Inside() {
		return enterRoom("run", args)
	}
	// The command hears an interrupt as well, and the lab has to outlast it.
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, syscall.SIGINT)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	started := make(chan struct{})
	go func() {
		select {
		case <-interrupts:
			cancel()
		case <-started:
		}
	}()
	l, err := lab.Start(ctx, s.options)
	close(started)
	if ctx.Err() != nil {
		return 128 + int(syscall.SIGINT), errors.New("interrupted")
	}
	if err != nil {
		return 1, err
	}
	defer l.Stop()
	return s.runIn(ctx, l, argv)
}

// runIn runs a command in the lab and returns the status to end with.
func (s *session) runIn(ctx context.Context, l *lab.Lab, argv []string) (int, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-s.fatal:
			cancel()
		case <-ctx.Done():
		}
	}()
	status, err := runCommand(ctx, l.Handle, argv)
	if err != nil {
		return 1, err
	}
	if status == 0 && s.failures.Load() > 0 {
		status, err = 1, errors.New("a part of the lab ended unasked")
	}
	if status != 0 && s.artifacts != "" {
		if err := l.DumpTo(context.WithoutCancel(ctx), s.artifacts); err != nil {
			fmt.Fprintf(os.Stderr, "lab: error: %v\n", err)
		}
		fmt.Fprintf(os.Stderr, "lab: what there is to know about it is in %s\n", s.artifacts)
	}
	return status, err
}

// runCommand runs a command with the lab's environment; when ctx is done, it is asked to end.
func runCommand(ctx context.Context, h *lab.Handle, argv []string) (int, error) {
	setenv(h)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = commandGrace
	return room.ExitStatus(cmd.Run())
}

// setenv puts the lab's environment into this process's own, so that commands are found by the lab's PATH.
func setenv(h *lab.Handle) {
	for _, entry := range h.Environ() {
		name, value, _ := strings.Cut(entry, "=")
		_ = os.Setenv(name, value) // Names without "=" or NUL cannot fail.
	}
}
