#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the end-to-end specs, several at a time; arguments go to ginkgo. By default on a lab of their own; with
# E2E_CLUSTER=true on the cluster that KUBECONFIG names, which has to have Kube-OVN and kube-ovn-controller already.
#
# E2E_PROCS     how many specs run at a time (default: 3; they wait more than they work)
# E2E_ATTEMPTS  how often a spec is tried (default: 2); one that passed only at the second is named at the end as FLAKED, with its
#               dump, and wants to be looked into. 1 is for hunting such specs.
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

specs=$OUTPUT/e2e.test
# Compiled before the lab exists: a compiler beside it would only disturb what the specs measure.
compile() {
  go -C "$ROOT/test" build -o "$OUTPUT/bin/ginkgo" github.com/onsi/ginkgo/v2/ginkgo
  go -C "$ROOT/test" test -c -o "$specs" ./e2e
}

ginkgo=("$OUTPUT/bin/ginkgo" -v --procs="${E2E_PROCS:-3}" --flake-attempts="${E2E_ATTEMPTS:-2}")
[[ -t 1 ]] || ginkgo+=(--no-color)
artifacts=$OUTPUT/artifacts/e2e

cd "$ROOT"
mkdir -p "$OUTPUT/bin"
rm -rf "$artifacts"
step "building the specs" compile
if [[ ${E2E_CLUSTER:-} == true ]]; then
  : "${KUBECONFIG:?names the cluster to run the specs on}"
  exec "${ginkgo[@]}" "$@" "$specs"
fi
exec "$ROOT/hack/lab.sh" run --artifacts "$artifacts" -- "${ginkgo[@]}" "$@" "$specs"
