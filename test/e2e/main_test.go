// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"testing"

	"github.com/kubeovn/kube-ovn/test/traffic"
)

// The specs' traffic comes from network namespaces of the lab, each in a process of its own, which this binary also is.
func TestMain(m *testing.M) {
	traffic.Init()
	os.Exit(m.Run())
}
