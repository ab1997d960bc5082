#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Sees to it that the commands the build, the tests and the lab call are there: installs the Debian packages that are
# missing when it may (root, on apt), else names them with the command that does.
#
#   hack/setup.sh           for all but the benchmarks
#   hack/setup.sh bench     for them, too
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# What is called, and the package it is in.
needs=(
  "ip iproute2"
  "nft nftables"
  "iptables iptables"
  "conntrack conntrack"
  "arping iputils-arping"
  "tcpdump tcpdump"
  "curl curl"
  "sysctl procps"
  "nsenter util-linux"
  "flock util-linux"
  "shellcheck shellcheck"
)
if [[ ${1:-} == bench ]]; then
  needs+=("iperf3 iperf3" "wrk wrk")
fi

command -v go >/dev/null || die "Go $(awk '$1 == "go" { print $2 }' "$ROOT/go.mod") or newer is needed: https://go.dev/doc/install"

missing=()
for need in "${needs[@]}"; do
  read -r name package <<<"$need"
  command -v "$name" >/dev/null || missing+=("$package")
done
((${#missing[@]})) || exit 0
install="apt-get install -y --no-install-recommends ${missing[*]}"

if ((EUID != 0)) || ! command -v apt-get >/dev/null; then
  die "missing system packages: ${missing[*]}; install them with: sudo $install"
fi
export DEBIAN_FRONTEND=noninteractive

fetch() {
  local log
  log=$(mktemp)
  { apt-get update -q && $install; } >"$log" 2>&1 || {
    cat "$log"
    rm -f "$log"
    return 1
  }
  rm -f "$log"
}
step "installing ${missing[*]}" fetch
