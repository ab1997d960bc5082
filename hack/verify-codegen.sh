#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Says whether what hack/update-codegen.sh generates is up to date, by generating
# it in a copy of the tree and comparing; the tree itself is left as it is.

set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

readonly generated=(pkg/apis pkg/client/{applyconfiguration,clientset,informers,listers} dist/crds)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
ln -s "$ROOT" "$work/have"

cd "$ROOT"
for path in go.mod go.sum pkg/apis hack/boilerplate.{go,yaml}.txt hack/{lib,update-codegen}.sh hack/tools/codegen; do
  mkdir -p "$work/want/$(dirname "$path")"
  cp -R "$path" "$work/want/$path"
done
"$work/want/hack/update-codegen.sh"

cd "$work"
status=0
for path in "${generated[@]}"; do
  diff -ru "have/$path" "want/$path" || status=1
done
((status == 0)) || die "generated files are out of date: run hack/update-codegen.sh and commit what it changes"
say "generated files are up to date"
