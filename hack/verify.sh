#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks everything that needs no test to be seen: formatting, go vet, generated code, tidy modules, licence headers,
# linters. Leaves the tree as it is, and goes on after a failure to report all of them.
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cd "$ROOT"
"$ROOT/hack/setup.sh"

formatted() {
  local unformatted
  unformatted=$(files '*.go' | xargs -r gofmt -l)
  [[ -z $unformatted ]] || {
    echo "gofmt would change:"
    echo "$unformatted"
    return 1
  }
}

licensed() {
  local without
  without=$(files '*.go' '*.sh' '.ci/run' 'Makefile' | xargs -r grep -L 'SPDX-License-Identifier: Apache-2.0' || true)
  [[ -z $without ]] || {
    echo "no SPDX line in:"
    echo "$without"
    return 1
  }
}

vetted() { go vet ./... && go -C test vet ./... && go -C test/alerts vet ./... && go -C test/charts vet ./...; }
tidy() { go mod tidy -diff && go -C test mod tidy -diff && go -C test/alerts mod tidy -diff && go -C test/charts mod tidy -diff; }

status=0
step "gofmt" formatted || status=1
step "licence headers" licensed || status=1
step "go vet" vetted || status=1
step "tidy modules" tidy || status=1
step "generated code" "$ROOT/hack/verify-codegen.sh" || status=1
step "charts and install.sh" "$ROOT/hack/verify-charts.sh" || status=1
"$ROOT/hack/lint.sh" || status=1
((status == 0)) || die "something has to be put right, see above"
