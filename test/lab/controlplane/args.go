// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/prometheus/procfs"
)

// environment is what a process has in its own.
func environment(name string) []string {
	if name != APIServer {
		return nil
	}
	// It allocates for every request, and shares the processors with all it serves: to collect garbage took two fifths of its time, with
	// many objects in it. Where it comes to a quarter of the machine's memory, that counts again.
	limit := uint64(1 << 30)
	if fs, err := procfs.NewDefaultFS(); err == nil {
		if memory, err := fs.Meminfo(); err == nil && memory.MemTotalBytes != nil {
			limit = max(limit, *memory.MemTotalBytes/4)
		}
	}
	return []string{"GOGC=400", fmt.Sprintf("GOMEMLIMIT=%d", limit)}
}

func (c *ControlPlane) etcdArgs() []string {
	const peer = "http://127.0.0.1:2380"
	return []string{
		"--name=lab",
		"--data-dir=" + filepath.Join(c.config.Dir, "etcd"),
		"--listen-client-urls=" + etcdURL, "--advertise-client-urls=" + etcdURL,
		"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=lab=" + peer,
		"--unsafe-no-fsync",
		"--log-level=warn",
	}
}

func (c *ControlPlane) apiServerArgs() []string {
	return []string{
		"--etcd-servers=" + etcdURL,
		fmt.Sprintf("--secure-port=%d", securePort),
		"--advertise-address=" + c.config.NodeIP.String(),
		"--service-cluster-ip-range=" + ServiceCIDR,
		"--authorization-mode=RBAC",
		"--allow-privileged=true",
		// The node has no lifecycle controller that would take the taint off again.
		"--disable-admission-plugins=TaintNodesByCondition",
		"--client-ca-file=" + c.CA,
		"--tls-cert-file=" + c.serving.Cert, "--tls-private-key-file=" + c.serving.Key,
		"--kubelet-certificate-authority=" + c.CA,
		"--kubelet-client-certificate=" + c.kubeletClient.Cert, "--kubelet-client-key=" + c.kubeletClient.Key,
		"--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + c.signing.Cert, "--service-account-signing-key-file=" + c.signing.Key,
	}
}

func (c *ControlPlane) controllerManagerArgs() []string {
	return []string{
		"--kubeconfig=" + c.kubeconfigs[ControllerManager],
		"--controllers=" + strings.Join(controllers, ","),
		"--use-service-account-credentials=true",
		"--service-account-private-key-file=" + c.signing.Key,
		"--root-ca-file=" + c.CA,
		"--leader-elect=false",
		"--bind-address=127.0.0.1",
	}
}

func (c *ControlPlane) schedulerArgs() []string {
	return []string{
		"--kubeconfig=" + c.kubeconfigs[Scheduler],
		"--leader-elect=false",
		"--bind-address=127.0.0.1",
	}
}

func (c *ControlPlane) proxyArgs(mode string) []string {
	return []string{
		"--kubeconfig=" + c.kubeconfigs[Proxy],
		"--hostname-override=" + c.config.NodeName,
		"--proxy-mode=" + mode,
		"--cluster-cidr=" + c.config.ClusterCIDR,
		"--healthz-bind-address=0.0.0.0:10256",
		"--metrics-bind-address=127.0.0.1:10249",
		// These would write sysctls of the whole machine.
		"--conntrack-max-per-core=0",
		"--conntrack-tcp-timeout-established=0s",
		"--conntrack-tcp-timeout-close-wait=0s",
	}
}
