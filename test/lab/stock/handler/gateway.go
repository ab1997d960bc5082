// SPDX-License-Identifier: Apache-2.0

package handler

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// routesAnnotation on a gateway pod lists the routes that it was given.
const routesAnnotation = "ovn.kubernetes.io/vpc_cidrs"

// syncGateway makes a gateway's workload, and readies the pod that comes of it.
func (h *Handler) syncGateway(ctx context.Context, name string) error {
	gw, err := h.gatewayLister.Get(name)
	if err != nil {
		return err
	}
	settings := h.settings()
	if gw.DeletionTimestamp != nil {
		if err := h.deleteWorkload(ctx, gw, settings); err != nil {
			return err
		}
		return release(ctx, h.ovn.KubeovnV1().VpcNatGateways(), gw)
	}
	if !settings.enabled {
		return nil
	}
	if err := claim(ctx, h.ovn.KubeovnV1().VpcNatGateways(), gw, nil, nil); err != nil {
		return err
	}
	if err := h.keepWorkload(ctx, gw, settings); err != nil {
		return err
	}
	lock := h.lock(name)
	lock.Lock()
	defer lock.Unlock()
	pod := h.podOf(name)
	if pod == nil {
		return nil // its coming is an event
	}
	// As it is: the cache may lag behind what was written here a moment ago.
	if pod, err = h.kube.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{}); err != nil {
		return err
	}
	if pod.Annotations[sharenat.GatewayInitAnnotation] != "true" {
		if err := h.initPod(ctx, gw, pod); err != nil {
			return err
		}
	}
	return h.syncRoutes(ctx, gw, pod)
}

// keepWorkload makes the workload that is missing, and changes it where the gateway asks for another one.
func (h *Handler) keepWorkload(ctx context.Context, gw *kubeovnv1.VpcNatGateway, s settings) error {
	external, err := h.subnetLister.Get(externalSubnetsOf(gw)[0])
	if err != nil {
		return fmt.Errorf("%w: no subnet %s", errNotYet, externalSubnetsOf(gw)[0])
	}
	if _, err := h.subnetLister.Get(gw.Spec.Subnet); err != nil {
		return fmt.Errorf("%w: no subnet %s", errNotYet, gw.Spec.Subnet)
	}
	w, err := buildWorkload(gw, external, s, h.namespace)
	if err != nil {
		return err
	}
	made, err := h.createWorkload(ctx, w)
	if err != nil || !made && !stale(gw) {
		return err
	}
	if !made {
		if err := h.updateWorkload(ctx, w); err != nil {
			return err
		}
	}
	var kind, name string
	if w.deployment != nil {
		kind, name = "Deployment", w.deployment.Name
	} else {
		kind, name = "StatefulSet", w.statefulSet.Name
	}
	return setStatus(ctx, h.ovn.KubeovnV1().VpcNatGateways(), gw.Name, fields{
		"ready": gw.Status.Ready && !made, "lanIp": gw.Spec.LanIP, "replicas": max(gw.Spec.Replicas, 1), "qosPolicy": gw.Spec.QoSPolicy,
		"externalSubnets": externalSubnetsOf(gw), "selector": gw.Spec.Selector, "tolerations": gw.Spec.Tolerations, "affinity": gw.Spec.Affinity,
		"workload": fields{"apiVersion": "apps/v1", "kind": kind, "name": name},
	})
}

func (h *Handler) createWorkload(ctx context.Context, w workload) (made bool, err error) {
	if w.deployment != nil {
		_, err = h.kube.AppsV1().Deployments(w.deployment.Namespace).Create(ctx, w.deployment, metav1.CreateOptions{})
	} else {
		_, err = h.kube.AppsV1().StatefulSets(w.statefulSet.Namespace).Create(ctx, w.statefulSet, metav1.CreateOptions{})
	}
	if apierrors.IsAlreadyExists(err) {
		return false, nil
	}
	return err == nil, err
}

func (h *Handler) updateWorkload(ctx context.Context, w workload) error {
	var err error
	if w.deployment != nil {
		_, err = h.kube.AppsV1().Deployments(w.deployment.Namespace).Update(ctx, w.deployment, metav1.UpdateOptions{})
	} else {
		_, err = h.kube.AppsV1().StatefulSets(w.statefulSet.Namespace).Update(ctx, w.statefulSet, metav1.UpdateOptions{})
	}
	return err
}

func (h *Handler) deleteWorkload(ctx context.Context, gw *kubeovnv1.VpcNatGateway, s settings) error {
	options := metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}
	name, namespace := s.namePrefix+gw.Name, namespaceOf(gw, h.namespace)
	for _, remove := range []func() error{
		func() error { return h.kube.AppsV1().StatefulSets(namespace).Delete(ctx, name, options) },
		func() error { return h.kube.AppsV1().Deployments(namespace).Delete(ctx, name, options) },
	} {
		if err := remove(); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// initPod runs init, once a pod, and has all that is in the gateway programmed anew.
func (h *Handler) initPod(ctx context.Context, gw *kubeovnv1.VpcNatGateway, pod *corev1.Pod) error {
	if err := h.exec(ctx, pod, call{verbInit, initArgument}); err != nil {
		return err
	}
	err := mergePatch(ctx, h.kube.CoreV1().Pods(pod.Namespace), pod.Name,
		fields{"metadata": fields{"annotations": map[string]string{sharenat.GatewayInitAnnotation: "true"}}})
	if err != nil {
		return err
	}
	if err := h.redo(ctx, gw.Name, pod.CreationTimestamp.UTC().Format(time.RFC3339)); err != nil {
		return err
	}
	return setStatus(ctx, h.ovn.KubeovnV1().VpcNatGateways(), gw.Name, fields{"ready": true})
}

// redo says of everything that was in a gateway that it is not, since a pod was made.
func (h *Handler) redo(ctx context.Context, gateway, since string) error {
	status := fields{"ready": false, "redo": since}
	all, _ := h.eipLister.List(labels.Everything())
	for _, eip := range all {
		if eip.Spec.NatGwDp == gateway && eip.Status.Ready && eip.Status.Redo != since {
			if err := setStatus(ctx, h.ovn.KubeovnV1().IptablesEIPs(), eip.Name, status); err != nil {
				return err
			}
		}
	}
	for _, rule := range h.allDNATs() {
		if rule.Status.NatGwDp == gateway && rule.Status.Ready && rule.Status.Redo != since {
			if err := setStatus(ctx, h.ovn.KubeovnV1().IptablesDnatRules(), rule.Name, status); err != nil {
				return err
			}
		}
	}
	for _, kind := range natKinds {
		for _, object := range h.nats(kind) {
			ready, _, _ := unstructured.NestedBool(object.Object, "status", "ready")
			if text(object, "status", "natGwDp") == gateway && ready && text(object, "status", "redo") != since {
				if err := setStatus(ctx, h.natClient(kind), object.GetName(), status); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// syncRoutes gives a pod the routes to its VPC's Subnets, and takes those away that it has no longer.
func (h *Handler) syncRoutes(ctx context.Context, gw *kubeovnv1.VpcNatGateway, pod *corev1.Pod) error {
	subnets, err := h.subnetLister.List(labels.Everything())
	if err != nil {
		return err
	}
	want := routes(gw, subnets)
	slices.Sort(want)
	var have []string
	if noted := pod.Annotations[routesAnnotation]; noted != "" {
		if err := json.Unmarshal([]byte(noted), &have); err != nil {
			return fmt.Errorf("read the routes of pod %s: %w", pod.Name, err)
		}
	}
	if slices.Equal(want, have) {
		return nil
	}
	for _, route := range want {
		if !slices.Contains(have, route) {
			if err := h.exec(ctx, pod, call{verbRouteAdd, route}); err != nil {
				return err
			}
		}
	}
	for _, route := range have {
		if !slices.Contains(want, route) {
			if err := h.exec(ctx, pod, routeDelCall(route)); err != nil {
				return err
			}
		}
	}
	noted, err := json.Marshal(want)
	if err != nil {
		return err
	}
	return mergePatch(ctx, h.kube.CoreV1().Pods(pod.Namespace), pod.Name,
		fields{"metadata": fields{"annotations": map[string]string{routesAnnotation: string(noted)}}})
}
