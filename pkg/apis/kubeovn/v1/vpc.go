// SPDX-License-Identifier: Apache-2.0

package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Vpc is a network with a router and an address space of its own.
//
// +genclient
// +genclient:nonNamespaced
// +resourceName=vpcs
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=vpcs,singular=vpc,scope=Cluster,shortName=vpc
// +kubebuilder:printcolumn:name="EnableExternal",type=boolean,JSONPath=`.status.enableExternal`
// +kubebuilder:printcolumn:name="EnableBfd",type=boolean,JSONPath=`.status.enableBfd`
// +kubebuilder:printcolumn:name="Standby",type=boolean,JSONPath=`.status.standby`
// +kubebuilder:printcolumn:name="Subnets",type=string,JSONPath=`.status.subnets`
// +kubebuilder:printcolumn:name="ExtraExternalSubnets",type=string,JSONPath=`.status.extraExternalSubnets`
// +kubebuilder:printcolumn:name="Namespaces",type=string,JSONPath=`.spec.namespaces`
// +kubebuilder:printcolumn:name="DefaultSubnet",type=string,JSONPath=`.status.defaultLogicalSwitch`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Vpc struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec VpcSpec `json:"spec,omitzero"`
	// +optional
	Status VpcStatus `json:"status,omitzero"`
}

// VpcSpec describes the VPC's router.
type VpcSpec struct {
	// DefaultSubnet names the subnet that the VPC's pods are in by default.
	// +optional
	DefaultSubnet string `json:"defaultSubnet,omitempty"`
	// Namespaces that the VPC is for.
	// +optional
	Namespaces []string `json:"namespaces,omitempty"`
	// +optional
	StaticRoutes []*StaticRoute `json:"staticRoutes,omitempty"`
	// +optional
	PolicyRoutes []*PolicyRoute `json:"policyRoutes,omitempty"`
	// +optional
	VpcPeerings []*VpcPeering `json:"vpcPeerings,omitempty"`
	// EnableExternal connects the router to the external network.
	// +optional
	EnableExternal bool `json:"enableExternal,omitempty"`
	// +optional
	ExtraExternalSubnets []string `json:"extraExternalSubnets,omitempty"`
	// +optional
	EnableBfd bool `json:"enableBfd,omitempty"`
	// +optional
	BFDPort *BFDPort `json:"bfdPort,omitempty"`
}

// BFDPort is the port of the VPC's router that speaks BFD.
type BFDPort struct {
	// +kubebuilder:default=false
	// +optional
	Enabled bool `json:"enabled,omitempty"`
	// +optional
	IP string `json:"ip,omitempty"`
	// NodeSelector chooses the nodes that may carry the port.
	// +optional
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`
}

// VpcPeering connects the VPC's router to another's.
type VpcPeering struct {
	// +optional
	RemoteVpc string `json:"remoteVpc,omitempty"`
	// LocalConnectIP is this side's address with its prefix length.
	// +optional
	LocalConnectIP string `json:"localConnectIP,omitempty"`
}

// RoutePolicy says which address of a packet a static route looks at.
type RoutePolicy string

const (
	// PolicySrc routes by source address.
	PolicySrc RoutePolicy = "policySrc"
	// PolicyDst routes by destination address.
	PolicyDst RoutePolicy = "policyDst"
)

// StaticRoute is a static route of the VPC's router.
type StaticRoute struct {
	// +optional
	Policy RoutePolicy `json:"policy,omitempty"`
	// +optional
	CIDR string `json:"cidr,omitempty"`
	// +optional
	NextHopIP string `json:"nextHopIP,omitempty"`
	// +optional
	ECMPMode string `json:"ecmpMode,omitempty"`
	// +optional
	BfdID string `json:"bfdId,omitempty"`
	// +optional
	RouteTable string `json:"routeTable,omitempty"`
}

// PolicyRouteAction is what a policy route does with what it matches.
type PolicyRouteAction string

const (
	// PolicyRouteActionAllow lets the packet pass.
	PolicyRouteActionAllow PolicyRouteAction = "allow"
	// PolicyRouteActionDrop drops the packet.
	PolicyRouteActionDrop PolicyRouteAction = "drop"
	// PolicyRouteActionReroute sends the packet to the route's next hop.
	PolicyRouteActionReroute PolicyRouteAction = "reroute"
)

// PolicyRoute is a policy route of the VPC's router.
type PolicyRoute struct {
	// +optional
	Priority int `json:"priority,omitempty"`
	// +optional
	Match string `json:"match,omitempty"`
	// +optional
	Action PolicyRouteAction `json:"action,omitempty"`
	// NextHopIP of a reroute; several, separated by commas: ECMP.
	// +optional
	NextHopIP string `json:"nextHopIP,omitempty"`
}

// VpcStatus says how the VPC was set up.
type VpcStatus struct {
	// Standby is true once the VPC can be used.
	// +optional
	Standby bool `json:"standby"`
	// Default is true for the default VPC.
	// +optional
	Default bool `json:"default,omitempty"`
	// DefaultLogicalSwitch is the VPC's default subnet.
	// +optional
	DefaultLogicalSwitch string `json:"defaultLogicalSwitch,omitempty"`
	// Router is the VPC's logical router.
	// +optional
	Router string `json:"router,omitempty"`
	// +optional
	TCPLoadBalancer string `json:"tcpLoadBalancer,omitempty"`
	// +optional
	UDPLoadBalancer string `json:"udpLoadBalancer,omitempty"`
	// +optional
	SctpLoadBalancer string `json:"sctpLoadBalancer,omitempty"`
	// +optional
	TCPSessionLoadBalancer string `json:"tcpSessionLoadBalancer,omitempty"`
	// +optional
	UDPSessionLoadBalancer string `json:"udpSessionLoadBalancer,omitempty"`
	// +optional
	SctpSessionLoadBalancer string `json:"sctpSessionLoadBalancer,omitempty"`
	// Subnets names the VPC's subnets.
	// +optional
	Subnets []string `json:"subnets,omitempty"`
	// +optional
	VpcPeerings []string `json:"vpcPeerings,omitempty"`
	// +optional
	EnableExternal bool `json:"enableExternal,omitempty"`
	// +optional
	ExtraExternalSubnets []string `json:"extraExternalSubnets,omitempty"`
	// +optional
	EnableBfd bool `json:"enableBfd,omitempty"`
	// +optional
	BFDPort BFDPortStatus `json:"bfdPort,omitzero"`
	// +optional
	Conditions Conditions `json:"conditions,omitempty" patchMergeKey:"type" patchStrategy:"merge"`
}

// BFDPortStatus says where the router's BFD port is.
type BFDPortStatus struct {
	// +optional
	Name string `json:"name,omitempty"`
	// +optional
	IP string `json:"ip,omitempty"`
	// +optional
	Nodes []string `json:"nodes,omitempty"`
}

// VpcList is a list of VPCs.
//
// +kubebuilder:object:root=true
type VpcList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Vpc `json:"items"`
}
