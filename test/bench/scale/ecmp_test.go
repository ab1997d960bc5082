// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"math"
	"testing"
)

// The figures of docs/scale.md, in go test -v.
func TestRouters(t *testing.T) {
	const (
		clients  = 20000
		backends = 10
		pods     = 4
	)
	tests := []struct {
		choice             Choice
		byPorts            bool
		pinning            Pinning
		cutLost, cutGained float64 // what is to be expected
		moved              float64 // after a loss
	}{
		{Resilient, false, Drawn, 1. / 4, 1. / 4, 1. / 4 * 0.9},
		{Resilient, true, Drawn, 1. / 4, 1. / 4, math.NaN()},
		{Modulo, false, Drawn, 3. / 4, 3. / 4, math.NaN()},
		{Resilient, false, Computed, 1. / 4, 1. / 4, 0},
		{Resilient, true, Computed, 1. / 4, 1. / 4, 0},
		{Modulo, true, Computed, 3. / 4, 3. / 4, 0},
	}
	for _, tt := range tests {
		crowd := NewCrowd(NewRouter(tt.choice, tt.byPorts, pods), tt.pinning, clients, backends, 1)
		quiet := crowd.reconnect()
		lost := crowd.Lose(2)
		gained := crowd.Gain(pods)
		t.Logf("%s, by ports %v, pins %s: nothing happens: cut %.3f, moved %.3f; a pod of %d goes: cut %.3f, moved %.3f; one comes: cut %.3f, moved %.3f",
			tt.choice, tt.byPorts, tt.pinning, quiet.Cut, quiet.Moved, pods, lost.Cut, lost.Moved, gained.Cut, gained.Moved)
		near := func(what string, got, want float64) {
			if !math.IsNaN(want) && math.Abs(got-want) > 0.02 {
				t.Errorf("%s, by ports %v, pins %s: %s is %.3f, want %.3f", tt.choice, tt.byPorts, tt.pinning, what, got, want)
			}
		}
		near("cut when nothing happens", quiet.Cut, 0)
		near("cut by a loss", lost.Cut, tt.cutLost)
		near("cut by a gain", gained.Cut, tt.cutGained)
		near("moved by a loss", lost.Moved, tt.moved)
	}
}
