// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubeovn/kube-ovn/test/lab/room"
	"github.com/kubeovn/kube-ovn/test/lab/supervise"
)

const (
	socketName = "lab.sock"
	stateName  = "lab.json"

	// DirEnv names the lab's directory in the environment of whoever runs in the lab.
	DirEnv = "KUBE_OVN_LAB_DIR"
)

// state is what a Lab tells its Handles.
type state struct {
	Root                 string                    `json:"root"`
	Kubeconfig           string                    `json:"kubeconfig"`
	Controller           string                    `json:"controller"`
	KubeOVN              string                    `json:"kubeOVN"`
	ControllerKubeconfig string                    `json:"controllerKubeconfig"`
	Stock                string                    `json:"stock,omitempty"`
	StockRelease         string                    `json:"stockRelease,omitempty"`
	StockWebhook         bool                      `json:"stockWebhook,omitempty"`
	BesideStock          bool                      `json:"besideStock,omitempty"`
	Proxy                map[string]supervise.Spec `json:"proxy"`
}

// Handle works with a running lab from any process in its room.
type Handle struct {
	dir       string
	state     state
	config    *rest.Config
	processes *supervise.Remote
}

// Attach returns a Handle on the lab in a directory; when that is empty, on the one in the room this process is in.
func Attach(dir string) (*Handle, error) {
	if err := checkRoom(); err != nil {
		return nil, err
	}
	if dir == "" {
		dir = room.Dir
	}
	data, err := os.ReadFile(filepath.Join(dir, stateName))
	if err != nil {
		return nil, fmt.Errorf("find the lab: %w", err)
	}
	h := &Handle{dir: dir, processes: supervise.Dial(filepath.Join(dir, socketName))}
	if err := json.Unmarshal(data, &h.state); err != nil {
		return nil, fmt.Errorf("read %s: %w", stateName, err)
	}
	if h.config, err = clientcmd.BuildConfigFromFlags("", h.state.Kubeconfig); err != nil {
		return nil, fmt.Errorf("read the lab's kubeconfig: %w", err)
	}
	h.config.QPS = -1 // Limits of a client would show in what is measured.
	return h, nil
}

// Config returns a client configuration that may do everything.
func (h *Handle) Config() *rest.Config { return rest.CopyConfig(h.config) }

// Kubeconfig returns the path of the same as a file.
func (h *Handle) Kubeconfig() string { return h.state.Kubeconfig }

// Dir returns the lab's directory. It is gone with the lab.
func (h *Handle) Dir() string { return h.dir }

// Root returns the top of the source tree.
func (h *Handle) Root() string { return h.state.Root }

// KubeOVN says what of Kube-OVN the lab began with.
func (h *Handle) KubeOVN() string { return h.state.KubeOVN }

// Processes starts and stops processes of the lab, its own and others.
func (h *Handle) Processes() *supervise.Remote { return h.processes }

// Log returns the path of a process's log.
func (h *Handle) Log(process string) string {
	return filepath.Join(h.dir, "logs", process+".log")
}

// Environ returns what has to be added to the environment of a command that works with the lab.
func (h *Handle) Environ() []string {
	return []string{
		"KUBECONFIG=" + h.state.Kubeconfig,
		DirEnv + "=" + h.dir,
		// kubectl's cache is by the API server's address, and that is the same in every lab.
		"KUBECACHEDIR=" + filepath.Join(h.dir, "kubectl-cache"),
		"PATH=" + filepath.Join(h.dir, "bin") + ":" + os.Getenv("PATH"),
	}
}
