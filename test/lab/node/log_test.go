// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/virtual-kubelet/virtual-kubelet/node/api"
)

func TestLog(t *testing.T) {
	book := newLogBook()
	stdout, stderr := book.stream(), book.stream()
	fmt.Fprint(stdout, "one\ntw")
	fmt.Fprint(stderr, "error\n")
	fmt.Fprint(stdout, "o\nlast")
	stdout.flush()
	book.close()
	tests := []struct {
		name string
		opts api.ContainerLogOpts
		want string
	}{
		{name: "all", want: "one\nerror\ntwo\nlast"},
		{name: "tail", opts: api.ContainerLogOpts{Tail: 2}, want: "two\nlast"},
		{name: "limit", opts: api.ContainerLogOpts{LimitBytes: 6}, want: "one\ner"},
		{name: "follow one that has ended", opts: api.ContainerLogOpts{Follow: true}, want: "one\nerror\ntwo\nlast"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := io.ReadAll(book.read(t.Context(), test.opts))
			if err != nil || string(got) != test.want {
				t.Errorf("got %q (%v), want %q", got, err, test.want)
			}
		})
	}
}

func TestLogFollowAndBound(t *testing.T) {
	book := newLogBook()
	stream := book.stream()
	reader := bufio.NewReader(book.read(t.Context(), api.ContainerLogOpts{Follow: true}))
	for i := range 3 {
		fmt.Fprintf(stream, "line %d\n", i)
		if got, err := reader.ReadString('\n'); err != nil || got != fmt.Sprintf("line %d\n", i) {
			t.Fatalf("line %d: %q %v", i, got, err)
		}
	}
	for range 2 * maxLogBytes / maxLogLine {
		fmt.Fprint(stream, strings.Repeat("x", maxLogLine))
	}
	if book.size > maxLogBytes || book.dropped == 0 {
		t.Errorf("%d bytes kept, %d lines dropped", book.size, book.dropped)
	}
}
