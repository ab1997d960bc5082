#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the tools of the named groups, each a Go module under hack/tools, and prints the directories they are in as a
# PATH. They stay in a cache outside the tree, in a directory a version, so that every checkout shares them and git clean
# does not cost a rebuild of Kubernetes.
#
#   hack/build-tools.sh controlplane etcd
#
# KUBE_OVN_TOOLS_CACHE   where they are kept (default: ~/.cache/kube-ovn/tools)
# KUBEBUILDER_ASSETS     a directory whose etcd, kube-apiserver and kubectl are taken instead of building them
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# tools GROUP prints its tools, one a line: name, package, module that carries the version.
tools() {
  case $1 in
    controlplane)
      local name
      for name in kube-apiserver kubectl kube-controller-manager kube-proxy kube-scheduler; do
        echo "$name k8s.io/kubernetes/cmd/$name k8s.io/kubernetes"
      done
      echo "agnhost k8s.io/kubernetes/test/images/agnhost k8s.io/kubernetes"
      ;;
    etcd) echo "etcd go.etcd.io/etcd/server/v3 go.etcd.io/etcd/server/v3" ;;
    lint) echo "golangci-lint github.com/golangci/golangci-lint/v2/cmd/golangci-lint github.com/golangci/golangci-lint/v2" ;;
    helm) echo "helm helm.sh/helm/v4/cmd/helm helm.sh/helm/v4" ;;
    *) die "no group of tools named $1 (controlplane, etcd, helm, lint)" ;;
  esac
}

# ldflags MODULE VERSION prints the linker flags: Kubernetes has to be told which version it is.
ldflags() {
  local flags="-s -w" rest
  if [[ $1 == k8s.io/kubernetes ]]; then
    rest=${2#v*.}
    flags+=" -X k8s.io/component-base/version.gitVersion=$2"
    flags+=" -X k8s.io/component-base/version.gitMajor=$(cut -d. -f1 <<<"${2#v}")"
    flags+=" -X k8s.io/component-base/version.gitMinor=${rest%%.*}"
  fi
  echo "$flags"
}

# key GROUP names the directory: everything that decides what the binaries are goes in.
key() {
  local digest
  digest=$({
    cat go.mod go.sum
    go env GOVERSION GOOS GOARCH
    tools "$1" | while read -r _ _ module; do ldflags "$module" "$(version "$module")"; done
  } | sha256sum)
  echo "$1-${digest:0:12}"
}

# version MODULE prints the version this group's go.mod pins.
version() { awk -v m="$1" '$1 == m && $2 ~ /^v/ { print $2; exit } $1 == "require" && $2 == m { print $3; exit }' go.mod; }

# given NAME: KUBEBUILDER_ASSETS has it.
given() {
  case $1 in
    etcd | kube-apiserver | kubectl) [[ -n ${KUBEBUILDER_ASSETS:-} && -x $KUBEBUILDER_ASSETS/$1 ]] ;;
    *) return 1 ;;
  esac
}

# build DIR NAME PACKAGE MODULE LEFT puts a tool in place at once or not at all, and says how many of its group are left.
build() {
  local temp version more=
  version=$(version "$4")
  (($5 == 0)) || more=", $5 more after it"
  temp=$(mktemp -d "$1/.building.XXXXXX")
  step "building $2 $version$more" env CGO_ENABLED=0 GOFLAGS= \
    go build -trimpath -ldflags "$(ldflags "$4" "$version")" -o "$temp/$2" "$3"
  mv -f "$temp/$2" "$1/$2"
  rmdir "$temp"
}

# missing GROUP DIR prints the tools of the group that still have to be built.
missing() {
  tools "$1" | while read -r name package module; do
    given "$name" || [[ -x $2/$name ]] || echo "$name $package $module"
  done
}

# provide GROUP builds what is missing of it, one build at a time over all checkouts, and prints its directory.
provide() {
  local dir name package module left
  cd "$ROOT/hack/tools/$1"
  dir=$TOOLS_CACHE/$(key "$1")
  if [[ -n $(missing "$1" "$dir") ]]; then
    mkdir -p "$dir"
    exec {lock}>"$dir/.lock"
    flock -n "$lock" || {
      say "waiting for another build of the $1 tools"
      flock "$lock"
    }
    rm -rf "$dir"/.building.* # of a build that was interrupted
    mapfile -t left < <(missing "$1" "$dir")
    while ((${#left[@]})); do
      read -r name package module <<<"${left[0]}"
      left=("${left[@]:1}")
      build "$dir" "$name" "$package" "$module" ${#left[@]}
    done
    exec {lock}>&-
  fi
  echo "$dir"
}

command -v go >/dev/null || die "Go is needed to build the tools: see go.mod for the version"
path=${KUBEBUILDER_ASSETS:-}
for group in "$@"; do
  dir=$(provide "$group")
  path+=${path:+:}$dir
done
echo "$path"
