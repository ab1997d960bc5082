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

// Scripts are the directories of gateways' scripts.
type Scripts struct {
	// Own is this project's, Stock Kube-OVN's: with it, gateways of Kube-OVN's own image run that one.
	Own, Stock string
}

// Images of gateways, by what the names of them contain. Where there is no script of stock's, all of them are this project's.
const (
	// GatewayImage is Kube-OVN's own.
	GatewayImage = "vpc-nat-gateway"
	// AloneImage is this project's, BesideImage this project's script laid over Kube-OVN's.
	AloneImage  = "vpc-nat-gateway-alone"
	BesideImage = "vpc-nat-gateway-beside"
	// BesideWithoutLegacyImage is the same on a machine whose kernel has no legacy iptables.
	BesideWithoutLegacyImage = "vpc-nat-gateway-beside-without-legacy"
)

const defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// DefaultImages is the table of a lab whose programs are in bin. A key matches an image whose repository's last element contains it;
// the longest key wins.
func DefaultImages(bin string, scripts Scripts) map[string]Image {
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
	maps.Copy(images, gatewayImages(scripts))
	return images
}

func gatewayImages(scripts Scripts) map[string]Image {
	image := func(binds map[string]string) Image {
		return Image{Cmd: []string{"bash"}, Binds: binds, Scratch: []string{"/etc/kube-ovn"}}
	}
	own := image(map[string]string{"/kube-ovn": scripts.Own})
	switch {
	case scripts.Own == "":
		return nil
	case scripts.Stock == "":
		return map[string]Image{GatewayImage: own}
	}
	const name = "nat-gateway.sh"
	over := map[string]string{
		"/kube-ovn/" + name:              filepath.Join(scripts.Own, name),
		"/kube-ovn/nat-gateway-stock.sh": filepath.Join(scripts.Stock, name),
	}
	withoutLegacy := maps.Clone(over)
	withoutLegacy["/usr/sbin/iptables-legacy"] = "/bin/false"
	return map[string]Image{
		GatewayImage: image(map[string]string{"/kube-ovn": scripts.Stock}), AloneImage: own,
		BesideImage: image(over), BesideWithoutLegacyImage: image(withoutLegacy),
	}
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
