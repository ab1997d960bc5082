// SPDX-License-Identifier: Apache-2.0

package embedding

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const module = "github.com/kubeovn/kube-ovn/"

// exceptions are what the packages take beyond stock's API by design; docs/embedding.md says what becomes of it there.
var exceptions = []string{
	"pkg/apis/kubeovn/v1.IptablesDnatRuleSpec.SessionAffinity",
	"pkg/apis/kubeovn/v1.IptablesDnatRuleSpec.SessionAffinityTimeoutSeconds",
}

// TestNames holds all names that the packages take from API and client against those that Kube-OVN's own have, so that
// the packages compile there as they are.
func TestNames(t *testing.T) {
	known := readNames(t, "testdata/stock-names.txt")
	taken := namesTaken(t, "./pkg/lbservice", "./pkg/natgateway", "./pkg/sharenat", "./pkg/vpcnet", "./pkg/latency", "./pkg/admission/...")
	if len(taken) < 100 {
		t.Fatalf("only %d names were found, which cannot be all", len(taken))
	}
	for _, name := range strange(taken, known) {
		t.Errorf("%s takes %s, which Kube-OVN does not have (testdata/stock-names.txt)", taken[name], name)
	}
	for _, name := range exceptions {
		if taken[name] == "" {
			t.Errorf("nothing takes %s any more: it is no exception then", name)
		}
	}
}

func TestStrange(t *testing.T) {
	const spec = "pkg/apis/kubeovn/v1.VpcNatGatewaySpec"
	taken := map[string]string{
		spec: "a.go:1", spec + ".LanIP": "a.go:2", spec + ".LanAddress": "b.go:1", exceptions[0]: "c.go:1",
	}
	if diff := cmp.Diff([]string{spec + ".LanAddress"}, strange(taken, []string{spec, spec + ".LanIP"})); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
}

// strange are the names that are neither known nor an exception, sorted.
func strange(taken map[string]string, known []string) []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(taken)) {
		if !slices.Contains(known, name) && !slices.Contains(exceptions, name) {
			names = append(names, name)
		}
	}
	return names
}

func readNames(t *testing.T, file string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "#") {
			names = append(names, line)
		}
	}
	return names
}

// goPackage is what go list says of one.
type goPackage struct {
	ImportPath, Dir, Export string
	GoFiles                 []string
}

// api tells whether a package is one of those that Kube-OVN has under the same path.
func api(path string) bool {
	return strings.HasPrefix(path, module+"pkg/apis/") || strings.HasPrefix(path, module+"pkg/client/")
}

// namesTaken gives the names that packages, and those of the module that they need, take from API and client, each with a
// place.
func namesTaken(t *testing.T, patterns ...string) map[string]string {
	t.Helper()
	packages, err := list(patterns)
	if err != nil {
		t.Fatal(err)
	}
	exports := map[string]string{}
	for _, p := range packages {
		exports[p.ImportPath] = p.Export
	}
	files := token.NewFileSet()
	imports := importer.ForCompiler(files, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(exports[path])
	})
	taken, owners := map[string]string{}, map[*types.Package]map[types.Object]string{}
	for _, p := range packages {
		if !strings.HasPrefix(p.ImportPath, module) || api(p.ImportPath) {
			continue
		}
		uses, err := check(files, imports, p)
		if err != nil {
			t.Fatal(err)
		}
		for ident, object := range uses {
			if object.Pkg() == nil || !api(object.Pkg().Path()) {
				continue
			}
			of := object.Pkg()
			if owners[of] == nil {
				owners[of] = members(of)
			}
			place := files.Position(ident.Pos())
			taken[nameOf(object, owners[of])] = fmt.Sprintf("%s/%s:%d",
				strings.TrimPrefix(p.ImportPath, module), filepath.Base(place.Filename), place.Line)
		}
	}
	return taken
}

// list has the packages compiled, so that what they import need not be checked from its source.
func list(patterns []string) ([]*goPackage, error) {
	args := append([]string{"list", "-deps", "-export", "-json=ImportPath,Dir,Export,GoFiles"}, patterns...)
	cmd := exec.Command("go", args...)
	cmd.Dir = filepath.Join("..", "..")
	output, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return nil, fmt.Errorf("go list: %w: %s", err, exit.Stderr)
	}
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	var packages []*goPackage
	for decoder := json.NewDecoder(bytes.NewReader(output)); decoder.More(); {
		p := &goPackage{}
		if err := decoder.Decode(p); err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		packages = append(packages, p)
	}
	return packages, nil
}

// check gives what each identifier in a package stands for.
func check(files *token.FileSet, imports types.Importer, p *goPackage) (map[*ast.Ident]types.Object, error) {
	var parsed []*ast.File
	for _, name := range p.GoFiles {
		file, err := parser.ParseFile(files, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, fmt.Errorf("parse %s: %w", name, err)
		}
		parsed = append(parsed, file)
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	if _, err := (&types.Config{Importer: imports}).Check(p.ImportPath, files, parsed, info); err != nil {
		return nil, fmt.Errorf("check %s: %w", p.ImportPath, err)
	}
	return info.Uses, nil
}

// members gives the type that each field and method of a package belongs to.
func members(p *types.Package) map[types.Object]string {
	owners := map[types.Object]string{}
	for _, name := range p.Scope().Names() {
		object, ok := p.Scope().Lookup(name).(*types.TypeName)
		if !ok || object.IsAlias() {
			continue
		}
		named := object.Type().(*types.Named)
		for method := range named.Methods() {
			owners[method] = name
		}
		switch underlying := named.Underlying().(type) {
		case *types.Struct:
			for field := range underlying.Fields() {
				owners[field] = name
			}
		case *types.Interface:
			for method := range underlying.ExplicitMethods() {
				owners[method] = name
			}
		}
	}
	return owners
}

// nameOf writes a name as testdata/stock-names.txt does.
func nameOf(object types.Object, owners map[types.Object]string) string {
	switch o := object.(type) {
	case *types.Var:
		object = o.Origin()
	case *types.Func:
		object = o.Origin()
	}
	name := object.Name()
	if owner := owners[object]; owner != "" {
		// Newer generators give informers a type that can more; what is taken of it, the older type has.
		if strings.HasSuffix(owner, "Informer") && name != "TypedInformer" {
			owner = strings.TrimPrefix(owner, "Typed")
		}
		name = owner + "." + name
	}
	return strings.TrimPrefix(object.Pkg().Path(), module) + "." + name
}
