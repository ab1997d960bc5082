// SPDX-License-Identifier: Apache-2.0

package vpcnatgateway_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// The first process of a gateway's container is a sleep, which looks after nobody: what a call leaves behind stays there as a
// zombie until the pod goes, and a pod may have so many processes and no more.
func TestNoChildIsLeftBehind(t *testing.T) {
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
	cmd := exec.Command("ip", append([]string{"netns", "exec", g.ns, "bash", g.script}, args...)...)
	cmd.Env = append(os.Environ(), g.env...)
	cmd.Stdin = strings.NewReader(stdin)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	stats, globErr := filepath.Glob("/proc/[0-9]*/stat")
	if globErr != nil {
		g.t.Fatal(globErr)
	}
	var left []string
	for _, path := range stats {
		stat, readErr := os.ReadFile(path)
		if readErr != nil {
			continue // It has ended meanwhile.
		}
		// pid (comm) state ppid pgrp …, see proc_pid_stat(5).
		var state string
		var parent, group int
		line := string(stat)
		if _, scanErr := fmt.Sscan(line[strings.LastIndexByte(line, ')')+1:], &state, &parent, &group); scanErr != nil {
			g.t.Fatalf("%s: %v", path, scanErr)
		}
		if group == cmd.Process.Pid {
			left = append(left, line[:strings.LastIndexByte(line, ')')+1]+" "+state)
		}
	}
	return left, err
}
