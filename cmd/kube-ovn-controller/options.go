// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/component-base/config"
	configoptions "k8s.io/component-base/config/options"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json

	"github.com/kubeovn/kube-ovn/cmd/internal/flags"
)

// options are the flags and the environment, checked.
type options struct {
	kubeconfig        string
	enableLB          bool
	enableNftableLB   bool
	enableNatGw       bool
	requireEIPGrant   bool
	stockServes       string
	handlerAbilities  string
	workers           int
	gatewayWorkers    int
	gatewayCheck      time.Duration
	pprofPort         int
	podName           string
	podNamespace      string
	leaderElection    config.LeaderElectionConfiguration
	logging           *logsapi.LoggingConfiguration
	version           bool
	environmentLookup func(string) string
}

func newOptions() *options {
	o := &options{
		logging:           logsapi.NewLoggingConfiguration(),
		environmentLookup: os.Getenv,
		leaderElection: config.LeaderElectionConfiguration{
			LeaderElect:  true,
			ResourceLock: "leases",
			ResourceName: "kube-ovn-controller",
		},
	}
	o.leaderElection.LeaseDuration.Duration = 15 * time.Second
	o.leaderElection.RenewDeadline.Duration = 10 * time.Second
	o.leaderElection.RetryPeriod.Duration = 2 * time.Second
	return o
}

func (o *options) flags() *pflag.FlagSet {
	fs := pflag.NewFlagSet("kube-ovn-controller", pflag.ContinueOnError)
	fs.SortFlags = false
	fs.StringVar(&o.kubeconfig, "kubeconfig", "", "Path to a kubeconfig file. Empty: the in-cluster configuration.")
	fs.BoolVar(&o.enableLB, "enable-lb", true, "Enable load balancing.")
	fs.BoolVar(&o.enableNftableLB, "enable-nftable-lb-svc", false,
		"Serve LoadBalancer Services that carry the annotation ovn.kubernetes.io/eip by their VPC's NAT gateway. Needs --enable-lb.")
	fs.BoolVar(&o.requireEIPGrant, "nftable-lb-svc-require-eip-grant", false,
		"Let a Service use an IptablesEIP only if the EIP's annotation ovn.kubernetes.io/nftable-lb-svc-namespaces names its namespace.")
	fs.BoolVar(&o.enableNatGw, "enable-nat-gw-handler", true,
		"Run the NAT gateways, their EIPs and DNAT rules. Switch it off where another kube-ovn-controller does.")
	fs.StringVar(&o.stockServes, stockServesFlag, stockServesAuto,
		"Whether Kube-OVN's own controller serves these Services, yes or no, where its Deployment's flags leave that "+
			"open. auto: it is taken to where its image is newer than v1.17. While it does, this one ends.")
	fs.StringVar(&o.handlerAbilities, "nat-gw-handler-abilities", abilitiesAuto,
		"What another kube-ovn-controller that runs the NAT gateways (--enable-nat-gw-handler=false) does for Services "+
			"beyond spreading connections: auto looks at Kube-OVN's own Deployment; or all, none, or a list of affinity, "+
			"live-affinity, source-ranges, masquerade, every-pod.")
	fs.IntVar(&o.workers, "worker-num", 4, "Services that are handled at the same time.")
	fs.IntVar(&o.gatewayWorkers, "nat-gw-worker-num", 16, "NAT gateways that are handled at the same time.")
	fs.DurationVar(&o.gatewayCheck, "nat-gw-check-interval", time.Minute,
		"How often a NAT gateway is asked what it really holds, so that what was changed in it by hand heals.")
	fs.IntVar(&o.pprofPort, "pprof-port", 10660, "Port of /healthz, /readyz, /metrics and /debug/pprof.")
	fs.BoolVar(&o.version, "version", false, "Print the version and end.")
	configoptions.BindLeaderElectionFlags(&o.leaderElection, fs)
	logsapi.AddFlags(o.logging, fs)
	return fs
}

// parse reads flags and environment. All that is wrong is in the one error, on one line.
func (o *options) parse(args []string) error {
	if err := flags.Parse(o.flags(), args); err != nil || o.version {
		return err
	}
	o.podName, o.podNamespace = o.environmentLookup("POD_NAME"), flags.Namespace(o.environmentLookup)
	if o.podName == "" {
		host, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("POD_NAME is not set and the host name cannot be read: %w", err)
		}
		// Two processes on one host, or with its network, must not take the lease for their own.
		o.podName = host + "_" + string(uuid.NewUUID())
	}
	if o.leaderElection.ResourceNamespace == "" {
		o.leaderElection.ResourceNamespace = o.podNamespace
	}
	return o.validate()
}

func (o *options) validate() error {
	var problems flags.Problems
	known := []string{stockServesAuto, stockServesYes, stockServesNo}
	problems.Must(stockServesFlag, slices.Contains(known, o.stockServes), "auto, yes or no")
	if _, _, err := o.abilitiesOfFlags(); err != nil {
		problems.Note(fmt.Errorf("--nat-gw-handler-abilities: %w", err))
	}
	problems.Must("worker-num", o.workers > 0, "at least 1")
	problems.Must("nat-gw-worker-num", o.gatewayWorkers > 0, "at least 1")
	problems.Must("nat-gw-check-interval", o.gatewayCheck > 0, "more than 0")
	problems.Must("pprof-port", o.pprofPort > 0 && o.pprofPort < 1<<16, "from 1 to 65535")
	problems.Must("leader-elect-resource-lock", o.leaderElection.ResourceLock == "leases", "leases")
	problems.Must("leader-elect-resource-name", o.leaderElection.ResourceName != "", "set")
	le := o.leaderElection
	problems.Must("leader-elect-renew-deadline", le.RenewDeadline.Duration > 0 && le.RenewDeadline.Duration < le.LeaseDuration.Duration,
		"more than 0 and less than --leader-elect-lease-duration")
	problems.Must("leader-elect-retry-period", le.RetryPeriod.Duration > 0 && le.RetryPeriod.Duration*6/5 < le.RenewDeadline.Duration,
		"more than 0 and well below --leader-elect-renew-deadline (1.2 times it must be less)")
	problems.Note(logsapi.Validate(o.logging, nil, nil).ToAggregate())
	return problems.Err()
}

// serveServices says whether Services are to be watched at all.
func (o *options) serveServices() bool { return o.enableNftableLB && o.enableLB }
