// SPDX-License-Identifier: Apache-2.0

package room

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// inUserNamespace tells whether users other than the machine's own are mapped here.
func inUserNamespace() (bool, error) {
	data, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return false, err
	}
	return strings.Join(strings.Fields(string(data)), " ") != "0 0 4294967295", nil
}

// rebuildRoot replaces / by a tmpfs with everything of the old one mounted into it; /etc as an overlay, so that it can be
// written to.
//
// The mounts that a user namespace inherits are locked together, and the kernel refuses an overlay of a directory with
// locked mounts below it (clone_private_mount), so of the root; the copies made here are not locked. Containers need
// such an overlay.
func rebuildRoot() error {
	work, err := os.Getwd()
	if err != nil {
		return err
	}
	const root = "/run" // Any directory will do; what is in it shows again once the new root has moved from there.
	if err := unix.Mount("tmpfs", root, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return fmt.Errorf("mount a root: %w", err)
	}
	old := filepath.Join(root, ".old")
	if err := os.Mkdir(old, 0o700); err != nil {
		return err
	}
	if err := unix.PivotRoot(root, old); err != nil {
		return fmt.Errorf("pivot root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	entries, err := os.ReadDir("/.old")
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if err := carryOver("/.old/"+entry.Name(), "/"+entry.Name(), entry); err != nil {
			return err
		}
	}
	// "ip netns exec" replaces /sys, and a user namespace may mount only what it sees already (mount_too_revealing).
	if err := os.Mkdir("/.sys", 0o755); err != nil {
		return err
	}
	if err := unix.Mount("/.old/sys", "/.sys", "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("keep /sys in sight: %w", err)
	}
	if err := unix.Unmount("/.old", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the old root: %w", err)
	}
	if err := os.Remove("/.old"); err != nil {
		return err
	}
	return os.Chdir(work)
}

// carryOver makes an entry of the old root appear in the new one.
func carryOver(from, to string, entry os.DirEntry) error {
	switch {
	case entry.Type()&os.ModeSymlink != 0:
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(target, to)
	case !entry.IsDir():
		return nil // Nothing that belongs there is a file.
	}
	if err := os.Mkdir(to, 0o755); err != nil {
		return err
	}
	if to == "/etc" && overlay(from, to) == nil {
		return nil // It cannot be where /etc has mounts of its own, as in a container; then it stays as it is.
	}
	if err := unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("mount %s: %w", to, err)
	}
	return nil
}

// overlay makes a directory appear elsewhere, where writing to it leaves it as it is.
func overlay(from, to string) error {
	layers := "/.layers" + to
	for _, dir := range []string{"/upper", "/work"} {
		if err := os.MkdirAll(layers+dir, 0o755); err != nil {
			return err
		}
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s/upper,workdir=%s/work,userxattr", from, layers, layers)
	return unix.Mount("overlay", to, "overlay", 0, options)
}
