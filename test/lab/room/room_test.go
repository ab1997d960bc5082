// SPDX-License-Identifier: Apache-2.0

package room

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// report is what a program in a room sees.
type report struct {
	Dir        string
	Parent     int
	Host       string
	Interfaces []string
	LoopbackUp bool
	Run        []string
	TempDir    string
}

// TestMain is also the program that runs in the room: its arguments are a file for its report, a mark for the process it
// leaves behind, and the signal or status to end with.
func TestMain(m *testing.M) {
	Init()
	if !Inside() {
		os.Exit(m.Run())
	}
	if err := observe(os.Args[1], os.Args[2]); err != nil {
		panic(err)
	}
	if os.Args[3] == "kill" {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
	os.Exit(7)
}

func observe(file, mark string) error {
	r := report{Parent: os.Getppid(), TempDir: os.TempDir()}
	var err error
	if r.Dir, err = os.Getwd(); err != nil {
		return err
	}
	if r.Host, err = os.Hostname(); err != nil {
		return err
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		return err
	}
	for _, i := range interfaces {
		r.Interfaces = append(r.Interfaces, i.Name)
		if i.Name == "lo" {
			r.LoopbackUp = i.Flags&net.FlagUp != 0
		}
	}
	entries, err := os.ReadDir("/run")
	if err != nil {
		return err
	}
	for _, entry := range entries {
		r.Run = append(r.Run, entry.Name())
	}
	if err := os.WriteFile("/run/netns/left-behind", nil, 0o644); err != nil {
		return err
	}
	if inside, err := inUserNamespace(); err != nil {
		return err
	} else if inside {
		// What containers do: an overlay of the root, a fresh /sys, and files in /etc that nobody sees outside.
		for _, script := range []string{
			"mkdir -p /run/o/u /run/o/w /run/o/m && mount -t overlay overlay -o userxattr,lowerdir=/,upperdir=/run/o/u,workdir=/run/o/w /run/o/m",
			"ip netns add other && ip netns exec other true",
			"echo > /etc/" + mark,
		} {
			if out, err := exec.Command("sh", "-c", script).CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w: %s", script, err, out)
			}
		}
	}
	// Nobody waits for this one: it is the room's end that ends it.
	if err := exec.Command("sh", "-c", "sleep 1000; : "+mark).Start(); err != nil {
		return err
	}
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return os.WriteFile(file, data, 0o644)
}

func TestRun(t *testing.T) {
	tests := []struct {
		name, ending  string
		userNamespace bool
		wantStatus    int
	}{
		{"exit status", "exit", !privileged(), 7},
		{"killed", "kill", !privileged(), 128 + int(syscall.SIGKILL)},
		{"in a user namespace", "exit", true, 7},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "report")
			mark := "room-test-" + filepath.Base(filepath.Dir(file)) + test.ending
			dir, err := os.Getwd()
			if err != nil {
				t.Fatal(err)
			}
			before, err := os.ReadDir("/run")
			if err != nil {
				t.Fatal(err)
			}

			status, err := run([]string{"room.test", file, mark, test.ending}, test.userNamespace)
			if err != nil {
				t.Fatal(err)
			}
			if status != test.wantStatus {
				t.Errorf("status %d, want %d", status, test.wantStatus)
			}
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var got report
			if err := json.Unmarshal(data, &got); err != nil {
				t.Fatal(err)
			}
			want := report{
				Dir: dir, Parent: 1, Host: "kube-ovn-lab", Interfaces: []string{"lo"}, LoopbackUp: true,
				Run: []string{"kube-ovn-lab", "lock", "netns"}, TempDir: TempDir,
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("seen from the room (-want +got):\n%s", diff)
			}
			after, err := os.ReadDir("/run")
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range append(got.Run, "o") { // what is in the room's
				is := func(entry os.DirEntry) bool { return entry.Name() == name }
				if slices.ContainsFunc(after, is) && !slices.ContainsFunc(before, is) {
					t.Errorf("/run/%s outlived the room", name)
				}
			}
			if _, err := os.Stat("/etc/" + mark); err == nil {
				t.Errorf("a file in /etc outlived the room")
			}
			if pids := marked(t, mark); len(pids) > 0 {
				t.Errorf("processes outlived the room: %v", pids)
			}
		})
	}
}

// marked returns the processes whose command line carries a mark.
func marked(t *testing.T, mark string) []string {
	t.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err == nil && strings.Contains(string(data), mark) {
			found = append(found, path)
		}
	}
	return found
}

func TestFindKnowsNoStranger(t *testing.T) {
	pids, err := Find()
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		if pid == os.Getpid() {
			t.Errorf("this process is taken for a room")
		}
	}
}
