#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Takes the measures of docs/performance.md, each beside the floor and the peers, and leaves them in _output/bench.
#
#   hack/bench.sh [FLAGS] [NAME…]     all, or those whose names begin so; --list says which there are, --scale=0.1 is quick
#   hack/bench.sh go [ARG…]           the Go benchmarks of the product; arguments go to go test
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cd "$ROOT"
if [[ ${1:-} == go ]]; then
  shift
  exec go test -run='^$' -bench=. -benchmem "$@" ./...
fi

bench=$OUTPUT/bin/kube-ovn-bench
build() { go -C "$ROOT/test" build -o "$bench" ./bench/cmd/kube-ovn-bench; }

mkdir -p "$OUTPUT/bin"
"$ROOT/hack/setup.sh" bench
# Only the script's measures do without a control plane and its kube-proxy.
lab=1
for arg in "$@"; do
  case $arg in
  -*) ;;
  script*) lab=0 ;;
  *)
    lab=1
    break
    ;;
  esac
done
if ((lab)); then
  tools=$("$ROOT/hack/build-tools.sh" etcd controlplane)
  "$ROOT/hack/build.sh"
  export KUBE_OVN_LAB_PATH=$OUTPUT/bin:$tools
fi
step "building kube-ovn-bench" build
exec "$bench" --output="$OUTPUT/bench" "$@"
