// SPDX-License-Identifier: Apache-2.0

package images

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const root = "../.."

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestGatewayPrograms derives what a gateway's image has to have from what is called in it: the script, the container's commands, and what
// the handler runs there. The Dockerfile looks for the same, and the tests beside it find each in the root file system that it makes. Legacy
// iptables is taken where there is one, as Kube-OVN's own script does, and is nothing to look for.
func TestGatewayPrograms(t *testing.T) {
	out, err := exec.Command("bash", "-c", "compgen -b; compgen -k").Output()
	if err != nil {
		t.Fatal(err)
	}
	builtins := strings.Fields(string(out))
	const script = "dist/images/vpcnatgateway/nat-gateway.sh"
	programs, err := Commands(read(t, script), builtins)
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	dockerfile := read(t, "dist/images/vpcnatgateway/Dockerfile")
	for _, m := range regexp.MustCompile(`(?m)^CMD (\[.*\])$`).FindAllStringSubmatch(dockerfile, -1) {
		programs = append(programs, strings.Split(m[1], `"`)[1])
	}
	for _, line := range handlerCommands(t) {
		called, err := Commands(line, builtins)
		if err != nil {
			t.Fatalf("pkg/natgateway: %s: %v", line, err)
		}
		programs = append(programs, called...)
	}
	programs = slices.DeleteFunc(programs, func(name string) bool { return strings.HasPrefix(name, "iptables-legacy") })
	slices.Sort(programs)

	m := regexp.MustCompile(`for program in ([^;]*);`).FindStringSubmatch(strings.ReplaceAll(dockerfile, "\\\n", " "))
	if m == nil {
		t.Fatal("the Dockerfile looks for no programs")
	}
	if diff := cmp.Diff(slices.Compact(programs), strings.Fields(m[1])); diff != "" {
		t.Errorf("programs (-called +looked for):\n%s", diff)
	}
}

// handlerCommands are the command lines that pkg/natgateway has run in a gateway: its lists of strings that begin with a shell or with
// what the container does.
func handlerCommands(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "pkg/natgateway/*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	var lines []string
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(node ast.Node) bool {
			list, ok := node.(*ast.CompositeLit)
			if !ok {
				return true
			}
			var words []string
			for _, item := range list.Elts {
				literal, ok := item.(*ast.BasicLit)
				if !ok || literal.Kind != token.STRING {
					break
				}
				word, err := strconv.Unquote(literal.Value)
				if err != nil {
					t.Fatal(err)
				}
				words = append(words, "'"+strings.ReplaceAll(word, "'", `'\''`)+"'")
			}
			if len(words) > 0 && (words[0] == "'bash'" || words[0] == "'sleep'") {
				lines = append(lines, strings.Join(words, " "))
			}
			return true
		})
	}
	if len(lines) == 0 {
		t.Fatal("the handler runs nothing: the search is broken")
	}
	return lines
}
