// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	. "github.com/kubeovn/kube-ovn/test/e2e/framework"
)

// chart is one of the two, by its directory's name, with the value that switches the feature on.
type chart struct{ name, enabled, verbosity string }

var (
	firstChart  = chart{"kube-ovn", "func.ENABLE_NFTABLE_LB_SVC", "kube-ovn-controller.verbosity"}
	secondChart = chart{"kube-ovn-v2", "features.enableNftableLoadbalancerService", "controller.verbosity"}
)

func (c chart) path() string { return filepath.Join(cluster.Lab.Root(), "charts", c.name) }

// on are the flags that switch the feature on.
func (c chart) on() []string { return []string{"--set=" + c.enabled + "=true"} }

// helm runs Helm on the lab, and returns what it printed, and what it and its hooks said.
func helm(ctx context.Context, args ...string) (output, said string) {
	GinkgoHelper()
	cmd := cluster.Lab.Command(ctx, append([]string{"helm"}, args...))
	for _, what := range []string{"CACHE", "CONFIG", "DATA"} {
		cmd.Env = append(cmd.Env, "HELM_"+what+"_HOME="+filepath.Join(cluster.Lab.Dir(), "helm"))
	}
	var saying strings.Builder
	cmd.Stderr = &saying
	text, err := cmd.Output()
	Expect(err).NotTo(HaveOccurred(), "helm %s: %s%s", strings.Join(args, " "), text, &saying)
	return string(text), saying.String()
}

// release runs a command of Helm that is about a release, waits until what it is about is ready, and returns all that was said.
func release(ctx context.Context, command, name string, args ...string) string {
	GinkgoHelper()
	output, said := helm(ctx, append([]string{command, name, "--namespace=" + SystemNamespace, "--wait", "--timeout=2m"}, args...)...)
	return output + said
}
