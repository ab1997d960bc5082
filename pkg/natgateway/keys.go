// SPDX-License-Identifier: Apache-2.0

package natgateway

import (
	appsv1 "k8s.io/api/apps/v1"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// ConfigMaps in the controller's own namespace, and their keys.
const (
	imageConfigMap  = "ovn-vpc-nat-config"
	imageKey        = "image"
	namePrefixKey   = "natGwNamePrefix"
	switchConfigMap = "ovn-vpc-nat-gw-config"
	switchKey       = "enable-vpc-nat-gw"
	switchOn        = "true"
	switchOff       = "false"

	defaultNamePrefix = "vpc-nat-gw-"
)

// Labels and annotations that only this package uses; the others are sharenat's.
const (
	appLabel        = "app"
	gatewayPodLabel = "ovn.kubernetes.io/vpc-nat-gw"
	subnetLabel     = "ovn.kubernetes.io/subnet"

	switchAnnotation   = "ovn.kubernetes.io/logical_switch"
	addressAnnotation  = "ovn.kubernetes.io/ip_address"
	networksAnnotation = "k8s.v1.cni.cncf.io/networks"

	// switchSuffix and addressSuffix end the annotations of one NIC; its provider precedes them.
	switchSuffix  = ".kubernetes.io/logical_switch"
	addressSuffix = ".kubernetes.io/ip_address"

	// workloadHashAnnotation on a workload tells from which description it was made.
	workloadHashAnnotation = "ovn.kubernetes.io/vpc-nat-gw-hash"
	// workloadImageAnnotation on a workload is the image of that description.
	workloadImageAnnotation = "ovn.kubernetes.io/vpc-nat-gw-image"

	// revisionLabel on a pod of a StatefulSet names the revision that it was made from.
	revisionLabel = appsv1.StatefulSetRevisionLabel
)

const (
	finalizer    = sharenat.Finalizer
	fieldManager = "kube-ovn-nat-gateway"
)

// Reasons of conditions and events.
const (
	ReasonProgrammed        = "Programmed"
	ReasonInvalidRule       = "InvalidRule"
	ReasonIdentityConflict  = "IdentityConflict"
	ReasonEIPUsedByFIP      = "EIPUsedByFIP"
	ReasonEIPNotFound       = "EIPNotFound"
	ReasonEIPNotReady       = "EIPNotReady"
	ReasonGatewayNotFound   = "GatewayNotFound"
	ReasonGatewayDisabled   = "GatewayDisabled"
	ReasonGatewayNotReady   = "GatewayNotReady"
	ReasonGatewayChanged    = "GatewayChanged"
	ReasonRejectedByGateway = "RejectedByGateway"
	ReasonProgramFailed     = "ProgramGatewayFailed"
	ReasonSubnetNotFound    = "SubnetNotFound"
	ReasonNoFreeAddress     = "NoFreeAddress"
	ReasonAddressUnusable   = "AddressUnusable"
	ReasonAddressAllocated  = "AddressAllocated"
	ReasonWorkloadFailed    = "GatewayWorkloadFailed"
	ReasonNotServed         = "NotServedInThisMode"
	ReasonRolloutStopped    = "GatewayRolloutStopped"
	ReasonScriptOutdated    = "GatewayScriptOutdated"
	ReasonInvalidGateway    = "InvalidGateway"
	ReasonInvalidSwitch     = "InvalidSwitch"
	actionProgram           = "Program"
	actionAllocate          = "Allocate"
	actionReconcile         = "Reconcile"
)
