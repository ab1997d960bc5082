#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs kube-ovn-lab with everything it needs: system packages, the control plane's binaries, kube-ovn-controller.
#
#   hack/lab.sh up                 a lab that stays until interrupted
#   hack/lab.sh shell              a shell in the running one
#   hack/lab.sh run -- CMD…        a lab for one command
#   hack/lab.sh path               none: prints what KUBE_OVN_LAB_PATH has to be for kube-ovn-lab itself
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

lab=$OUTPUT/bin/kube-ovn-lab

# A shell joins what is there already: nothing to prepare, nothing to replace under it.
if [[ ${1:-} == shell && -x $lab ]]; then
  exec "$lab" "$@"
fi

"$ROOT/hack/setup.sh"
tools=$("$ROOT/hack/build-tools.sh" etcd controlplane)
"$ROOT/hack/build.sh"
step "building kube-ovn-lab" go -C "$ROOT/test" build -o "$OUTPUT/bin/" ./lab/cmd/...
export KUBE_OVN_LAB_PATH=$OUTPUT/bin:$tools
if [[ ${1:-} == path ]]; then
  echo "$KUBE_OVN_LAB_PATH"
  exit
fi
exec "$lab" "$@"
