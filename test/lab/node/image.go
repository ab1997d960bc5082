// SPDX-License-Identifier: Apache-2.0

package node

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// Image says what runs for a container image.
type Image struct {
	// Entrypoint and Cmd are used as an image's: command replaces both, args replace Cmd.
	Entrypoint, Cmd []string
	// Env are the image's own variables, NAME=value.
	Env []string
	// Binds maps paths in the container to what of the machine is seen there, read-only.
	Binds map[string]string
	// Scratch are directories that are empty at each start of the container.
	Scratch []string
	// User is who runs in it, and the number of the user's group.
	User int64
}

// Programs are those of the image kube-ovn-controller.
var Programs = []string{"kube-ovn-controller", "kube-ovn-setup", "kube-ovn-webhook"}

const defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// DefaultImages is the table of a lab whose programs are in bin and whose gateway scripts are in gatewayScripts. A key
// matches an image whose repository's last element contains it; the longest key wins.
func DefaultImages(bin, gatewayScripts string) map[string]Image {
	tools := Image{Cmd: []string{"sh"}}
	images := map[string]Image{
		"agnhost": {
			Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"},
			Binds: map[string]string{"/agnhost": filepath.Join(bin, "agnhost")},
		},
		"pause":     {Entrypoint: []string{"sleep", "infinity"}},
		"busybox":   tools,
		"alpine":    tools,
		"debian":    {Cmd: []string{"bash"}},
		"ubuntu":    {Cmd: []string{"bash"}},
		"netshoot":  {Cmd: []string{"bash"}},
		"net-tools": tools,
	}
	// What dist/images/kube-ovn-controller builds.
	product := Image{Entrypoint: []string{"/kube-ovn-controller"}, Binds: map[string]string{}, User: 65532}
	for _, name := range Programs {
		product.Binds["/"+name] = filepath.Join(bin, name)
	}
	images["kube-ovn-controller"] = product
	if gatewayScripts != "" {
		images["vpc-nat-gateway"] = Image{
			Cmd:     []string{"bash"},
			Binds:   map[string]string{"/kube-ovn": gatewayScripts},
			Scratch: []string{"/etc/kube-ovn"},
		}
	}
	return images
}

// findImage looks a reference up in the table.
func findImage(images map[string]Image, reference string) (Image, bool) {
	name := reference[strings.LastIndex(reference, "/")+1:]
	name, _, _ = strings.Cut(name, "@")
	name, _, _ = strings.Cut(name, ":")
	best := ""
	for key := range images {
		if strings.Contains(name, key) && len(key) > len(best) {
			best = key
		}
	}
	image, found := images[best]
	return image, found && name != ""
}

func knownImages(images map[string]Image) string {
	return strings.Join(slices.Sorted(maps.Keys(images)), ", ")
}

// commandLine is what a container of the image runs.
func commandLine(image Image, command, args []string) []string {
	switch {
	case len(command) > 0:
		return slices.Concat(command, args)
	case len(args) > 0:
		return slices.Concat(image.Entrypoint, args)
	default:
		return slices.Concat(image.Entrypoint, image.Cmd)
	}
}
