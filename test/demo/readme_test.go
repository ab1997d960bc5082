// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestReadmeShowsTheManifests keeps the README's examples the ones that the demo proves.
func TestReadmeShowsTheManifests(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	paths, err := filepath.Glob("manifests/*.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no manifests: %v", err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		_, example, _ := strings.Cut(string(text), "\n") // without the license's line
		if !strings.Contains(string(readme), "```yaml\n"+example+"```\n") {
			t.Errorf("README.md does not have %s as it is", path)
		}
	}
}
