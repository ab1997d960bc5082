// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"net/netip"
	"os"
	"time"

	"github.com/spf13/pflag"
)

// The subcommands.
const (
	spreadName = "spread"
	streamName = "stream"
	holdName   = "hold"
	flowName   = "udp"
)

// Argv is the command that does in another process what the options say.
func (o SpreadOptions) Argv() []string { return argv(spreadName, o.Endpoint, o.flags()) }

// Argv is the command that does in another process what the options say.
func (o StreamOptions) Argv() []string { return argv(streamName, o.Endpoint, o.flags()) }

// Argv is the command that does in another process what the options say.
func (o HoldOptions) Argv() []string { return argv(holdName, o.Endpoint, o.flags()) }

// Argv is the command that does in another process what the options say.
func (o FlowOptions) Argv() []string { return argv(flowName, o.Endpoint, o.flags()) }

// argv is a command line of this program itself, which has to call Init.
func argv(name string, endpoint Endpoint, flags *pflag.FlagSet) []string {
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	args := []string{self, hook, name}
	flags.VisitAll(func(flag *pflag.Flag) {
		if value := flag.Value.String(); value != flag.DefValue {
			args = append(args, "--"+flag.Name+"="+value)
		}
	})
	return append(args, endpoint.Target)
}

// The flags of each subcommand. They are bound to the options and leave their values as they are, so that the same set
// reads a command line and writes one; a flag's default is the options' zero, which is what complete replaces.

func (o *SpreadOptions) flags() *pflag.FlagSet {
	flags := o.endpointFlags(spreadName)
	bind(&o.UDP, func(p *bool, zero bool) {
		flags.BoolVar(p, "udp", zero, "datagrams, each from a new port, instead of connections")
	})
	intFlag(flags, &o.Count, "count", "number of connections (default 1)")
	durationFlag(flags, &o.Interval, "interval", "from the beginning of one to the beginning of the next (default: one right after the other)")
	return flags
}

func (o *StreamOptions) flags() *pflag.FlagSet {
	flags := o.endpointFlags(streamName)
	floatFlag(flags, &o.Rate, "rate", "new connections a second (default 100)")
	intFlag(flags, &o.Workers, "workers", "attempts under way at once, at most (default: enough to keep the rate when all time out)")
	durationFlag(flags, &o.Duration, "duration", "end after this (default: when told to)")
	return flags
}

func (o *HoldOptions) flags() *pflag.FlagSet {
	flags := o.endpointFlags(holdName)
	intFlag(flags, &o.Connections, "connections", "number of connections (default 10)")
	durationFlag(flags, &o.Interval, "interval", "between a connection's requests (default 100ms)")
	durationFlag(flags, &o.Duration, "duration", "end after this (default: when told to)")
	return flags
}

func (o *FlowOptions) flags() *pflag.FlagSet {
	flags := o.endpointFlags(flowName)
	bind(&o.Port, func(p *uint16, zero uint16) {
		flags.Uint16Var(p, "port", zero, "source port (default: one of the kernel's choice, the same for all)")
	})
	durationFlag(flags, &o.Interval, "interval", "between two datagrams (default 50ms)")
	durationFlag(flags, &o.Duration, "duration", "end after this (default: when told to)")
	return flags
}

func (e *Endpoint) endpointFlags(name string) *pflag.FlagSet {
	flags := pflag.NewFlagSet(name, pflag.ContinueOnError)
	flags.SortFlags = false
	bind(&e.Source, func(p *netip.Addr, zero netip.Addr) {
		flags.TextVar(p, "source", zero, "source address (default: the kernel's choice)")
	})
	stringFlag(flags, &e.Path, "path", "path of the URL (default "+DefaultPath+")")
	durationFlag(flags, &e.Timeout, "timeout", "for an attempt, answer included (default "+DefaultTimeout.String()+")")
	return flags
}

// bind adds a flag whose default is zero, and puts the option's present value into it.
func bind[T any](p *T, add func(*T, T)) {
	value := *p
	var zero T
	add(p, zero)
	*p = value
}

func intFlag(flags *pflag.FlagSet, p *int, name, usage string) {
	bind(p, func(p *int, zero int) { flags.IntVar(p, name, zero, usage) })
}

func floatFlag(flags *pflag.FlagSet, p *float64, name, usage string) {
	bind(p, func(p *float64, zero float64) { flags.Float64Var(p, name, zero, usage) })
}

func stringFlag(flags *pflag.FlagSet, p *string, name, usage string) {
	bind(p, func(p *string, zero string) { flags.StringVar(p, name, zero, usage) })
}

func durationFlag(flags *pflag.FlagSet, p *time.Duration, name, usage string) {
	bind(p, func(p *time.Duration, zero time.Duration) { flags.DurationVar(p, name, zero, usage) })
}
