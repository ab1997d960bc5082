// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kubeovn/kube-ovn/test/lab/supervise"
)

// dumpDeadline bounds each command of a dump: what is broken may hang.
const dumpDeadline = 10 * time.Second

// clusterCommands show the cluster as its users see it.
var clusterCommands = []string{
	"kubectl get nodes,pods,services,endpointslices,deployments,statefulsets -A -o wide",
	"kubectl get vpcs,subnets,vpc-nat-gateways,iptables-eips,iptables-dnat-rules -o wide",
	"kubectl get iptables-eips,iptables-dnat-rules,vpc-nat-gateways -o yaml",
	"kubectl get services -A -o yaml",
	"kubectl get pods -A -o yaml",
	"kubectl get events -A --sort-by=.metadata.creationTimestamp",
	"kubectl get leases -A",
}

// netnsCommands show a network namespace.
var netnsCommands = []string{
	"ip -br address", "ip route show table all", "ip neigh", "ip -s link", "nft list ruleset", "iptables-save", "conntrack -L", "ss -antup",
}

// Dump writes everything there is to know about the lab when something went wrong: what is in the cluster, in every
// network namespace, and the end of every log.
func (h *Handle) Dump(ctx context.Context, w io.Writer) error {
	for _, command := range clusterCommands {
		h.show(ctx, w, command, strings.Fields(command))
	}
	for _, command := range netnsCommands {
		h.show(ctx, w, "node: "+command, strings.Fields(command))
	}
	entries, err := os.ReadDir(netnsDir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		for _, command := range netnsCommands {
			h.show(ctx, w, entry.Name()+": "+command, h.NetnsArgs(entry.Name(), strings.Fields(command)...))
		}
	}
	logs, err := filepath.Glob(filepath.Join(h.dir, "logs", "*"))
	if err != nil {
		return err
	}
	for _, log := range logs {
		fmt.Fprintf(w, "\n===== %s\n%s\n", log, supervise.Tail(log, 50))
	}
	return nil
}

// show runs a command and writes what it prints. That one fails says something, too.
func (h *Handle) show(ctx context.Context, w io.Writer, title string, argv []string) {
	ctx, cancel := context.WithTimeout(ctx, dumpDeadline)
	defer cancel()
	fmt.Fprintf(w, "\n===== %s\n", title)
	cmd := h.Command(ctx, argv)
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Run(); err != nil {
		fmt.Fprintf(w, "(%v)\n", err)
	}
}

// DumpTo writes a dump and the whole logs into a directory.
func (h *Handle) DumpTo(ctx context.Context, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(dir, "dump.txt"))
	if err != nil {
		return err
	}
	if err := errors.Join(h.Dump(ctx, f), f.Close()); err != nil {
		return fmt.Errorf("dump the lab: %w", err)
	}
	logs := filepath.Join(dir, "logs")
	if err := os.RemoveAll(logs); err != nil {
		return err
	}
	if err := os.CopyFS(logs, os.DirFS(filepath.Join(h.dir, "logs"))); err != nil {
		return fmt.Errorf("copy the logs: %w", err)
	}
	return nil
}
