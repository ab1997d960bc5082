#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the unit tests of the product, then those of the lab and the other test tools; arguments go to go test.
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# The race detector needs cgo.
[[ " $* " != *" -race "* ]] || export CGO_ENABLED=1
# Some packages work in real gateways and on real control planes for minutes, longer on a machine that is slow or has
# more to do. Go's own limit of 10 minutes is not meant for these; this one is for what hangs.
limit=-timeout=45m

"$ROOT/hack/setup.sh"
cd "$ROOT"
step "unit tests" go test "$limit" "$@" ./...
# The gateway's black box once more, with the program in place of the script. go test does not see what it is built of: -count=1.
step "unit tests of the gateway's program" env VPCNATGATEWAY_TEST_ENTRY=program \
	go test "$limit" -count=1 "$@" ./dist/images/vpcnatgateway
# What the tests of these modules read lies outside of them, where go test does not see that it has changed: -count=1.
# As Helm itself is built (hack/build-tools.sh), so that nothing of it is compiled twice.
step "unit tests of the charts" env CGO_ENABLED=0 go -C test/charts test "$limit" -count=1 ./...
step "unit tests of the alerts and the dashboard" go -C test/alerts test "$limit" -count=1 "$@" ./...

# The lab's node is tested against a real control plane.
KUBE_OVN_LAB_PATH=$("$ROOT/hack/build-tools.sh" etcd controlplane)
export KUBE_OVN_LAB_PATH
cd "$ROOT/test"
# All but the specs, which need a whole lab.
mapfile -t packages < <(go list ./... | grep -v '/test/e2e$')
step "unit tests of the test tools" go test "$limit" -count=1 "$@" "${packages[@]}"
