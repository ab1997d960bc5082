// SPDX-License-Identifier: Apache-2.0

package handler

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
)

// refuseDNAT says why the webhook refuses a rule; old is nil for a new one. Of a share it wants one affinity for all rules of an
// identity, those that are on their way out among them.
func refuseDNAT(old, rule *kubeovnv1.IptablesDnatRule, all []kubeovnv1.IptablesDnatRule) error {
	if old != nil && equal(old.Spec, rule.Spec) || rule.DeletionTimestamp != nil {
		return nil
	}
	if rule.Spec.EIP == "" {
		return errors.New("parameter \"eip\" cannot be empty")
	}
	for field, port := range map[string]string{"externalPort": rule.Spec.ExternalPort, "internalPort": rule.Spec.InternalPort} {
		if number, err := strconv.Atoi(port); err != nil || number < 1 || number > 65535 {
			return fmt.Errorf("parameter %q is not a port: %q", field, port)
		}
	}
	if _, err := netip.ParseAddr(rule.Spec.InternalIP); err != nil {
		return fmt.Errorf("parameter \"internalIp\": %q is not a valid address", rule.Spec.InternalIP)
	}
	if p := strings.ToLower(rule.Spec.Protocol); p != "tcp" && p != "udp" {
		return fmt.Errorf("parameter \"protocol\": %q is not supported, use tcp or udp", rule.Spec.Protocol)
	}
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

// refuseEIP says why it refuses an EIP; subnet is nil where there is none.
func refuseEIP(old, eip *kubeovnv1.IptablesEIP, subnet *kubeovnv1.Subnet) error {
	if old != nil && equal(old.Spec, eip.Spec) || eip.DeletionTimestamp != nil {
		return nil
	}
	if eip.Spec.NatGwDp == "" {
		return errors.New("parameter \"natGwDp\" cannot be empty")
	}
	if subnet == nil {
		return fmt.Errorf("there is no external subnet %s", externalSubnetOf(eip))
	}
	if old != nil && old.Status.Ready && old.Spec.V4ip != "" && old.Spec.V4ip != eip.Spec.V4ip {
		return errors.New("the address of an eip that is ready cannot be changed")
	}
	return refuseAddress("v4ip", eip.Spec.V4ip, subnet)
}

func refuseAddress(field, text string, subnet *kubeovnv1.Subnet) error {
	if text == "" {
		return nil
	}
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return fmt.Errorf("parameter %q: %q is not a valid address", field, text)
	}
	if prefix, err := prefixOf(subnet); err != nil || !prefix.Contains(addr) {
		return fmt.Errorf("parameter %q: %s is not in subnet %s", field, text, subnet.Name)
	}
	return nil
}

// refuseGateway says why it refuses a gateway; vpc and subnet are nil where there are none.
func refuseGateway(old, gw *kubeovnv1.VpcNatGateway, vpc *kubeovnv1.Vpc, subnet *kubeovnv1.Subnet) error {
	if old != nil && equal(old.Spec, gw.Spec) || gw.DeletionTimestamp != nil {
		return nil
	}
	if vpc == nil {
		return fmt.Errorf("there is no vpc %q", gw.Spec.Vpc)
	}
	if subnet == nil {
		return fmt.Errorf("there is no subnet %q", gw.Spec.Subnet)
	}
	if old != nil && max(old.Spec.Replicas, 1) != max(gw.Spec.Replicas, 1) && min(max(old.Spec.Replicas, 1), max(gw.Spec.Replicas, 1)) == 1 {
		return fmt.Errorf("replicas cannot be changed from %d to %d: one pod and several are different workloads", old.Spec.Replicas, gw.Spec.Replicas)
	}
	return refuseAddress("lanIp", gw.Spec.LanIP, subnet)
}
