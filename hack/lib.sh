# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Shared by the scripts of this directory: where things are, and how they speak.

shopt -s inherit_errexit

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
OUTPUT=$ROOT/_output
TOOLS_CACHE=${KUBE_OVN_TOOLS_CACHE:-${XDG_CACHE_HOME:-${HOME:?}/.cache}/kube-ovn/tools}
export ROOT OUTPUT TOOLS_CACHE

# All that is compiled, but for a given CGO_ENABLED, is compiled as the images' programs are: nothing twice.
export CGO_ENABLED=${CGO_ENABLED:-0}
[[ " ${GOFLAGS:-} " == *" -trimpath "* ]] || export GOFLAGS="${GOFLAGS:+$GOFLAGS }-trimpath"

# Debian leaves these out of a user's PATH; nft and ip are there.
export PATH=$PATH:/usr/sbin:/sbin

say() { printf '%s\n' "$*" >&2; }

die() {
  say "error: $*"
  exit 1
}

# files PATTERN… prints every file git knows or would take, relative to the working directory.
files() { git ls-files --cached --others --exclude-standard -- "$@"; }

# elapsed SECONDS prints them the way people read them: 42s, 5m55s.
elapsed() {
  if (($1 < 60)); then printf '%ds' "$1"; else printf '%dm%02ds' $(($1 / 60)) $(($1 % 60)); fi
}

# step TITLE CMD… runs CMD and says what it is doing and how long it took; every minute of a long one is reported, so
# that a quiet console is not taken for a stuck one. CMD's own output goes to stderr.
step() {
  local title=$1 from=$SECONDS ticker status=0
  shift
  say "$title …"
  (
    # The sleep is the subshell's child: it has to go with it.
    trap 'kill "$nap" 2>/dev/null; exit 0' TERM
    while :; do
      sleep 60 &
      nap=$!
      wait "$nap"
      say "$title … still at it, $(elapsed $((SECONDS - from)))"
    done
  ) &
  ticker=$!
  "$@" >&2 || status=$?
  kill "$ticker" 2>/dev/null || true
  wait "$ticker" 2>/dev/null || true
  if ((status)); then
    say "$title … failed after $(elapsed $((SECONDS - from)))"
  else
    say "$title … $(elapsed $((SECONDS - from)))"
  fi
  return "$status"
}
