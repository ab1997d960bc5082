// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"sync"
)

// Env is what a measure has around it.
type Env struct {
	// Scale is 1; less for a quick run, in which sizes may be smaller: see Scaled.
	Scale float64
	// Rounds that will be taken, besides one to warm up.
	Rounds int
	logf   func(format string, args ...any)

	mu       sync.Mutex
	cleanups []func()
	notes    []Note
}

// Note is a figure that stands beside the samples.
type Note struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
}

// NewEnv returns an environment for a single round, whose log lines go to logf. Close undoes what was built in it.
func NewEnv(scale float64, logf func(format string, args ...any)) *Env {
	return &Env{Scale: scale, Rounds: 1, logf: logf}
}

// Cleanup has f called when the measure is over; what was asked for last comes first.
func (e *Env) Cleanup(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cleanups = append(e.cleanups, f)
}

// Close calls what Cleanup was given.
func (e *Env) Close() {
	for {
		e.mu.Lock()
		n := len(e.cleanups)
		if n == 0 {
			e.mu.Unlock()
			return
		}
		f := e.cleanups[n-1]
		e.cleanups = e.cleanups[:n-1]
		e.mu.Unlock()
		f()
	}
}

// Logf tells whoever waits what is going on.
func (e *Env) Logf(format string, args ...any) {
	e.logf("%s", fmt.Sprintf(format, args...))
}

// Note adds a figure to the report; the last of a name stays.
func (e *Env) Note(name string, value float64, unit string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range e.notes {
		if e.notes[i].Name == name {
			e.notes[i] = Note{name, value, unit}
			return
		}
	}
	e.notes = append(e.notes, Note{name, value, unit})
}

// Scaled is n at full scale, in a quick run less, but never under 1.
func (e *Env) Scaled(n int) int {
	return max(1, int(float64(n)*e.Scale))
}
