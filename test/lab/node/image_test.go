// SPDX-License-Identifier: Apache-2.0

package node

import (
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCommandLine(t *testing.T) {
	images := DefaultImages("/bin-dir", Scripts{Own: "/scripts"})
	tests := []struct {
		image         string
		command, args []string
		want          string
	}{
		{image: "registry.k8s.io/e2e-test-images/agnhost:2.53", want: "/agnhost pause"},
		{image: "agnhost", args: []string{"netexec"}, want: "/agnhost netexec"},
		{image: "agnhost", command: []string{"sh", "-c"}, args: []string{"true"}, want: "sh -c true"},
		{image: "docker.io/kubeovn/vpc-nat-gateway:v1.17.0", command: []string{"sleep", "infinity"}, want: "sleep infinity"},
		{image: "localhost:5000/x/vpc-nat-gateway@sha256:00", want: "bash"},
		{image: "docker.io/kubeovn/kube-ovn-controller:v0.1.0", command: []string{"/kube-ovn-setup"}, args: []string{"crd"}, want: "/kube-ovn-setup crd"},
		{image: "library/busybox", want: "sh"},
		{image: "registry.k8s.io/pause:3.10", want: "sleep infinity"},
		{image: "example.com/agnhost/other:1", want: "unknown"},
		{image: "", want: "unknown"},
	}
	for _, test := range tests {
		t.Run(test.image, func(t *testing.T) {
			got := "unknown"
			if image, found := findImage(images, test.image); found {
				got = strings.Join(commandLine(image, test.command, test.args), " ")
			}
			if got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestExpand(t *testing.T) {
	env := []string{"A=1", "B=two words"}
	texts := []string{"$(A)-$(B)", "$(C)", "$$(A)", "$A $", "$(A", "x$(A)y$(A)z"}
	want := []string{"1-two words", "$(C)", "$(A)", "$A $", "$(A", "x1y1z"}
	if diff := cmp.Diff(want, expandAll(texts, env)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestGatewayImages has the names of gateways' images tell which scripts are in them.
func TestGatewayImages(t *testing.T) {
	binds := func(scripts Scripts, reference string) map[string]string {
		image, _ := findImage(DefaultImages("/bin-dir", scripts), reference)
		return image.Binds
	}
	own, both := Scripts{Own: "/own"}, Scripts{Own: "/own", Stock: "/stock"}
	over := map[string]string{"/kube-ovn/nat-gateway.sh": "/own/nat-gateway.sh", "/kube-ovn/nat-gateway-stock.sh": "/stock/nat-gateway.sh"}
	withoutLegacy := map[string]string{"/usr/sbin/iptables-legacy": "/bin/false"}
	maps.Copy(withoutLegacy, over)
	for _, test := range []struct {
		scripts Scripts
		image   string
		want    map[string]string
	}{
		{own, "docker.io/kubeovn/vpc-nat-gateway:v1.17.0", map[string]string{"/kube-ovn": "/own"}},
		{own, "docker.io/kubeovn/" + BesideImage + ":v1.17.0", map[string]string{"/kube-ovn": "/own"}},
		{both, "docker.io/kubeovn/" + AloneImage + ":v1.17.0", map[string]string{"/kube-ovn": "/own"}},
		{both, "docker.io/kubeovn/vpc-nat-gateway:v1.17.0", map[string]string{"/kube-ovn": "/stock"}},
		{both, "docker.io/kubeovn/" + BesideImage + ":v1.17.0", over},
		{both, "docker.io/kubeovn/" + BesideWithoutLegacyImage + ":v1.17.0", withoutLegacy},
		{Scripts{}, "docker.io/kubeovn/vpc-nat-gateway:v1.17.0", nil},
	} {
		if diff := cmp.Diff(test.want, binds(test.scripts, test.image)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.image, diff)
		}
	}
}
