#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the Go benchmarks of the product; arguments go to go test.
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cd "$ROOT"
exec go test -run='^$' -bench=. -benchmem "$@" ./...
