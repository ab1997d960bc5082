// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeovn/kube-ovn/test/lab"
	"github.com/kubeovn/kube-ovn/test/lab/controlplane"
	"github.com/kubeovn/kube-ovn/test/lab/fabric"
	"github.com/kubeovn/kube-ovn/test/lab/node"
	"github.com/kubeovn/kube-ovn/test/lab/supervise"
)

// KillContainer kills the first process of a Pod's first container, and returns when it runs anew: the Pod object, the
// network namespace and what nft has in it stay.
func (c *Cluster) KillContainer(ctx context.Context, pod *corev1.Pod) {
	GinkgoHelper()
	c.fault(ctx, "kill-container", pod.Namespace, pod.Name, pod.Spec.Containers[0].Name)
	c.waitRestarted(ctx, pod)
}

// CrashSandbox kills a Pod's sandbox, and returns when the Pod runs anew: the Pod object stays, the network namespace is
// another, with the same addresses.
func (c *Cluster) CrashSandbox(ctx context.Context, pod *corev1.Pod) {
	GinkgoHelper()
	c.fault(ctx, "crash-sandbox", pod.Namespace, pod.Name)
	c.waitRestarted(ctx, pod)
}

func (c *Cluster) fault(ctx context.Context, what string, args ...string) {
	GinkgoHelper()
	err := c.Kube.CoreV1().RESTClient().Post().Resource("nodes").Name(lab.NodeName).SubResource("proxy").
		Suffix(append([]string{"lab", what}, args...)...).Do(ctx).Error()
	must(err, "%s %v", what, args)
}

func (c *Cluster) waitRestarted(ctx context.Context, before *corev1.Pod) {
	GinkgoHelper()
	Wait(ctx, func(g Gomega, ctx context.Context) {
		pod, err := c.Kube.CoreV1().Pods(before.Namespace).Get(ctx, before.Name, metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(pod.UID).To(Equal(before.UID), "Pod %s should be the same object", before.Name)
		g.Expect(pod.Status.ContainerStatuses).NotTo(BeEmpty())
		g.Expect(pod.Status.ContainerStatuses[0].RestartCount).To(BeNumerically(">", before.Status.ContainerStatuses[0].RestartCount))
		g.Expect(isReady(pod)).To(BeTrue(), "Pod %s should be ready", before.Name)
	}).Should(Succeed())
}

// RunIn runs a command in a network namespace and returns what it printed.
func RunIn(ctx context.Context, space fabric.Namespace, args ...string) string {
	GinkgoHelper()
	stdout, stderr, err := node.ExecIn(ctx, space.Name, args...)
	must(err, "%s in %s: %s", strings.Join(args, " "), space.Name, stderr)
	return stdout
}

// Counter counts packets that arrive in a network namespace.
type Counter struct {
	space fabric.Namespace
	table string
}

var counters atomic.Int64

// CountIn counts the packets that arrive in a Pod and match an nft expression, from now on and before anything has
// changed them.
func (c *Cluster) CountIn(ctx context.Context, pod *corev1.Pod, match string) *Counter {
	GinkgoHelper()
	counter := &Counter{space: c.Space(ctx, pod), table: fmt.Sprintf("e2e-%d-%d", GinkgoParallelProcess(), counters.Add(1))}
	RunIn(ctx, counter.space, "nft", fmt.Sprintf(
		"table ip %s {\ncounter hits { }\nchain arriving {\ntype filter hook prerouting priority -400\n%s counter name hits\n}\n}",
		counter.table, match))
	return counter
}

// Packets is how many there have been.
func (c *Counter) Packets(ctx context.Context) int {
	GinkgoHelper()
	text := RunIn(ctx, c.space, "nft", "list", "counter", "ip", c.table, "hits")
	_, after, found := strings.Cut(text, "packets ")
	Expect(found).To(BeTrue(), "counter in %q", text)
	number, _, _ := strings.Cut(after, " ")
	packets, err := strconv.Atoi(number)
	must(err, "read counter %q", text)
	return packets
}

// NewConnections to a port is an nft expression for the first packet of each.
func NewConnections(port corev1.ServicePort) string {
	if port.Protocol == corev1.ProtocolUDP {
		return fmt.Sprintf("udp dport %d", port.Port)
	}
	return fmt.Sprintf("tcp dport %d tcp flags & (syn | ack) == syn", port.Port)
}

// StopController stops kube-ovn-controller; it is started anew with the usual flags when the spec has ended.
func (c *Cluster) StopController(ctx context.Context) {
	GinkgoHelper()
	DeferCleanup(c.EnsureController)
	must(c.Lab.StopController(ctx), "stop the controller")
}

// KillController kills kube-ovn-controller the hard way; it is started anew with the usual flags when the spec has ended.
func (c *Cluster) KillController(ctx context.Context) {
	GinkgoHelper()
	DeferCleanup(c.EnsureController)
	must(c.Lab.KillController(ctx), "kill the controller")
}

// StartController starts kube-ovn-controller with flags after the usual ones, and waits until it is ready and leads.
func (c *Cluster) StartController(ctx context.Context, args ...string) {
	GinkgoHelper()
	must(c.Lab.StartController(ctx, lab.ControllerOptions{Args: args}), "start the controller")
	c.WaitLeader(ctx, lab.Controller)
}

// RestartController stops kube-ovn-controller and starts it with other flags. With any, it is started anew without them
// when the spec has ended.
func (c *Cluster) RestartController(ctx context.Context, args ...string) {
	GinkgoHelper()
	if len(args) > 0 {
		DeferCleanup(func(ctx context.Context) { c.restartController(ctx) })
	} else {
		DeferCleanup(c.EnsureController)
	}
	c.restartController(ctx, args...)
}

func (c *Cluster) restartController(ctx context.Context, args ...string) {
	GinkgoHelper()
	err := c.Lab.StopController(ctx)
	if !errors.Is(err, supervise.ErrNotRunning) {
		must(err, "stop the controller")
	}
	c.StartController(ctx, args...)
}

// EnsureController starts kube-ovn-controller if it does not run.
func (c *Cluster) EnsureController(ctx context.Context) {
	GinkgoHelper()
	running, err := c.Lab.Processes().Running(ctx, lab.Controller)
	must(err, "ask for the controller")
	if !running {
		c.StartController(ctx)
	}
}

// EnsureStock starts the stand-in for Kube-OVN's own controller if it does not run.
func (c *Cluster) EnsureStock(ctx context.Context) {
	GinkgoHelper()
	running, err := c.Lab.Processes().Running(ctx, lab.Stock)
	must(err, "ask for the stand-in")
	if !running {
		must(c.Lab.StartStock(ctx), "start the stand-in")
	}
}

// ControllerPath is the executable of the controller that runs.
func (c *Cluster) ControllerPath() string {
	GinkgoHelper()
	spec, err := runningSpec(lab.Controller)
	must(err, "find the controller")
	return spec.Path
}

// Leader is the holder of the controllers' lease.
func (c *Cluster) Leader(ctx context.Context) (string, error) {
	lease, err := c.Kube.CoordinationV1().Leases(SystemNamespace).Get(ctx, lab.Controller, metav1.GetOptions{})
	if err != nil || lease.Spec.HolderIdentity == nil {
		return "", err
	}
	return *lease.Spec.HolderIdentity, nil
}

// WaitLeader waits until a controller leads and has handled what it found.
func (c *Cluster) WaitLeader(ctx context.Context, name string) {
	GinkgoHelper()
	Wait(ctx, c.Leader).Should(Equal(name), "leader")
}

// APIServer stops and starts the lab's API server.
type APIServer struct {
	c    *Cluster
	spec supervise.Spec
}

// APIServer finds the lab's API server. It runs again when the spec has ended.
func (c *Cluster) APIServer() *APIServer {
	GinkgoHelper()
	spec, err := runningSpec(controlplane.APIServer)
	must(err, "find the API server")
	a := &APIServer{c: c, spec: spec}
	DeferCleanup(a.ensure)
	return a
}

// Stop ends it without a warning.
func (a *APIServer) Stop(ctx context.Context) {
	GinkgoHelper()
	must(a.c.Lab.Processes().Kill(ctx, a.spec.Name), "kill the API server")
}

// Start starts it and waits until it is ready.
func (a *APIServer) Start(ctx context.Context) {
	GinkgoHelper()
	must(a.c.Lab.Processes().Start(ctx, a.spec), "start the API server")
	Wait(ctx, func(ctx context.Context) error {
		return a.c.Kube.CoreV1().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	}).Should(Succeed())
}

func (a *APIServer) ensure(ctx context.Context) {
	running, err := a.c.Lab.Processes().Running(ctx, a.spec.Name)
	must(err, "ask for the API server")
	if !running {
		a.Start(ctx)
	}
}

// runningSpec tells how a process of the lab was started, from what the kernel knows of it.
func runningSpec(name string) (supervise.Spec, error) {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return supervise.Spec{}, err
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			continue // It ended meanwhile.
		}
		args := strings.Split(strings.TrimSuffix(string(data), "\x00"), "\x00")
		if filepath.Base(args[0]) != name {
			continue
		}
		path, err := os.Readlink(filepath.Join(filepath.Dir(file), "exe"))
		return supervise.Spec{Name: name, Path: path, Args: args[1:]}, err
	}
	return supervise.Spec{}, fmt.Errorf("no process %s", name)
}

// APIServerMetrics are the API server's.
func (c *Cluster) APIServerMetrics(ctx context.Context) (Metrics, error) {
	data, err := c.Kube.CoreV1().RESTClient().Get().AbsPath("/metrics").Do(ctx).Raw()
	if err != nil {
		return nil, err
	}
	return parseMetrics(strings.NewReader(string(data)))
}

// Watches counts the watches of a resource that the API server serves, whoever's.
func (c *Cluster) Watches(ctx context.Context, group, resource string) (int, error) {
	metrics, err := c.APIServerMetrics(ctx)
	if err != nil {
		return 0, err
	}
	labels := map[string]string{"verb": "WATCH", "group": group, "resource": resource}
	return int(metrics.Sum("apiserver_longrunning_requests", labels)), nil
}

// Dump writes everything there is to know about the lab into a directory of artifacts.
func (c *Cluster) Dump(ctx context.Context, title string) {
	if c.Lab == nil {
		return
	}
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, title)
	dir := filepath.Join(c.Lab.Root(), "_output", "artifacts", "e2e", "specs", name[:min(len(name), 100)])
	if err := c.Lab.DumpTo(ctx, dir); err != nil {
		AddReportEntry("dump failed", err.Error())
		return
	}
	AddReportEntry("dump", dir)
}
