// SPDX-License-Identifier: Apache-2.0

package images

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCommands(t *testing.T) {
	for _, tc := range []struct {
		name, script string
		want         string
		wantErr      string
	}{
		{name: "pipes, lists, substitutions", script: `a=$(sed s/x/y/ | sort) && head -1 || { tail; }; (cat <(tr a b))`, want: "cat head sed sort tail tr"},
		{name: "functions and builtins are none", script: "f() { grep x; }\nf; echo; printf x", want: "grep"},
		{name: "by others", script: "timeout -k 1 0.2 arping x; exec 9>lock; exec bash y; command -v z", want: "arping bash timeout z"},
		{name: "by find", script: `find . -type d -exec rm -rf -- {} +`, want: "find rm"},
		{name: "later, and in a shell", script: `trap 'rm x' EXIT; bash -c "sysctl -w a=b"`, want: "bash rm sysctl"},
		{name: "by awk", script: `awk 'BEGIN { read_from("nft -j list ruleset", "x"); while ((cmd | getline line) > 0) n++ }'`, want: "awk nft"},
		{name: "assignments are none", script: `X=1 Y=$(date)`, want: "date"},
		{name: "not written out", script: `"$x" y`, wantErr: "not written out"},
		{name: "unknown ways", script: `eval "$x"`, wantErr: "eval"},
		{name: "unknown ways of awk", script: `awk 'BEGIN { system("rm") }'`, wantErr: "awk program"},
		{name: "by awk, put together", script: `awk 'BEGIN { read_from((n ? "cd " tmp "/x && md5sum * && " : "") "nft list " table, "a"); f("b") }'`, want: "awk cd md5sum nft"},
		{name: "a trap that is taken back", script: `trap - EXIT; trap 'rm x' EXIT`, want: "rm"},
		{name: "what awk prints into", script: `awk '{ print $1 | "sort" }'`, wantErr: "awk program"},
		{name: "bars that are none", script: `awk '{ printf("%s|%s", $1, $2); if (a || b) s = sprintf("x") }'`, want: "awk"},
		{name: "no script", script: `if`, wantErr: "parse script"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := Commands(tc.script, []string{"echo", "printf", "exec", "command", "trap"})
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Errorf("error %v lacks %q", err, tc.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, strings.Join(got, " ")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
