#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the commands of cmd/ into _output/bin. With the same flags as the tests and the images, so that nothing is
# compiled twice.
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cd "$ROOT"
mkdir -p "$OUTPUT/bin"
step "building $(cd cmd && echo *)" go build -o "$OUTPUT/bin/" ./cmd/...
