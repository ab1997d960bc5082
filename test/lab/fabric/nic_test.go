// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// describe puts a resolution into lines: provider interface subnet addresses, and what waits.
func describe(r Resolution) []string {
	var lines []string
	for _, nic := range r.NICs {
		parts := []string{nic.Provider, nic.Interface, nic.Subnet, fmt.Sprint(nic.Addrs)}
		if nic.DefaultRoute {
			parts = append(parts, "default")
		}
		for _, route := range nic.Routes {
			parts = append(parts, fmt.Sprintf("%s>%v", route.Dst, route.Via))
		}
		lines = append(lines, strings.Join(parts, " "))
	}
	for _, name := range slices.Sorted(maps.Keys(r.Waiting)) {
		lines = append(lines, name+" waits: "+r.Waiting[name])
	}
	return lines
}

func TestResolve(t *testing.T) {
	attached := testSubnet("net-a", "a", "net-a.apps.ovn", "10.1.0.0/24")
	spaced := testSubnet("spaced", "a", "ovn", "10.3.0.0/24")
	spaced.Namespaces = []string{"apps"}
	byVPC := testSubnet("by-vpc", "b", "ovn", "10.4.0.0/24")
	subnets := []*Subnet{
		attached, byVPC, spaced,
		testSubnet("custom", "a", "ovn", "10.2.0.0/24"),
		testSubnet(DefaultSubnet, DefaultVPC, "ovn", "10.16.0.0/16"),
		testSubnet("external", "", "external.kube-system", "203.0.113.0/24"),
	}
	vpcs := []*VPC{{Name: "a"}, {Name: "b", Namespaces: []string{"team-b"}, DefaultSubnet: "by-vpc"}}
	tests := []struct {
		name, namespace string
		annotations     map[string]string
		want            []string
		wantErr         string
	}{
		{name: "nothing said", want: []string{"ovn eth0 ovn-default [10.16.0.2/16] default"}},
		{name: "by the subnet's namespaces", namespace: "apps", want: []string{"ovn eth0 spaced [10.3.0.2/24] default"}},
		{name: "by the vpc's namespaces", namespace: "team-b", want: []string{"ovn eth0 by-vpc [10.4.0.2/24] default"}},
		{
			name:        "by annotation, with an address",
			annotations: map[string]string{"ovn.kubernetes.io/logical_switch": "custom", "ovn.kubernetes.io/ip_address": "10.2.0.77"},
			want:        []string{"ovn eth0 custom [10.2.0.77/24] default"},
		},
		{
			name:        "a subnet that is not there yet",
			annotations: map[string]string{"ovn.kubernetes.io/logical_switch": "later"},
			want:        []string{"eth0 waits: no subnet later"},
		},
		{
			name:        "another primary network",
			annotations: map[string]string{"v1.multus-cni.io/default-network": "apps/net-a"},
			want:        []string{"net-a.apps.ovn eth0 net-a [10.1.0.2/24] default"},
		},
		{
			name:        "attached, in the pod's namespace and with a name",
			namespace:   "apps",
			annotations: map[string]string{"k8s.v1.cni.cncf.io/networks": "net-a@vpc0, kube-system/external"},
			want: []string{
				"ovn eth0 spaced [10.3.0.2/24] default", "net-a.apps.ovn vpc0 net-a [10.1.0.2/24]",
				"external.kube-system net2 external [203.0.113.254/24]",
			},
		},
		{
			name: "attached by a JSON list, with the default route and an address",
			annotations: map[string]string{
				"k8s.v1.cni.cncf.io/networks":                `[{"name":"net-a","namespace":"apps","interface":"vpc0","ips":["10.1.0.9/24"]}]`,
				"net-a.apps.ovn.kubernetes.io/default_route": "true",
			},
			want: []string{"ovn eth0 ovn-default [10.16.0.2/16]", "net-a.apps.ovn vpc0 net-a [10.1.0.9/24] default"},
		},
		{
			name:        "the same network twice",
			annotations: map[string]string{"k8s.v1.cni.cncf.io/networks": "apps/net-a,apps/net-a@second", "net-a.apps.ovn.second.kubernetes.io/ip_address": "10.1.0.8"},
			want: []string{
				"ovn eth0 ovn-default [10.16.0.2/16] default", "net-a.apps.ovn.net1 net1 net-a [10.1.0.2/24]",
				"net-a.apps.ovn.second second net-a [10.1.0.8/24]",
			},
		},
		{
			name: "attached, in another subnet of that provider's kind",
			annotations: map[string]string{
				"k8s.v1.cni.cncf.io/networks": "apps/net-a", "net-a.apps.ovn.kubernetes.io/logical_switch": "custom",
			},
			want: []string{"ovn eth0 ovn-default [10.16.0.2/16] default", "net-a.apps.ovn net1 custom [10.2.0.2/24]"},
		},
		{
			name:        "a network without a subnet",
			annotations: map[string]string{"k8s.v1.cni.cncf.io/networks": "apps/other"},
			want:        []string{"ovn eth0 ovn-default [10.16.0.2/16] default", "net1 waits: no subnet has provider other.apps.ovn or other.apps"},
		},
		{
			name:        "held",
			annotations: map[string]string{"k8s.v1.cni.cncf.io/networks": "apps/net-a", AnnotationHoldNIC: "net-a.apps.ovn"},
			want:        []string{"ovn eth0 ovn-default [10.16.0.2/16] default", "net1 waits: held by annotation lab.kubeovn.io/hold-nic"},
		},
		{
			name:        "routes",
			annotations: map[string]string{"ovn.kubernetes.io/routes": `[{"dst":"10.9.0.0/16","gw":"10.16.0.9"}]`},
			want:        []string{"ovn eth0 ovn-default [10.16.0.2/16] default 10.9.0.0/16>[10.16.0.9]"},
		},
		{
			name:        "an address outside",
			annotations: map[string]string{"ovn.kubernetes.io/ip_address": "10.99.0.1"},
			want:        []string{"eth0 waits: address 10.99.0.1 is not in subnet ovn-default"},
		},
		{name: "bad address", annotations: map[string]string{"ovn.kubernetes.io/ip_address": "10.99.0"}, wantErr: "ip_address"},
		{name: "bad list", annotations: map[string]string{"k8s.v1.cni.cncf.io/networks": "[{"}, wantErr: "networks"},
		{name: "bad item", annotations: map[string]string{"k8s.v1.cni.cncf.io/networks": "a/b/c"}, wantErr: "namespace/name@interface"},
		{name: "interface taken", annotations: map[string]string{"k8s.v1.cni.cncf.io/networks": "apps/net-a@eth0"}, wantErr: "taken"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if test.namespace == "" {
				test.namespace = "default"
			}
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: test.namespace, UID: "u", Annotations: test.annotations}}
			attachments, err := Attachments(pod)
			var resolution Resolution
			if err == nil {
				found, waiting := chooseSubnets(pod, attachments, subnets, vpcs)
				resolution, err = assign(pod, found, NewIPAM(nil))
				if err == nil {
					maps.Copy(resolution.Waiting, waiting)
					placeDefaultRoute(pod, resolution.NICs)
				}
			}
			if test.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), test.wantErr) {
					t.Fatalf("error %v, want one about %q", err, test.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, describe(resolution)); diff != "" {
				t.Errorf("NICs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAnnotations(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", UID: "u"}}
	subnet, external := testSubnet("net-a", "a", "ovn", "10.1.0.0/24"), testSubnet("external", "", "ext.sys", "203.0.113.0/24")
	resolution, err := assign(pod, []chosen{
		{Attachment: Attachment{Interface: "eth0"}, Provider: "ovn", Subnet: subnet},
		{Attachment: Attachment{Interface: "net1", Network: "sys/ext", MAC: "02:00:00:00:00:09"}, Provider: "ext.sys", Subnet: external},
	}, NewIPAM(nil))
	if err != nil {
		t.Fatal(err)
	}
	got, err := Annotations(resolution.NICs)
	if err != nil {
		t.Fatal(err)
	}
	status := got["k8s.v1.cni.cncf.io/network-status"]
	delete(got, "k8s.v1.cni.cncf.io/network-status")
	for _, part := range []string{`"kube-ovn"`, `"sys/ext"`, `"net1"`, `"203.0.113.254"`, `"default": true`} {
		if !strings.Contains(status, part) {
			t.Errorf("network-status lacks %s: %s", part, status)
		}
	}
	want := map[string]string{
		"ovn.kubernetes.io/logical_switch": "net-a", "ovn.kubernetes.io/ip_address": "10.1.0.2", "ovn.kubernetes.io/cidr": "10.1.0.0/24",
		"ovn.kubernetes.io/gateway": "10.1.0.1", "ovn.kubernetes.io/allocated": "true", "ovn.kubernetes.io/routed": "true",
		"ovn.kubernetes.io/logical_router": "a", "ovn.kubernetes.io/pod_nic_type": "veth-pair",
		"ovn.kubernetes.io/mac_address":        macFor("net-a", "10.1.0.2").String(),
		"ext.sys.kubernetes.io/logical_switch": "external", "ext.sys.kubernetes.io/ip_address": "203.0.113.254",
		"ext.sys.kubernetes.io/cidr": "203.0.113.0/24", "ext.sys.kubernetes.io/gateway": "203.0.113.1", "ext.sys.kubernetes.io/allocated": "true",
		"ext.sys.kubernetes.io/mac_address": "02:00:00:00:00:09",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
}
