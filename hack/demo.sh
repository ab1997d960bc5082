#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Shows on a lab what the product does; ends with 0 only if all of it held.
#
#   --beside   beside a stand-in for Kube-OVN's own controller, which runs the gateways there, as it does where most install this
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

artifacts=$OUTPUT/artifacts/demo

flags=()
if [[ ${1:-} == --beside ]]; then
  flags=(--kube-ovn=stock)
  shift
fi

rm -rf "$artifacts"
mkdir -p "$OUTPUT/bin"
step "building the demo" go -C "$ROOT/test" build -o "$OUTPUT/bin/demo" ./demo
exec "$ROOT/hack/lab.sh" run --artifacts "$artifacts" "${flags[@]}" -- "$OUTPUT/bin/demo" "$@"
