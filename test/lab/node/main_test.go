// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/kubeovn/kube-ovn/test/lab/controlplane"
	"github.com/kubeovn/kube-ovn/test/lab/room"
	"github.com/kubeovn/kube-ovn/test/lab/supervise"
)

// shared is the control plane and the node that all tests here use.
var shared struct {
	config  *rest.Config
	client  kubernetes.Interface
	dynamic dynamic.Interface
	node    *Node
}

// TestMain runs the tests in a room, with a real control plane and one node.
func TestMain(m *testing.M) {
	room.Main(func() (int, error) { return runTests(m) })
}

func runTests(m *testing.M) (int, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	begin := time.Now()
	step := func(name string) { fmt.Fprintf(os.Stderr, "%5.2fs %s\n", time.Since(begin).Seconds(), name) }
	logs, dir := filepath.Join(room.Dir, "logs"), filepath.Join(room.Dir, "controlplane")
	for _, d := range []string{logs, dir} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return 1, err
		}
	}
	nodeIP := netip.MustParseAddr("203.0.113.2")
	supervisor := supervise.New(logs, func(d *supervise.DeathError) { fmt.Fprintln(os.Stderr, d) })
	plane, err := controlplane.Start(ctx, controlplane.Config{
		Dir: dir, Tool: controlplane.DefaultPath().Find, Supervisor: supervisor, NodeName: "lab", NodeIP: nodeIP, ClusterCIDR: "10.16.0.0/16",
		ProxyMode: controlplane.ProxyNFTables,
	})
	if err != nil {
		return 1, err
	}
	step("API server")
	shared.config = plane.Admin
	if shared.client, err = kubernetes.NewForConfig(plane.Admin); err != nil {
		return 1, err
	}
	if shared.dynamic, err = dynamic.NewForConfig(plane.Admin); err != nil {
		return 1, err
	}
	if err := installCRDs(ctx); err != nil {
		return 1, err
	}
	step("CRDs")
	shared.node, err = Start(ctx, Config{
		REST: plane.Admin, NodeName: "lab", Dir: filepath.Join(room.Dir, "node"), ServingCert: plane.Kubelet.Cert, ServingKey: plane.Kubelet.Key,
		ClientCA: plane.CA, NodeIP: nodeIP, Bin: filepath.Dir(must(controlplane.DefaultPath().Find("agnhost"))),
	})
	if err != nil {
		return 1, err
	}
	step("node")
	if err := plane.StartManagers(ctx); err != nil {
		return 1, err
	}
	step("managers")
	return m.Run(), nil
}

func must(path string, err error) string {
	if err != nil {
		panic(err)
	}
	return path
}

func installCRDs(ctx context.Context) error {
	resource := schema.GroupVersionResource{Group: apiextensionsv1.GroupName, Version: "v1", Resource: "customresourcedefinitions"}
	files, err := filepath.Glob("../../../dist/crds/*.yaml")
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return errors.New("no CustomResourceDefinitions in dist/crds")
	}
	var names []string
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(data, &object.Object); err != nil {
			return err
		}
		if _, err := shared.dynamic.Resource(resource).Create(ctx, object, metav1.CreateOptions{}); err != nil {
			return err
		}
		names = append(names, object.GetName())
	}
	for _, name := range names {
		for {
			object, err := shared.dynamic.Resource(resource).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if established(object) {
				break
			}
			if !wait(ctx, 20*time.Millisecond) {
				return ctx.Err()
			}
		}
	}
	return nil
}

func established(crd *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(crd.Object, "status", "conditions")
	for _, item := range conditions {
		condition, _ := item.(map[string]any)
		if condition["type"] == "Established" && condition["status"] == "True" {
			return true
		}
	}
	return false
}
