// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"fmt"
	"os"
	"testing"

	"github.com/kubeovn/kube-ovn/test/lab/room"
)

// TestMain runs the tests in a room of their own: they build namespaces and nft rules.
func TestMain(m *testing.M) {
	room.Init()
	if room.Inside() {
		os.Exit(m.Run())
	}
	status, err := room.Run(os.Args)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = 1
	}
	os.Exit(status)
}
