// SPDX-License-Identifier: Apache-2.0

package handler

import (
	"context"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// syncDNAT programs one DNAT rule, by one call of the script.
func (h *Handler) syncDNAT(ctx context.Context, name string) error {
	client := h.ovn.KubeovnV1().IptablesDnatRules()
	// As it is: the cache may lag behind what was written here a moment ago.
	rule, err := client.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if rule.DeletionTimestamp != nil {
		return h.releaseDNAT(ctx, rule)
	}
	eip, err := h.readyEIP(rule.Spec.EIP)
	if err != nil {
		return err
	}
	if !due(rule, eip.Status.IP) {
		return nil
	}
	gateway := eip.Spec.NatGwDp
	lock := h.lock(gateway)
	lock.Lock()
	defer lock.Unlock()
	all := h.allDNATs()
	if err := duplicate(rule, all); err != nil {
		return err
	}
	pod, err := h.initialized(gateway)
	if err != nil {
		return err
	}
	if rule.Status.V4ip != "" && changed(rule, eip.Status.IP) {
		if err := h.exec(ctx, pod, h.release.delCall(rule, all)); err != nil {
			return err
		}
	}
	t := wanted(rule, eip.Status.IP)
	if err := h.exec(ctx, pod, h.release.addCall(rule, t, all)); err != nil {
		return err
	}
	err = claim(ctx, client, rule, ruleLabels(gateway, t.eip, map[string]string{sharenat.ExternalPortLabel: t.externalPort}),
		map[string]string{sharenat.RuleEIPAnnotation: rule.Spec.EIP})
	if err != nil {
		return err
	}
	return setStatus(ctx, client, name, fields{
		"ready": true, "v4ip": t.eip, "natGwDp": gateway, "protocol": t.protocol,
		"externalPort": t.externalPort, "internalIp": t.internalIP, "internalPort": t.internalPort,
	})
}

func (h *Handler) releaseDNAT(ctx context.Context, rule *kubeovnv1.IptablesDnatRule) error {
	if !slices.Contains(rule.Finalizers, sharenat.Finalizer) {
		return nil
	}
	gateway := rule.Status.NatGwDp
	lock := h.lock(gateway)
	lock.Lock()
	defer lock.Unlock()
	if rule.Status.V4ip != "" && !h.gone(gateway) {
		pod, err := h.initialized(gateway)
		if err != nil {
			return err
		}
		if err := h.exec(ctx, pod, h.release.delCall(rule, h.allDNATs())); err != nil {
			return err
		}
	}
	return release(ctx, h.ovn.KubeovnV1().IptablesDnatRules(), rule)
}

// syncNAT programs a FIP or a SNAT rule.
func (h *Handler) syncNAT(ctx context.Context, kind natKind, name string) error {
	client := h.natClient(kind)
	object, err := client.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	had, hadIP, gateway := text(object, "status", kind.field), text(object, "status", "v4ip"), text(object, "status", "natGwDp")
	if object.GetDeletionTimestamp() != nil {
		lock := h.lock(gateway)
		lock.Lock()
		defer lock.Unlock()
		if hadIP != "" && !h.gone(gateway) {
			pod, err := h.initialized(gateway)
			if err != nil {
				return err
			}
			if err := h.exec(ctx, pod, kind.delCall(hadIP, had)); err != nil {
				return err
			}
		}
		return release(ctx, client, object)
	}
	eip, err := h.readyEIP(text(object, "spec", "eip"))
	if err != nil {
		return err
	}
	value := text(object, "spec", kind.field)
	ready, _, _ := unstructured.NestedBool(object.Object, "status", "ready")
	same := had == value && hadIP == eip.Status.IP
	if ready && same {
		return nil
	}
	lock := h.lock(eip.Spec.NatGwDp)
	lock.Lock()
	defer lock.Unlock()
	pod, err := h.initialized(eip.Spec.NatGwDp)
	if err != nil {
		return err
	}
	if hadIP != "" && !same {
		if err := h.exec(ctx, pod, kind.delCall(hadIP, had)); err != nil {
			return err
		}
	}
	if err := h.exec(ctx, pod, kind.addCall(eip.Status.IP, value)); err != nil {
		return err
	}
	err = claim(ctx, client, object, ruleLabels(eip.Spec.NatGwDp, eip.Status.IP, nil), map[string]string{sharenat.RuleEIPAnnotation: eip.Name})
	if err != nil {
		return err
	}
	return setStatus(ctx, client, name, fields{"ready": true, "v4ip": eip.Status.IP, "natGwDp": eip.Spec.NatGwDp, kind.field: value})
}
