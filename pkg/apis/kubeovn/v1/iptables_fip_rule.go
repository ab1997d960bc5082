// SPDX-License-Identifier: Apache-2.0

package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// IptablesFIPRule binds a whole EIP to one address behind its gateway.
//
// +genclient
// +genclient:nonNamespaced
// +resourceName=iptables-fip-rules
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=iptables-fip-rules,singular=iptables-fip-rule,scope=Cluster,shortName=fip
// +kubebuilder:printcolumn:name="Eip",type=string,JSONPath=`.spec.eip`
// +kubebuilder:printcolumn:name="V4ip",type=string,JSONPath=`.status.v4ip`
// +kubebuilder:printcolumn:name="InternalIp",type=string,JSONPath=`.spec.internalIp`
// +kubebuilder:printcolumn:name="V6ip",type=string,JSONPath=`.status.v6ip`
// +kubebuilder:printcolumn:name="Ready",type=boolean,JSONPath=`.status.ready`
// +kubebuilder:printcolumn:name="NatGwDp",type=string,JSONPath=`.status.natGwDp`
type IptablesFIPRule struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec IptablesFIPRuleSpec `json:"spec,omitzero"`
	// +optional
	Status IptablesFIPRuleStatus `json:"status,omitzero"`
}

// IptablesFIPRuleSpec says which EIP is bound to which address.
type IptablesFIPRuleSpec struct {
	// EIP names the IptablesEIP.
	// +optional
	EIP string `json:"eip,omitempty"`
	// InternalIP is the address that the EIP stands for.
	// +optional
	InternalIP string `json:"internalIp,omitempty"`
}

// IptablesFIPRuleStatus says what the gateway was programmed with.
type IptablesFIPRuleStatus struct {
	// Ready is true once the gateway holds the rule.
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
	// InternalIP as programmed.
	// +optional
	InternalIP string `json:"internalIp,omitempty"`
	// +optional
	Conditions Conditions `json:"conditions,omitempty" patchMergeKey:"type" patchStrategy:"merge"`
}

// IptablesFIPRuleList is a list of FIP rules.
//
// +kubebuilder:object:root=true
type IptablesFIPRuleList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []IptablesFIPRule `json:"items"`
}
