// SPDX-License-Identifier: Apache-2.0

package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// IptablesDnatRule sends what arrives at a port of an EIP to an address
// behind the EIP's gateway. Several rules of type share on one port and
// protocol of an EIP are the backends of one load-balanced identity.
//
// +genclient
// +genclient:nonNamespaced
// +resourceName=iptables-dnat-rules
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=iptables-dnat-rules,singular=iptables-dnat-rule,scope=Cluster,shortName=dnat
// +kubebuilder:printcolumn:name="Eip",type=string,JSONPath=`.spec.eip`
// +kubebuilder:printcolumn:name="Protocol",type=string,JSONPath=`.spec.protocol`
// +kubebuilder:printcolumn:name="V4ip",type=string,JSONPath=`.status.v4ip`
// +kubebuilder:printcolumn:name="V6ip",type=string,JSONPath=`.status.v6ip`
// +kubebuilder:printcolumn:name="InternalIp",type=string,JSONPath=`.spec.internalIp`
// +kubebuilder:printcolumn:name="ExternalPort",type=string,JSONPath=`.spec.externalPort`
// +kubebuilder:printcolumn:name="InternalPort",type=string,JSONPath=`.spec.internalPort`
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.spec.type`
// +kubebuilder:printcolumn:name="NatGwDp",type=string,JSONPath=`.status.natGwDp`
// +kubebuilder:printcolumn:name="Ready",type=boolean,JSONPath=`.status.ready`
type IptablesDnatRule struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec IptablesDnatRuleSpec `json:"spec,omitzero"`
	// +optional
	Status IptablesDnatRuleStatus `json:"status,omitzero"`
}

// IptablesDnatRuleSpec says what goes where.
type IptablesDnatRuleSpec struct {
	// EIP names the IptablesEIP whose address the rule is for.
	// +optional
	EIP string `json:"eip,omitempty"`
	// ExternalPort is the port of the EIP, 1 to 65535 in decimal.
	// +optional
	ExternalPort string `json:"externalPort,omitempty"`
	// Protocol is tcp or udp, in any case.
	// +optional
	Protocol string `json:"protocol,omitempty"`
	// InternalIP is the address that the traffic goes to.
	// +optional
	InternalIP string `json:"internalIp,omitempty"`
	// InternalPort is the port that the traffic goes to, 1 to 65535 in decimal.
	// +optional
	InternalPort string `json:"internalPort,omitempty"`
	// Type is exclusive when the external port has this one backend, share
	// when it is one of several that new connections are spread over.
	// +kubebuilder:validation:Enum=exclusive;share
	// +kubebuilder:default=exclusive
	// +optional
	Type string `json:"type,omitempty"`
	// SessionAffinity ClientIP keeps a client on the backend that it first
	// reached. All rules of an identity have the same one. Of rules of type share.
	// +kubebuilder:validation:Enum="";ClientIP
	// +optional
	SessionAffinity string `json:"sessionAffinity,omitempty"`
	// SessionAffinityTimeoutSeconds is how long after its last new connection
	// a client is remembered. With ClientIP, 0 stands for 10800.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	// +optional
	SessionAffinityTimeoutSeconds int32 `json:"sessionAffinityTimeoutSeconds,omitempty"`
}

// IptablesDnatRuleStatus says what the gateway was programmed with.
type IptablesDnatRuleStatus struct {
	// Ready is true once every ready pod of the gateway holds the rule.
	// +optional
	Ready bool `json:"ready"`
	// V4ip is the EIP's IPv4 address.
	// +optional
	V4ip string `json:"v4ip,omitempty"`
	// V6ip is the EIP's IPv6 address.
	// +optional
	V6ip string `json:"v6ip,omitempty"`
	// NatGwDp names the gateway that the rule is in.
	// +optional
	NatGwDp string `json:"natGwDp,omitempty"`
	// Redo asks for the rule to be programmed again when it changes.
	// +optional
	Redo string `json:"redo,omitempty"`
	// Protocol as programmed.
	// +optional
	Protocol string `json:"protocol,omitempty"`
	// InternalIP as programmed.
	// +optional
	InternalIP string `json:"internalIp,omitempty"`
	// InternalPort as programmed.
	// +optional
	InternalPort string `json:"internalPort,omitempty"`
	// ExternalPort as programmed.
	// +optional
	ExternalPort string `json:"externalPort,omitempty"`
	// +optional
	Conditions Conditions `json:"conditions,omitempty" patchMergeKey:"type" patchStrategy:"merge"`
}

// IptablesDnatRuleList is a list of DNAT rules.
//
// +kubebuilder:object:root=true
type IptablesDnatRuleList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []IptablesDnatRule `json:"items"`
}
