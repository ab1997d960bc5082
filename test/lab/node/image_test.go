// SPDX-License-Identifier: Apache-2.0

package node

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCommandLine(t *testing.T) {
	images := DefaultImages("/bin-dir", "/scripts")
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
