// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"os"
	"path/filepath"
	"testing"
)

func TestPath(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	write := func(dir, name string, mode os.FileMode) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, nil, mode); err != nil {
			t.Fatal(err)
		}
		return file
	}
	both := write(first, "both", 0o755)
	write(second, "both", 0o755)
	write(first, "plain", 0o644)
	executable := write(second, "plain", 0o755)
	if err := os.Mkdir(filepath.Join(first, "directory"), 0o755); err != nil {
		t.Fatal(err)
	}

	tests := []struct{ name, want string }{
		{"both", both},
		{"plain", executable},
		{"directory", ""},
		{"no-such-tool", ""},
	}
	path := Path{first, second}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := path.Find(test.name)
			if (err != nil) != (test.want == "") {
				t.Fatalf("error %v", err)
			}
			if got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}
