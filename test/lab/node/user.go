// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// restrictions are what a container's process may less than root of the node.
type restrictions struct {
	// UID and GID are who it is.
	UID, GID int64
	// NoNewPrivileges keeps it from gaining any by what it runs.
	NoNewPrivileges bool
	// NoCapabilities takes all of them. Single ones are never taken: the lab is no jail.
	NoCapabilities bool
	// ReadOnly makes all that it sees read-only but its volumes.
	ReadOnly bool
}

// restrict says what the security contexts of a container and its Pod come to, with the image's user where they name none.
func restrict(pod *corev1.Pod, container *corev1.Container, image Image) (restrictions, error) {
	own, shared := container.SecurityContext, pod.Spec.SecurityContext
	if own == nil {
		own = &corev1.SecurityContext{}
	}
	if shared == nil {
		shared = &corev1.PodSecurityContext{}
	}
	r := restrictions{
		UID:             ptr.Deref(first(own.RunAsUser, shared.RunAsUser), image.User),
		GID:             ptr.Deref(first(own.RunAsGroup, shared.RunAsGroup), image.User),
		NoNewPrivileges: !ptr.Deref(own.AllowPrivilegeEscalation, true),
		NoCapabilities:  own.Capabilities != nil && slices.Contains(own.Capabilities.Drop, "ALL") && len(own.Capabilities.Add) == 0,
		ReadOnly:        ptr.Deref(own.ReadOnlyRootFilesystem, false),
	}
	if ptr.Deref(first(own.RunAsNonRoot, shared.RunAsNonRoot), false) && r.UID == 0 {
		return r, &stateError{"CreateContainerConfigError", "container has runAsNonRoot and would run as root"}
	}
	return r, nil
}

func first[T any](values ...*T) *T {
	for _, value := range values {
		if value != nil {
			return value
		}
	}
	return nil
}

// wrap gives the command that runs another one with the restrictions.
func (r restrictions) wrap(args []string) ([]string, error) {
	var flags []string
	if r.UID != 0 || r.GID != 0 {
		there, err := UserExists(r.UID)
		if err != nil {
			return nil, err
		}
		if there {
			flags = append(flags, fmt.Sprintf("--reuid=%d", r.UID), fmt.Sprintf("--regid=%d", r.GID), "--clear-groups")
		}
	}
	if r.NoCapabilities {
		flags = append(flags, "--inh-caps=-all", "--bounding-set=-all")
	}
	if r.NoNewPrivileges {
		flags = append(flags, "--no-new-privs")
	}
	if len(flags) == 0 {
		return args, nil
	}
	return slices.Concat([]string{"/usr/bin/setpriv"}, flags, []string{"--"}, args), nil
}

// UserExists tells whether there is a user in this user namespace: where the lab is not root's, there is one only, and all
// that runs in it is that one's.
func UserExists(uid int64) (bool, error) {
	file, err := os.Open("/proc/self/uid_map")
	if err != nil {
		return false, err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var inside, outside, count int64
		if _, err := fmt.Sscan(lines.Text(), &inside, &outside, &count); err != nil {
			return false, fmt.Errorf("read %s: %w", strconv.Quote(lines.Text()), err)
		}
		if uid >= inside && uid < inside+count {
			return true, nil
		}
	}
	return false, lines.Err()
}
