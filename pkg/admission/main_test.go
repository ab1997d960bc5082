// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"testing"

	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

func TestMain(m *testing.M) {
	log.SetLogger(klog.Background())
	m.Run()
}
