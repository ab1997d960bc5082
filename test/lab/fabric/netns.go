// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// namespaceDir is where iproute2 looks for named network namespaces.
const namespaceDir = "/run/netns"

// InThread runs fn on an operating-system thread of its own, which ends with it: whatever fn does to the thread's
// namespaces cannot leak into other goroutines, and needs no undoing.
func InThread(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread dies with the goroutine
		done <- fn()
	}()
	return <-done
}

// Namespace is a network namespace that has a name under /run/netns.
type Namespace struct{ Name string }

// Path is the namespace's file.
func (n Namespace) Path() string { return filepath.Join(namespaceDir, n.Name) }

// Do runs fn inside the namespace, on a thread of its own.
func (n Namespace) Do(fn func() error) error {
	return InThread(func() error {
		if err := n.Enter(); err != nil {
			return err
		}
		return fn()
	})
}

// Enter moves the calling thread, which must be locked, into the namespace.
func (n Namespace) Enter() error {
	file, err := os.Open(n.Path())
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer file.Close()
	if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace %s: %w", n.Name, err)
	}
	return nil
}

// Delete removes the name; the namespace itself goes with its last process.
func (n Namespace) Delete() error {
	if err := unix.Unmount(n.Path(), unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount network namespace %s: %w", n.Name, err)
	}
	if err := os.Remove(n.Path()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove network namespace %s: %w", n.Name, err)
	}
	return nil
}

// Exists tells whether the name is in use.
func (n Namespace) Exists() bool {
	_, err := os.Stat(n.Path())
	return err == nil
}

// Sysctl is a kernel setting, path relative to /proc/sys.
type Sysctl struct{ Path, Value string }

// writeSysctls writes each of them in the calling thread's network namespace.
func writeSysctls(sysctls []Sysctl) error {
	for _, sysctl := range sysctls {
		err := os.WriteFile(filepath.Join("/proc/sys", sysctl.Path), []byte(sysctl.Value), 0)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("set %s: %w", sysctl.Path, err)
		}
	}
	return nil
}

// NewNamespace creates a named network namespace with these sysctls, as `ip netns add` does.
func NewNamespace(name string, sysctls ...Sysctl) (Namespace, error) {
	ns := Namespace{Name: name}
	if err := os.MkdirAll(namespaceDir, 0o755); err != nil {
		return ns, err
	}
	file, err := os.OpenFile(ns.Path(), os.O_RDONLY|os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return ns, fmt.Errorf("create network namespace: %w", err)
	}
	file.Close()
	err = InThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("create network namespace %s: %w", name, err)
		}
		if err := unix.Mount("/proc/thread-self/ns/net", ns.Path(), "none", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("name network namespace %s: %w", name, err)
		}
		return writeSysctls(sysctls)
	})
	if err != nil {
		return ns, errors.Join(err, ns.Delete())
	}
	return ns, nil
}

// hostSysctls are those of a namespace that only sends and receives.
var hostSysctls = []Sysctl{
	{"net/ipv4/conf/all/rp_filter", "0"},
	{"net/ipv4/conf/default/rp_filter", "0"},
	{"net/ipv6/conf/default/accept_dad", "0"},
	{"net/ipv6/conf/default/accept_ra", "0"},
}

// routerSysctls are those of a namespace that forwards. OVN's routers send no redirects.
var routerSysctls = append([]Sysctl{
	{"net/ipv4/ip_forward", "1"},
	{"net/ipv6/conf/all/forwarding", "1"},
	{"net/ipv4/conf/all/send_redirects", "0"},
	{"net/ipv4/conf/default/send_redirects", "0"},
	{"net/ipv4/fib_multipath_hash_policy", "1"},
}, hostSysctls...)

// switchSysctls are those of the namespace that holds the bridges: no addresses, no netfilter.
var switchSysctls = []Sysctl{
	{"net/ipv6/conf/all/disable_ipv6", "1"},
	{"net/ipv6/conf/default/disable_ipv6", "1"},
	{"net/bridge/bridge-nf-call-iptables", "0"},
	{"net/bridge/bridge-nf-call-ip6tables", "0"},
	{"net/bridge/bridge-nf-call-arptables", "0"},
}
