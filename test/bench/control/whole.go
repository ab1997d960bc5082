// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/natgateway"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
	"github.com/kubeovn/kube-ovn/test/bench"
	"github.com/kubeovn/kube-ovn/test/lab"
	"github.com/kubeovn/kube-ovn/test/lab/fabric"
)

const (
	wholeIdentities = 5000
	wholeBackends   = 2

	oursWhole = "ours, from its container running until it holds all"
	bareNFT   = "nft -f of the same rules"
	bareBound = "nft -f, twice, and a second"
)

func wholeMeasure() bench.Measure {
	return bench.Measure{
		Name:     "control/gateway-restart",
		Title:    fmt.Sprintf("the pod of a gateway of %d identities is replaced", wholeIdentities),
		Unit:     "s",
		Rounds:   5,
		NoWarmUp: true,
		Aims:     []bench.Aim{{Of: oursWhole, Over: bareBound, Max: 1}},
		Prepare:  prepareWhole,
	}
}

// whole is a gateway of many identities. Their rules are made by hand: what a Service costs is no matter here.
type whole struct {
	*network

	gateway string
	want    map[sharenat.Identity]string
	rules   string // a file with what nft has
}

func prepareWhole(ctx context.Context, env *bench.Env) ([]bench.Side, func(context.Context) error, error) {
	n, err := quiet(ctx, env)
	if err != nil {
		return nil, nil, err
	}
	w := &whole{network: n, gateway: "whole", want: map[sharenat.Identity]string{}}
	if err := n.makeGateway(ctx, w.gateway, nth(gatewayAddress, 1)); err != nil {
		return nil, nil, err
	}
	env.Cleanup(func() { w.remove(context.WithoutCancel(ctx)) })
	if err := w.fill(ctx, env.Scaled(wholeIdentities)); err != nil {
		return nil, nil, err
	}
	if err := w.save(ctx); err != nil {
		return nil, nil, err
	}
	bare := &joint{round: w.load}
	sides := []bench.Side{{Name: oursWhole, Sample: w.restart}, bare.side(bareNFT, ""), bare.side(bareBound, "")}
	return sides, w.check, nil
}

// fill makes the identities' rules, as the controller leaves them, and waits until the gateway holds them.
func (w *whole) fill(ctx context.Context, identities int) error {
	if _, err := w.gatewayPod(ctx, w.gateway); err != nil {
		return err
	}
	addr, err := w.makeEIP(ctx, w.gateway, w.gateway)
	if err != nil {
		return err
	}
	var rules []*kubeovnv1.IptablesDnatRule
	for i := range identities {
		share := sharenat.Share{Identity: sharenat.Identity{EIP: addr, Port: uint16(1 + i), Protocol: "tcp"}} //nolint:gosec // a port
		for k := range wholeBackends {
			rule := w.rule(addr, i, k)
			parsed, err := sharenat.ParseRule(rule, addr)
			if err != nil {
				return err
			}
			share.Backends = append(share.Backends, parsed.Backend)
			rules = append(rules, rule)
		}
		share.Normalize()
		w.want[share.Identity] = share.Digest()
	}
	if err := w.plantRules(ctx, rules); err != nil {
		return fmt.Errorf("make rules: %w", err)
	}
	return w.check(ctx)
}

func (w *whole) rule(addr netip.Addr, identity, backend int) *kubeovnv1.IptablesDnatRule {
	port, now := strconv.Itoa(1+identity), metav1.Now()
	spec := kubeovnv1.IptablesDnatRuleSpec{
		EIP: w.gateway, ExternalPort: port, Protocol: "tcp", Type: sharenat.TypeShare,
		InternalIP: inVPC((identity + backend) % realBackends).String(), InternalPort: strconv.Itoa(answerPort),
	}
	return &kubeovnv1.IptablesDnatRule{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("whole-%d-%d", identity, backend), Finalizers: []string{sharenat.Finalizer},
			Labels: map[string]string{
				sharenat.GatewayLabel: w.gateway, sharenat.ExternalPortLabel: port, sharenat.EIPAddressLabel: addr.String(),
			},
			Annotations: map[string]string{sharenat.RuleEIPAnnotation: w.gateway},
		},
		Spec: spec,
		Status: kubeovnv1.IptablesDnatRuleStatus{
			Ready: true, V4ip: addr.String(), NatGwDp: w.gateway, Protocol: spec.Protocol, ExternalPort: port,
			InternalIP: spec.InternalIP, InternalPort: spec.InternalPort,
			Conditions: kubeovnv1.Conditions{{
				Type: kubeovnv1.Ready, Status: corev1.ConditionTrue, Reason: natgateway.ReasonProgrammed,
				ObservedGeneration: 1, LastUpdateTime: now, LastTransitionTime: now,
			}},
		},
	}
}

// check waits until the gateway holds exactly what is wanted.
func (w *whole) check(ctx context.Context) error {
	return poll(ctx, seldom, "the gateway to be whole", func(ctx context.Context) (bool, error) {
		pod, err := w.podOf(ctx, w.gateway)
		if err != nil {
			return false, err
		}
		listing, err := w.listing(ctx, pod)
		if err != nil || len(listing.Shares) != len(w.want) {
			return false, err
		}
		for id, digest := range w.want {
			if listing.Shares[id].Digest != digest {
				return false, nil
			}
		}
		return true, nil
	})
}

// save keeps the gateway's rules as nft lists them.
func (w *whole) save(ctx context.Context) error {
	pod, err := w.podOf(ctx, w.gateway)
	if err != nil {
		return err
	}
	args, err := w.lab.PodArgs(ctx, pod.Namespace, pod.Name, "nft", "list", "table", "ip", "kube-ovn")
	if err != nil {
		return err
	}
	rules, err := w.lab.Command(ctx, args).Output()
	if err != nil {
		return err
	}
	w.rules = filepath.Join(w.lab.Dir(), "whole.nft")
	return os.WriteFile(w.rules, rules, 0o600)
}

// restart replaces the gateway's pod.
func (w *whole) restart(ctx context.Context) ([]float64, error) {
	pod, err := w.podOf(ctx, w.gateway)
	if err != nil {
		return nil, err
	}
	pods := w.kube.CoreV1().Pods(pod.Namespace)
	events, err := pods.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + pod.Name, ResourceVersion: pod.ResourceVersion})
	if err != nil {
		return nil, err
	}
	defer events.Stop()
	if err := pods.Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil {
		return nil, err
	}
	for event := range events.ResultChan() {
		next, ok := event.Object.(*corev1.Pod)
		if !ok || next.UID == pod.UID || !slices.ContainsFunc(next.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.State.Running != nil }) {
			continue
		}
		return w.untilWhole(ctx, next, time.Now())
	}
	return nil, errors.New("no new pod was seen")
}

// untilWhole waits for the last transaction in a pod that began to run.
func (w *whole) untilWhole(ctx context.Context, pod *corev1.Pod, began time.Time) ([]float64, error) {
	namespace, err := lab.PodNetns(pod)
	if err != nil {
		return nil, err
	}
	k, err := watch(namespace)
	if err != nil {
		return nil, err
	}
	defer k.close()
	if _, err := w.gatewayPod(ctx, w.gateway); err != nil {
		return nil, err
	}
	err = until(ctx, "the new pod to be filled", func(ctx context.Context) (bool, error) {
		now, err := w.kube.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		return err == nil && now.UID == pod.UID && now.Annotations[sharenat.GatewayInitAnnotation] == "true", err
	})
	if err != nil {
		return nil, err
	}
	if err := w.check(ctx); err != nil {
		return nil, err
	}
	last := k.quietSince()
	if last.IsZero() {
		return nil, errors.New("no transaction was seen")
	}
	return []float64{last.Sub(began).Seconds()}, nil
}

// load has nft read the same rules, in a network namespace that has none.
func (w *whole) load(ctx context.Context) (map[string][]float64, error) {
	namespace, err := fabric.NewNamespace("bench-whole")
	if err != nil {
		return nil, err
	}
	defer func() { _ = namespace.Delete() }() // It goes with the room.
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, "nft", "-f", w.rules)
	cmd.Stderr = &said
	began := time.Now()
	err = namespace.Do(cmd.Start)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return nil, fmt.Errorf("nft -f: %w: %s", err, said.String())
	}
	took := time.Since(began).Seconds()
	return map[string][]float64{bareNFT: {took}, bareBound: {2*took + 1}}, nil
}

// remove takes the rules away, then the rest.
func (w *whole) remove(ctx context.Context) {
	ovn := w.ovn.KubeovnV1()
	_ = w.eraseRules(ctx, w.gateway+"-", len(w.want)*wholeBackends)
	_ = ovn.IptablesEIPs().Delete(ctx, w.gateway, metav1.DeleteOptions{})
	_ = ovn.VpcNatGateways().Delete(ctx, w.gateway, metav1.DeleteOptions{})
}
