// SPDX-License-Identifier: Apache-2.0

// Command kube-ovn-setup does what has to be done once when kube-ovn-controller is installed beside Kube-OVN, and when it
// is uninstalled; its charts run it as Jobs.
//
//	kube-ovn-setup crd        gives Kube-OVN's CRD of DNAT rules the fields it lacks
//	kube-ovn-setup withdraw   takes back the DNAT rules that were made for Services, and the addresses that were published
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/pflag"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/manager/signals"

	"github.com/kubeovn/kube-ovn/pkg/client/clientset/versioned"
	"github.com/kubeovn/kube-ovn/pkg/version"
)

const program = "kube-ovn-setup"

func main() {
	if err := run(signals.SetupSignalHandler(), os.Stdout, os.Args[1:]); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return
		}
		fmt.Fprintf(os.Stderr, "%s: %v\n", program, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, args []string) error {
	fs := pflag.NewFlagSet(program, pflag.ContinueOnError)
	kubeconfig := fs.String("kubeconfig", "", "Path to a kubeconfig file. Empty: the in-cluster configuration.")
	timeout := fs.Duration("timeout", 4*time.Minute, "How long it may take.")
	deployment := fs.String("deployment", "", "With withdraw: the controller's Deployment, NAMESPACE/NAME, which is told to leave Services alone first.")
	showVersion := fs.Bool("version", false, "Print the version and end.")
	fs.Usage = func() {
		fmt.Fprintf(os.Stderr, "usage: %s crd|withdraw [FLAG…]\n%s", program, fs.FlagUsages())
	}
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *showVersion {
		fmt.Fprintln(out, version.String(program))
		return nil
	}
	if fs.NArg() != 1 || fs.Arg(0) != "crd" && fs.Arg(0) != "withdraw" {
		return fmt.Errorf("what to do is crd or withdraw, not %q (see --help)", fs.Args())
	}
	config, err := configOf(*kubeconfig)
	if err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	config.UserAgent = program
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	if fs.Arg(0) == "crd" {
		client, err := apiextensions.NewForConfig(config)
		if err != nil {
			return fmt.Errorf("client: %w", err)
		}
		return extendCRD(ctx, client, out)
	}
	w, err := newWithdrawal(config, out)
	if err != nil {
		return err
	}
	return w.run(ctx, *deployment)
}

// configOf reads a kubeconfig file, or without one what a Pod has: without the warning that the user of a chart would see, too.
func configOf(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		return rest.InClusterConfig()
	}
	return clientcmd.BuildConfigFromFlags("", kubeconfig)
}

func newWithdrawal(config *rest.Config, out io.Writer) (*withdrawal, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1 // The API server's priority and fairness limits us; the client's own limit would take minutes for a thousand rules.
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	kubeOvn, err := versioned.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	return &withdrawal{kube: kube, kubeOvn: kubeOvn, out: out, poll: time.Second}, nil
}
