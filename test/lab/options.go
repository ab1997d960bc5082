// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kubeovn/kube-ovn/test/lab/controlplane"
	"github.com/kubeovn/kube-ovn/test/lab/room"
	"github.com/kubeovn/kube-ovn/test/lab/stock/handler"
)

const (
	// NodeName is the name of the lab's only node.
	NodeName = "lab"
	// SystemNamespace is where Kube-OVN's own objects are.
	SystemNamespace = "kube-system"

	kubeletPort = 10250
	clusterCIDR = "10.16.0.0/16"
)

// What of Kube-OVN is there from the start.
const (
	// OwnCRDs is Kube-OVN with this project's CRDs, ready for use.
	OwnCRDs = "own"
	// StockCRDs is Kube-OVN as its users have it: its CRDs, its gateways' script, and a stand-in for its controller. This project's
	// own runs beside, unless there is none.
	StockCRDs = "stock"
	// NoCRDs is a cluster without Kube-OVN.
	NoCRDs = "none"
)

// besideStock says that this project's controller is started beside the stand-in for Kube-OVN's own.
func (o *Options) besideStock() bool { return o.KubeOVN == StockCRDs && !o.NoController }

// nodeIP is the node's address in the external network.
var nodeIP = netip.MustParseAddr("203.0.113.2")

// Options say what lab to bring up. The zero value is the usual one.
type Options struct {
	// Root is the top of the source tree. Default: found upwards from the working directory.
	Root string
	// Path lists directories with the tools and kube-ovn-controller, before PATH. Default: KUBE_OVN_LAB_PATH.
	Path controlplane.Path
	// ProxyMode is kube-proxy's mode. Default: nftables.
	ProxyMode string
	// KubeOVN is what of Kube-OVN is there from the start. Default: OwnCRDs.
	KubeOVN string
	// StockRelease is which of Kube-OVN's releases StockCRDs is of (handler.V117, handler.Newer). Default: the first.
	StockRelease string
	// NoStockWebhook leaves out the webhook that the newer release has.
	NoStockWebhook bool
	// NoController leaves kube-ovn-controller out: it is started later, or by somebody else.
	NoController bool
	// Controller says how it is started.
	Controller ControllerOptions
	// Progress is told what was done. Default: nobody.
	Progress func(format string, args ...any)
	// OnFailure is told, on a goroutine of its own, when a part of the lab ended unasked; where that was a process, by a
	// *supervise.DeathError. Default: Progress.
	OnFailure func(error)
}

// complete fills in defaults.
func (o *Options) complete() error {
	if o.Root == "" {
		root, err := FindRoot()
		if err != nil {
			return err
		}
		o.Root = root
	}
	if o.Path == nil {
		o.Path = controlplane.DefaultPath()
	}
	if o.ProxyMode == "" {
		o.ProxyMode = controlplane.ProxyNFTables
	}
	if o.KubeOVN == "" {
		o.KubeOVN = OwnCRDs
	}
	if !slices.Contains([]string{OwnCRDs, StockCRDs, NoCRDs}, o.KubeOVN) {
		return fmt.Errorf("what is there of Kube-OVN is %s, %s or %s, not %q", OwnCRDs, StockCRDs, NoCRDs, o.KubeOVN)
	}
	if o.StockRelease == "" {
		o.StockRelease = string(handler.V117)
	}
	if !slices.Contains(handler.Releases, handler.Release(o.StockRelease)) {
		return fmt.Errorf("a release to stand in for is one of %v, not %q", handler.Releases, o.StockRelease)
	}
	if o.Progress == nil {
		o.Progress = func(string, ...any) {}
	}
	if o.OnFailure == nil {
		o.OnFailure = func(err error) { o.Progress("error: %v", err) }
	}
	return nil
}

// FindRoot looks for the top of the source tree.
func FindRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for at := dir; ; at = filepath.Dir(at) {
		data, err := os.ReadFile(filepath.Join(at, "go.mod"))
		if err == nil && strings.HasPrefix(string(data), "module github.com/kubeovn/kube-ovn\n") {
			return at, nil
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("%s is not inside the source tree of kube-ovn", dir)
		}
	}
}

// ErrOutside says that the lab would touch the machine it runs on.
var ErrOutside = errors.New("a lab lives in a room of its own: run this by kube-ovn-lab run")

// checkRoom keeps a lab from being started anywhere else.
func checkRoom() error {
	if !room.Inside() {
		return ErrOutside
	}
	return nil
}
