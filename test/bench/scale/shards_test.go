// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"
)

// pretendedGateways have from 5 to 500 Pods each behind them, 100,000 or so in all.
func pretendedGateways(count int) (weights map[string]float64, pods float64) {
	weights = map[string]float64{}
	for i := range count {
		weight := 5 + 495/float64(1+i%50)
		weights[fmt.Sprintf("tenant-%d", i)] = weight
		pods += weight
	}
	return weights, pods
}

// The figures of docs/scale.md, in go test -v.
func TestShards(t *testing.T) {
	const controllers = 5
	weights, pods := pretendedGateways(2000)
	for _, count := range []int{16, 64, 256} {
		s := NewShards(DefaultLease, count, controllers, 1)
		s.Run(time.Minute)
		if s.Held() != count {
			t.Fatalf("%d of %d shards are held", s.Held(), count)
		}
		load := slices.Sorted(maps.Values(s.Load(weights)))
		s.forget()
		s.Run(10 * time.Minute)
		writes, idleMoves := float64(s.Writes)/600, s.Moves
		s.forget()
		s.Crash(0)
		s.Run(time.Minute)
		lost, lostMoves := slices.Max(s.Idle), s.Moves
		afterLoss := s.Held()
		s.forget()
		s.Join(controllers)
		s.Run(time.Minute)
		joined, joinedMoves := slices.Max(s.Idle), s.Moves
		s.forget()
		s.CutOff(1)
		s.Run(time.Minute)
		cutOff := slices.Max(s.Idle)
		t.Logf("%d shards, %d controllers, %.0f Pods: %.1f lease writes/s, most to mean load %.2f; one crashes: %d move, longest without %s; one joins: %d move, longest without %s; one is cut off: longest without %s",
			count, controllers, pods, writes, load[len(load)-1]/(pods/controllers), lostMoves, lost, joinedMoves, joined, cutOff)
		switch {
		case s.Overlaps > 0:
			t.Errorf("%d shards: two worked on one shard, %d times", count, s.Overlaps)
		case idleMoves > 0:
			t.Errorf("%d shards: %d moved although nothing happened", count, idleMoves)
		case afterLoss != count || s.Held() != count:
			t.Errorf("%d shards: not all are held", count)
		case lost > DefaultLease.Duration+2*DefaultLease.Retry:
			t.Errorf("%d shards: one was without a holder for %s", count, lost)
		case joinedMoves > count/2:
			t.Errorf("%d shards: %d moved for one that joined", count, joinedMoves)
		}
	}
}
