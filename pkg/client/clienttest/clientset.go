// SPDX-License-Identifier: Apache-2.0

package clienttest

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/client/clientset/versioned/fake"
)

// NewClientset returns a fake clientset that holds the given objects.
func NewClientset(tb testing.TB, objects ...runtime.Object) *fake.Clientset {
	tb.Helper()
	clientset := fake.NewSimpleClientset()
	for _, object := range objects {
		resource, err := resourceOf(object)
		if err != nil {
			tb.Fatal(err)
		}
		gvr := kubeovnv1.SchemeGroupVersion.WithResource(resource)
		if err := clientset.Tracker().Create(gvr, object, ""); err != nil {
			tb.Fatalf("hold %T: %v", object, err)
		}
	}
	return clientset
}

func resourceOf(object runtime.Object) (string, error) {
	switch object.(type) {
	case *kubeovnv1.IptablesDnatRule:
		return "iptables-dnat-rules", nil
	case *kubeovnv1.IptablesEIP:
		return "iptables-eips", nil
	case *kubeovnv1.IptablesFIPRule:
		return "iptables-fip-rules", nil
	case *kubeovnv1.Subnet:
		return "subnets", nil
	case *kubeovnv1.Vpc:
		return "vpcs", nil
	case *kubeovnv1.VpcNatGateway:
		return "vpc-nat-gateways", nil
	default:
		return "", fmt.Errorf("%T is not a kind of %s", object, kubeovnv1.SchemeGroupVersion)
	}
}
