// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"encoding/binary"
	"hash/fnv"
	"math/rand/v2"
)

// Choice is how a router spreads flows over a gateway's pods.
type Choice string

// Choices that routers offer.
const (
	// Modulo: hash mod number of pods, as plain ECMP does.
	Modulo Choice = "modulo"
	// Resilient: a table of buckets, of which only those of a pod that goes, or as many as one that comes should have, change hands.
	Resilient Choice = "resilient"
)

// Router is one in front of a gateway of several pods.
type Router struct {
	Choice Choice
	// ByPorts: flows are told apart by ports, too; otherwise by addresses alone.
	ByPorts bool

	pods    []int
	buckets []int
}

const bucketCount = 1024

// NewRouter makes one with so many pods, named by number.
func NewRouter(choice Choice, byPorts bool, pods int) *Router {
	r := &Router{Choice: choice, ByPorts: byPorts, buckets: make([]int, bucketCount)}
	for i := range pods {
		r.pods = append(r.pods, i)
	}
	for i := range r.buckets {
		r.buckets[i] = r.pods[i%pods]
	}
	return r
}

// Remove takes a pod out: its buckets go to the others, in turn.
func (r *Router) Remove(pod int) {
	var rest []int
	for _, p := range r.pods {
		if p != pod {
			rest = append(rest, p)
		}
	}
	r.pods = rest
	next := 0
	for i, p := range r.buckets {
		if p == pod {
			r.buckets[i] = rest[next%len(rest)]
			next++
		}
	}
}

// Add puts a pod in: it gets its share of buckets, as many from each of the others.
func (r *Router) Add(pod int) {
	held := map[int]int{}
	share := bucketCount / (len(r.pods) + 1)
	for i, p := range r.buckets {
		if held[p]++; held[p] > share {
			r.buckets[i] = pod
		}
	}
	r.pods = append(r.pods, pod)
}

// Pod is where a flow goes.
func (r *Router) Pod(client uint32, port uint16) int {
	var key [6]byte
	binary.BigEndian.PutUint32(key[:], client)
	if r.ByPorts {
		binary.BigEndian.PutUint16(key[4:], port)
	}
	h := mix(key[:])
	if r.Choice == Modulo {
		return r.pods[h%uint64(len(r.pods))]
	}
	return r.buckets[h%bucketCount]
}

func mix(key []byte) uint64 {
	f := fnv.New64a()
	_, _ = f.Write(key)
	h := f.Sum64()
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	return h ^ h>>33
}

// Pinning is how a pod chooses the backend of a client that has affinity.
type Pinning string

// The ways of pinning.
const (
	// Drawn: at random, and remembered by that pod, as gateways do.
	Drawn Pinning = "drawn"
	// Computed: from the client's address alone, so that all pods come to the same.
	Computed Pinning = "computed"
)

// Crowd are clients with a connection each to a Service with affinity, by way of several pods.
type Crowd struct {
	Router   *Router
	Pinning  Pinning
	Backends int

	random *rand.Rand
	flows  []flow
	pins   map[int]map[uint32]int // pod → client → backend
}

type flow struct {
	client uint32
	port   uint16
	pod    int
	now    int // the backend that the client's newest connection has
}

// NewCrowd lets so many clients connect.
func NewCrowd(router *Router, pinning Pinning, clients, backends int, seed uint64) *Crowd {
	c := &Crowd{Router: router, Pinning: pinning, Backends: backends, random: rand.New(rand.NewPCG(seed, 1)), pins: map[int]map[uint32]int{}} //nolint:gosec // a simulation
	for i := range clients {
		f := flow{client: uint32(i), port: uint16(1024 + c.random.IntN(60000))} //nolint:gosec // small
		f.pod = router.Pod(f.client, f.port)
		f.now = c.backend(f.pod, f.client)
		c.flows = append(c.flows, f)
	}
	return c
}

func (c *Crowd) backend(pod int, client uint32) int {
	if c.Pinning == Computed {
		var key [4]byte
		binary.BigEndian.PutUint32(key[:], client)
		return int(mix(key[:]) % uint64(c.Backends)) //nolint:gosec // small
	}
	pins := c.pins[pod]
	if pins == nil {
		pins = map[uint32]int{}
		c.pins[pod] = pins
	}
	if _, ok := pins[client]; !ok {
		pins[client] = c.random.IntN(c.Backends)
	}
	return pins[client]
}

// Toll is what a change cost, each as a share of the clients.
type Toll struct {
	// Cut: connections whose packets now reach a pod that does not know them.
	Cut float64
	// Moved: clients whose next connection reaches another backend than the last one.
	Moved float64
}

// Lose is a pod's end: its connections and its pins are gone.
func (c *Crowd) Lose(pod int) Toll {
	c.Router.Remove(pod)
	delete(c.pins, pod)
	return c.reconnect()
}

// Gain is a pod's beginning.
func (c *Crowd) Gain(pod int) Toll {
	c.Router.Add(pod)
	return c.reconnect()
}

// reconnect looks where each flow goes now; and each client then makes a new connection, from another port.
func (c *Crowd) reconnect() Toll {
	var t Toll
	each := 1 / float64(len(c.flows))
	for i := range c.flows {
		f := &c.flows[i]
		if c.Router.Pod(f.client, f.port) != f.pod {
			t.Cut += each
		}
		f.port = uint16(1024 + c.random.IntN(60000)) //nolint:gosec // a port
		f.pod = c.Router.Pod(f.client, f.port)
		if backend := c.backend(f.pod, f.client); backend != f.now {
			t.Moved += each
			f.now = backend
		}
	}
	return t
}
