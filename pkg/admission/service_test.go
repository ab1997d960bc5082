// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

func TestService(t *testing.T) {
	naming := func(eip string) func(*corev1.Service) {
		return func(svc *corev1.Service) { svc.Annotations[sharenat.EIPAnnotation] = eip }
	}
	ports := func(list ...corev1.ServicePort) func(*corev1.Service) {
		return func(svc *corev1.Service) { svc.Spec.Ports = list }
	}
	tcp := func(n int32) corev1.ServicePort { return corev1.ServicePort{Port: n, Protocol: corev1.ProtocolTCP} }
	first := sharenat.Owner{Namespace: "billing", Name: "web"}
	const absent = `IptablesEIP "later", which annotation ovn.kubernetes.io/eip names, does not exist: the Service gets its EXTERNAL-IP once it does`
	lost := newRule(sharenat.RuleName(web, "tcp", 80, mustBackend("10.1.0.4:8080")))
	for _, tc := range []decisionTest{
		{name: "all is well", req: creating(newService(web))},
		{name: "no EIP by that name", req: creating(newService(web, naming("later"))), warnings: []string{absent}},
		{name: "none by that name ever", req: creating(newService(web, naming("a/b"))), warnings: []string{`annotation ovn.kubernetes.io/eip="a/b" is not the name of an IptablesEIP`}},
		{
			name: "a protocol that is not supported, in each port", req: creating(newService(web, ports(
				tcp(80), corev1.ServicePort{Port: 53, Protocol: corev1.ProtocolUDP}, corev1.ServicePort{Port: 99, Protocol: corev1.ProtocolSCTP}))),
			warnings: []string{"port 99/SCTP is not served: only TCP and UDP are"},
		},
		{
			name: "both", req: creating(newService(web, naming("later"), ports(corev1.ServicePort{Port: 99, Protocol: corev1.ProtocolSCTP}))),
			warnings: []string{"port 99/SCTP is not served: only TCP and UDP are", absent},
		},
		{
			name: "IPv6 only", req: creating(newService(web, naming(eip6))),
			warnings: []string{"IptablesEIP eip-6 has only an IPv6 address: name one with an IPv4 address"},
		},
		{
			name: "not granted", req: creating(newService(web, naming("granted"))), cluster: aCluster(newEIP("granted", "203.0.113.30", gwA, granted("billing"))),
			warnings: []string{"namespace shop may not use IptablesEIP granted: its annotation ovn.kubernetes.io/nftable-lb-svc-namespaces does not list it"},
		},
		{name: "granted", req: creating(newService(web, naming("granted"))), cluster: aCluster(newEIP("granted", "203.0.113.30", gwA, granted("billing,shop")))},
		{
			name: "a port of a rule made by hand", req: creating(newService(web, ports(tcp(80), tcp(443)))), cluster: aCluster(newRule("hand"), newRule("also")),
			warnings: []string{"port 80/TCP of IptablesEIP eip-a belongs to IptablesDnatRule also (made by hand)"},
		},
		{name: "a rule made by hand is being deleted", req: creating(newService(web)), cluster: aCluster(deleting(newRule("hand")))},
		{name: "its own rules", req: creating(newService(web)), cluster: aCluster(newRule("lb-web", owned(web)))},
		{name: "its own rules, which lost their labels", req: creating(newService(web)), cluster: aCluster(lost)},
		{
			name: "a port of a Service before it", req: creating(newService(web)), cluster: aCluster(newService(first), newService(api)),
			warnings: []string{"port 80/TCP of IptablesEIP eip-a belongs to Service billing/web"},
		},
		{
			name: "of a name before it", req: creating(newService(web)), cluster: aCluster(newService(api), newService(web)),
			warnings: []string{"port 80/TCP of IptablesEIP eip-a belongs to Service shop/api"},
		},
		{name: "the port of one after it", req: creating(newService(first)), cluster: aCluster(newService(web), newRule("lb-web", owned(web)))},
		{name: "another EIP's", req: creating(newService(web)), cluster: aCluster(newService(first, naming(eipB)), newFIP("fip", eipB), newRule("hand", onEIP(eipB)))},
		{name: "the one before it is being deleted", req: creating(newService(web)), cluster: aCluster(deleting(newService(first)))},
		{
			name: "a FIP", req: creating(newService(web)), cluster: aCluster(newFIP("fip", eipA), newRule("hand")),
			warnings: []string{"port 80/TCP of IptablesEIP eip-a belongs to IptablesFIPRule fip"},
		},
		{name: "not a load balancer", req: creating(newService(web, naming("later"), func(svc *corev1.Service) { svc.Spec.Type = corev1.ServiceTypeClusterIP }))},
		{name: "of another class", req: creating(newService(web, naming("later"), func(svc *corev1.Service) { svc.Spec.LoadBalancerClass = ptr.To("example.com/lb") }))},
		{name: "without the annotation", req: creating(newService(web, func(svc *corev1.Service) { svc.Annotations = nil }))},
		{
			name: "an update of what it asks for", req: updating(newService(web), newService(web, naming("later"))), warnings: []string{absent},
		},
		{
			name: "applied again", req: updating(newService(web, naming("later")), newService(web, naming("later"), func(svc *corev1.Service) {
				metav1.SetMetaDataAnnotation(&svc.ObjectMeta, corev1.LastAppliedConfigAnnotation, "{}")
			})), warnings: []string{absent},
		},
		{name: "an update of other metadata", req: updating(newService(web, naming("later")), newService(web, naming("later"), func(svc *corev1.Service) {
			svc.Finalizers = []string{"a/b"}
		}))},
		{name: "deletion", req: removing(newService(web, naming("later")))},
	} {
		tc.run(t)
	}
	strict := Policy{RequireEIPGrant: true}
	v := strict.Decide(creating(newService(web)), aCluster())
	if len(v.Warnings) != 1 || len(v.Refusals) != 0 {
		t.Errorf("without the grant that is required: %+v", v)
	}
}
