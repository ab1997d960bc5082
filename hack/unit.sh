#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the unit tests of the product and of the lab; arguments go to go test.
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

"$ROOT/hack/setup.sh"
cd "$ROOT"
step "unit tests" go test "$@" ./...
cd "$ROOT/test"
step "unit tests of the lab" go test "$@" ./lab/...
