// SPDX-License-Identifier: Apache-2.0

package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// IptablesEIP is an address of an external subnet on a VPC NAT gateway.
//
// +genclient
// +genclient:nonNamespaced
// +resourceName=iptables-eips
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=iptables-eips,singular=iptables-eip,scope=Cluster,shortName=eip
// +kubebuilder:printcolumn:name="Namespace",type=string,JSONPath=`.spec.namespace`
// +kubebuilder:printcolumn:name="ExternalSubnet",type=string,JSONPath=`.spec.externalSubnet`
// +kubebuilder:printcolumn:name="IP",type=string,JSONPath=`.status.ip`
// +kubebuilder:printcolumn:name="Mac",type=string,JSONPath=`.spec.macAddress`
// +kubebuilder:printcolumn:name="Nat",type=string,JSONPath=`.status.nat`
// +kubebuilder:printcolumn:name="NatGwDp",type=string,JSONPath=`.spec.natGwDp`
// +kubebuilder:printcolumn:name="Ready",type=boolean,JSONPath=`.status.ready`
type IptablesEIP struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec IptablesEIPSpec `json:"spec,omitzero"`
	// +optional
	Status IptablesEIPStatus `json:"status,omitzero"`
}

// IptablesEIPSpec says which address is wanted, and where.
type IptablesEIPSpec struct {
	// Namespace that the EIP is for.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// V4ip is the IPv4 address; empty: one is chosen from ExternalSubnet.
	// +optional
	V4ip string `json:"v4ip,omitempty"`
	// V6ip is the IPv6 address.
	// +optional
	V6ip string `json:"v6ip,omitempty"`
	// MacAddress that answers for the address.
	// +optional
	MacAddress string `json:"macAddress,omitempty"`
	// NatGwDp names the VpcNatGateway that carries the address.
	// +optional
	NatGwDp string `json:"natGwDp,omitempty"`
	// QoSPolicy names the policy that limits the address's traffic.
	// +optional
	QoSPolicy string `json:"qosPolicy,omitempty"`
	// ExternalSubnet names the subnet that the address is from; empty: the
	// default external subnet.
	// +optional
	ExternalSubnet string `json:"externalSubnet,omitempty"`
}

// IptablesEIPStatus says which address there is.
type IptablesEIPStatus struct {
	// Ready is true once the address is on the gateway.
	// +optional
	Ready bool `json:"ready"`
	// IP is the IPv4 address, empty until it is known.
	// +optional
	IP string `json:"ip,omitempty"`
	// Redo asks for the address to be programmed again when it changes.
	// +optional
	Redo string `json:"redo,omitempty"`
	// Nat lists the kinds of NAT that use the address: fip, dnat, snat.
	// +optional
	Nat string `json:"nat,omitempty"`
	// QoSPolicy as programmed.
	// +optional
	QoSPolicy string `json:"qosPolicy,omitempty"`
	// +optional
	Conditions Conditions `json:"conditions,omitempty" patchMergeKey:"type" patchStrategy:"merge"`
}

// IptablesEIPList is a list of EIPs.
//
// +kubebuilder:object:root=true
type IptablesEIPList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []IptablesEIP `json:"items"`
}
