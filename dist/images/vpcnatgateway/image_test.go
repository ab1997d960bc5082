// SPDX-License-Identifier: Apache-2.0

package vpcnatgateway_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// programs are all that nat-gateway.sh and the gateway's container call: test/images derives them.
var programs = []string{
	"arping", "awk", "bash", "cat", "conntrack", "dirname", "find", "flock", "grep", "head", "ip", "iptables",
	"iptables-nft", "iptables-nft-restore", "iptables-restore", "md5sum", "mkdir", "nft", "rm", "sed", "sha256sum", "sleep", "sysctl", "timeout", "tr",
}

// TestImage builds the gateway's root file system as the Dockerfile says, from the packages of the machine, and runs the script in it.
func TestImage(t *testing.T) {
	t.Parallel()
	file := readDockerfile(t, "alone")
	root := newRoot(t, file.packages)
	for to, from := range file.copies {
		root.put(filepath.Join("../../..", from), to)
	}
	for _, dir := range file.dirs {
		root.mkdir(dir)
	}
	g := newGateway(t)
	in := func(stdin string, args ...string) string {
		t.Helper()
		out, err := root.run(g, stdin, args...)
		if err != nil {
			t.Fatalf("%s: %v", strings.Join(args, " "), err)
		}
		return out
	}
	for _, program := range programs {
		in("", "bash", "-c", "command -v "+program)
	}
	in("", "sysctl", "-w", "net.ipv4.ip_forward=1")

	script := func(stdin string, args ...string) string {
		t.Helper()
		return in(stdin, append([]string{"bash", "/kube-ovn/nat-gateway.sh"}, args...)...)
	}
	kind := "nf_tables"
	if _, err := root.run(g, "", "iptables-legacy", "-t", "nat", "-S", "INPUT", "1"); err == nil {
		kind = "legacy"
	}
	if got := script("", "get-iptables-version"); !strings.Contains(got, kind) {
		t.Errorf("get-iptables-version: %q", got)
	}
	script("", "init", "eth0,net1")
	script("", "eip-add", eip+"/24")
	script("", "subnet-route-add", "10.2.0.0/16,10.1.0.1")
	script("", "dnat-add", eip+",22,tcp,10.1.0.9,22")
	script("", "nft-dnat-map-add", eip+",80,tcp,clientip,600,10.1.0.11:80@10.1.0.12:80")
	state, err := sharenat.EncodeFull([]sharenat.Share{share("tcp:80", "10.1.0.11:80"), sticky(60, share("udp:53", "10.1.0.11:53", "10.1.0.12:53"))})
	if err != nil {
		t.Fatal(err)
	}
	script(string(state), sharenat.SyncVerb)
	listing, err := sharenat.ParseListing(strings.NewReader(script("", sharenat.ListVerb)))
	if err != nil {
		t.Fatal(err)
	}
	if len(listing.Shares) != 2 || len(listing.EIPs) != 1 {
		t.Errorf("the gateway holds %+v", listing)
	}
	script("", "nft-dnat-map-del", eip+",80,tcp")
	script("", "dnat-del", eip+",22,tcp,10.1.0.9,22")
	script("", "subnet-route-del", "10.2.0.0/16")
	script("", "eip-del", eip+"/24")
}

// stockScript stands for Kube-OVN's own: it reads the interfaces' names as that one does, and says what it is given.
const stockScript = `#!/bin/bash
[ ! -f /etc/kube-ovn/nat-gateway.env ] || source /etc/kube-ovn/nat-gateway.env
if [ "$1" = interfaces ]; then echo "${VPC_INTERFACE:-eth0} ${EXTERNAL_INTERFACE:-net1}"; exit; fi
echo stock "$#" "$@"
cat
exit 7
`

// TestImageBeside lays the script over an image that has Kube-OVN's own, by the Dockerfile's own steps. These look for the same programs, and
// the verbs that are not ours reach the script that was there, as they are.
func TestImageBeside(t *testing.T) {
	t.Parallel()
	steps := stage(t, "beside")
	m := regexp.MustCompile(`for program in ([^;]*);`).FindStringSubmatch(strings.Join(steps, "\n"))
	if m == nil {
		t.Fatal("the Dockerfile looks for no programs")
	}
	if diff := cmp.Diff(programs, strings.Fields(m[1])); diff != "" {
		t.Errorf("programs (-want +got):\n%s", diff)
	}

	root := newRoot(t, readDockerfile(t, "alone").packages)
	root.write("/kube-ovn/nat-gateway.sh", stockScript)
	const balancer = "#!/bin/bash\necho balances\n"
	root.write("/kube-ovn/lb-svc.sh", balancer)
	// What it would install is there already.
	root.write("/usr/local/bin/apt-get", "#!/bin/bash\necho \"$@\" >>/tmp/apt-get\n")
	g := newGateway(t)
	for _, step := range steps {
		switch f := strings.Fields(step); f[0] {
		case "RUN":
			if out, err := root.run(g, "", "sh", "-c", strings.TrimPrefix(step, "RUN ")); err != nil {
				t.Fatalf("%s: %v: %s", step, err, out)
			}
		case "COPY":
			root.put(filepath.Join("../../..", f[1]), f[2])
		case "ARG", "LABEL":
		default:
			t.Fatalf("a step that this test does not know: %s", step)
		}
	}
	called, err := os.ReadFile(root.root + "/tmp/apt-get")
	if err != nil || !strings.Contains(string(called), "install -y --no-install-recommends bash ") {
		t.Errorf("installed: %q, %v", called, err)
	}

	script := func(stdin string, args ...string) (string, error) {
		return root.run(g, stdin, append([]string{"bash", "/kube-ovn/nat-gateway.sh"}, args...)...)
	}
	for _, args := range [][]string{
		{"floating-ip-add", eip + ",10.1.0.9"},
		{"floating-ip-del", eip + ",10.1.0.9"},
		{"snat-add", eip + ",10.1.0.0/24,--random"},
		{"snat-del", eip + ",10.1.0.0/24"},
		{"qos-add", "ingress,net1,1"},
		{"eip-ingress-qos-add", "x y", "", "$z"},
		{"hairpin-snat-add", "a"},
	} {
		want := fmt.Sprintf("stock %d %s\nin", len(args), strings.Join(args, " "))
		out, err := script("in", args...)
		if out != want || err == nil || !strings.Contains(err.Error(), "exit status 7") {
			t.Errorf("%q: %q, %v; want %q", args, out, err, want)
		}
	}
	for _, names := range []string{"eth0,net1", "net1,eth0", "eth0,ext1.100"} {
		if out, err := script("", "init", names); err != nil {
			t.Errorf("init: %v: %s", err, out)
		}
		want := strings.Replace(names, ",", " ", 1) + "\n"
		if out, err := script("", "interfaces"); err != nil || out != want {
			t.Errorf("the stock script takes the interfaces for %q, %v; want %q", out, err, want)
		}
	}
	// What Kube-OVN runs from the same image for Services of its own kind.
	if got, err := os.ReadFile(root.root + "/kube-ovn/lb-svc.sh"); err != nil || string(got) != balancer {
		t.Errorf("lb-svc.sh: %q, %v", got, err)
	}
	if out, err := script("", "nft-dnat-map-add", eip+",80,tcp,10.1.0.11:80"); err != nil || strings.Contains(out, "stock") {
		t.Errorf("a share verb: %v: %s", err, out)
	}
}

// stage gives the steps of one of the Dockerfile's stages, each on one line.
func stage(t *testing.T, name string) (steps []string) {
	t.Helper()
	text, err := os.ReadFile("Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	inStage := false
	for line := range strings.Lines(strings.ReplaceAll(string(text), "\\\n", " ")) {
		f := strings.Fields(line)
		if len(f) == 0 || strings.HasPrefix(f[0], "#") {
			continue
		}
		if f[0] == "FROM" {
			inStage = f[len(f)-1] == name
		} else if inStage {
			steps = append(steps, strings.TrimSpace(line))
		}
	}
	if len(steps) == 0 {
		t.Fatalf("the Dockerfile has no stage %s", name)
	}
	return steps
}

// dockerfile is what a stage of a Dockerfile does.
type dockerfile struct {
	packages []string
	dirs     []string
	copies   map[string]string // by target
}

var (
	aptInstall = regexp.MustCompile(`apt-get install -y --no-install-recommends ([^&;]*)`)
	makeDir    = regexp.MustCompile(`mkdir -p (\S+)`)
)

// readDockerfile reads a stage, and refuses what it cannot do in the same way.
func readDockerfile(t *testing.T, name string) *dockerfile {
	t.Helper()
	d := &dockerfile{copies: map[string]string{}}
	for _, line := range stage(t, name) {
		switch f := strings.Fields(line); f[0] {
		case "RUN":
			m, dir := aptInstall.FindStringSubmatch(line), makeDir.FindStringSubmatch(line)
			switch {
			case m != nil:
				d.packages = append(d.packages, strings.Fields(m[1])...)
			case dir != nil:
				d.dirs = append(d.dirs, dir[1])
			default:
				t.Fatalf("a step that this test does not know: %s", line)
			}
		case "COPY":
			d.copies[f[2]] = f[1]
		case "ARG", "LABEL", "CMD":
		default:
			t.Fatalf("a step that this test does not know: %s", line)
		}
	}
	if len(d.packages) == 0 || len(d.copies) == 0 {
		t.Fatalf("stage %s installs and copies nothing", name)
	}
	return d
}

// closure gives the packages, what they depend on, and what every Debian has.
func closure(t *testing.T, packages []string) []string {
	t.Helper()
	out, err := exec.Command("dpkg-query", "-W", "-f", "${Package}\t${Essential}\t${Pre-Depends}, ${Depends}\t${Provides}\n").Output()
	if err != nil {
		t.Fatalf("this test needs Debian's dpkg: %v", err)
	}
	depends, provided := map[string]string{}, map[string]string{}
	queue := slices.Clone(packages)
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		depends[f[0]] = f[2]
		if f[1] == "yes" {
			queue = append(queue, f[0])
		}
		for name := range strings.SplitSeq(f[3], ",") {
			provided[packageName(name)] = f[0]
		}
	}
	seen := map[string]bool{}
	for len(queue) > 0 {
		pkg := queue[0]
		queue = queue[1:]
		if _, ok := depends[pkg]; !ok {
			t.Fatalf("package %s of the image is not installed here", pkg)
		}
		if seen[pkg] {
			continue
		}
		seen[pkg] = true
		for group := range strings.SplitSeq(depends[pkg], ",") {
			for option := range strings.SplitSeq(group, "|") {
				name := packageName(option)
				if _, ok := depends[name]; !ok {
					name = provided[name]
				}
				if name != "" {
					queue = append(queue, name)
					break
				}
			}
		}
	}
	names := make([]string, 0, len(seen))
	for name := range seen {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// packageName gives "libc6" of " libc6:any (>= 2.36)".
func packageName(dependency string) string {
	name, _, _ := strings.Cut(strings.TrimSpace(dependency), " ")
	name, _, _ = strings.Cut(name, ":")
	return name
}

// tree is a root file system in the making.
type tree struct {
	t    *testing.T
	root string
}

func newTree(t *testing.T, root string) *tree {
	t.Helper()
	tr := &tree{t, root}
	// As the machine has them: merged with /usr or not.
	for _, dir := range []string{"/bin", "/sbin", "/lib", "/lib64"} {
		if target, err := os.Readlink(dir); err == nil {
			tr.mkdir("/" + strings.TrimPrefix(target, "/"))
			tr.must(os.Symlink(target, root+dir))
		}
	}
	return tr
}

// newRoot makes a root file system of packages, in which programs can run.
func newRoot(t *testing.T, packages []string) *tree {
	t.Helper()
	tr := newTree(t, t.TempDir())
	for _, pkg := range closure(t, packages) {
		tr.addPackage(pkg)
	}
	tr.addAlternatives()
	for _, dir := range []string{"/proc", "/dev", "/run", "/tmp"} {
		tr.mkdir(dir)
	}
	// Not all of /dev: should taking it away fail, what cleans up behind the test would empty it.
	tr.must(os.Symlink("/proc/self/fd", tr.root+"/dev/fd"))
	tr.must(os.WriteFile(tr.root+"/dev/null", nil, 0o600))
	for _, path := range []string{"/proc", "/dev/null"} {
		bind(t, path, tr.root+path)
	}
	return tr
}

// run runs a program in the tree, and in a gateway's network.
func (tr *tree) run(g *gateway, stdin string, args ...string) (string, error) {
	return g.exec(stdin, append([]string{
		"chroot", tr.root, "/usr/bin/env", "-i", "GATEWAY_V4=203.0.113.1",
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
	}, args...)...)
}

// write makes a program.
func (tr *tree) write(path, content string) {
	tr.t.Helper()
	tr.mkdir(filepath.Dir(path))
	tr.must(os.WriteFile(tr.root+path, []byte(content), 0o755))
}

func (tr *tree) must(err error) {
	tr.t.Helper()
	if err != nil && !errors.Is(err, os.ErrExist) {
		tr.t.Fatal(err)
	}
}

func (tr *tree) mkdir(dir string) {
	tr.t.Helper()
	tr.must(os.MkdirAll(tr.root+dir, 0o755))
}

// needless is what programs do not need to run; leaving it out keeps the test cheap.
var needless = []string{"/usr/share/doc/", "/usr/share/man/", "/usr/share/locale/", "/usr/share/info/", "/usr/share/bash-completion/", "/usr/share/lintian/", "/usr/lib/x86_64-linux-gnu/perl-base/", "/usr/share/i18n/"}

func (tr *tree) addPackage(pkg string) {
	tr.t.Helper()
	out, err := exec.Command("dpkg-query", "-L", pkg).Output()
	if err != nil {
		tr.t.Fatalf("files of %s: %v", pkg, err)
	}
	lines := bufio.NewScanner(bytes.NewReader(out))
	for lines.Scan() {
		path := lines.Text()
		if !strings.HasPrefix(path, "/") || slices.ContainsFunc(needless, func(dir string) bool { return strings.HasPrefix(path, dir) }) {
			continue
		}
		info, err := os.Lstat(path)
		if err == nil && (info.Mode().IsRegular() || info.Mode()&os.ModeSymlink != 0) {
			tr.put(path, path)
		}
	}
}

// addAlternatives makes the links that packages make when they are installed.
func (tr *tree) addAlternatives() {
	tr.t.Helper()
	for _, dir := range []string{"/usr/bin", "/usr/sbin"} {
		entries, err := os.ReadDir(dir)
		tr.must(err)
		for _, entry := range entries {
			path := filepath.Join(dir, entry.Name())
			link, err := os.Readlink(path)
			if err != nil || !strings.HasPrefix(link, "/etc/alternatives/") {
				continue
			}
			target, err := os.Readlink(link)
			if err != nil {
				continue
			}
			if _, err := os.Lstat(tr.root + target); err == nil {
				tr.put(path, path)
				tr.put(link, link)
			}
		}
	}
}

// put takes a file or link of the machine into the tree: by a hard link where that works.
func (tr *tree) put(from, to string) {
	tr.t.Helper()
	target := tr.root + to
	tr.mkdir(filepath.Dir(to))
	info, err := os.Lstat(from)
	tr.must(err)
	if info.Mode()&os.ModeSymlink != 0 {
		link, err := os.Readlink(from)
		tr.must(err)
		tr.must(os.Symlink(link, target))
		return
	}
	if err := os.Link(from, target); err == nil || errors.Is(err, os.ErrExist) {
		return
	}
	tr.must(copyFile(from, target, info.Mode()))
}

func copyFile(from, to string, mode os.FileMode) error {
	in, err := os.Open(from)
	if err != nil {
		if errors.Is(err, os.ErrPermission) {
			return nil // a secret of the machine's is none of a program's needs
		}
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode.Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

func bind(t *testing.T, from, to string) {
	t.Helper()
	if err := unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		t.Fatalf("mount %s: %v", from, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(to, unix.MNT_DETACH); err != nil {
			t.Error(fmt.Errorf("unmount %s: %w", to, err))
		}
	})
}
