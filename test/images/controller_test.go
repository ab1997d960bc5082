// SPDX-License-Identifier: Apache-2.0

package images

import (
	"debug/elf"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const controllerDockerfile = "dist/images/kube-ovn-controller/Dockerfile"

// TestControllerImage builds the programs by the Dockerfile's own step, and runs each where there is nothing else, as the user that the image
// says.
func TestControllerImage(t *testing.T) {
	steps := strings.ReplaceAll(read(t, controllerDockerfile), "\\\n", " ")
	step := regexp.MustCompile(`(?m)^RUN (.*\bgo build .*)$`).FindStringSubmatch(steps)
	if step == nil {
		t.Fatal("the Dockerfile builds nothing")
	}
	image := t.TempDir()
	build := regexp.MustCompile(`--mount=\S+`).ReplaceAllString(step[1], "")
	build = strings.ReplaceAll(strings.ReplaceAll(build, "mkdir /out", "true"), "/out/", image+"/")
	cmd := exec.Command("sh", "-c", build)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "TARGETOS=linux", "TARGETARCH="+runtime.GOARCH, "VERSION=v9.8.7", "COMMIT=0123456789abcdef")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", build, err, out)
	}
	if !strings.Contains(steps, "\nCOPY --from=build /out/ /\n") || !strings.Contains(steps, "\nUSER 65532:65532\n") {
		t.Error("the image's programs, or its user, are others than this test takes them for")
	}

	programs := map[string]bool{}
	entries, err := os.ReadDir(image)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		programs["/"+entry.Name()] = true
	}
	if diff := cmp.Diff(called(t), slices.Sorted(maps.Keys(programs))); diff != "" {
		t.Errorf("programs (-called +built):\n%s", diff)
	}
	for _, program := range slices.Sorted(maps.Keys(programs)) {
		file, err := elf.Open(filepath.Join(image, program))
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(file.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
			t.Errorf("%s needs a loader and libraries, which the image does not have", program)
		}
		if err := file.Close(); err != nil {
			t.Error(err)
		}
		out, err := alone(image, program, "--version")
		if err != nil || !strings.Contains(out, "v9.8.7") || !strings.Contains(out, "0123456789abcdef") {
			t.Errorf("%s --version: %q, %v", program, out, err)
		}
	}
}

// called are the programs that the charts and the image itself start.
func called(t *testing.T) []string {
	t.Helper()
	found := map[string]bool{}
	templates, err := filepath.Glob(filepath.Join(root, "charts/kube-ovn-nftable-lb-lib/templates/*.tpl"))
	if err != nil || len(templates) == 0 {
		t.Fatalf("no templates: %v", err)
	}
	for _, path := range templates {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^\s*command: \[(/[^\]]*)\]$`).FindAllStringSubmatch(string(text), -1) {
			found[m[1]] = true
		}
	}
	for _, m := range regexp.MustCompile(`(?m)^ENTRYPOINT \["(.*)"\]$`).FindAllStringSubmatch(read(t, controllerDockerfile), -1) {
		found[m[1]] = true
	}
	return slices.Sorted(maps.Keys(found))
}

// alone runs a program with a directory as its root, as the image's user.
func alone(dir, program string, args ...string) (string, error) {
	cmd := &exec.Cmd{Path: program, Args: append([]string{program}, args...), Dir: "/", Env: []string{}}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Chroot: dir, Cloneflags: syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 65532, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 65532, HostID: os.Getegid(), Size: 1}},
		Credential:  &syscall.Credential{Uid: 65532, Gid: 65532, NoSetGroups: true},
	}
	out, err := cmd.CombinedOutput()
	return string(out), err
}
