// SPDX-License-Identifier: Apache-2.0

package packets

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
	"github.com/kubeovn/kube-ovn/test/lab"
)

// gateway is a lane whose router is a VPC NAT gateway.
type gateway struct {
	*lane
	shares []sharenat.Share
}

// newGateway builds a gateway that holds these shares.
func newGateway(undo func(func()), shares ...sharenat.Share) (*gateway, error) {
	l, err := newLane(undo)
	if err != nil {
		return nil, err
	}
	g := &gateway{lane: l, shares: shares}
	eips := map[string]bool{}
	for i := range shares {
		shares[i].Normalize()
		eips[shares[i].EIP.String()+"/24"] = true
	}
	if _, err := g.call("", "init", "eth0,net1"); err != nil {
		return nil, err
	}
	if _, err := g.call("", "eip-add", slices.Sorted(maps.Keys(eips))...); err != nil {
		return nil, err
	}
	in, err := sharenat.EncodeFull(shares)
	if err != nil {
		return nil, err
	}
	if _, err := g.call(string(in), sharenat.SyncVerb); err != nil {
		return nil, err
	}
	return g, g.holds()
}

// call calls nat-gateway.sh.
func (g *gateway) call(stdin, verb string, args ...string) (string, error) {
	root, err := lab.FindRoot()
	if err != nil {
		return "", err
	}
	script := filepath.Join(root, "dist", "images", "vpcnatgateway", "nat-gateway.sh")
	return run(g.router.Name, stdin, append([]string{"bash", script, verb}, args...)...)
}

// holds looks whether the kernel has what the gateway was told.
func (g *gateway) holds() error {
	out, err := g.call("", sharenat.ListVerb)
	if err != nil {
		return err
	}
	listing, err := sharenat.ParseListing(strings.NewReader(out))
	if err != nil {
		return err
	}
	if !listing.Initialized || listing.Stale != 0 || len(listing.Shares) != len(g.shares) {
		return fmt.Errorf("the gateway holds %d identities and %d stale objects, not %d identities", len(listing.Shares), listing.Stale, len(g.shares))
	}
	var errs []error
	for i := range g.shares {
		s := &g.shares[i]
		if listing.Shares[s.Identity].Digest != s.Digest() {
			errs = append(errs, fmt.Errorf("%s: the gateway holds something else than it was told", s.Identity))
		}
	}
	return errors.Join(errs...)
}
