// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/pflag"
)

// hook as the first argument makes a program that calls Init the command.
const hook = "kube-ovn-traffic"

const usage = `usage: kube-ovn-traffic COMMAND [FLAGS] ADDRESS:PORT

  spread   open a number of connections, each a new one, and say who answered
  stream   open new connections at a constant rate; say which failed and for how long
  hold     keep connections open and use them; say which were cut
  udp      send datagrams from one port; say who answered and when nobody did

The other side is agnhost netexec. Reports are lines of JSON: the last, with "final", when all is done, and, spread
excepted, one every --report (1s) and on SIGUSR1. SIGINT and SIGTERM end it. COMMAND --help lists the flags.
`

// Init makes the calling process the command and ends it, when it was started by an Argv. It has to be the first thing
// that main, or a test's TestMain, does.
func Init() {
	if len(os.Args) > 1 && os.Args[1] == hook {
		os.Exit(Main(os.Args[2:], os.Stdout, os.Stderr))
	}
}

// errUsage: the arguments make no sense.
var errUsage = errors.New("usage")

// Main is the command. It returns the exit status: 0 when it measured what it was to measure, whatever came out.
func Main(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	switch err := dispatch(ctx, args, stdout); {
	case err == nil:
		return 0
	case errors.Is(err, pflag.ErrHelp): // pflag has printed it.
		return 0
	case errors.Is(err, errUsage):
		fmt.Fprint(stderr, usage)
		return 2
	default:
		fmt.Fprintf(stderr, "error: %v\n", err)
		return 1
	}
}

func dispatch(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 {
		return errUsage
	}
	name, args := args[0], args[1:]
	run, ok := map[string]func(context.Context, []string, io.Writer) error{
		spreadName: runSpread, streamName: runStream, holdName: runHold, flowName: runFlow,
	}[name]
	if !ok {
		return errUsage
	}
	return run(ctx, args, out)
}

func runSpread(ctx context.Context, args []string, out io.Writer) error {
	var o SpreadOptions
	if _, err := parse(o.flags(), &o.Endpoint, args); err != nil {
		return err
	}
	result, err := o.Run(ctx)
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(result)
}

func runStream(ctx context.Context, args []string, out io.Writer) error {
	var o StreamOptions
	every, err := parse(o.flags(), &o.Endpoint, args)
	if err != nil {
		return err
	}
	s, err := NewStreamer(o)
	if err != nil {
		return err
	}
	return report(ctx, out, every, func(ctx context.Context) error { s.Run(ctx); return nil }, func(final bool) any {
		r := s.Snapshot()
		r.Final = final
		return r
	})
}

func runHold(ctx context.Context, args []string, out io.Writer) error {
	var o HoldOptions
	every, err := parse(o.flags(), &o.Endpoint, args)
	if err != nil {
		return err
	}
	h, err := NewHolder(o)
	if err != nil {
		return err
	}
	return report(ctx, out, every, func(ctx context.Context) error { h.Run(ctx); return nil }, func(final bool) any {
		r := h.Snapshot()
		r.Final = final
		return r
	})
}

func runFlow(ctx context.Context, args []string, out io.Writer) error {
	var o FlowOptions
	every, err := parse(o.flags(), &o.Endpoint, args)
	if err != nil {
		return err
	}
	s, err := NewSender(o)
	if err != nil {
		return err
	}
	return report(ctx, out, every, s.Run, func(final bool) any {
		r := s.Snapshot()
		r.Final = final
		return r
	})
}

// parse reads a subcommand's flags and target.
func parse(flags *pflag.FlagSet, endpoint *Endpoint, args []string) (every time.Duration, err error) {
	flags.DurationVar(&every, "report", time.Second, "how often to report")
	if err := flags.Parse(args); err != nil {
		return 0, err
	}
	if flags.NArg() != 1 || every <= 0 {
		return 0, errUsage
	}
	endpoint.Target = flags.Arg(0)
	return every, nil
}

// report runs something and prints snapshots of it until it ends.
func report(ctx context.Context, out io.Writer, every time.Duration, run func(context.Context) error, snapshot func(final bool) any) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGUSR1)
	defer signal.Stop(asked)
	ticker := time.NewTicker(every)
	defer ticker.Stop()

	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	encoder := json.NewEncoder(out)
	for {
		// The first one says that signals are heard from now on. When nobody reads them any more, there is nothing left to do.
		if err := encoder.Encode(snapshot(false)); err != nil {
			cancel()
			return errors.Join(err, <-done)
		}
		select {
		case err := <-done:
			if err != nil {
				return err
			}
			return encoder.Encode(snapshot(true))
		case <-ticker.C:
		case <-asked:
		}
	}
}
