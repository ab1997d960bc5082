// SPDX-License-Identifier: Apache-2.0

package script

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"
)

// memoryPeriod is how often the memory of a call is looked at.
const memoryPeriod = 10 * time.Millisecond

// watchMemory looks at the processes under pid, itself included, until stop is called, which returns the most they had
// resident at one time.
func watchMemory(pid int) (stop func() int64) {
	done, result := make(chan struct{}), make(chan int64)
	go func() {
		var most int64
		ticker := time.NewTicker(memoryPeriod)
		defer ticker.Stop()
		for {
			most = max(most, resident(pid))
			select {
			case <-done:
				result <- most
				return
			case <-ticker.C:
			}
		}
	}()
	return func() int64 {
		close(done)
		return <-result
	}
}

// resident adds up what a process and those under it have in memory. What ends meanwhile counts as nothing.
func resident(pid int) int64 {
	dir := "/proc/" + strconv.Itoa(pid)
	statm, err := os.ReadFile(dir + "/statm")
	if err != nil {
		return 0
	}
	var sum int64
	if fields := bytes.Fields(statm); len(fields) > 1 {
		pages, err := strconv.ParseInt(string(fields[1]), 10, 64)
		if err == nil {
			sum = pages * int64(os.Getpagesize())
		}
	}
	for _, child := range children(pid) {
		sum += resident(child)
	}
	return sum
}

// children are the processes that a process has started, as far as they are there.
func children(pid int) []int {
	path := fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", pid)
	list, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	var pids []int
	for _, child := range bytes.Fields(list) {
		if n, err := strconv.Atoi(string(child)); err == nil {
			pids = append(pids, n)
		}
	}
	return pids
}
