// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kubeovn/kube-ovn/test/lab/controlplane"
	"github.com/kubeovn/kube-ovn/test/lab/room"
	"github.com/kubeovn/kube-ovn/test/lab/stock/handler"
	"github.com/kubeovn/kube-ovn/test/lab/supervise"
)

//go:embed manifests
var manifests embed.FS

// startDeadline bounds the whole of Start: a lab that takes this long never comes.
const startDeadline = 10 * time.Minute

// Lab is a running lab, held by the process that started it.
type Lab struct {
	// Handle is what everybody in the room can do with it.
	*Handle

	options      Options
	supervisor   *supervise.Supervisor
	controlPlane *controlplane.ControlPlane
	server       *http.Server
	cancel       context.CancelFunc
	began        time.Time
}

// Start brings a lab up in the room it is called in and returns when it is ready. The lab lives until Stop, or until ctx
// is done, or with the process.
func Start(ctx context.Context, options Options) (*Lab, error) {
	if err := checkRoom(); err != nil {
		return nil, err
	}
	if err := options.complete(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	l := &Lab{options: options, cancel: cancel, began: time.Now()}
	if err := l.start(ctx); err != nil {
		l.Stop()
		return nil, err
	}
	return l, nil
}

func (l *Lab) start(ctx context.Context) error {
	if err := l.layout(); err != nil {
		return err
	}
	l.supervisor = supervise.New(filepath.Join(room.Dir, "logs"), func(d *supervise.DeathError) { l.options.OnFailure(d) })
	if err := l.serve(); err != nil {
		return err
	}
	starting, cancel := context.WithTimeout(ctx, startDeadline)
	defer cancel()

	var err error
	l.controlPlane, err = controlplane.Start(starting, controlplane.Config{
		Dir:         filepath.Join(room.Dir, "controlplane"),
		Tool:        l.options.Path.Find,
		Supervisor:  l.supervisor,
		NodeName:    NodeName,
		NodeIP:      nodeIP,
		ClusterCIDR: clusterCIDR,
		ProxyMode:   l.options.ProxyMode,
		Audit:       &controlplane.Audit{Users: installedAccounts(), Log: filepath.Join(room.Dir, "logs", AuditLog+".log")},
	})
	if err != nil {
		return err
	}
	l.done("API server")
	if err := l.writeState(); err != nil {
		return err
	}
	if l.Handle, err = Attach(room.Dir); err != nil {
		return err
	}
	if err := l.populate(starting); err != nil {
		return err
	}
	group, groupCtx := errgroup.WithContext(starting)
	group.Go(func() error {
		if err := l.controlPlane.StartManagers(groupCtx); err != nil {
			return err
		}
		l.done("controller manager, scheduler")
		return nil
	})
	group.Go(func() error {
		// The node lives as long as the lab, so it gets the lab's context.
		if err := l.startNode(ctx); err != nil {
			return err
		}
		l.done("node")
		if err := l.controlPlane.StartProxy(groupCtx); err != nil {
			return err
		}
		l.done("kube-proxy")
		return nil
	})
	group.Go(func() error { return l.startControllers(groupCtx) })
	if err := group.Wait(); err != nil {
		return err
	}
	if err := l.waitUsable(starting); err != nil {
		return err
	}
	l.done("all")
	return nil
}

// startControllers starts Kube-OVN's own, or who stands in for it, and this project's.
func (l *Lab) startControllers(ctx context.Context) error {
	if l.options.KubeOVN == StockCRDs {
		if err := l.startStock(ctx); err != nil {
			return err
		}
		l.done("the stand-in for Kube-OVN " + l.options.StockRelease)
	}
	if l.options.NoController {
		return nil
	}
	if err := l.StartController(ctx, l.options.Controller); err != nil {
		return err
	}
	l.done("kube-ovn-controller")
	return nil
}

// done reports a step of Start.
func (l *Lab) done(what string) {
	l.options.Progress("%5.1fs  %s ready", time.Since(l.began).Seconds(), what)
}

// populate applies the kinds and the objects that a fresh installation of Kube-OVN has.
func (l *Lab) populate(ctx context.Context) error {
	applier, err := newApplier(l.controlPlane.Admin)
	if err != nil {
		return err
	}
	crds, err := applier.files(ctx, manifests, "manifests/10-*.yaml")
	if err != nil {
		return err
	}
	own, err := l.kubeOVN(ctx, applier)
	if err != nil {
		return err
	}
	if err := applier.established(ctx, append(crds, own...)); err != nil {
		return err
	}
	if l.options.KubeOVN == NoCRDs {
		return nil
	}
	if _, err := applier.files(ctx, manifests, "manifests/[23]0-*.yaml"); err != nil {
		return err
	}
	l.done("CRDs and objects of Kube-OVN")
	return nil
}

// kubeOVN applies the CRDs of Kube-OVN that the lab begins with, and returns them.
func (l *Lab) kubeOVN(ctx context.Context, applier *applier) ([]*unstructured.Unstructured, error) {
	switch l.options.KubeOVN {
	case NoCRDs:
		return nil, nil
	case StockCRDs:
		crds, err := stockCRDs(l.options.Root, l.options.StockRelease == string(handler.Newer) || l.options.besideStock())
		if err != nil {
			return nil, err
		}
		return crds, applier.objects(ctx, crds)
	}
	dir := filepath.Join(l.options.Root, "dist", "crds")
	crds, err := applier.files(ctx, os.DirFS(dir), "*.yaml")
	if err == nil && len(crds) == 0 {
		err = fmt.Errorf("no CustomResourceDefinitions in %s: make generate", dir)
	}
	return crds, err
}

// MakeNetworks makes the networks that every lab has but one that began without Kube-OVN, whose CRDs have to be there by now.
func (h *Handle) MakeNetworks(ctx context.Context) error {
	applier, err := newApplier(h.config)
	if err != nil {
		return err
	}
	_, err = applier.files(ctx, manifests, "manifests/20-*.yaml")
	return err
}

// serve lets other processes of the room start and stop the lab's.
func (l *Lab) serve() error {
	listener, err := net.Listen("unix", filepath.Join(room.Dir, socketName))
	if err != nil {
		return fmt.Errorf("listen for the lab's users: %w", err)
	}
	l.server = &http.Server{Handler: supervise.Handler(l.supervisor), ReadHeaderTimeout: 5 * time.Second}
	go func() {
		if err := l.server.Serve(listener); err != nil && !errors.Is(err, http.ErrServerClosed) {
			l.options.Progress("error: %v", err)
		}
	}()
	return nil
}

// writeState leaves what Attach needs.
func (l *Lab) writeState() error {
	kubeconfig, err := l.controlPlane.Kubeconfig("kube-ovn-controller", controlplane.Subject{
		CommonName:   "system:serviceaccount:" + SystemNamespace + ":ovn",
		Organization: []string{"system:serviceaccounts", "system:serviceaccounts:" + SystemNamespace},
	})
	if err != nil {
		return err
	}
	controller, err := l.options.Path.Find(Controller)
	if err != nil && !l.options.NoController {
		return err
	}
	proxy := map[string]supervise.Spec{}
	for _, mode := range []string{controlplane.ProxyNFTables, controlplane.ProxyIPTables} {
		if proxy[mode], err = l.controlPlane.ProxySpec(mode); err != nil {
			return err
		}
	}
	withStock, stockRelease, stockPath := l.options.KubeOVN == StockCRDs, "", ""
	if withStock {
		stockRelease = l.options.StockRelease
		if stockPath, err = l.options.Path.Find(Stock); err != nil {
			return err
		}
	}
	data, err := json.MarshalIndent(state{
		Stock:                stockPath,
		StockRelease:         stockRelease,
		StockWebhook:         withStock && stockRelease == string(handler.Newer) && !l.options.NoStockWebhook,
		BesideStock:          l.options.besideStock(),
		Root:                 l.options.Root,
		Kubeconfig:           l.controlPlane.AdminKubeconfig,
		Controller:           controller,
		KubeOVN:              l.options.KubeOVN,
		ControllerKubeconfig: kubeconfig,
		Proxy:                proxy,
	}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(room.Dir, stateName), data, 0o644)
}

// Stop ends everything. What is left in the room goes with the room.
func (l *Lab) Stop() {
	l.cancel()
	if l.server != nil {
		_ = l.server.Close() // Its listener is all it holds.
	}
	if l.supervisor != nil {
		l.supervisor.KillAll() // Nothing in a lab outlives it, so nobody needs the time to end well.
	}
}
