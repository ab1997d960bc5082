// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kubeovn/kube-ovn/test/lab/controlplane"
	"github.com/kubeovn/kube-ovn/test/lab/supervise"
)

// Controller is the name of kube-ovn-controller: its executable, its process and its log.
const Controller = "kube-ovn-controller"

// ControllerPort is where the usual controller serves health and metrics.
const ControllerPort = 10660

// controllerGrace is how long a controller may take to end.
const controllerGrace = 10 * time.Second

// ControllerOptions say how a kube-ovn-controller is started. The zero value is the usual one.
type ControllerOptions struct {
	// Name is the process's and the Pod's name; several can run. Default: Controller.
	Name string
	// Path is the executable. Default: the one built from this tree.
	Path string
	// Port is --pprof-port. Default: ControllerPort.
	Port int
	// Args follow the usual ones and win over them.
	Args []string
	// NoWait returns as soon as the process runs. Default: when it is ready.
	NoWait bool
}

// StartController starts a kube-ovn-controller and waits until it is ready.
func (h *Handle) StartController(ctx context.Context, options ControllerOptions) error {
	if options.Name == "" {
		options.Name = Controller
	}
	if options.Path == "" {
		options.Path = h.state.Controller
	}
	if options.Port == 0 {
		options.Port = ControllerPort
	}
	args := []string{
		"--kubeconfig=" + h.state.ControllerKubeconfig,
		"--enable-nftable-lb-svc=true",
		fmt.Sprintf("--pprof-port=%d", options.Port),
		// A killed controller's successor need not wait long.
		"--leader-elect-lease-duration=5s", "--leader-elect-renew-deadline=4s", "--leader-elect-retry-period=500ms",
		"--v=4",
	}
	if h.state.BesideStock {
		args = append(args, "--enable-nat-gw-handler=false")
	}
	err := h.processes.Start(ctx, supervise.Spec{
		Name: options.Name,
		Path: options.Path,
		Args: append(args, options.Args...),
		Env:  []string{"POD_NAME=" + options.Name, "POD_NAMESPACE=" + SystemNamespace, "NODE_NAME=" + NodeName},
	})
	if err != nil || options.NoWait {
		return err
	}
	return h.WaitHTTP(ctx, options.Name, fmt.Sprintf("http://127.0.0.1:%d/readyz", options.Port))
}

// StopController asks the usual controller to end, and waits for it.
func (h *Handle) StopController(ctx context.Context) error {
	return h.processes.Stop(ctx, Controller, controllerGrace)
}

// KillController ends the usual controller without a warning.
func (h *Handle) KillController(ctx context.Context) error {
	return h.processes.Kill(ctx, Controller)
}

// RestartController stops the usual controller, if it runs, and starts it anew.
func (h *Handle) RestartController(ctx context.Context, options ControllerOptions) error {
	if err := h.StopController(ctx); err != nil && !errors.Is(err, supervise.ErrNotRunning) {
		return err
	}
	return h.StartController(ctx, options)
}

// SetProxyMode restarts kube-proxy in another mode (controlplane.ProxyNFTables, controlplane.ProxyIPTables). It cleans up
// what the other mode left.
func (h *Handle) SetProxyMode(ctx context.Context, mode string) error {
	spec, ok := h.state.Proxy[mode]
	if !ok {
		return fmt.Errorf("no kube-proxy mode %q", mode)
	}
	if err := h.processes.Stop(ctx, controlplane.Proxy, 5*time.Second); err != nil && !errors.Is(err, supervise.ErrNotRunning) {
		return err
	}
	if err := h.processes.Start(ctx, spec); err != nil {
		return err
	}
	return h.WaitHTTP(ctx, controlplane.Proxy, controlplane.ProxyHealth)
}

// WaitHTTP waits until a process of the lab answers 200 at url, and gives up when the process ends or ctx is done.
func (h *Handle) WaitHTTP(ctx context.Context, process, url string) error {
	health := supervise.Health{Name: process, URL: url, Log: h.Log(process)}
	return health.Await(ctx, func(name string) bool {
		running, err := h.processes.Running(ctx, name)
		return running || err != nil // Not to be told is no news.
	})
}
