// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"time"
)

// Lease is how long a shard stays with whoever holds it.
type Lease struct{ Duration, Renew, Retry time.Duration }

// DefaultLease is what the controllers' own lease has.
var DefaultLease = Lease{Duration: 15 * time.Second, Renew: 10 * time.Second, Retry: 2 * time.Second}

// Shards are the gateways of a cluster in groups, each of which is handled by the controller that holds its lease.
//
// A gateway's rules, Pods and calls belong to one shard: it is found by the gateway's name alone. Each controller wants the shards of which it is the
// first by a hash of both names, among those that live, and lets go of the others when it renews: so that one that comes gets its share, and one that
// goes leaves its shards to all of the others.
type Shards struct {
	Lease Lease
	Count int

	now         time.Duration
	random      *rand.Rand
	controllers map[int]*member
	leases      []lease
	// Writes are those of leases.
	Writes int
	// Overlaps counts the moments at which two worked on one shard. There must be none.
	Overlaps int
	// Idle is how long nobody worked on each shard, the longest time.
	Idle []time.Duration
	// Moves are changes of holder.
	Moves int
}

type member struct {
	alive bool
	// cut off: it works on, but reaches no lease.
	cutOff bool
	next   time.Duration // when it looks at the leases again
	// renewed is when it last wrote each lease that it takes for its own. It works on that shard until Renew after that.
	renewed map[int]time.Duration
}

type lease struct {
	holder  int // -1: none
	expires time.Duration
	last    int
	worked  time.Duration // when somebody last worked on the shard
}

// NewShards makes so many shards that nobody holds, and so many controllers.
func NewShards(l Lease, count, controllers int, seed uint64) *Shards {
	s := &Shards{
		Lease: l, Count: count, random: rand.New(rand.NewPCG(seed, 2)), //nolint:gosec // a simulation
		controllers: map[int]*member{}, leases: make([]lease, count), Idle: make([]time.Duration, count),
	}
	for i := range s.leases {
		s.leases[i] = lease{holder: -1, last: -1}
	}
	for i := range controllers {
		s.Join(i)
	}
	return s
}

// ShardOf is where a gateway belongs.
func ShardOf(gateway string, shards int) int {
	return int(mix([]byte(gateway)) % uint64(shards)) //nolint:gosec // small
}

// Join lets a controller begin.
func (s *Shards) Join(id int) {
	s.controllers[id] = &member{
		alive: true, next: s.now + time.Duration(s.random.Int64N(int64(s.Lease.Retry))), renewed: map[int]time.Duration{},
	}
}

// Crash ends a controller without a warning.
func (s *Shards) Crash(id int) { s.controllers[id].alive = false }

// CutOff keeps a controller from the leases; it does not know.
func (s *Shards) CutOff(id int) { s.controllers[id].cutOff = true }

// owner is the controller that should have a shard.
func (s *Shards) owner(shard int) int {
	best, bestHash := -1, uint64(0)
	for id, m := range s.controllers {
		if !m.alive || m.cutOff {
			continue
		}
		var key [8]byte
		binary.BigEndian.PutUint32(key[:], uint32(shard)) //nolint:gosec // small
		binary.BigEndian.PutUint32(key[4:], uint32(id))   //nolint:gosec // small
		if h := mix(key[:]); best < 0 || h > bestHash {
			best, bestHash = id, h
		}
	}
	return best
}

// Run lets time pass, in steps.
func (s *Shards) Run(span time.Duration) {
	const step = 100 * time.Millisecond
	for end := s.now + span; s.now < end; s.now += step {
		for _, id := range s.ids() {
			if m := s.controllers[id]; m.alive && !m.cutOff && m.next <= s.now {
				s.look(id, m)
				m.next = s.now + s.Lease.Retry
			}
		}
		for i := range s.leases {
			l := &s.leases[i]
			if l.holder >= 0 && l.expires <= s.now {
				l.holder = -1
			}
			switch working := s.working(i); {
			case working > 0:
				l.worked = s.now
				s.Overlaps += working - 1
			default:
				s.Idle[i] = max(s.Idle[i], s.now-l.worked)
			}
		}
	}
}

// working counts those who work on a shard now.
func (s *Shards) working(shard int) int {
	n := 0
	for _, m := range s.controllers {
		if at, ok := m.renewed[shard]; ok && m.alive && s.now-at < s.Lease.Renew {
			n++
		}
	}
	return n
}

func (s *Shards) ids() []int {
	var ids []int
	for id := range s.controllers {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// look renews what it should have, takes what is free, and lets go of the rest.
func (s *Shards) look(id int, m *member) {
	for i := range s.leases {
		l := &s.leases[i]
		switch mine := s.owner(i) == id; {
		case l.holder == id && !mine:
			// It stops working on the shard, and then lets go of it.
			delete(m.renewed, i)
			l.holder = -1
			s.Writes++
		case l.holder == id, l.holder < 0 && mine:
			if l.last != id && l.last >= 0 {
				s.Moves++
			}
			l.holder, l.last, l.expires = id, id, s.now+s.Lease.Duration
			m.renewed[i] = s.now
			s.Writes++
		}
	}
}

// Load counts what each living controller has, where gateways have weights.
func (s *Shards) Load(weights map[string]float64) map[int]float64 {
	load := map[int]float64{}
	for id, m := range s.controllers {
		if m.alive && !m.cutOff {
			load[id] = 0
		}
	}
	for gateway, weight := range weights {
		if holder := s.leases[ShardOf(gateway, s.Count)].holder; holder >= 0 {
			load[holder] += weight
		}
	}
	return load
}

// Held says how many shards have a holder.
func (s *Shards) Held() int {
	held := 0
	for i := range s.leases {
		if s.leases[i].holder >= 0 {
			held++
		}
	}
	return held
}

// forget begins to measure anew.
func (s *Shards) forget() {
	s.Writes, s.Moves = 0, 0
	clear(s.Idle)
}
