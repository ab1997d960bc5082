// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/kubeovn/kube-ovn/test/lab/node"
	"github.com/kubeovn/kube-ovn/test/lab/room"
)

// tools are put on the PATH of whoever works in the lab.
var tools = []string{"kubectl", "agnhost", "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy"}

// helpers are commands of kube-ovn-lab that can be called by their own name in the lab.
var helpers = []string{"in-pod", "in-gateway", "in-client", "client1", "client2", "client3", "lab-dump", "lab-controller"}

// layout makes the lab's directories and fills its bin directory.
func (l *Lab) layout() error {
	for _, dir := range []string{"logs", "controlplane", "bin"} {
		if err := os.MkdirAll(filepath.Join(room.Dir, dir), 0o755); err != nil {
			return err
		}
	}
	bin := filepath.Join(room.Dir, "bin")
	for _, name := range slices.Concat(tools, node.Programs) {
		path, err := l.options.Path.Find(name)
		if err != nil && slices.Contains(node.Programs, name) && l.options.NoController {
			continue // Somebody else brings them, or nobody does.
		}
		if err != nil {
			return err
		}
		if path, err = filepath.Abs(path); err != nil {
			return err
		}
		if err := os.Symlink(path, filepath.Join(bin, name)); err != nil {
			return fmt.Errorf("link %s: %w", name, err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for _, name := range helpers {
		if err := os.Symlink(self, filepath.Join(bin, name)); err != nil {
			return fmt.Errorf("link %s: %w", name, err)
		}
	}
	return nil
}
