// SPDX-License-Identifier: Apache-2.0

package sharenat

// Keys of labels, annotations and finalizers. All but the last block are stock Kube-OVN's.
const (
	// EIPAnnotation on a Service names the IptablesEIP by which the Service is reached.
	EIPAnnotation = "ovn.kubernetes.io/eip"

	// OwnerNamespaceLabel and OwnerNameLabel on a rule name the Service that owns it. A rule without them was made by hand.
	OwnerNamespaceLabel = "ovn.kubernetes.io/nftable-lb-svc-ns"
	OwnerNameLabel      = "ovn.kubernetes.io/nftable-lb-svc-name"

	// GatewayLabel, ExternalPortLabel and EIPAddressLabel on a rule hold its gateway, external port and EIP address.
	GatewayLabel      = "ovn.kubernetes.io/vpc-nat-gw-name"
	ExternalPortLabel = "ovn.kubernetes.io/vpc_dnat_eport"
	EIPAddressLabel   = "ovn.kubernetes.io/eip_v4_ip"

	// RuleEIPAnnotation on a rule names its IptablesEIP.
	RuleEIPAnnotation = "ovn.kubernetes.io/vpc_eip"

	// Finalizer is on every object that has state in a gateway.
	Finalizer = "kubeovn.io/kube-ovn-controller"

	// GatewayPodAnnotation on a gateway pod names its VpcNatGateway, GatewayInitAnnotation says "true" once init has run in it.
	GatewayPodAnnotation  = "ovn.kubernetes.io/vpc_nat_gw"
	GatewayInitAnnotation = "ovn.kubernetes.io/vpc_nat_gw_init"

	// DefaultVPC is the VPC of Subnets that name none, and of the nodes.
	DefaultVPC = "ovn-cluster"
	// DefaultExternalSubnet is the external Subnet of gateways and EIPs that name none.
	DefaultExternalSubnet = "ovn-vpc-external-network"
)

// Keys of this project's own.
const (
	// SourceIPAnnotation on a Service overrides what its backends get to see as the client's address; on a rule it
	// carries the decision for that backend.
	SourceIPAnnotation = "ovn.kubernetes.io/nftable-lb-svc-source-ip"
	// SourceRangesAnnotation on a rule lists the IPv4 prefixes its clients must come from, comma separated.
	SourceRangesAnnotation = "ovn.kubernetes.io/nftable-lb-svc-source-ranges"
	// PodUIDAnnotation on a rule has the UID of the Pod that its backend is, where it is one: addresses are given again, UIDs are not.
	PodUIDAnnotation = "ovn.kubernetes.io/nftable-lb-svc-pod-uid"
	// GrantAnnotation on an IptablesEIP lists the namespaces whose Services may use it, comma separated; "*" means all.
	GrantAnnotation = "ovn.kubernetes.io/nftable-lb-svc-namespaces"
)

// Values of SourceIPAnnotation.
const (
	SourceIPAuto       = "auto"
	SourceIPPreserve   = "preserve"
	SourceIPMasquerade = "masquerade"
)

// Values of an IptablesDnatRule's spec.type and spec.sessionAffinity.
const (
	TypeShare            = "share"
	TypeExclusive        = "exclusive"
	SessionAffinityNone  = ""
	SessionAffinityIP    = "ClientIP"
	DefaultAffinityTime  = int32(10800)
	MaxAffinityTimeout   = int32(86400)
	ruleNamePrefix       = "lb-"
	maxRuleNameService   = 47
	ruleNameHashHexChars = 12
)
