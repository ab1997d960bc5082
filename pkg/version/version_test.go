// SPDX-License-Identifier: Apache-2.0

package version

import (
	"runtime/debug"
	"strings"
	"testing"
)

func TestGet(t *testing.T) {
	settings := func(pairs ...string) *debug.BuildInfo {
		info := &debug.BuildInfo{}
		for i := 0; i < len(pairs); i += 2 {
			info.Settings = append(info.Settings, debug.BuildSetting{Key: pairs[i], Value: pairs[i+1]})
		}
		return info
	}
	for _, tc := range []struct {
		name, commit string
		info         *debug.BuildInfo
		want         string
	}{
		{name: "nothing is known", want: "unknown"},
		{name: "the toolchain's notes", info: settings("vcs.revision", "0123abc", "vcs.modified", "false"), want: "0123abc"},
		{name: "a checkout with changes", info: settings("vcs.revision", "0123abc", "vcs.modified", "true"), want: "0123abc-modified"},
		{name: "the linker's word counts", commit: "4567def", info: settings("vcs.revision", "0123abc", "vcs.modified", "true"), want: "4567def"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			commit = tc.commit
			t.Cleanup(func() { commit = "" })
			if _, got := get(tc.info); got != tc.want {
				t.Errorf("commit %q, want %q", got, tc.want)
			}
		})
	}
}

func TestString(t *testing.T) {
	if got := String("kube-ovn-controller"); !strings.HasPrefix(got, "kube-ovn-controller dev (commit ") {
		t.Errorf("got %q", got)
	}
}
