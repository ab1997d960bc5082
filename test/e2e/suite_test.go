// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"os"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/format"

	. "github.com/kubeovn/kube-ovn/test/e2e/framework"
)

// cluster is where the specs run.
var cluster *Cluster

func TestE2E(t *testing.T) {
	RegisterFailHandler(Fail)
	format.MaxLength = 20000
	suite, reporter := GinkgoConfiguration()
	suite.Timeout = 20 * time.Minute
	var err error
	if cluster, err = Connect(); err != nil {
		t.Fatal(err)
	}
	if suite.LabelFilter != "" {
		suite.LabelFilter = "(" + suite.LabelFilter + ") && "
	}
	suite.LabelFilter += cluster.Situation()
	RunSpecs(t, "Kube-OVN load balancer", suite, reporter)
}

// What there is to know is written down before the scene is cleaned away.
var _ = JustAfterEach(func(ctx context.Context) {
	if CurrentSpecReport().Failed() {
		cluster.Dump(ctx, CurrentSpecReport().FullText())
	}
})

var _ = ReportAfterSuite("measurements", func(report Report) { PrintMeasurements(os.Stdout, report) })
