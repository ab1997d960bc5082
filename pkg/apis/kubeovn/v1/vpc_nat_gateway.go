// SPDX-License-Identifier: Apache-2.0

package v1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// VpcNatGateway is a gateway between a VPC and external subnets, run as a
// workload of one pod or more.
//
// +genclient
// +genclient:nonNamespaced
// +resourceName=vpc-nat-gateways
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=vpc-nat-gateways,singular=vpc-nat-gateway,scope=Cluster,shortName=vpc-nat-gw
// +kubebuilder:printcolumn:name="Namespace",type=string,JSONPath=`.spec.namespace`
// +kubebuilder:printcolumn:name="Vpc",type=string,JSONPath=`.spec.vpc`
// +kubebuilder:printcolumn:name="Subnet",type=string,JSONPath=`.spec.subnet`
// +kubebuilder:printcolumn:name="IPs",type=string,JSONPath=`.status.lanIp`
// +kubebuilder:printcolumn:name="Replicas",type=integer,JSONPath=`.spec.replicas`
// +kubebuilder:printcolumn:name="Ready",type=boolean,JSONPath=`.status.ready`
// +kubebuilder:printcolumn:name="BFD",type=boolean,JSONPath=`.spec.bfd.enabled`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type VpcNatGateway struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec VpcNatGatewaySpec `json:"spec,omitzero"`
	// +optional
	Status VpcNatGatewayStatus `json:"status,omitzero"`
}

// VpcNatGatewaySpec says where the gateway stands and how its pods are run.
type VpcNatGatewaySpec struct {
	// Namespace that the workload runs in; empty: the controller's own.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// Vpc names the VPC that the gateway serves.
	// +optional
	Vpc string `json:"vpc,omitempty"`
	// Subnet names the VPC's subnet that the gateway's eth0 is in.
	// +optional
	Subnet string `json:"subnet,omitempty"`
	// ExternalSubnets names the external subnets; empty: the default one.
	// +optional
	ExternalSubnets []string `json:"externalSubnets,omitempty"`
	// LanIP is the address of eth0, in Subnet.
	// +optional
	LanIP string `json:"lanIp,omitempty"`
	// Selector is the workload's node selector, each item "key: value".
	// +optional
	Selector []string `json:"selector,omitempty"`
	// Tolerations of the workload's pods.
	// +optional
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
	// Affinity of the workload's pods.
	// +optional
	Affinity corev1.Affinity `json:"affinity,omitzero"`
	// Annotations of the workload's pods.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
	// QoSPolicy names the policy that limits the gateway's traffic.
	// +optional
	QoSPolicy string `json:"qosPolicy,omitempty"`
	// BgpSpeaker announces the gateway's EIPs by BGP.
	// +optional
	BgpSpeaker VpcBgpSpeaker `json:"bgpSpeaker,omitzero"`
	// Routes that the gateway's pods have besides those to the VPC's subnets.
	// +optional
	Routes []Route `json:"routes,omitempty"`
	// NoDefaultEIP leaves net1 without an address of its own.
	// +optional
	NoDefaultEIP bool `json:"noDefaultEIP,omitempty"`
	// Replicas is the number of the gateway's pods.
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +optional
	Replicas int32 `json:"replicas,omitempty"`
	// BFD between the gateway's pods and the VPC's router.
	// +optional
	BFD VpcNatGatewayBFDConfig `json:"bfd,omitzero"`
	// InternalSubnets names the subnets whose traffic goes by this gateway.
	// +optional
	InternalSubnets []string `json:"internalSubnets,omitempty"`
	// InternalCIDRs are further prefixes whose traffic goes by this gateway.
	// +optional
	InternalCIDRs []string `json:"internalCIDRs,omitempty"`
}

// VpcBgpSpeaker configures the BGP speaker beside a gateway.
type VpcBgpSpeaker struct {
	// +optional
	Enabled bool `json:"enabled,omitempty"`
	// ASN of the speaker.
	// +optional
	ASN uint32 `json:"asn,omitempty"`
	// RemoteASN is the neighbors' ASN.
	// +optional
	RemoteASN uint32 `json:"remoteAsn,omitempty"`
	// Neighbors are the addresses of the speaker's peers.
	// +optional
	Neighbors []string `json:"neighbors,omitempty"`
	// +optional
	HoldTime metav1.Duration `json:"holdTime,omitzero"`
	// +optional
	RouterID string `json:"routerId,omitempty"`
	// +optional
	Password string `json:"password,omitempty"`
	// +optional
	EnableGracefulRestart bool `json:"enableGracefulRestart,omitempty"`
	// ExtraArgs are passed to the speaker as they are.
	// +optional
	ExtraArgs []string `json:"extraArgs,omitempty"`
}

// Route is a static route of a gateway.
type Route struct {
	// +optional
	CIDR string `json:"cidr,omitempty"`
	// +optional
	NextHopIP string `json:"nextHopIP,omitempty"`
}

// VpcNatGatewayBFDConfig configures BFD; times are in milliseconds.
type VpcNatGatewayBFDConfig struct {
	// +kubebuilder:default=false
	// +optional
	Enabled bool `json:"enabled,omitempty"`
	// +kubebuilder:default=1000
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600000
	// +optional
	MinRX int32 `json:"minRX,omitempty"`
	// +kubebuilder:default=1000
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600000
	// +optional
	MinTX int32 `json:"minTX,omitempty"`
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=255
	// +optional
	Multiplier int32 `json:"multiplier,omitempty"`
}

// VpcNatGatewayStatus says what the gateway is run with.
type VpcNatGatewayStatus struct {
	// Ready is true once the wanted number of pods runs and is initialised.
	// +optional
	Ready bool `json:"ready"`
	// LanIP lists the pods' addresses in the VPC.
	// +optional
	LanIP string `json:"lanIp,omitempty"`
	// +optional
	Replicas int32 `json:"replicas,omitempty"`
	// +optional
	QoSPolicy string `json:"qosPolicy,omitempty"`
	// +optional
	ExternalSubnets []string `json:"externalSubnets,omitempty"`
	// +optional
	InternalSubnets []string `json:"internalSubnets,omitempty"`
	// +optional
	InternalCIDRs []string `json:"internalCIDRs,omitempty"`
	// +optional
	Selector []string `json:"selector,omitempty"`
	// +optional
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
	// +optional
	Affinity corev1.Affinity `json:"affinity,omitzero"`
	// Workload that runs the gateway's pods.
	// +optional
	Workload VpcNatWorkload `json:"workload,omitzero"`
}

// VpcNatWorkload refers to the workload that runs a gateway's pods.
type VpcNatWorkload struct {
	// +optional
	APIVersion string `json:"apiVersion,omitempty"`
	// +optional
	Kind string `json:"kind,omitempty"`
	// +optional
	Name string `json:"name,omitempty"`
	// Nodes that the pods run on.
	// +optional
	Nodes []string `json:"nodes,omitempty"`
}

// VpcNatGatewayList is a list of VPC NAT gateways.
//
// +kubebuilder:object:root=true
type VpcNatGatewayList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []VpcNatGateway `json:"items"`
}
