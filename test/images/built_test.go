// SPDX-License-Identifier: Apache-2.0

package images

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// build runs hack/image.sh with an engine that only writes down how it is called, and gives the arguments of each build, by the image's name.
func build(t *testing.T, env ...string) map[string][]string {
	t.Helper()
	dir := t.TempDir()
	calls := filepath.Join(dir, "calls")
	engine := "#!/bin/bash\n[[ $1 != build ]] || printf '%s\\n' \"${*@Q}\" >>" + calls + "\n"
	if err := os.WriteFile(filepath.Join(dir, "docker"), []byte(engine), 0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	cmd := exec.Command("bash", "hack/image.sh")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "IMAGE_REGISTRY=registry.example/ours", "IMAGE_TAG=v9", "IMAGE_PLATFORMS=")
	cmd.Env = append(cmd.Env, env...)
	// To a file, not a pipe, which what ticks in the script's steps may hold open for a while.
	said, err := os.Create(filepath.Join(dir, "said"))
	if err != nil {
		t.Fatal(err)
	}
	defer said.Close()
	cmd.Stdout, cmd.Stderr = said, said
	if err := cmd.Run(); err != nil {
		out, _ := os.ReadFile(said.Name())
		t.Fatalf("%v: %s", err, out)
	}
	text, err := os.ReadFile(calls)
	if err != nil {
		t.Fatal(err)
	}
	built := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		args := strings.Split(strings.Trim(strings.TrimSpace(line), "'"), "' '")
		reference := after(args, "-t")
		name := strings.TrimSuffix(strings.TrimPrefix(reference, "registry.example/ours/"), ":v9")
		if reference != "registry.example/ours/"+name+":v9" {
			t.Errorf("an image with the name %s", reference)
		}
		built[name] = args
	}
	return built
}

// after gives the argument that follows another, "" where there is none.
func after(args []string, flag string) string {
	if i := slices.Index(args, flag); i >= 0 && i+1 < len(args) {
		return args[i+1]
	}
	return ""
}

// TestImagesBuilt: what hack/image.sh builds is what the charts install and name, and nothing has the name of Kube-OVN's own gateway
// image, which is another one.
func TestImagesBuilt(t *testing.T) {
	built := build(t)
	var dockerfiles []string
	for name, args := range built {
		file := after(args, "-f")
		dockerfiles = append(dockerfiles, file)
		if name == "vpc-nat-gateway" {
			t.Error("an image has the name of Kube-OVN's own")
		}
		if target := after(args, "--target"); target != "" && !regexp.MustCompile(`(?m)^FROM \S+ AS `+target+`$`).MatchString(read(t, file)) {
			t.Errorf("%s: %s has no stage %s", name, file, target)
		}
		if slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "STOCK_IMAGE=") }) {
			t.Errorf("%s: the Dockerfile's own STOCK_IMAGE is not left alone: %q", name, args)
		}
	}
	there, err := filepath.Glob(filepath.Join(root, "dist/images/*/Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range there {
		there[i] = strings.TrimPrefix(there[i], root+"/")
	}
	slices.Sort(dockerfiles)
	if diff := cmp.Diff(there, slices.Compact(dockerfiles)); diff != "" {
		t.Errorf("Dockerfiles (-there +built):\n%s", diff)
	}

	named := regexp.MustCompile(`(?m)^ +(?:repository|vpcRepository): (\S+)$|/(vpc-nat-gateway-[a-z]+):`)
	files := []string{"docs/beside-kube-ovn.md", "README.md"}
	for _, chart := range []string{"kube-ovn", "kube-ovn-v2"} {
		files = append(files, "charts/"+chart+"/values.yaml", "charts/"+chart+"/templates/_config.tpl", "charts/"+chart+"/README.md")
	}
	for _, file := range files {
		matches := named.FindAllStringSubmatch(read(t, file), -1)
		if len(matches) == 0 {
			t.Errorf("%s names no image", file)
		}
		for _, m := range matches {
			if name := m[1] + m[2]; built[name] == nil {
				t.Errorf("%s names %s, which is not built", file, name)
			}
		}
	}
}

// Kube-OVN's image under the one for mode beside is that of the Kube-OVN that runs.
func TestStockImageIsSaid(t *testing.T) {
	const stock = "registry.example/theirs/vpc-nat-gateway:v1.18.3"
	built := build(t, "STOCK_IMAGE="+stock)
	for name, args := range built {
		if slices.Contains(args, "STOCK_IMAGE="+stock) != (name == "vpc-nat-gateway-beside") {
			t.Errorf("%s: %q", name, args)
		}
	}
}
