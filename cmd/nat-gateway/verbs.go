// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kubeovn/kube-ovn/pkg/gatewayip"
	"github.com/kubeovn/kube-ovn/pkg/gatewaynft"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// call is one call of the program.
type call struct {
	warn func(string)
	lock *lock
	nft  *gatewaynft.Gateway
	ip   *gatewayip.Gateway
}

// do carries a verb out.
func (c *call) do(verb string, args []string) error {
	switch verb {
	case "init":
		return c.init(args)
	case "eip-add", "eip-del":
		return c.eips(args, verb == "eip-del")
	case "subnet-route-add", "subnet-route-del":
		return c.routes(args, verb == "subnet-route-del")
	case "dnat-add", "dnat-del":
		return c.dnats(args, verb == "dnat-del")
	case "nft-dnat-map-add":
		return c.shareArgs(args, sharenat.ParseAdd)
	case "nft-dnat-map-del":
		return c.shareArgs(args, sharenat.ParseRemove)
	case sharenat.SyncVerb:
		return c.sync(args)
	case sharenat.ListVerb:
		return c.list(args)
	case "get-iptables-version":
		version, err := gatewayip.Open().Version()
		fmt.Print(version)
		return err
	}
	return stock(verb, args)
}

// close ends what the call has opened.
func (c *call) close() {
	if c.nft != nil {
		_ = c.nft.Close() // the process ends
	}
}

// needArgs refuses a call without arguments, and arguments of more than a line.
func needArgs(args []string) error {
	if len(args) == 0 {
		return errors.New("needs at least one argument")
	}
	for _, arg := range args {
		if strings.Contains(arg, "\n") {
			return errors.New(`an argument must be one line: "` + strings.ReplaceAll(arg, "\n", "?") + `"`)
		}
	}
	return nil
}

func noArgs(args []string, more string) error {
	if len(args) > 0 {
		return errors.New("takes no arguments" + more + `: "` + strings.Join(args, " ") + `"`)
	}
	return nil
}

func (c *call) takeLock() (err error) {
	c.lock, err = takeLock()
	return err
}

// openNFT opens the gateway's nftables.
func (c *call) openNFT() (err error) {
	if c.nft, err = gatewaynft.Open(); err != nil {
		return err
	}
	c.nft.Warn, c.nft.Yield = c.warn, c.lock.yield
	return nil
}

// lockNFT takes the lock for a call that is about share identities alone.
func (c *call) lockNFT() error {
	if err := c.takeLock(); err != nil {
		return err
	}
	return c.openNFT()
}

// change takes the lock for a call that changes addresses, routes or iptables.
func (c *call) change() (err error) {
	if err := c.takeLock(); err != nil {
		return err
	}
	c.ip, err = gatewayip.OpenToChange()
	return err
}

// changing reads the arguments of such a call, and then takes the lock for it.
func changing[T any](c *call, args []string, del bool, parse func(args []string, del bool) ([]T, error)) ([]T, error) {
	if err := needArgs(args); err != nil {
		return nil, err
	}
	parsed, err := parse(args, del)
	if err != nil {
		return nil, err
	}
	return parsed, c.change()
}

// apply makes a state of share identities so.
func (c *call) apply(state *sharenat.State) error {
	if err := c.lockNFT(); err != nil {
		return err
	}
	return c.nft.Apply(state)
}

func (c *call) shareArgs(args []string, parse func([]string) (*sharenat.State, error)) error {
	if err := needArgs(args); err != nil {
		return err
	}
	state, err := parse(args)
	if err != nil {
		return err
	}
	return c.apply(state)
}

// sync reads all of its input before it takes the lock, so that a slow caller keeps nobody waiting.
func (c *call) sync(args []string) error {
	if err := noArgs(args, ", the state comes on standard input"); err != nil {
		return err
	}
	input, err := io.ReadAll(os.Stdin)
	if err != nil {
		return fmt.Errorf("standard input: %w", err)
	}
	state, err := sharenat.ParseState(string(input))
	if err != nil {
		return err
	}
	return c.apply(state)
}

func (c *call) list(args []string) error {
	if err := noArgs(args, ""); err != nil {
		return err
	}
	if err := c.lockNFT(); err != nil {
		return err
	}
	l := &sharenat.Listing{}
	if err := gatewayip.Open().List(l); err != nil {
		return fmt.Errorf("reading the kernel: %w", err)
	}
	shares, err := c.nft.List()
	if err != nil {
		return err
	}
	l.Shares = shares.Held
	_, err = os.Stdout.Write(l.AppendTo(nil, shares.Stale))
	return err
}

func (c *call) init(args []string) error {
	if len(args) > 1 {
		return errors.New(`takes one argument, VPCIF,EXTIF: "` + strings.Join(args, " ") + `"`)
	}
	interfaces, err := gatewayip.ParseInterfaces(strings.Join(args, ""))
	if err != nil {
		return err
	}
	if err := c.change(); err != nil {
		return err
	}
	return c.ip.Init(interfaces)
}

func (c *call) eips(args []string, del bool) error {
	eips, err := changing(c, args, del, gatewayip.ParseEIPs)
	if err != nil {
		return err
	}
	if del {
		return c.ip.DeleteEIPs(eips)
	}
	return c.ip.AddEIPs(eips)
}

func (c *call) routes(args []string, del bool) error {
	routes, err := changing(c, args, del, gatewayip.ParseRoutes)
	if err != nil {
		return err
	}
	if del {
		return c.ip.DeleteRoutes(routes)
	}
	return c.ip.AddRoutes(routes)
}

func (c *call) dnats(args []string, del bool) error {
	dnats, err := changing(c, args, del, gatewayip.ParseDNATs)
	if err != nil {
		return err
	}
	if err := c.openNFT(); err != nil {
		return err
	}
	if del {
		return c.ip.DeleteDNATs(dnats, c.nft.End)
	}
	return c.ip.AddDNATs(dnats, c.nft.End)
}

// stockOnly are the verbs of Kube-OVN's own script that are not here, and whether they take something away.
var stockOnly = map[string]bool{
	"snat-add": false, "snat-del": true, "floating-ip-add": false, "floating-ip-del": true, "qos-add": false, "qos-del": true,
	"eip-ingress-qos-add": false, "eip-ingress-qos-del": true, "eip-egress-qos-add": false, "eip-egress-qos-del": true,
}

// stock hands a verb to Kube-OVN's own script beside the program, where the image has one. Without it, what it would take away cannot
// be there.
func stock(verb string, args []string) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("own path: %w", err)
	}
	script := filepath.Join(filepath.Dir(self), "nat-gateway-stock.sh")
	if unix.Access(script, unix.R_OK) != nil {
		switch takesAway, known := stockOnly[verb]; {
		case !known:
			return errors.New("unknown verb")
		case takesAway:
			return nil
		}
		return errors.New("needs Kube-OVN's own script, which the image vpc-nat-gateway-beside has and this one has not")
	}
	bash, err := exec.LookPath("bash")
	if err != nil {
		return fmt.Errorf("the stock script: %w", err)
	}
	return fmt.Errorf("the stock script: %w", unix.Exec(bash, append([]string{"bash", script, verb}, args...), os.Environ()))
}
