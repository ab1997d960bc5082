#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the linters: golangci-lint over all modules, shellcheck over every shell script, helm lint over the charts.
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cd "$ROOT"
"$ROOT/hack/setup.sh"
golangci=$("$ROOT/hack/build-tools.sh" lint)
golangci=${golangci##*:}/golangci-lint
helm=$("$ROOT/hack/build-tools.sh" helm)
helm=${helm##*:}/helm

lint_shell() {
  mapfile -t scripts < <(files '*.sh' .ci/run)
  shellcheck -x "${scripts[@]}"
}
lint_go() { (cd "$1" && "$golangci" run --allow-parallel-runners --config "$ROOT/.golangci.yml" ./...); }

lint_charts() {
  local mode
  for mode in beside alone; do
    "$helm" lint --strict --quiet charts/kube-ovn --set "installMode=$mode,func.ENABLE_NFTABLE_LB_SVC=true,webhook.enabled=true"
    "$helm" lint --strict --quiet charts/kube-ovn-v2 --set "installMode=$mode,features.enableNftableLoadbalancerService=true,webhook.enabled=true"
  done
}

status=0
step "shellcheck" lint_shell || status=1
step "golangci-lint" lint_go . || status=1
step "golangci-lint of test/" lint_go test || status=1
step "golangci-lint of test/alerts/" lint_go test/alerts || status=1
step "golangci-lint of test/charts/" lint_go test/charts || status=1
step "helm lint" lint_charts || status=1
((status == 0)) || die "the linters found something"
