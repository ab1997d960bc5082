// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"bytes"
	"io"
	"os"
)

// tailWindow bounds how much of a log Tail reads.
const tailWindow = 32 << 10

// Tail returns the last lines of a file, or why it cannot be read.
func Tail(path string, lines int) string {
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > tailWindow {
		if _, err := f.Seek(-tailWindow, io.SeekEnd); err != nil {
			return err.Error()
		}
	}
	data, err := io.ReadAll(f)
	if err != nil {
		return err.Error()
	}
	all := bytes.Split(bytes.TrimRight(data, "\n"), []byte("\n"))
	if len(all) > lines {
		all = all[len(all)-lines:]
	}
	return string(bytes.Join(all, []byte("\n")))
}
