// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// PathEnv is the environment variable that lists the directories in which tools are looked for before PATH.
const PathEnv = "KUBE_OVN_LAB_PATH"

// Path lists directories with tools. They come before those of PATH.
type Path []string

// DefaultPath is what the environment says.
func DefaultPath() Path { return filepath.SplitList(os.Getenv(PathEnv)) }

// Find gives the path of an executable by its name.
func (p Path) Find(name string) (string, error) {
	for _, dir := range p {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%s is neither in %s (%s) nor in PATH", name, PathEnv, strings.Join(p, ":"))
	}
	return path, nil
}
