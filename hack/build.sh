#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the commands of cmd/ into _output/bin, statically, so that they run in any image.
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cd "$ROOT"
mkdir -p "$OUTPUT/bin"
step "building $(cd cmd && echo *)" env CGO_ENABLED=0 go build -trimpath -o "$OUTPUT/bin/" ./cmd/...
