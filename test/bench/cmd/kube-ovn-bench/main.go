// SPDX-License-Identifier: Apache-2.0

// Command kube-ovn-bench takes the measures that docs/performance.md speaks of, in namespaces of its own.
//
//	kube-ovn-bench [FLAGS] [NAME…]     each NAME is a measure, or the beginning of its name
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/kubeovn/kube-ovn/test/bench"
	"github.com/kubeovn/kube-ovn/test/lab/room"
)

type options struct {
	list, strict bool
	output       string
	scale        float64
	rounds       int
}

func main() {
	room.Init()
	status, err := run(os.Args)
	if err != nil {
		fmt.Fprintf(os.Stderr, "error: %v\n", err)
		status = max(status, 1)
	}
	os.Exit(status)
}

func run(argv []string) (int, error) {
	var o options
	flags := pflag.NewFlagSet("kube-ovn-bench", pflag.ContinueOnError)
	flags.BoolVar(&o.list, "list", false, "say what there is to measure, and measure nothing")
	flags.BoolVar(&o.strict, "strict", false, "fail when an aim is missed, too")
	flags.StringVar(&o.output, "output", "_output/bench", "directory for results.json, table.md and the plots")
	flags.Float64Var(&o.scale, "scale", 1, "multiplies sizes; less than 1 is quick, and says little")
	flags.IntVar(&o.rounds, "rounds", 0, "rounds a measure, in place of its own number")
	if err := flags.Parse(argv[1:]); errors.Is(err, pflag.ErrHelp) {
		return 0, nil
	} else if err != nil {
		return 2, err
	}
	measures, err := selected(flags.Args())
	if err != nil {
		return 2, err
	}
	if o.list {
		for i := range measures {
			fmt.Printf("%-36s %s\n", measures[i].Name, measures[i].Title)
		}
		return 0, nil
	}
	// Nothing that is measured, or left over, is to be on the host.
	if !room.Inside() {
		return room.Run(argv)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	return take(ctx, measures, o)
}

func selected(patterns []string) ([]bench.Measure, error) {
	var all []bench.Measure
	for _, group := range groups {
		all = append(all, group()...)
	}
	return bench.Select(all, patterns)
}

func take(ctx context.Context, measures []bench.Measure, o options) (int, error) {
	report := bench.Report{Started: time.Now(), Machine: machine(), Scale: o.scale}
	logf := func(format string, args ...any) {
		fmt.Fprintf(os.Stderr, "%6.1fs "+format+"\n", append([]any{time.Since(report.Started).Seconds()}, args...)...)
	}
	for i := range measures {
		result := bench.Run(ctx, &measures[i], bench.Options{Scale: o.scale, Rounds: o.rounds, Logf: logf})
		report.Results = append(report.Results, result)
		fmt.Println(result.Table())
		// Each time: an interrupted run has the results so far.
		if err := report.Write(o.output); err != nil {
			return 1, err
		}
		if ctx.Err() != nil {
			return 130, context.Cause(ctx)
		}
	}
	if missed := report.Missed(); len(missed) > 0 {
		fmt.Fprintf(os.Stderr, "aims missed: %s\n", strings.Join(missed, ", "))
		if o.strict {
			return 1, nil
		}
	}
	if failed := report.Failed(); len(failed) > 0 {
		return 1, fmt.Errorf("failed: %s", strings.Join(failed, ", "))
	}
	return 0, nil
}

// machine says what this runs on, and no more than matters for the figures.
func machine() string {
	var u unix.Utsname
	_ = unix.Uname(&u) // its name only
	return fmt.Sprintf("%d CPUs, Linux %s, %s", runtime.NumCPU(), unix.ByteSliceToString(u.Release[:]), runtime.Version())
}
