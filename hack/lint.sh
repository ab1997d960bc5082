#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the linters: golangci-lint over both modules, shellcheck over every shell script.
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cd "$ROOT"
"$ROOT/hack/setup.sh"
golangci=$("$ROOT/hack/build-tools.sh" lint)
golangci=${golangci##*:}/golangci-lint

lint_shell() {
  mapfile -t scripts < <(files '*.sh' .ci/run)
  shellcheck -x "${scripts[@]}"
}
lint_go() { (cd "$1" && "$golangci" run --allow-parallel-runners --config "$ROOT/.golangci.yml" ./...); }

status=0
step "shellcheck" lint_shell || status=1
step "golangci-lint" lint_go . || status=1
step "golangci-lint of test/" lint_go test || status=1
((status == 0)) || die "the linters found something"
