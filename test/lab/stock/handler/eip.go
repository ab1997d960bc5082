// SPDX-License-Identifier: Apache-2.0

package handler

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

func externalSubnetOf(eip *kubeovnv1.IptablesEIP) string {
	if eip.Spec.ExternalSubnet == "" {
		return sharenat.DefaultExternalSubnet
	}
	return eip.Spec.ExternalSubnet
}

// syncEIP gives an EIP its address and puts it into its gateway.
func (h *Handler) syncEIP(ctx context.Context, name string) error {
	// As it is: the cache may lag behind what was written here a moment ago.
	eip, err := h.ovn.KubeovnV1().IptablesEIPs().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if eip.DeletionTimestamp != nil {
		return h.releaseEIP(ctx, eip)
	}
	if eip.Status.Ready && eip.Status.IP != "" {
		return h.noteUses(ctx, eip)
	}
	lock := h.lock(eip.Spec.NatGwDp)
	lock.Lock()
	defer lock.Unlock()
	pod, err := h.initialized(eip.Spec.NatGwDp)
	if err != nil {
		return err
	}
	subnet, err := h.subnetLister.Get(externalSubnetOf(eip))
	if err != nil {
		return fmt.Errorf("%w: no subnet %s", errNotYet, externalSubnetOf(eip))
	}
	addr, err := h.address(ctx, eip, subnet)
	if err != nil {
		return err
	}
	prefix, err := prefixOf(subnet)
	if err != nil {
		return err
	}
	if err := h.exec(ctx, pod, call{verbEIPAdd, netip.PrefixFrom(addr, prefix.Bits()).String()}); err != nil {
		return err
	}
	// What is there by now, with its address.
	if eip, err = h.ovn.KubeovnV1().IptablesEIPs().Get(ctx, name, metav1.GetOptions{}); err != nil {
		return err
	}
	err = claim(ctx, h.ovn.KubeovnV1().IptablesEIPs(), eip, map[string]string{
		sharenat.EIPAddressLabel: addr.String(), sharenat.GatewayLabel: eip.Spec.NatGwDp, "ovn.kubernetes.io/subnet": subnet.Name,
	}, nil)
	if err != nil {
		return err
	}
	return setStatus(ctx, h.ovn.KubeovnV1().IptablesEIPs(), name, fields{"ready": true, "ip": addr.String(), "nat": h.uses(name)})
}

// noteUses keeps status.nat.
func (h *Handler) noteUses(ctx context.Context, eip *kubeovnv1.IptablesEIP) error {
	if uses := h.uses(eip.Name); uses != eip.Status.Nat {
		return setStatus(ctx, h.ovn.KubeovnV1().IptablesEIPs(), eip.Name, fields{"nat": uses})
	}
	return nil
}

// address gives the address that an EIP has, or one that it gets now. It is written to its spec.
func (h *Handler) address(ctx context.Context, eip *kubeovnv1.IptablesEIP, subnet *kubeovnv1.Subnet) (netip.Addr, error) {
	if eip.Status.IP != "" {
		return netip.ParseAddr(eip.Status.IP)
	}
	h.allocating.Lock()
	defer h.allocating.Unlock()
	// Not from the cache, which may not have what was given a moment ago.
	all, err := h.ovn.KubeovnV1().IptablesEIPs().List(ctx, metav1.ListOptions{})
	if err != nil {
		return netip.Addr{}, err
	}
	pods, err := h.podLister.List(labels.Everything())
	if err != nil {
		return netip.Addr{}, err
	}
	taken := takenAddresses(eip.Name, subnet, all.Items, pods)
	addr, err := allocate(subnet, taken, eip.Spec.V4ip)
	if err != nil || eip.Spec.V4ip != "" {
		return addr, err
	}
	return addr, mergePatch(ctx, h.ovn.KubeovnV1().IptablesEIPs(), eip.Name, fields{"spec": fields{"v4ip": addr.String()}})
}

// takenAddresses are those of a Subnet that others have.
func takenAddresses(asking string, subnet *kubeovnv1.Subnet, all []kubeovnv1.IptablesEIP, pods []*corev1.Pod) map[string]bool {
	taken := map[string]bool{}
	for i := range all {
		other := &all[i]
		if other.Name != asking && externalSubnetOf(other) == subnet.Name {
			taken[other.Spec.V4ip], taken[other.Status.IP] = true, true
		}
	}
	for _, pod := range pods {
		for item := range strings.SplitSeq(pod.Annotations[subnet.Spec.Provider+".kubernetes.io/ip_address"], ",") {
			taken[strings.TrimSpace(item)] = true
		}
	}
	return taken
}

// releaseEIP takes an EIP out of its gateway once nothing uses it.
func (h *Handler) releaseEIP(ctx context.Context, eip *kubeovnv1.IptablesEIP) error {
	if uses := h.uses(eip.Name); uses != "" {
		return fmt.Errorf("%w: eip %s is used by %s", errNotYet, eip.Name, uses)
	}
	lock := h.lock(eip.Spec.NatGwDp)
	lock.Lock()
	defer lock.Unlock()
	if eip.Status.IP != "" && !h.gone(eip.Spec.NatGwDp) {
		pod, err := h.initialized(eip.Spec.NatGwDp)
		if err != nil {
			return err
		}
		cidr := eip.Status.IP + "/32"
		if subnet, err := h.subnetLister.Get(externalSubnetOf(eip)); err == nil {
			if prefix, err := prefixOf(subnet); err == nil {
				cidr = fmt.Sprintf("%s/%d", eip.Status.IP, prefix.Bits())
			}
		}
		if err := h.exec(ctx, pod, call{verbEIPDel, cidr}); err != nil {
			return err
		}
	}
	return release(ctx, h.ovn.KubeovnV1().IptablesEIPs(), eip)
}
