// SPDX-License-Identifier: Apache-2.0

package handler

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/test/lab/stockrules"
)

// refuse says why the webhook refuses an object whose kind has rules for each for itself; old is nil for a new one. Nothing is refused
// whose spec stays as it is, or that is on its way out.
func refuse(old, object *unstructured.Unstructured, in *stockrules.Cluster) error {
	if passes(old, object) {
		return nil
	}
	faults, err := stockrules.Check(object, in)
	if err != nil {
		return err
	}
	return faults.ToAggregate()
}

func passes(old, object *unstructured.Unstructured) bool {
	return old != nil && equal(old.Object["spec"], object.Object["spec"]) || object.GetDeletionTimestamp() != nil
}

// refuseDNAT wants one affinity for all rules of a share's identity, those that are on their way out among them.
func refuseDNAT(rule *kubeovnv1.IptablesDnatRule, all []kubeovnv1.IptablesDnatRule) error {
	if !isShare(rule) {
		return nil
	}
	affinity, timeout := affinityOf(rule)
	for i := range all {
		other := &all[i]
		if other.Name == rule.Name || !isShare(other) || other.Spec.EIP != rule.Spec.EIP || other.Spec.ExternalPort != rule.Spec.ExternalPort ||
			!strings.EqualFold(other.Spec.Protocol, rule.Spec.Protocol) {
			continue
		}
		if a, t := affinityOf(other); a != affinity || t != timeout {
			return fmt.Errorf("session affinity %s (%d s) differs from that of dnat %s with the same eip, external port and protocol: %s (%d s)",
				affinity, timeout, other.Name, a, t)
		}
	}
	return nil
}

// refuseMove keeps an EIP that is ready where it is.
func refuseMove(old, eip *kubeovnv1.IptablesEIP) error {
	if old.Status.Ready && old.Spec.V4ip != "" && old.Spec.V4ip != eip.Spec.V4ip {
		return errors.New("the address of an eip that is ready cannot be changed")
	}
	return nil
}

// refuseReplicas keeps a gateway's kind of workload.
func refuseReplicas(old, gw *kubeovnv1.VpcNatGateway) error {
	if (old.Spec.Replicas > 1) != (gw.Spec.Replicas > 1) {
		return fmt.Errorf("replicas cannot be changed from %d to %d: one pod and several are different workloads", old.Spec.Replicas, gw.Spec.Replicas)
	}
	return nil
}
