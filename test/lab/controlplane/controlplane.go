// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubeovn/kube-ovn/test/lab/supervise"
)

// Names of the processes, as the supervisor knows them.
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
	Proxy             = "kube-proxy"
)

// Processes are the names of all of them.
var Processes = []string{Etcd, APIServer, ControllerManager, Scheduler, Proxy}

// Modes of kube-proxy.
const (
	ProxyNFTables = "nftables"
	ProxyIPTables = "iptables"
)

const (
	// ServiceCIDR is where ClusterIPs are taken from; its first address is the API server's.
	ServiceCIDR = "10.96.0.0/16"
	apiService  = "10.96.0.1"

	securePort = 6443
	etcdURL    = "http://127.0.0.1:2379"
)

// ProxyHealth answers 200 while kube-proxy runs.
const ProxyHealth = "http://127.0.0.1:10256/livez"

// controllers of kube-controller-manager that run: those that workloads and Services need.
var controllers = []string{
	"clusterrole-aggregation-controller", "daemonset-controller", "deployment-controller", "disruption-controller",
	"endpointslice-controller", "endpointslice-mirroring-controller", "garbage-collector-controller", "job-controller",
	"namespace-controller", "replicaset-controller", "root-ca-certificate-publisher-controller",
	"serviceaccount-controller", "serviceaccount-token-controller", "statefulset-controller",
}

// Config is what a control plane needs to know.
type Config struct {
	// Dir takes certificates, kubeconfigs and etcd's data.
	Dir string
	// Tool returns the path of an executable by its name.
	Tool func(name string) (string, error)
	// Supervisor runs the processes.
	Supervisor *supervise.Supervisor
	// NodeName and NodeIP are the node's; the API server is reached at NodeIP by the pods.
	NodeName string
	NodeIP   netip.Addr
	// ClusterCIDR is where the default VPC's pods are, for kube-proxy.
	ClusterCIDR string
	// ProxyMode is kube-proxy's.
	ProxyMode string
	// Audit, where it is set, has the API server write down what some users do.
	Audit *Audit
}

// ControlPlane is a running control plane.
type ControlPlane struct {
	config Config
	pki    *PKI
	url    string

	// AdminKubeconfig is the path of a kubeconfig that may do everything; Admin is the same as a client configuration.
	AdminKubeconfig string
	Admin           *rest.Config
	// Kubelet is the serving certificate of the node's kubelet endpoint, CA the authority its callers are checked by.
	Kubelet Pair
	CA      string

	serving, kubeletClient, signing Pair
	kubeconfigs                     map[string]string
}

// Start makes the certificates, starts etcd and the API server and returns when the latter is ready. What hangs on it
// is started by StartManagers and StartProxy.
func Start(ctx context.Context, config Config) (*ControlPlane, error) {
	c := &ControlPlane{
		config: config,
		url:    fmt.Sprintf("https://127.0.0.1:%d", securePort),
	}
	// etcd first: it needs no certificate, and the API server waits for it.
	if err := c.run(Etcd, c.etcdArgs()); err != nil {
		return nil, err
	}
	if err := c.issue(); err != nil {
		return nil, err
	}
	audit, err := c.auditArgs()
	if err != nil {
		return nil, err
	}
	return c, c.runHealthy(ctx, APIServer, append(c.apiServerArgs(), audit...), c.url+"/readyz")
}

// PublicURL returns where the API server is reached by those who are not on the node.
func (c *ControlPlane) PublicURL() string {
	return "https://" + netip.AddrPortFrom(c.config.NodeIP, securePort).String()
}

// issue makes every certificate and kubeconfig.
func (c *ControlPlane) issue() error {
	var err error
	if c.pki, err = NewPKI(filepath.Join(c.config.Dir, "pki")); err != nil {
		return fmt.Errorf("make certificate authority: %w", err)
	}
	c.CA = c.pki.CA()
	loopback := netip.MustParseAddr("127.0.0.1")
	pairs := []struct {
		to      *Pair
		name    string
		subject Subject
	}{
		{&c.serving, "apiserver", Subject{
			CommonName: "kube-apiserver",
			Names:      []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"},
			Addresses:  []netip.Addr{loopback, netip.MustParseAddr(apiService), c.config.NodeIP},
		}},
		{&c.kubeletClient, "apiserver-kubelet-client", Subject{CommonName: "kube-apiserver-kubelet-client", Organization: []string{"system:masters"}}},
		{&c.Kubelet, "kubelet", Subject{
			CommonName: "system:node:" + c.config.NodeName,
			Names:      []string{c.config.NodeName},
			Addresses:  []netip.Addr{loopback, c.config.NodeIP},
		}},
	}
	for _, p := range pairs {
		if *p.to, err = c.pki.Issue(p.name, p.subject); err != nil {
			return err
		}
	}
	if c.signing, err = c.pki.SigningKey("service-account"); err != nil {
		return err
	}
	c.kubeconfigs = map[string]string{}
	for _, name := range []string{ControllerManager, Scheduler, Proxy} {
		if c.kubeconfigs[name], err = c.Kubeconfig(name, Subject{CommonName: "system:" + name}); err != nil {
			return err
		}
	}
	c.AdminKubeconfig, err = c.Kubeconfig("admin", Subject{CommonName: "kubernetes-admin", Organization: []string{"system:masters"}})
	if err != nil {
		return err
	}
	if c.Admin, err = clientcmd.BuildConfigFromFlags("", c.AdminKubeconfig); err != nil {
		return fmt.Errorf("read the admin's kubeconfig: %w", err)
	}
	// The lab's own client is one process for everybody in it; client-side limits would only distort what is measured.
	c.Admin.QPS = -1
	return nil
}

// StartManagers starts controller-manager and scheduler and returns when they are healthy, and Pods can be made: no Pod
// is admitted before its namespace has its service account.
func (c *ControlPlane) StartManagers(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return c.runHealthy(ctx, ControllerManager, c.controllerManagerArgs(), "https://127.0.0.1:10257/healthz")
	})
	group.Go(func() error {
		return c.runHealthy(ctx, Scheduler, c.schedulerArgs(), "https://127.0.0.1:10259/readyz")
	})
	group.Go(func() error { return c.awaitServiceAccount(ctx) })
	return group.Wait()
}

// awaitServiceAccount returns when the namespace default has its service account.
func (c *ControlPlane) awaitServiceAccount(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(c.Admin)
	if err != nil {
		return err
	}
	accounts := client.CoreV1().ServiceAccounts(metav1.NamespaceDefault)
	err = wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		_, err := accounts.Get(ctx, "default", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		return fmt.Errorf("wait for the default service account: %w", err)
	}
	return nil
}

// StartProxy starts kube-proxy and returns when it is healthy. The Node and its interfaces have to be there by then.
func (c *ControlPlane) StartProxy(ctx context.Context) error {
	return c.runHealthy(ctx, Proxy, c.proxyArgs(c.config.ProxyMode), ProxyHealth)
}

// ProxySpec returns kube-proxy as a process, in a mode.
func (c *ControlPlane) ProxySpec(mode string) (supervise.Spec, error) {
	return c.spec(Proxy, c.proxyArgs(mode))
}

func (c *ControlPlane) spec(name string, args []string) (supervise.Spec, error) {
	path, err := c.config.Tool(name)
	return supervise.Spec{Name: name, Path: path, Args: args, Env: environment(name)}, err
}

func (c *ControlPlane) run(name string, args []string) error {
	spec, err := c.spec(name, args)
	if err != nil {
		return err
	}
	return c.config.Supervisor.Start(spec)
}

// runHealthy runs a process until it answers at url.
func (c *ControlPlane) runHealthy(ctx context.Context, name string, args []string, url string) error {
	if err := c.run(name, args); err != nil {
		return err
	}
	return c.waitHealthy(ctx, name, url)
}

// waitHealthy returns when url answers 200, or with the reason why it never will.
func (c *ControlPlane) waitHealthy(ctx context.Context, name, url string) error {
	s := c.config.Supervisor
	return supervise.Health{Name: name, URL: url, Log: s.Log(name)}.Await(ctx, s.Running)
}
