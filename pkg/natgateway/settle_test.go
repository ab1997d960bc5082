// SPDX-License-Identifier: Apache-2.0

package natgateway

import (
	"testing"
	"time"
)

func TestSettle(t *testing.T) {
	const ms = time.Millisecond
	start := time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)
	c := &Controller{burstQuiet: 20 * ms, burstLimit: 300 * ms, burstMemory: 100 * ms}
	for name, tc := range map[string]struct {
		lastCall, lastTook     time.Duration // when the last call ended, and how long it took
		dirtySince, dirtyLast  time.Duration
		now, want              time.Duration
		unknown, nothingToSend bool
	}{
		"alone, long after a call":                   {0, 40 * ms, 5000 * ms, 5000 * ms, 5000 * ms, 0, false, false},
		"right after a slow call":                    {0, 100 * ms, 10 * ms, 10 * ms, 10 * ms, 50 * ms, false, false},
		"alone, just out of the last burst":          {0, 40 * ms, 101 * ms, 101 * ms, 101 * ms, 0, false, false},
		"right after a call":                         {0, 40 * ms, 10 * ms, 10 * ms, 10 * ms, 20 * ms, false, false},
		"more comes":                                 {0, 40 * ms, 10 * ms, 25 * ms, 25 * ms, 20 * ms, false, false},
		"quiet since":                                {0, 40 * ms, 10 * ms, 25 * ms, 50 * ms, 0, false, false},
		"no quiet, calls are fast":                   {0, 40 * ms, 10 * ms, 305 * ms, 305 * ms, 5 * ms, false, false},
		"no quiet, calls are slow":                   {0, 200 * ms, 10 * ms, 590 * ms, 590 * ms, 10 * ms, false, false},
		"quiet, calls are slow":                      {0, 200 * ms, 10 * ms, 330 * ms, 330 * ms, 100 * ms, false, false},
		"no quiet, calls take seconds":               {0, 5000 * ms, 10 * ms, 990 * ms, 990 * ms, 10 * ms, false, false},
		"what the pod holds is not known":            {0, 40 * ms, 10 * ms, 10 * ms, 10 * ms, 0, true, false},
		"nothing has changed, a check is due":        {0, 40 * ms, 0, 0, 10 * ms, 0, false, true},
		"changed in a burst, looked at far too late": {0, 40 * ms, 10 * ms, 10 * ms, 5000 * ms, 0, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := &program{knowledge: knowledge{
				content: &Content{}, lastCall: start.Add(tc.lastCall), lastTook: tc.lastTook,
				dirtySince: start.Add(tc.dirtySince), dirtyLast: start.Add(tc.dirtyLast),
			}}
			if tc.unknown {
				p.content = nil
			}
			if tc.nothingToSend {
				p.dirtySince, p.dirtyLast = time.Time{}, time.Time{}
			}
			if got := max(0, c.settle(p, start.Add(tc.now))); got != tc.want {
				t.Errorf("waits for %s, want %s", got, tc.want)
			}
		})
	}
}
