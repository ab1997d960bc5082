// SPDX-License-Identifier: Apache-2.0

package script

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// reader is the process of a call that reads its input.
const reader = "tr"

// syncAhead hands a state to a call that was begun before, as the controller does it. The clock begins with the input.
func (g *gateway) syncAhead(ctx context.Context, input []byte) (call, error) {
	var c call
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, "bash", g.script, sharenat.SyncVerb)
	cmd.Stderr = &stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return c, err
	}
	if err := g.ns.Do(cmd.Start); err != nil {
		return c, err
	}
	ready := awaitInput(ctx, cmd.Process.Pid)
	start := time.Now()
	if ready == nil {
		_, ready = stdin.Write(input)
	}
	stdin.Close()
	if err := errors.Join(cmd.Wait(), ready); err != nil {
		return c, fmt.Errorf("%s: %w: %s", sharenat.SyncVerb, err, strings.TrimSpace(stderr.String()))
	}
	c.took = time.Since(start)
	c.cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	return c, nil
}

// awaitInput returns when all that a call has started sleeps, its reader among it.
func awaitInput(ctx context.Context, pid int) error {
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for {
		reading, asleep := false, true
		for _, child := range children(pid) {
			stat, err := os.ReadFile("/proc/" + strconv.Itoa(child) + "/stat")
			_, rest, ok := strings.Cut(string(stat), "(")
			name, state, cut := strings.Cut(rest, ") ")
			if err != nil || !ok || !cut {
				continue // it has ended
			}
			reading = reading || name == reader
			asleep = asleep && strings.HasPrefix(state, "S")
		}
		if reading && asleep {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
	}
}
