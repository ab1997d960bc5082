#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Says whether what hack/update-charts.sh generates is up to date, and leaves the tree as it is.
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

readonly generated=(install.sh charts/kube-ovn/README.md charts/kube-ovn-v2/README.md charts/kube-ovn-nftable-lb-lib/templates/{_crds,_alerts}.tpl)

cd "$ROOT"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$ROOT/hack/update-charts.sh" "$work"
status=0
for file in "${generated[@]}"; do
  diff -u "$file" "$work/$file" || status=1
done
((status == 0)) || die "generated files are out of date: run hack/update-charts.sh and commit what it changes"
say "charts and install.sh are up to date"
