// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"
)

func object(kind, name, spec string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{}}
	if err := json.Unmarshal([]byte(`{"spec":`+spec+`}`), &o.Object); err != nil {
		panic(err)
	}
	o.SetAPIVersion("kubeovn.io/v1")
	o.SetKind(kind)
	o.SetName(name)
	o.SetUID(types.UID(kind + "-" + name))
	return o
}

func subnetObject(name, vpc, cidr string) *unstructured.Unstructured {
	return object("Subnet", name, `{"vpc":"`+vpc+`","cidrBlock":"`+cidr+`"}`)
}

// TestAdmit changes what there is step by step, and looks at what is processed by then, with its CIDR, and at what is
// refused.
func TestAdmit(t *testing.T) {
	vpc := func(name string) *unstructured.Unstructured { return object("Vpc", name, "{}") }
	type list = []*unstructured.Unstructured
	type step struct {
		name          string
		vpcs, subnets list
		want, refused []string
	}
	for _, tc := range []struct {
		name  string
		steps []step
	}{
		{"a Subnet with its VPC's name", []step{
			{
				"never",
				list{vpc("demo")},
				list{subnetObject("demo", "demo", "10.1.0.0/24")},
				[]string{"vpc demo"},
				[]string{"subnets demo"},
			},
			{
				"by another name",
				list{vpc("demo")},
				list{subnetObject("demo-net", "demo", "10.1.0.0/24")},
				[]string{"vpc demo", "subnet demo-net 10.1.0.0/24"},
				nil,
			},
		}},
		{"a VPC with a Subnet's name", []step{
			{
				"not yet", nil,
				list{subnetObject("demo", "other", "10.1.0.0/24")},
				[]string{"subnet demo 10.1.0.0/24"},
				nil,
			},
			{
				"too late",
				list{vpc("demo")},
				list{subnetObject("demo", "other", "10.1.0.0/24")},
				[]string{"subnet demo 10.1.0.0/24"},
				[]string{"vpcs demo"},
			},
			{"alone", list{vpc("demo")}, nil, []string{"vpc demo"}, nil},
		}},
		{"addresses that two want", []step{
			{
				"the first has them",
				list{vpc("v")},
				list{subnetObject("b", "v", "10.1.0.0/24"), subnetObject("a", "v", "10.1.0.0/16")},
				[]string{"vpc v", "subnet a 10.1.0.0/16"},
				[]string{"subnets b"},
			},
			{
				"who changes into them stays as it was",
				list{vpc("v")},
				list{subnetObject("b", "v", "10.2.0.0/24"), subnetObject("a", "v", "10.1.0.0/16")},
				[]string{"vpc v", "subnet a 10.1.0.0/16", "subnet b 10.2.0.0/24"},
				nil,
			},
			{
				"and is refused",
				list{vpc("v")},
				list{subnetObject("b", "v", "10.2.0.0/24"), subnetObject("a", "v", "10.2.0.0/16")},
				[]string{"vpc v", "subnet a 10.1.0.0/16", "subnet b 10.2.0.0/24"},
				[]string{"subnets a"},
			},
			{
				"until the other lets go",
				list{vpc("v")},
				list{subnetObject("b", "v", "10.3.0.0/24"), subnetObject("a", "v", "10.2.0.0/16")},
				[]string{"vpc v", "subnet a 10.2.0.0/16", "subnet b 10.3.0.0/24"},
				nil,
			},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := newAdmitted()
			for _, step := range tc.steps {
				refusals, err := a.update(step.vpcs, step.subnets)
				if err != nil {
					t.Fatal(err)
				}
				var got, refused []string
				for _, vpc := range a.vpcs {
					got = append(got, "vpc "+vpc.Name)
				}
				for _, subnet := range a.subnets {
					got = append(got, "subnet "+subnet.Name+" "+subnet.Spec.CIDRBlock)
				}
				for _, r := range refusals {
					refused = append(refused, r.resource.Resource+" "+r.object.GetName())
				}
				slices.Sort(got)
				slices.Sort(step.want)
				if diff := cmp.Diff(step.want, got); diff != "" {
					t.Errorf("%s: processed (-want +got):\n%s", step.name, diff)
				}
				if diff := cmp.Diff(step.refused, refused); diff != "" {
					t.Errorf("%s: refused (-want +got):\n%s", step.name, diff)
				}
			}
		})
	}
}

// sharedFabric is the one that there can be in a process, with an API server that there is nothing in.
var sharedFabric = sync.OnceValues(func() (*Fabric, error) {
	kinds := map[schema.GroupVersionResource]string{
		subnetResource: "SubnetList", vpcResource: "VpcList", eipResource: "IptablesEIPList", gwResource: "VpcNatGatewayList",
		ruleResource: "IptablesDnatRuleList", eventResource: "EventList",
	}
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds)
	return New(context.Background(), Config{Client: client})
})

// TestRefusedIsToldOf runs a fabric on an API server with the network that this project's README once had.
func TestRefusedIsToldOf(t *testing.T) {
	f, err := sharedFabric()
	if err != nil {
		t.Fatal(err)
	}
	client := f.config.Client
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	demo := subnetObject("demo", "demo", "10.1.0.0/24")
	create(t, client, vpcResource, object("Vpc", "demo", "{}"))
	create(t, client, subnetResource, demo)
	create(t, client, gwResource, object("VpcNatGateway", "demo", `{"vpc":"demo","subnet":"demo","lanIp":"10.9.0.254"}`))
	create(t, client, eipResource, object("IptablesEIP", "demo", `{}`))
	create(t, client, ruleResource, object("IptablesDnatRule", "demo",
		`{"eip":"demo","externalPort":"0","internalPort":"80","protocol":"tcp","internalIp":"10.1.0.4"}`))
	for kind, why := range map[string]string{
		"Subnet": "a Vpc and a Subnet cannot have the same name", "VpcNatGateway": "not in 10.1.0.0/24 of Subnet demo",
		"IptablesEIP": "natGwDp: Required", "IptablesDnatRule": "externalPort: Invalid",
	} {
		await(t, "a warning about the "+kind, func() bool {
			return slices.ContainsFunc(warnings(t, client, kind), func(said string) bool { return strings.Contains(said, why) })
		})
	}
	if got := warnings(t, client, "Vpc"); len(got) > 0 {
		t.Errorf("the Vpc came first, and yet: %q", got)
	}
	await(t, "the Subnet to be not validated", func() bool {
		return validated(t, client, "demo") == "False "+ReasonRefused
	})
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: "gw", UID: "gw", Annotations: map[string]string{"ovn.kubernetes.io/logical_switch": "demo"},
	}}
	resolution, err := f.Resolve(pod)
	waiting := resolution.Waiting["eth0"]
	if err != nil || len(resolution.NICs) > 0 || !strings.Contains(waiting, "stock Kube-OVN refuses it") {
		t.Errorf("a Pod in it gets %+v, %v", resolution, err)
	}

	// By another name all is well.
	if err := client.Resource(subnetResource).Delete(t.Context(), "demo", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	create(t, client, subnetResource, subnetObject("demo-net", "demo", "10.1.0.0/24"))
	await(t, "the Subnet to be validated", func() bool {
		return validated(t, client, "demo-net") == "True "+reasonTaken
	})
	pod.Annotations["ovn.kubernetes.io/logical_switch"] = "demo-net"
	if resolution, err := f.Resolve(pod); err != nil || len(resolution.NICs) != 1 {
		t.Errorf("a Pod in it gets %+v, %v", resolution, err)
	}
	if got := warnings(t, client, "Subnet"); len(got) != 1 {
		t.Errorf("warned %d times: %q", len(got), got)
	}
}

func create(
	t *testing.T, client dynamic.Interface, resource schema.GroupVersionResource, o *unstructured.Unstructured,
) {
	t.Helper()
	if _, err := client.Resource(resource).Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, 2*time.Minute, true,
		func(context.Context) (bool, error) { return holds(), nil })
	if err != nil {
		t.Fatalf("wait for %s: %v", what, err)
	}
}

// warnings gives what was said about the objects of a kind.
func warnings(t *testing.T, client dynamic.Interface, kind string) (said []string) {
	t.Helper()
	resource := client.Resource(eventResource).Namespace(metav1.NamespaceDefault)
	events, err := resource.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, event := range events.Items {
		of, _, _ := unstructured.NestedString(event.Object, "involvedObject", "kind")
		reason, _, _ := unstructured.NestedString(event.Object, "reason")
		message, _, _ := unstructured.NestedString(event.Object, "message")
		if of == kind && reason == ReasonRefused {
			said = append(said, message)
		}
	}
	return said
}

// validated gives the status and reason of a Subnet's condition.
func validated(t *testing.T, client dynamic.Interface, name string) string {
	t.Helper()
	subnet, err := client.Resource(subnetResource).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	list, _, _ := unstructured.NestedSlice(subnet.Object, "status", "conditions")
	for _, item := range list {
		if condition := item.(map[string]any); condition["type"] == "Validated" {
			return condition["status"].(string) + " " + condition["reason"].(string)
		}
	}
	return ""
}
