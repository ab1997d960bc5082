// SPDX-License-Identifier: Apache-2.0

package vpcnatgateway_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/prometheus/procfs"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// The first process of a gateway's container is a sleep, which looks after nobody: what a call leaves behind stays there as a
// zombie until the pod goes, and a pod may have so many processes and no more.
func TestNoChildIsLeftBehind(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		stdin string
		args  []string
		fails bool
	}{
		"new identity":           {full(goodIdentity, goodBackend), []string{sharenat.SyncVerb}, false},
		"begun and not used":     {"", []string{sharenat.SyncVerb}, true},
		"cut short":              {"share-state v1 full\n", []string{sharenat.SyncVerb}, true},
		"bad argument":           {"", []string{"nft-dnat-map-add", "nonsense"}, true},
		"no argument":            {"", []string{"nft-dnat-map-add"}, true},
		"a backend that leaves":  {"share-state v1 delta\nidentity " + eip + " 53 udp none 0\nbackend 10.1.0.11 53\nend\n", []string{sharenat.SyncVerb}, false},
		"an identity that goes":  {"share-state v1 delta\nremove " + eip + " 53 udp\nend\n", []string{sharenat.SyncVerb}, false},
		"listing":                {"", []string{sharenat.ListVerb}, false},
		"address that is a word": {"", []string{"eip-add", "word"}, true},
		"addresses":              {"", []string{"eip-add", "203.0.113.11/24", "203.0.113.12/24"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGateway(t)
			g.run("", "init")
			g.run("", "eip-add", eip+"/24")
			g.set(share("tcp:80", p1, p2), share("udp:53", p1, p2))
			// Of each kind twice: the second time is the short way.
			for range 2 {
				left, err := g.childrenOf(tc.stdin, tc.args...)
				if (err != nil) != tc.fails {
					t.Fatalf("failed: %v, want %v: %v", err != nil, tc.fails, err)
				}
				if len(left) > 0 {
					t.Errorf("left behind: %s", strings.Join(left, ", "))
				}
			}
		})
	}
}

// childrenOf runs the script in a process group of its own, and gives what is there of it after its end.
func (g *gateway) childrenOf(stdin string, args ...string) ([]string, error) {
	g.t.Helper()
	cmd := g.command(g.t.Context(), stdin, append([]string{"bash", g.script}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	processes, procErr := procfs.AllProcs()
	if procErr != nil {
		g.t.Fatal(procErr)
	}
	var left []string
	for _, process := range processes {
		// Whoever cannot be looked at has ended meanwhile.
		if stat, statErr := process.Stat(); statErr == nil && stat.PGRP == cmd.Process.Pid {
			left = append(left, fmt.Sprintf("%d (%s) %s", stat.PID, stat.Comm, stat.State))
		}
	}
	return left, err
}
