// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

// Styles of a terminal (ECMA-48, select graphic rendition).
const (
	bold  = "1"
	dim   = "2"
	red   = "31"
	green = "32"
	cyan  = "36"
)

const indent = "   "

// console is what the demo speaks by.
type console struct {
	w     io.Writer
	color bool
	steps int
}

func newConsole(f *os.File) *console {
	return &console{w: f, color: term.IsTerminal(int(f.Fd())) && os.Getenv("NO_COLOR") == ""}
}

func (c *console) style(style, text string) string {
	if !c.color {
		return text
	}
	return "\x1b[" + style + "m" + text + "\x1b[0m"
}

// heading begins a step.
func (c *console) heading(title string) {
	c.steps++
	fmt.Fprintf(c.w, "\n%s\n", c.style(bold, fmt.Sprintf("%d. %s", c.steps, title)))
}

// say prints plain words.
func (c *console) say(text string) { c.block("", text) }

// good says what held.
func (c *console) good(format string, args ...any) {
	fmt.Fprintf(c.w, "%s%s %s\n", indent, c.style(green, "ok"), fmt.Sprintf(format, args...))
}

// command echoes what is run.
func (c *console) command(args []string) {
	fmt.Fprintf(c.w, "%s%s\n", indent, c.style(cyan, "$ "+strings.Join(args, " ")))
}

// block prints indented text.
func (c *console) block(style, text string) {
	text = strings.Trim(text, "\n")
	if text == "" {
		return
	}
	for line := range strings.SplitSeq(text, "\n") {
		if style != "" {
			line = c.style(style, line)
		}
		fmt.Fprintln(c.w, strings.TrimRight(indent+line, " "))
	}
}

// table prints rows, the first of which is the heading; all columns but the first are aligned to the right.
func (c *console) table(rows [][]string) {
	widths := map[int]int{}
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], len(cell))
		}
	}
	var text strings.Builder
	for _, row := range rows {
		fmt.Fprintf(&text, "%-*s", widths[0], row[0])
		for i, cell := range row[1:] {
			fmt.Fprintf(&text, "   %*s", widths[i+1], cell)
		}
		text.WriteByte('\n')
	}
	c.block("", text.String())
}

// seconds prints a time the way people read it.
func seconds(d time.Duration) string {
	switch {
	case d < 100*time.Millisecond:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
}
