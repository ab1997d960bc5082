// SPDX-License-Identifier: Apache-2.0

package stockrules

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

const (
	// DefaultVPC is the name of the VPC that Kube-OVN itself makes.
	DefaultVPC = "ovn-cluster"
	// OVNProvider is the provider of a Pod's primary NIC, and of a Subnet that names none.
	OVNProvider = "ovn"
	// DefaultExternalSubnet is where gateways and EIPs are that name no other.
	DefaultExternalSubnet = "ovn-vpc-external-network"
)

// The kinds, with those of their fields that the rules and the lab's data plane read.
type (
	// Vpc is a kubeovn.io/v1 Vpc.
	Vpc struct {
		metav1.ObjectMeta `json:"metadata"`

		Spec VpcSpec `json:"spec"`
	}
	// VpcSpec is a Vpc's spec.
	VpcSpec struct {
		Namespaces    []string      `json:"namespaces"`
		DefaultSubnet string        `json:"defaultSubnet"`
		StaticRoutes  []StaticRoute `json:"staticRoutes"`
	}
	// StaticRoute is one of a Vpc.
	StaticRoute struct {
		Policy    string `json:"policy"`
		CIDR      string `json:"cidr"`
		NextHopIP string `json:"nextHopIP"`
	}
	// Subnet is a kubeovn.io/v1 Subnet.
	Subnet struct {
		metav1.ObjectMeta `json:"metadata"`

		Spec SubnetSpec `json:"spec"`
	}
	// SubnetSpec is a Subnet's spec.
	SubnetSpec struct {
		Default     bool     `json:"default"`
		VPC         string   `json:"vpc"`
		Namespaces  []string `json:"namespaces"`
		CIDRBlock   string   `json:"cidrBlock"`
		Gateway     string   `json:"gateway"`
		ExcludeIPs  []string `json:"excludeIps"`
		Provider    string   `json:"provider"`
		VLAN        string   `json:"vlan"`
		NATOutgoing bool     `json:"natOutgoing"`
	}
	// VpcNatGateway is a kubeovn.io/v1 VpcNatGateway.
	VpcNatGateway struct {
		metav1.ObjectMeta `json:"metadata"`

		Spec struct {
			VPC             string   `json:"vpc"`
			Subnet          string   `json:"subnet"`
			LanIP           string   `json:"lanIp"`
			ExternalSubnets []string `json:"externalSubnets"`
			Replicas        int32    `json:"replicas"`
		} `json:"spec"`
	}
	// IptablesEIP is a kubeovn.io/v1 IptablesEIP.
	IptablesEIP struct {
		metav1.ObjectMeta `json:"metadata"`

		Spec struct {
			NatGwDp        string `json:"natGwDp"`
			ExternalSubnet string `json:"externalSubnet"`
			V4IP           string `json:"v4ip"`
			V6IP           string `json:"v6ip"`
		} `json:"spec"`
	}
	// IptablesDnatRule is a kubeovn.io/v1 IptablesDnatRule.
	IptablesDnatRule struct {
		metav1.ObjectMeta `json:"metadata"`

		Spec struct {
			EIP          string `json:"eip"`
			ExternalPort string `json:"externalPort"`
			Protocol     string `json:"protocol"`
			InternalIP   string `json:"internalIp"`
			InternalPort string `json:"internalPort"`
		} `json:"spec"`
	}
)

// Decode reads one object of a kind.
func Decode[T any](object *unstructured.Unstructured) (*T, error) {
	out := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, out); err != nil {
		return nil, fmt.Errorf("decode %s %s: %w", object.GetKind(), object.GetName(), err)
	}
	return out, nil
}

// Cluster is what an object is held against. What is not in it is not there.
type Cluster struct {
	VPCs     []*Vpc
	Subnets  []*Subnet
	Gateways []*VpcNatGateway
	EIPs     []*IptablesEIP
}

// Add puts an object in; one of a kind that nobody is held against is left out.
func (c *Cluster) Add(object *unstructured.Unstructured) error {
	var err error
	switch object.GetKind() {
	case "Vpc":
		err = add(&c.VPCs, object)
	case "Subnet":
		err = add(&c.Subnets, object)
	case "VpcNatGateway":
		err = add(&c.Gateways, object)
	case "IptablesEIP":
		err = add(&c.EIPs, object)
	}
	return err
}

func add[T any](list *[]*T, object *unstructured.Unstructured) error {
	decoded, err := Decode[T](object)
	if err == nil {
		*list = append(*list, decoded)
	}
	return err
}
