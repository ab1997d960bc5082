// SPDX-License-Identifier: Apache-2.0

// Package flags is what the commands' command lines have in common.
package flags

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

// DefaultNamespace is where Kube-OVN's own objects are if POD_NAMESPACE does not say otherwise.
const DefaultNamespace = "kube-system"

// Parse reads the arguments of a command that takes only flags.
func Parse(fs *pflag.FlagSet, args []string) error {
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	return nil
}

// Namespace gives the Pod's own namespace; lookup reads an environment variable.
func Namespace(lookup func(string) string) string {
	if namespace := lookup("POD_NAMESPACE"); namespace != "" {
		return namespace
	}
	return DefaultNamespace
}

// Problems collects all that is wrong with a command line.
type Problems []string

// Must notes that a flag must be something, where it is not.
func (p *Problems) Must(flag string, ok bool, be string) {
	if !ok {
		*p = append(*p, "--"+flag+" must be "+be)
	}
}

// Note adds an error; nil is none.
func (p *Problems) Note(err error) {
	if err != nil {
		*p = append(*p, err.Error())
	}
}

// Err is all of it in one line, nil where nothing is wrong.
func (p *Problems) Err() error {
	if len(*p) == 0 {
		return nil
	}
	return errors.New(strings.Join(*p, "; "))
}
