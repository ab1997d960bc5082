// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/kubeovn/kube-ovn/test/lab/fabric"
)

// sandbox is what a Pod's containers share: the network namespace, and a process that stands for it. When that process
// dies, the sandbox is lost and all is made anew.
type sandbox struct {
	pause *process
	// network is nil for a Pod in the node's own network.
	network *fabric.Namespace
}

// NetworkNamespace is how a Pod's network namespace is called under /run/netns; with "-" and the UID behind it while a
// namesake that was deleted by force is still on its way out.
func NetworkNamespace(pod *corev1.Pod) string {
	name := fmt.Sprintf("pod-%s-%s", pod.Namespace, pod.Name)
	if len(name) > 200 {
		name = name[:160] + "-" + string(pod.UID)
	}
	return name
}

// newSandbox makes a Pod's network namespace, without NICs yet, and its pause process.
func newSandbox(f *fabric.Fabric, pod *corev1.Pod) (*sandbox, error) {
	s := &sandbox{}
	if !pod.Spec.HostNetwork {
		name := NetworkNamespace(pod)
		if (fabric.Namespace{Name: name}).Exists() {
			// The namesake was deleted by force and is still on its way out.
			name += "-" + string(pod.UID)
		}
		network, err := f.PodNamespace(name)
		if err != nil {
			return nil, err
		}
		s.network = &network
	}
	// As the first process of a pid namespace it would get the orphans; ignored SIGCHLDs make the kernel reap them.
	cmd := exec.Command("/bin/sh", "-c", `trap "" CHLD; exec sleep infinity`)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err := fabric.InThread(func() error {
		if err := s.enter(); err != nil {
			return err
		}
		if err := applySysctls(pod); err != nil {
			return err
		}
		return cmd.Start()
	})
	if err == nil {
		s.pause, err = newProcess(cmd)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start sandbox: %w", err), s.remove())
	}
	return s, nil
}

// enter moves the calling thread, which must be locked, into the sandbox's network.
func (s *sandbox) enter() error {
	if s.network == nil {
		return nil
	}
	return s.network.Enter()
}

// remove ends the sandbox; its containers must have ended.
func (s *sandbox) remove() error {
	if s.pause != nil {
		s.pause.kill(unix.SIGKILL)
		<-s.pause.done
		s.pause.release()
	}
	if s.network == nil {
		return nil
	}
	return s.network.Delete()
}
