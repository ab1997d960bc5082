// SPDX-License-Identifier: Apache-2.0

package packets

import (
	"testing"

	"github.com/kubeovn/kube-ovn/test/lab/room"
)

// TestMain runs the tests in a room of their own: they build namespaces and nft rules.
func TestMain(m *testing.M) {
	room.Main(func() (int, error) { return m.Run(), nil })
}
