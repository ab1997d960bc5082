// SPDX-License-Identifier: Apache-2.0

// Package version says what was built.
//
// A release sets it by the linker:
//
//	go build -ldflags "-X github.com/kubeovn/kube-ovn/pkg/version.version=v1.17.0 -X github.com/kubeovn/kube-ovn/pkg/version.commit=0123abc"
//
// Without that, what the Go toolchain has noted about the checkout is said.
package version

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// Set by the linker.
var (
	version = "dev"
	commit  = ""
)

// Get gives the version, and the commit it was built from: "unknown" where nobody noted it.
func Get() (version, commit string) {
	info, _ := debug.ReadBuildInfo()
	return get(info)
}

func get(info *debug.BuildInfo) (string, string) {
	revision, modified := commit, false
	if revision == "" && info != nil {
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				revision = s.Value
			case "vcs.modified":
				modified = s.Value == "true"
			}
		}
	}
	switch {
	case revision == "":
		revision = "unknown"
	case modified:
		revision += "-modified"
	}
	return version, revision
}

// String is what --version prints about a program.
func String(program string) string {
	version, commit := Get()
	return fmt.Sprintf("%s %s (commit %s, %s, %s/%s)", program, version, commit, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
