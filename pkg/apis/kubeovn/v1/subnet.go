// SPDX-License-Identifier: Apache-2.0

package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Subnet is an address range of a VPC, or of an external network.
//
// +genclient
// +genclient:nonNamespaced
// +resourceName=subnets
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=subnets,singular=subnet,scope=Cluster,shortName=subnet
// +kubebuilder:printcolumn:name="Provider",type=string,JSONPath=`.spec.provider`
// +kubebuilder:printcolumn:name="Vpc",type=string,JSONPath=`.spec.vpc`
// +kubebuilder:printcolumn:name="Vlan",type=string,JSONPath=`.spec.vlan`
// +kubebuilder:printcolumn:name="Protocol",type=string,JSONPath=`.spec.protocol`
// +kubebuilder:printcolumn:name="CIDR",type=string,JSONPath=`.spec.cidrBlock`
// +kubebuilder:printcolumn:name="Private",type=boolean,JSONPath=`.spec.private`
// +kubebuilder:printcolumn:name="NAT",type=boolean,JSONPath=`.spec.natOutgoing`
// +kubebuilder:printcolumn:name="Default",type=boolean,JSONPath=`.spec.default`
// +kubebuilder:printcolumn:name="GatewayType",type=string,JSONPath=`.spec.gatewayType`
// +kubebuilder:printcolumn:name="V4Used",type=number,JSONPath=`.status.v4usingIPs`
// +kubebuilder:printcolumn:name="V4Available",type=number,JSONPath=`.status.v4availableIPs`
// +kubebuilder:printcolumn:name="V6Used",type=number,JSONPath=`.status.v6usingIPs`
// +kubebuilder:printcolumn:name="V6Available",type=number,JSONPath=`.status.v6availableIPs`
// +kubebuilder:printcolumn:name="ExcludeIPs",type=string,JSONPath=`.spec.excludeIps`
// +kubebuilder:printcolumn:name="U2OInterconnectionIP",type=string,JSONPath=`.status.u2oInterconnectionIP`
type Subnet struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec SubnetSpec `json:"spec,omitzero"`
	// +optional
	Status SubnetStatus `json:"status,omitzero"`
}

// SubnetSpec describes the subnet.
type SubnetSpec struct {
	// Default is true for the subnet of namespaces that have none.
	// +optional
	Default bool `json:"default,omitempty"`
	// Vpc names the VPC that the subnet is in; empty: the default one.
	// +optional
	Vpc string `json:"vpc,omitempty"`
	// Protocol is IPv4, IPv6 or Dual.
	// +optional
	Protocol string `json:"protocol,omitempty"`
	// +optional
	Namespaces []string `json:"namespaces,omitempty"`
	// +optional
	NamespaceSelectors []metav1.LabelSelector `json:"namespaceSelectors,omitempty"`
	// CIDRBlock is one prefix, or "v4,v6".
	// +optional
	CIDRBlock string `json:"cidrBlock,omitempty"`
	// Gateway is one address, or "v4,v6".
	// +optional
	Gateway string `json:"gateway,omitempty"`
	// ExcludeIps are addresses, or ranges first..last, that are not given out.
	// +optional
	ExcludeIps []string `json:"excludeIps,omitempty"`
	// Provider is ovn, or <nad>.<namespace>.ovn, or <nad>.<namespace> for a
	// network whose addresses only are Kube-OVN's.
	// +optional
	Provider string `json:"provider,omitempty"`

	// +optional
	GatewayType string `json:"gatewayType,omitempty"`
	// +optional
	GatewayNode string `json:"gatewayNode,omitempty"`
	// +optional
	GatewayNodeSelectors []metav1.LabelSelector `json:"gatewayNodeSelectors,omitempty"`
	// +optional
	NatOutgoing bool `json:"natOutgoing,omitempty"`
	// +optional
	NatOutgoingPolicyRules []NatOutgoingPolicyRule `json:"natOutgoingPolicyRules,omitempty"`
	// +optional
	ExternalEgressGateway string `json:"externalEgressGateway,omitempty"`
	// +optional
	PolicyRoutingPriority uint32 `json:"policyRoutingPriority,omitempty"`
	// +optional
	PolicyRoutingTableID uint32 `json:"policyRoutingTableID,omitempty"`
	// +optional
	Mtu uint32 `json:"mtu,omitempty"`

	// +optional
	Private bool `json:"private,omitempty"`
	// +optional
	AllowSubnets []string `json:"allowSubnets,omitempty"`
	// +optional
	AllowEWTraffic bool `json:"allowEWTraffic,omitempty"`
	// +optional
	Acls []ACL `json:"acls,omitempty"`

	// +optional
	Vlan string `json:"vlan,omitempty"`
	// +optional
	Vips []string `json:"vips,omitempty"`
	// +optional
	LogicalGateway bool `json:"logicalGateway,omitempty"`
	// +optional
	DisableGatewayCheck bool `json:"disableGatewayCheck,omitempty"`
	// +optional
	DisableInterConnection bool `json:"disableInterConnection,omitempty"`

	// +optional
	EnableDHCP bool `json:"enableDHCP,omitempty"`
	// +optional
	DHCPv4Options string `json:"dhcpV4Options,omitempty"`
	// +optional
	DHCPv6Options string `json:"dhcpV6Options,omitempty"`
	// +optional
	EnableIPv6RA bool `json:"enableIPv6RA,omitempty"`
	// +optional
	IPv6RAConfigs string `json:"ipv6RAConfigs,omitempty"`

	// +optional
	U2OInterconnection bool `json:"u2oInterconnection,omitempty"`
	// +optional
	U2OInterconnectionIP string `json:"u2oInterconnectionIP,omitempty"`
	// +optional
	U2OFeatures *U2OFeatures `json:"u2oFeatures,omitempty"`

	// +optional
	EnableLb *bool `json:"enableLb,omitempty"`
	// +optional
	EnableEcmp bool `json:"enableEcmp,omitempty"`
	// +optional
	EnableMulticastSnoop bool `json:"enableMulticastSnoop,omitempty"`
	// +optional
	EnableExternalLBAddress bool `json:"enableExternalLBAddress,omitempty"`
	// +optional
	RouteTable string `json:"routeTable,omitempty"`
	// NodeNetwork names the nodes' network that the subnet is on.
	// +optional
	NodeNetwork string `json:"nodeNetwork,omitempty"`
}

// U2OFeatures says which parts of underlay-to-overlay interconnection are on.
type U2OFeatures struct {
	// +optional
	OverlayOnlyRouting bool `json:"overlayOnlyRouting,omitempty"`
}

// ACL is an access rule of a subnet.
type ACL struct {
	// +optional
	Direction string `json:"direction,omitempty"`
	// +optional
	Priority int `json:"priority,omitempty"`
	// +optional
	Match string `json:"match,omitempty"`
	// +optional
	Action string `json:"action,omitempty"`
}

// NatOutgoingPolicyRule says which traffic that leaves the subnet is NATed.
type NatOutgoingPolicyRule struct {
	// +optional
	Match NatOutGoingPolicyMatch `json:"match,omitzero"`
	// +optional
	Action string `json:"action,omitempty"`
}

// NatOutGoingPolicyMatch is what a NatOutgoingPolicyRule looks at.
type NatOutGoingPolicyMatch struct {
	// +optional
	SrcIPs string `json:"srcIPs,omitempty"`
	// +optional
	DstIPs string `json:"dstIPs,omitempty"`
}

// NatOutgoingPolicyRuleStatus is a NatOutgoingPolicyRule with its id.
type NatOutgoingPolicyRuleStatus struct {
	// +optional
	RuleID                string `json:"ruleID,omitempty"`
	NatOutgoingPolicyRule `json:",inline"`
}

// SubnetStatus says how the subnet was set up and what of it is in use. The
// numbers are floats since an IPv6 subnet has more addresses than an int64.
type SubnetStatus struct {
	// +optional
	V4AvailableIPs float64 `json:"v4availableIPs,omitempty"`
	// +optional
	V4AvailableIPRange string `json:"v4availableIPrange,omitempty"`
	// +optional
	V4UsingIPs float64 `json:"v4usingIPs,omitempty"`
	// +optional
	V4UsingIPRange string `json:"v4usingIPrange,omitempty"`
	// +optional
	V6AvailableIPs float64 `json:"v6availableIPs,omitempty"`
	// +optional
	V6AvailableIPRange string `json:"v6availableIPrange,omitempty"`
	// +optional
	V6UsingIPs float64 `json:"v6usingIPs,omitempty"`
	// +optional
	V6UsingIPRange string `json:"v6usingIPrange,omitempty"`
	// +optional
	ActivateGateway string `json:"activateGateway,omitempty"`
	// +optional
	DHCPv4OptionsUUID string `json:"dhcpV4OptionsUUID,omitempty"`
	// +optional
	DHCPv6OptionsUUID string `json:"dhcpV6OptionsUUID,omitempty"`
	// +optional
	U2OInterconnectionIP string `json:"u2oInterconnectionIP,omitempty"`
	// +optional
	U2OInterconnectionMAC string `json:"u2oInterconnectionMAC,omitempty"`
	// +optional
	U2OInterconnectionVPC string `json:"u2oInterconnectionVPC,omitempty"`
	// +optional
	NatOutgoingPolicyRules []NatOutgoingPolicyRuleStatus `json:"natOutgoingPolicyRules,omitempty"`
	// +optional
	McastQuerierIP string `json:"mcastQuerierIP,omitempty"`
	// +optional
	McastQuerierMAC string `json:"mcastQuerierMAC,omitempty"`
	// +optional
	Conditions Conditions `json:"conditions,omitempty" patchMergeKey:"type" patchStrategy:"merge"`
}

// SubnetList is a list of subnets.
//
// +kubebuilder:object:root=true
type SubnetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Subnet `json:"items"`
}
