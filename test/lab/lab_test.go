// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestStartRefusesTheMachine(t *testing.T) {
	if _, err := Start(context.Background(), Options{}); !errors.Is(err, ErrOutside) {
		t.Errorf("Start outside of a room: %v, want %v", err, ErrOutside)
	}
	if _, err := Attach(""); !errors.Is(err, ErrOutside) {
		t.Errorf("Attach outside of a room: %v, want %v", err, ErrOutside)
	}
}

func TestFindRoot(t *testing.T) {
	root, err := FindRoot()
	if err != nil {
		t.Fatal(err)
	}
	// From this package, past the nested module's own go.mod.
	if _, err := os.Stat(filepath.Join(root, "test", "lab", "lab_test.go")); err != nil {
		t.Errorf("%s is not the top of the tree", root)
	}
	t.Chdir(t.TempDir())
	if root, err := FindRoot(); err == nil {
		t.Errorf("found %s outside of any tree", root)
	}
}

func TestManifests(t *testing.T) {
	var got []string
	for _, name := range []string{"manifests/10-crds.yaml", "manifests/20-networks.yaml", "manifests/30-kube-ovn.yaml"} {
		data, err := manifests.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		objects, err := decode(data)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, object := range objects {
			got = append(got, object.GetKind()+" "+object.GetName())
		}
	}
	want := []string{
		"CustomResourceDefinition network-attachment-definitions.k8s.cni.cncf.io",
		"Vpc ovn-cluster",
		"Subnet ovn-default",
		"Subnet join",
		"Subnet ovn-vpc-external-network",
		"NetworkAttachmentDefinition ovn-vpc-external-network",
		"ConfigMap ovn-vpc-nat-config",
		"ConfigMap ovn-vpc-nat-gw-config",
		"ServiceAccount ovn",
		"ClusterRoleBinding ovn",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
}

func TestDecodeRefusesNonsense(t *testing.T) {
	for _, text := range []string{"kind: [", "just text"} {
		if objects, err := decode([]byte(text)); err == nil {
			t.Errorf("%q was read as %v", text, objects)
		}
	}
}

func TestHostNetworkPod(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "n"}, Spec: corev1.PodSpec{HostNetwork: true}}
	got, err := (&Handle{}).podArgs(pod, []string{"true"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"true"}, got); diff != "" {
		t.Errorf("command (-want +got):\n%s", diff)
	}
	pod.Spec.HostNetwork = false
	if got, err := (&Handle{}).podArgs(pod, []string{"true"}); err == nil {
		t.Errorf("a pod without a network namespace is reached by %v", got)
	}
}
