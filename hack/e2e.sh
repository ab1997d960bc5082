#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the end-to-end specs; arguments go to the test binary. By default on a lab of their own; with E2E_CLUSTER=true on
# the cluster that KUBECONFIG names, which has to have Kube-OVN and kube-ovn-controller already.
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

specs=$OUTPUT/e2e.test
# Compiled before the lab exists: a compiler beside it would only disturb what the specs measure.
compile() { go -C "$ROOT/test" test -c -o "$specs" ./e2e; }

ginkgo=(--ginkgo.v)
[[ -t 1 ]] || ginkgo+=(--ginkgo.no-color)
artifacts=$OUTPUT/artifacts/e2e

cd "$ROOT"
rm -rf "$artifacts"
step "building the specs" compile
if [[ ${E2E_CLUSTER:-} == true ]]; then
  : "${KUBECONFIG:?names the cluster to run the specs on}"
  exec "$specs" "${ginkgo[@]}" "$@"
fi
exec "$ROOT/hack/lab.sh" run --artifacts "$artifacts" -- "$specs" "${ginkgo[@]}" "$@"
