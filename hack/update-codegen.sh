#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Generates from pkg/apis what is generated: deepcopy functions, CRDs
# (dist/crds), apply configurations, clientset, listers and informers (pkg/client).
# The generators are pinned in hack/tools/codegen and kept in Go's build cache.

set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

readonly module=github.com/kubeovn/kube-ovn
readonly api=$module/pkg/apis/kubeovn/v1
readonly client=$module/pkg/client
readonly header=$ROOT/hack/boilerplate.go.txt

# generator NAME prints where its binary is, built if need be.
generator() { go -C "$ROOT/hack/tools/codegen" tool -n "$1"; }

prepare() {
  local name
  for name in controller-gen applyconfiguration-gen client-gen lister-gen informer-gen; do
    generator "$name" >/dev/null
  done
}

# generate NAME ARG… runs a generator.
generate() {
  local binary
  binary=$(generator "$1")
  step "$1" "$binary" "${@:2}"
}

# generate_types: deepcopy functions and CRDs. The free addresses of an IPv6
# subnet do not fit an int64, hence number, which controller-gen calls dangerous.
generate_types() {
  rm -rf "$ROOT/dist/crds"
  generate controller-gen \
    paths=./pkg/apis/... \
    object:headerFile="$header" \
    crd:allowDangerousTypes=true,headerFile="$ROOT/hack/boilerplate.yaml.txt" \
    output:crd:dir=./dist/crds
}

generate_client() {
  local dir=$ROOT/pkg/client
  rm -rf "$dir/applyconfiguration" "$dir/clientset" "$dir/informers" "$dir/listers"
  generate applyconfiguration-gen \
    --go-header-file "$header" \
    --output-dir "$dir/applyconfiguration" \
    --output-pkg "$client/applyconfiguration" \
    "$api"
  generate client-gen \
    --go-header-file "$header" \
    --output-dir "$dir/clientset" \
    --output-pkg "$client/clientset" \
    --clientset-name versioned \
    --apply-configuration-package "$client/applyconfiguration" \
    --input-base "$module/pkg/apis" \
    --input kubeovn/v1
  generate lister-gen \
    --go-header-file "$header" \
    --output-dir "$dir/listers" \
    --output-pkg "$client/listers" \
    "$api"
  generate informer-gen \
    --go-header-file "$header" \
    --output-dir "$dir/informers" \
    --output-pkg "$client/informers" \
    --versioned-clientset-package "$client/clientset/versioned" \
    --listers-package "$client/listers" \
    "$api"
}

cd "$ROOT"
step "preparing the code generators" prepare
generate_types
generate_client
