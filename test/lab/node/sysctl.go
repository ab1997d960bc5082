// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// applySysctls sets the Pod's sysctls; only those of the network namespace, since the others are the machine's.
func applySysctls(pod *corev1.Pod) error {
	if pod.Spec.SecurityContext == nil || pod.Spec.HostNetwork {
		return nil
	}
	for _, sysctl := range pod.Spec.SecurityContext.Sysctls {
		if !strings.HasPrefix(sysctl.Name, "net.") {
			return fmt.Errorf("sysctl %s is beyond this lab", sysctl.Name)
		}
		path := filepath.Join("/proc/sys", strings.ReplaceAll(sysctl.Name, ".", "/"))
		if err := os.WriteFile(path, []byte(sysctl.Value), 0); err != nil {
			return fmt.Errorf("set sysctl: %w", err)
		}
	}
	return nil
}
