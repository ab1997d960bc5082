// SPDX-License-Identifier: Apache-2.0

package images

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// Commands lists the programs that a bash script calls: the first word of each simple command, and the words that others take for one.
// Its functions and bash's own builtins are none. What it cannot tell is an error, so that nothing is missed in silence.
func Commands(script string, builtins []string) ([]string, error) {
	c := &commands{found: map[string]bool{}, own: map[string]bool{}}
	for _, name := range builtins {
		c.own[name] = true
	}
	if err := c.script(script); err != nil {
		return nil, err
	}
	maps.DeleteFunc(c.found, func(name string, _ bool) bool { return c.own[name] })
	return slices.Sorted(maps.Keys(c.found)), nil
}

type commands struct {
	found, own map[string]bool
	err        error
}

func (c *commands) script(text string) error {
	file, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(text), "")
	if err != nil {
		return fmt.Errorf("parse script: %w", err)
	}
	syntax.Walk(file, func(node syntax.Node) bool {
		switch n := node.(type) {
		case *syntax.FuncDecl:
			c.own[n.Name.Value] = true
		case *syntax.CallExpr:
			if len(n.Args) > 0 {
				c.call(n.Args)
			}
		case *syntax.SglQuoted:
			c.awk(n.Value)
		}
		return c.err == nil
	})
	return c.err
}

// call looks at one simple command.
func (c *commands) call(args []*syntax.Word) {
	name, known := text(args[0])
	if !known {
		c.fail("line %d: a command that is not written out", args[0].Pos().Line())
		return
	}
	c.found[name] = true
	rest := args[1:]
	switch name {
	case "exec", "command", "timeout":
		// Options and a duration come before the command; there may be none.
		for len(rest) > 0 {
			word, known := text(rest[0])
			if known && !option.MatchString(word) {
				c.call(rest)
				return
			}
			if !known {
				return
			}
			rest = rest[1:]
		}
	case "find":
		for i, word := range rest {
			if said, _ := text(word); said == "-exec" && i+1 < len(rest) {
				c.call(rest[i+1:])
			}
		}
	case "trap":
		if said, known := text(rest[0]); known && said != "-" {
			c.err = c.script(said)
		}
	case "bash", "sh":
		for i, word := range rest {
			if said, _ := text(word); said == "-c" && i+1 < len(rest) {
				if inner, known := text(rest[i+1]); known {
					c.err = c.script(inner)
				}
			}
		}
	case "eval", "source", ".", "xargs", "env", "nice", "nohup", "setsid":
		c.fail("line %d: %s takes commands in a way that is not known here", args[0].Pos().Line(), name)
	}
}

var (
	option = regexp.MustCompile(`^(-.*|[0-9.]+[smhd]?)$`)
	// readFrom is how the script's awk programs run others; any other way is not known here.
	readFrom = regexp.MustCompile(`\bread_from\(`)
	quoted   = regexp.MustCompile(`"((?:[^"\\]|\\.)*)"`)
	runs     = regexp.MustCompile(`\bsystem *\(|"[^"]*" *\| *getline|\bprintf?\b[^\n;|]*\| *"`)
)

// awk looks for the commands of an awk program.
func (c *commands) awk(program string) {
	for _, at := range readFrom.FindAllStringIndex(program, -1) {
		if c.err == nil {
			c.err = c.script(firstArgument(program[at[1]:]))
		}
	}
	if m := runs.FindString(program); m != "" {
		c.fail("an awk program runs commands in a way that is not known here: %s", m)
	}
}

// firstArgument joins the strings of an awk expression up to the next comma outside of them; variables between them are left out.
func firstArgument(expression string) string {
	var out strings.Builder
	for len(expression) > 0 {
		at := quoted.FindStringSubmatchIndex(expression)
		if at == nil || strings.Contains(expression[:at[0]], ",") {
			break
		}
		out.WriteString(expression[at[2]:at[3]])
		expression = expression[at[1]:]
	}
	return out.String()
}

func (c *commands) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(format, args...)
	}
}

// text gives a word that has no expansions in it.
func text(word *syntax.Word) (value string, known bool) {
	for _, part := range word.Parts {
		switch p := part.(type) {
		case *syntax.Lit:
			value += p.Value
		case *syntax.SglQuoted:
			value += p.Value
		case *syntax.DblQuoted:
			inner, ok := text(&syntax.Word{Parts: p.Parts})
			if !ok {
				return "", false
			}
			value += inner
		default:
			return "", false
		}
	}
	return value, true
}
