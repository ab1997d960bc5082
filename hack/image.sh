#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the container images with the first container engine that runs here.
#
# IMAGE_REGISTRY and IMAGE_TAG name the results (default: docker.io/kubeovn, dev).
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

registry=${IMAGE_REGISTRY:-docker.io/kubeovn}
tag=${IMAGE_TAG:-dev}

# engine prints the engine that runs here, if any. A docker client alone is none: its daemon has to answer.
engine() {
  if command -v docker >/dev/null && docker info >/dev/null 2>&1; then
    echo docker
  elif command -v podman >/dev/null && podman info >/dev/null 2>&1; then
    echo podman
  elif command -v buildah >/dev/null && buildah info >/dev/null 2>&1; then
    echo buildah
  fi
}

found=$(engine)
[[ -n $found ]] || die "no container engine runs here (docker, podman or buildah): images cannot be built"

cd "$ROOT"
while read -r file; do
  name=$(basename "$(dirname "$file")")
  step "building $registry/$name:$tag" "$found" build -t "$registry/$name:$tag" -f "$file" .
done < <(find dist/images -name Dockerfile | sort)
