// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"fmt"
	"os"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubeovn/kube-ovn/pkg/client/clientset/versioned"
	"github.com/kubeovn/kube-ovn/test/lab"
	"github.com/kubeovn/kube-ovn/test/lab/stock/handler"
)

// Labels of specs.
var (
	// Lab: the spec needs a lab. It stops processes, or looks into network namespaces.
	Lab = Label("lab")
	// Alone: the spec installs into a cluster without Kube-OVN, Beside: into one with stock's. Each has a lab of its own.
	Alone  = Label("alone")
	Beside = Label("beside")
	// Stock: the spec runs beside a stand-in for Kube-OVN's own controller, with this project installed already; on labs of its own.
	Stock = Label("stock")
	// StockV117, StockNewer: beside that of one release only.
	StockV117  = Label("stock", "stock-v1.17")
	StockNewer = Label("stock", "stock-newer")
	// Measurement: the spec measures, and asserts nothing about clocks.
	Measurement = Label("measure")
)

const (
	// SystemNamespace is Kube-OVN's.
	SystemNamespace = "kube-system"
	// ExternalSubnet is the default external Subnet.
	ExternalSubnet = "ovn-vpc-external-network"
	// DefaultSubnet is the default VPC's.
	DefaultSubnet = "ovn-default"
	// DefaultVPC is the one that nodes reach.
	DefaultVPC = "ovn-cluster"
)

// Bounds of waiting. Waiting is by conditions; these only end it when a condition never comes.
const (
	Timeout = 60 * time.Second
	Poll    = 50 * time.Millisecond
	// Soon is for what comes by an event, not by a timer, and long before any timer of the controllers.
	Soon = 10 * time.Second
)

// Cluster is where the specs run.
type Cluster struct {
	Config  *rest.Config
	Kube    kubernetes.Interface
	KubeOvn versioned.Interface
	Dynamic dynamic.Interface
	// Lab is nil on any other cluster.
	Lab *lab.Handle
}

// InLab tells whether this process runs in a lab.
func InLab() bool { return os.Getenv(lab.DirEnv) != "" }

// Situation is the filter of the specs that this cluster is for.
func (c *Cluster) Situation() string {
	switch {
	case c.Lab == nil:
		return "!lab"
	case c.Lab.KubeOVN() == lab.NoCRDs:
		return "alone"
	case c.Lab.BesideStock() && c.Lab.StockRelease() == string(handler.V117):
		return "stock && !stock-newer"
	case c.Lab.BesideStock():
		return "stock && !stock-v1.17"
	case c.Lab.KubeOVN() == lab.StockCRDs:
		return "beside"
	default:
		return "!alone && !beside && !stock"
	}
}

// Connect returns the lab this process is in, or the cluster that KUBECONFIG names.
func Connect() (*Cluster, error) {
	c := &Cluster{}
	var err error
	if InLab() {
		if c.Lab, err = lab.Attach(os.Getenv(lab.DirEnv)); err != nil {
			return nil, err
		}
		c.Config = c.Lab.Config()
	} else {
		path := os.Getenv(clientcmd.RecommendedConfigPathEnvVar)
		if path == "" {
			return nil, fmt.Errorf("neither in a lab (make e2e) nor is %s set", clientcmd.RecommendedConfigPathEnvVar)
		}
		if c.Config, err = clientcmd.BuildConfigFromFlags("", path); err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
	}
	c.Config.QPS = -1
	c.Config.UserAgent = "kube-ovn-e2e"
	if c.Kube, err = kubernetes.NewForConfig(c.Config); err != nil {
		return nil, err
	}
	if c.KubeOvn, err = versioned.NewForConfig(c.Config); err != nil {
		return nil, err
	}
	if c.Dynamic, err = dynamic.NewForConfig(c.Config); err != nil {
		return nil, err
	}
	return c, nil
}

// Wait returns an assertion that is tried until it holds.
func Wait(ctx context.Context, actual any, args ...any) AsyncAssertion {
	GinkgoHelper()
	return Eventually(actual, args...).WithContext(ctx).WithTimeout(Timeout).WithPolling(Poll)
}

// Within is Wait for what needs no more than a moment.
func Within(ctx context.Context, limit time.Duration, actual any, args ...any) AsyncAssertion {
	GinkgoHelper()
	return Eventually(actual, args...).WithContext(ctx).WithTimeout(limit).WithPolling(Poll)
}

// must fails the spec when something that has to work does not.
func must(err error, format string, args ...any) {
	GinkgoHelper()
	Expect(err).NotTo(HaveOccurred(), func() string { return fmt.Sprintf(format, args...) })
}
