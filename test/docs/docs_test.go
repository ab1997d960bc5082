// SPDX-License-Identifier: Apache-2.0

// Package docs checks that what the documentation points to is there.
package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
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

// documents gives the texts of README.md and of what is in docs, by path.
func documents(t *testing.T) map[string]string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root, "docs/*.md"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("%d documents: %v", len(paths), err)
	}
	texts := map[string]string{}
	for _, path := range append(paths, filepath.Join(root, "README.md")) {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		texts[path] = string(data)
	}
	return texts
}

// goFiles gives the files below a directory of the tree that are tests, or those that are not.
func goFiles(t *testing.T, dir string, tests bool) (files []string) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(root, dir), func(path string, _ os.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".go") && strings.HasSuffix(path, "_test.go") == tests {
			files = append(files, path)
		}
		return err
	})
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files in %s: %v", len(files), dir, err)
	}
	return files
}

func parse(t *testing.T, path string) *ast.File {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// specs gives the names of the specs below a node, as Ginkgo prints them.
func specs(node ast.Node, within string) (names []string) {
	ast.Inspect(node, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) == 0 {
			return true
		}
		function, ok := call.Fun.(*ast.Ident)
		if !ok {
			return true
		}
		text := literal(call.Args[0])
		switch function.Name {
		case "It", "Entry":
			names = append(names, within+text)
			return false
		case "Describe", "Context", "When", "DescribeTable", "DescribeTableSubtree":
			for _, arg := range call.Args[1:] {
				names = append(names, specs(arg, within+text+" ")...)
			}
			return false
		}
		return true
	})
	return names
}

// literal is a string that stands there as it is, or is put together of such.
func literal(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		s, _ := strconv.Unquote(e.Value)
		return s
	case *ast.BinaryExpr:
		return literal(e.X) + literal(e.Y)
	}
	return ""
}

// TestSemanticsNamesSpecs keeps each spec that docs/semantics.md calls a proof one that there is. An ellipsis stands for
// any text, and a name may be cut short.
func TestSemanticsNamesSpecs(t *testing.T) {
	var all []string
	for _, path := range goFiles(t, "test/e2e", true) {
		all = append(all, specs(parse(t, path), "")...)
	}
	named := regexp.MustCompile(`\*([A-Z…][^*|]+)\*`).FindAllStringSubmatch(read(t, "docs/semantics.md"), -1)
	if len(all) < 50 || len(named) < 20 {
		t.Fatalf("%d specs, %d of them named: the search is broken", len(all), len(named))
	}
	for _, match := range named {
		name := strings.Join(strings.Fields(match[1]), " ")
		if strings.HasSuffix(name, ".") || len(strings.Fields(name)) < 3 {
			continue // emphasis, no name
		}
		pattern := strings.ReplaceAll(regexp.QuoteMeta(name), "…", ".*")
		if !matches(all, pattern) {
			t.Errorf("there is no spec %q", name)
		}
	}
}

func matches(names []string, pattern string) bool {
	expression := regexp.MustCompile("^" + pattern)
	for _, name := range names {
		if expression.MatchString(name) {
			return true
		}
	}
	return false
}

// TestDocsNameTests keeps each test that a document calls by its name one that there is.
func TestDocsNameTests(t *testing.T) {
	functions := map[string]bool{}
	for _, dir := range []string{"cmd", "pkg", "dist", "test"} {
		for _, path := range goFiles(t, dir, true) {
			for _, decl := range parse(t, path).Decls {
				if f, ok := decl.(*ast.FuncDecl); ok {
					functions[f.Name.Name] = true
				}
			}
		}
	}
	for path, text := range documents(t) {
		for _, match := range regexp.MustCompile("`((?:Test|Benchmark|Fuzz)[A-Z]\\w*)`").FindAllStringSubmatch(text, -1) {
			if !functions[match[1]] {
				t.Errorf("%s: there is no %s", filepath.Base(path), match[1])
			}
		}
	}
}

// TestSemanticsNamesReasons keeps docs/semantics.md complete: a user looks there for what a condition's or an event's reason means.
func TestSemanticsNamesReasons(t *testing.T) {
	semantics := read(t, "docs/semantics.md")
	count := 0
	for _, dir := range []string{"pkg/lbservice", "pkg/natgateway"} {
		for _, path := range goFiles(t, dir, false) {
			for name, value := range reasons(parse(t, path)) {
				count++
				if !strings.Contains(semantics, "`"+value+"`") {
					t.Errorf("docs/semantics.md does not say what %s means (%s in %s)", value, name, dir)
				}
			}
		}
	}
	if count < 20 {
		t.Fatalf("%d reasons: the search is broken", count)
	}
}

// reasons gives the constants of a file that are reasons.
func reasons(file *ast.File) map[string]string {
	found := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		for i, name := range spec.Names {
			if strings.HasPrefix(strings.ToLower(name.Name), "reason") && i < len(spec.Values) {
				if value := literal(spec.Values[i]); value != "" {
					found[name.Name] = value
				}
			}
		}
		return true
	})
	return found
}

// TestDocsLinkToWhatIsThere checks links within the tree, to files and to headings.
func TestDocsLinkToWhatIsThere(t *testing.T) {
	for path, text := range documents(t) {
		for _, match := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(text, -1) {
			target, heading, _ := strings.Cut(match[1], "#")
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			file := path
			if target != "" {
				file = filepath.Join(filepath.Dir(path), target)
			}
			linked, err := os.ReadFile(file)
			if info, statErr := os.Stat(file); err != nil && (statErr != nil || !info.IsDir()) {
				t.Errorf("%s links to %s, which is not there", filepath.Base(path), match[1])
				continue
			}
			if heading != "" && !anchors(string(linked))[heading] {
				t.Errorf("%s links to %s: there is no such heading", filepath.Base(path), match[1])
			}
		}
	}
}

// anchors gives a document's headings as links name them.
func anchors(markdown string) map[string]bool {
	found := map[string]bool{}
	for _, match := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(markdown, -1) {
		var b strings.Builder
		for _, r := range strings.ToLower(match[1]) {
			switch {
			case r == ' ':
				b.WriteByte('-')
			case r == '-' || r == '_' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r > 127:
				b.WriteRune(r)
			}
		}
		found[b.String()] = true
	}
	return found
}
