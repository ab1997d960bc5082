#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the end-to-end specs, several at a time; arguments go to ginkgo. By default on labs of their own: the usual one, two beside
# stand-ins for Kube-OVN's own controller, of v1.17 and of a newer release, and two for installing, without Kube-OVN and with the
# one its users have; with E2E_CLUSTER=true on the cluster that KUBECONFIG names, which has to have Kube-OVN and
# kube-ovn-controller already.
#
# E2E_PROCS     how many specs run at a time (default: 3; they wait more than they work)
# E2E_ATTEMPTS  how often a spec is tried (default: 2); one that passed only at the second is named at the end as FLAKED, with its
#               dump, and wants to be looked into. 1 is for hunting such specs.
# E2E_LABS      which labs the specs run on: usual, stock, installing (default: all)
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

specs=$OUTPUT/e2e.test
labs=" ${E2E_LABS:-usual stock installing} "

# Compiled before the lab exists: a compiler beside it would only disturb what the specs measure.
compile() {
  go -C "$ROOT/test" build -o "$OUTPUT/bin/ginkgo" github.com/onsi/ginkgo/v2/ginkgo
  go -C "$ROOT/test" test -c -o "$specs" ./e2e
}

ginkgo=("$OUTPUT/bin/ginkgo" -v)
[[ -t 1 ]] || ginkgo+=(--no-color)
artifacts=$OUTPUT/artifacts/e2e

# on_lab DIR FLAG… -- OPTION… runs the specs that a lab with these flags is for; options go to ginkgo. With "in_place=exec" it
# takes the shell's place, so that who ends the one ends the other.
on_lab() {
  local dir=$1 flags=()
  shift
  while [[ $1 != -- ]]; do
    flags+=("$1")
    shift
  done
  ${in_place:-} "$OUTPUT/bin/kube-ovn-lab" run --artifacts "$dir" "${flags[@]}" -- "${ginkgo[@]}" "${@:2}" "$specs"
}

# install_in NAME DIR OPTION… shows installing in one situation.
install_in() {
  local flags=()
  case $1 in
  alone) flags=(--kube-ovn=none --no-controller) ;;
  beside) flags=(--kube-ovn=stock --no-controller) ;;
  esac
  on_lab "$2" --quiet "${flags[@]}" -- "${@:3}"
}

# installing OPTION… shows it in both, each in a lab of its own. Both mostly wait: they do so together. Each spec goes on where the
# one before it ended, so that what is tried again is the whole of a situation.
installing() {
  local status=0 name
  local -A pids=()
  for name in alone beside; do
    in_place="exec" install_in "$name" "$artifacts/$name" "$@" >"$artifacts/$name.log" 2>&1 &
    pids[$name]=$!
  done
  # shellcheck disable=SC2064  # these two, whatever comes
  trap "kill ${pids[*]} 2>/dev/null || true" EXIT
  for name in alone beside; do
    if wait "${pids[$name]}"; then
      unset "pids[$name]"
    fi
    cat "$artifacts/$name.log"
  done
  trap - EXIT
  for name in "${!pids[@]}"; do
    if ((${E2E_ATTEMPTS:-2} > 1)) && install_in "$name" "$artifacts/$name-again" "$@"; then
      printf 'FLAKED: installing, %s: it failed and was then fine; the dump of the failure is in %s\n' "$name" "$artifacts/$name"
    else
      status=1
    fi
  done
  return "$status"
}

cd "$ROOT"
mkdir -p "$OUTPUT/bin"
rm -rf "$artifacts"
mkdir -p "$artifacts"
step "building the specs" compile
if [[ ${E2E_CLUSTER:-} == true ]]; then
  : "${KUBECONFIG:?names the cluster to run the specs on}"
  exec "${ginkgo[@]}" --procs="${E2E_PROCS:-3}" --flake-attempts="${E2E_ATTEMPTS:-2}" "$@" "$specs"
fi
KUBE_OVN_LAB_PATH=$("$ROOT/hack/lab.sh" path)
helm=$("$ROOT/hack/build-tools.sh" helm)
export KUBE_OVN_LAB_PATH PATH=$helm:$PATH

status=0
if [[ $labs == *" usual "* ]]; then
  on_lab "$artifacts" -- --procs="${E2E_PROCS:-3}" --flake-attempts="${E2E_ATTEMPTS:-2}" "$@" || status=$?
fi
if [[ $labs == *" stock "* ]]; then
  for release in v1.17 newer; do
    on_lab "$artifacts/stock-$release" --quiet --kube-ovn=stock --stock-release="$release" \
      -- --procs="${E2E_PROCS:-3}" --flake-attempts="${E2E_ATTEMPTS:-2}" "$@" || status=$?
  done
fi
if [[ $labs == *" installing "* ]]; then
  step "installing, in both situations" installing "$@" || status=$?
fi
((status == 0))
