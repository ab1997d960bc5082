// SPDX-License-Identifier: Apache-2.0

// Command kube-ovn-lab runs a Kube-OVN cluster in namespaces of its own, for trying things out and for tests.
//
//	kube-ovn-lab up                a lab that stays until interrupted
//	kube-ovn-lab shell             a shell in the running one
//	kube-ovn-lab run -- CMD…       a lab for one command, whose exit status it ends with
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/kubeovn/kube-ovn/test/lab"
	"github.com/kubeovn/kube-ovn/test/lab/room"
)

const usage = `usage: kube-ovn-lab COMMAND

outside a lab:
  up [FLAGS]               bring a lab up; it stays until interrupted
  run [FLAGS] -- CMD…      bring a lab up, run CMD in it, end with its status
  shell [PID] [-- CMD…]    a shell (or CMD) in a running lab, with kubectl and the commands below

in a lab, also by their own names:
  in-pod [NS/]NAME CMD…    run CMD in a Pod's namespaces
  in-gateway NAME CMD…     run CMD in the first pod of a VpcNatGateway
  in-client NAME CMD…      run CMD as a client of the external network; also: client1 CMD…
  lab-controller VERB      start, stop, kill or restart kube-ovn-controller; flags of its own may follow
  lab-dump [DIR]           everything there is to know when something went wrong, printed or into a directory
`

// command is one of the commands above.
type command struct {
	run func(args []string) (int, error)
	// inside: it works in a lab only.
	inside bool
}

var commands = map[string]command{
	"up":             {run: up},
	"run":            {run: run},
	"shell":          {run: shell},
	"run-attached":   {run: runAttached, inside: true},
	"in-pod":         {run: inPod, inside: true},
	"in-gateway":     {run: inGateway, inside: true},
	"in-client":      {run: inClient, inside: true},
	"lab-controller": {run: controller, inside: true},
	"lab-dump":       {run: dump, inside: true},
}

// errUsage: the arguments make no sense.
var errUsage = errors.New("usage")

func main() {
	room.Init()
	status, err := dispatch(os.Args)
	switch {
	case errors.Is(err, errUsage):
		fmt.Fprint(os.Stderr, usage)
		status = 2
	case err != nil:
		fmt.Fprintf(os.Stderr, "error: %v\n", err)
		status = max(status, 1)
	}
	os.Exit(status)
}

func dispatch(argv []string) (int, error) {
	name, args := filepath.Base(argv[0]), argv[1:]
	if slices.Contains(lab.Clients, name) {
		name, args = "in-client", append([]string{name}, args...)
	}
	if _, ok := commands[name]; !ok {
		if len(args) == 0 {
			return 0, errUsage
		}
		name, args = args[0], args[1:]
	}
	if name == "help" || name == "-h" || name == "--help" {
		fmt.Print(usage)
		return 0, nil
	}
	c, ok := commands[name]
	if !ok {
		return 0, errUsage
	}
	if c.inside && !room.Inside() {
		return 0, fmt.Errorf("%s works in a lab: make lab-shell enters the running one", name)
	}
	return c.run(args)
}
