#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the unit tests of the product, then those of the lab and the other test tools; arguments go to go test.
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

"$ROOT/hack/setup.sh"
cd "$ROOT"
step "unit tests" go test "$@" ./...
# What the tests of these modules read lies outside of them, where go test does not see that it has changed: -count=1.
# As Helm itself is built (hack/build-tools.sh), so that nothing of it is compiled twice.
step "unit tests of the charts" env CGO_ENABLED=0 go -C test/charts test -count=1 -trimpath ./...
step "unit tests of the alerts and the dashboard" go -C test/alerts test -count=1 "$@" ./...

# The lab's node is tested against a real control plane.
KUBE_OVN_LAB_PATH=$("$ROOT/hack/build-tools.sh" etcd controlplane)
export KUBE_OVN_LAB_PATH
cd "$ROOT/test"
# All but the specs, which need a whole lab.
mapfile -t packages < <(go list ./... | grep -v '/test/e2e$')
step "unit tests of the test tools" go test -count=1 "$@" "${packages[@]}"
