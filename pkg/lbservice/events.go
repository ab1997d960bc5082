// SPDX-License-Identifier: Apache-2.0

package lbservice

// Reasons of events on Services.
const (
	// EventConflict: a port of the Service belongs to somebody else.
	EventConflict = "NftableLbSvcConflict"
	// EventBackendSkipped: a Pod has NICs, but none that the gateway reaches.
	EventBackendSkipped = "NftableLbSvcBackendSkipped"
	// EventNotServed: the Service, or a port of it, cannot be served, and the user can change that.
	EventNotServed = "NftableLbSvcNotServed"
	// EventServed: the Service is served, and was not before.
	EventServed = "NftableLbSvcServed"
	// EventNote: a part of the spec is served in a way that the user may not expect.
	EventNote = "NftableLbSvcNote"
	// EventWriteFailed: the API server refuses a rule.
	EventWriteFailed = "NftableLbSvcWriteFailed"
)

// Actions of events on Services.
const (
	actionClaim   = "ClaimPort"
	actionResolve = "ResolveBackend"
	actionServe   = "ServeService"
	actionWrite   = "WriteRule"
)

// ConditionReady on a Service says whether all of it is served by its gateway, and if not, why.
const ConditionReady = "kubeovn.io/NftableLoadBalancerReady"

// Reasons of ConditionReady.
const (
	ReasonProgrammed           = "Programmed"
	ReasonProgramming          = "Programming"
	ReasonEIPNotFound          = "EIPNotFound"
	ReasonEIPNotReady          = "EIPNotReady"
	ReasonEIPIPv6Only          = "EIPIPv6Only"
	ReasonNotGranted           = "NotGranted"
	ReasonGatewayNotFound      = "GatewayNotFound"
	ReasonGatewayNotReady      = "GatewayNotReady"
	ReasonNoBackend            = "NoBackend"
	ReasonPortConflict         = "PortConflict"
	ReasonProtocolNotSupported = "ProtocolNotSupported"
	ReasonNoClientAllowed      = "NoClientAllowed"
	// ReasonWriteRefused: the API server, or a webhook of it, refuses a rule.
	ReasonWriteRefused = "WriteRefused"
	// What the gateways' handler does not do, see Abilities.
	ReasonSourceRangesNotEnforceable = "SourceRangesNotEnforceable"
	ReasonAffinityNotServed          = "AffinityNotServed"
	ReasonGatewayPodsNotServed       = "GatewayPodsNotServed"
)

// reasonPublished is sharenat.ConditionIngress's only reason.
const reasonPublished = "Published"

// portsReasonPrefix begins the reasons of the condition LoadBalancerPortsError that is set here. The condition's type is Kubernetes' own, so
// this is what tells ours from another provider's.
const portsReasonPrefix = "NftableLbSvc"

// What users are told. Each says what can be changed.
const (
	msgEIPNotFound      = "IptablesEIP %s does not exist: create it, or name another in the annotation ovn.kubernetes.io/eip"
	msgEIPNotReady      = "IptablesEIP %s is not ready: it has no address in a gateway yet"
	msgEIPNotReadySays  = "IptablesEIP %s is not ready: %s"
	msgEIPDeleting      = "IptablesEIP %s is being deleted: name another in the annotation ovn.kubernetes.io/eip"
	msgEIPDeletingInUse = "IptablesEIP %s is being deleted, and stays until no Service uses it: name another in the annotation ovn.kubernetes.io/eip"
	msgEIPIPv6Only      = "IptablesEIP %s has only an IPv6 address: name one with an IPv4 address"
	msgNotGranted       = "namespace %s may not use IptablesEIP %s: name another, or have the namespace added to the EIP's annotation %s"
	msgGatewayNotFound  = "VpcNatGateway %q, which IptablesEIP %s names, does not exist: create it, or name another EIP"
	msgGatewayNotReady  = "VpcNatGateway %s is not ready: its pods do not hold the Service's rules yet"
	msgProgramming      = "VpcNatGateway %s does not hold the Service's rules yet"
	msgProgrammingPart  = "served at %s, but VpcNatGateway %s does not hold all of the Service's rules yet"
	msgProgrammingMore  = "served at %s, but VpcNatGateway %s still holds rules of the Service that are deleted"
	msgWriteRefused     = "the API server refuses a rule of the Service: %s"
	msgProgrammed       = "served at %s by VpcNatGateway %s"
	msgConflict         = "port %s of IptablesEIP %s belongs to %s: change the port or the EIP; it is taken over when the owner lets go"
	msgUnsupported      = "port %d/%s: only TCP and UDP are supported"
	msgNoBackend        = "no backend for %s: no endpoint is ready with an address in VPC %s"
	msgNoEndpoint       = "no backend for %s: the Service has no endpoint; its selector finds no Pod that has an address"
	msgNoEndpointReady  = "no backend for %s: none of the Service's endpoints is ready"
	msgNoTargetPort     = "no backend for %s: no ready endpoint has a port of that name and protocol; see targetPort"
	msgNoBackendBack    = "no backend for %s: the handler of VpcNatGateway %s does not masquerade, which every ready endpoint needs"
	msgUnreadableRange  = "loadBalancerSourceRanges has %.100q, which is no prefix such as 10.0.0.0/8 (no leading zeros, no single address), so no client is let in"
	msgStillLetIn       = "rules of before are not out of the gateway yet, and let clients in"
	msgNoClientAllowed  = "loadBalancerSourceRanges has no IPv4 range, so no IPv4 client is let in"
	msgSkippedList      = "Pods without an IPv4 NIC in VPC %s: %s"
	msgSkipped          = "Pod %s is no backend: it has no NIC with an IPv4 address in VPC %s; attach one, or deselect the Pod"
	msgUnmasqueradeList = "no backends without masquerading, which the handler of VpcNatGateway %s does not do: %s"
	msgUnmasqueraded    = "%s is no backend: its answers would not come back by VpcNatGateway %s, whose handler does not masquerade; " +
		"put its default route on its NIC in VPC %s, or have the gateway run by a handler that does"
	msgUnmasqueradedAsked = "%s is no backend: the Service asks for masquerading, which the handler of VpcNatGateway %s does not do; " +
		"take its annotation %s off, or have the gateway run by a handler that does"
	msgUnmasqueradedPods = "%s is no backend: its answers may come back by another pod of VpcNatGateway %s than the client's packets, and its " +
		"handler does not masquerade; name an EIP of a gateway with one replica, or have this one run by a handler that does"

	msgExternalLocal = "externalTrafficPolicy Local is served as Cluster at the EIP: every ready backend takes traffic"
	msgInternalLocal = "internalTrafficPolicy Local is served as Cluster at the EIP: every ready backend takes traffic"
	msgIPv6Alone     = "ipFamilies is IPv6 alone: at the EIP the Service is served over IPv4"
	msgDualStack     = "ipFamilyPolicy RequireDualStack: at the EIP only the IPv4 side is served"
	msgSourceRanges  = "the gateway lets in clients of %s only"
	// What is missing beside another handler, and what to do.
	msgSourceRangesNotEnforceable = "loadBalancerSourceRanges %s: the handler of VpcNatGateway %s keeps nobody out, so nobody is let in; " +
		"have the gateway run by a handler that does, or take the ranges off and use a NetworkPolicy"
	msgAffinityNotServed = "sessionAffinity ClientIP: the handler of VpcNatGateway %s does not know it, so connections of one client are spread; " +
		"upgrade Kube-OVN, or have the gateway run by a handler that does"
	msgGatewayPodsNotServed = "VpcNatGateway %s has %d pods, of which its handler programs only the first: name an EIP of a gateway with " +
		"one replica, or have this one run by a handler that programs all"

	msgContested = "status.loadBalancer is written by %s as well, which takes the EXTERNAL-IP away: it is put right less and less often; " +
		"give the Service the loadBalancerClass of one of the two, ours is %s"
	msgNoWayBack = "Pods with their default route elsewhere and a NIC in Subnet %s may have no way back to VpcNatGateway %s in Subnet %s: " +
		"give them a route to it by that NIC, or attach them to the gateway's Subnet"
	msgBadOverride = "annotation %s=%q is not auto, preserve or masquerade, and counts as auto"
)
