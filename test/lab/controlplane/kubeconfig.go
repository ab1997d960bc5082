// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Kubeconfig issues a client certificate for subject and writes a kubeconfig that carries it and everything else a
// client needs. It returns the file's path.
func (c *ControlPlane) Kubeconfig(name string, subject Subject) (string, error) {
	pair, err := c.pki.Issue(name, subject)
	if err != nil {
		return "", err
	}
	cert, err := os.ReadFile(pair.Cert)
	if err != nil {
		return "", err
	}
	key, err := os.ReadFile(pair.Key)
	if err != nil {
		return "", err
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["lab"] = &clientcmdapi.Cluster{Server: c.url, CertificateAuthorityData: c.pki.CAData()}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}
	config.Contexts["lab"] = &clientcmdapi.Context{Cluster: "lab", AuthInfo: name}
	config.CurrentContext = "lab"

	path := filepath.Join(c.config.Dir, name+".kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return "", fmt.Errorf("write kubeconfig of %s: %w", name, err)
	}
	return path, nil
}
