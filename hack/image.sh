#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the container images with the first container engine that runs here: the controller's, and two of the gateways, for mode alone
# and for mode beside, see dist/images/vpcnatgateway/Dockerfile.
#
# STOCK_IMAGE                 Kube-OVN's own gateway image, which the one for mode beside is laid over (default: the Dockerfile's)
# IMAGE_REGISTRY, IMAGE_TAG   name the results (default: docker.io/kubeovn, and what git describes)
# IMAGE_PLATFORMS             builds for several platforms at once, by docker buildx (for example linux/amd64,linux/arm64);
#                             such a result can only be pushed, which IMAGE_PUSH=true asks for
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cd "$ROOT"
registry=${IMAGE_REGISTRY:-docker.io/kubeovn}
version=$(git describe --tags --always --dirty 2>/dev/null || echo dev)
commit=$(git rev-parse HEAD 2>/dev/null || echo unknown)
tag=${IMAGE_TAG:-$version}
# The time of what is built, not of building it: the same commit gives the same image.
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}

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

build=("$found" build)
if [[ -n ${IMAGE_PLATFORMS:-} ]]; then
  [[ $found == docker ]] || die "IMAGE_PLATFORMS needs docker buildx"
  docker buildx version >/dev/null 2>&1 || die "IMAGE_PLATFORMS needs docker buildx"
  build=(docker buildx build --platform "$IMAGE_PLATFORMS")
  [[ ${IMAGE_PUSH:-} == true ]] && build+=(--push)
fi

# image NAME DIR ARG… builds one from dist/images/DIR.
image() {
  local name=$registry/$1:$tag file=dist/images/$2/Dockerfile
  step "building $name" "${build[@]}" -t "$name" -f "$file" \
    --build-arg "VERSION=$tag" --build-arg "COMMIT=$commit" --build-arg "SOURCE_DATE_EPOCH=$epoch" "${@:3}" .
}

image kube-ovn-controller kube-ovn-controller
image vpc-nat-gateway-alone vpcnatgateway --target alone
image vpc-nat-gateway-beside vpcnatgateway --target beside ${STOCK_IMAGE:+--build-arg "STOCK_IMAGE=$STOCK_IMAGE"}
