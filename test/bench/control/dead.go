// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
	"github.com/kubeovn/kube-ovn/test/bench"
	"github.com/kubeovn/kube-ovn/test/lab"
)

const (
	// living is how many gateways there are besides the one that dies, at full scale.
	living = 50
	// stagger is how far apart the changes of two gateways are.
	stagger = 80 * time.Millisecond

	oneDead  = "50 gateways, one more does not answer"
	allAlive = "50 gateways, one more is well"
)

func deadMeasure() bench.Measure {
	return bench.Measure{
		Name:     "control/one-dead",
		Title:    "a rule of each of 50 gateways changes, while a 51st hangs in a call, or does not",
		Unit:     "s",
		Rounds:   5,
		NoWarmUp: true,
		Aims:     []bench.Aim{{Of: oneDead, Over: allAlive, Max: 1.2, Percentile: 99}, {Of: oneDead, Over: allAlive, Max: 1.2}},
		Prepare:  prepareDead,
	}
}

// herd is many gateways, with a rule each. They are real; only their rules are made by hand.
type herd struct {
	*network

	names   []string
	pods    []*corev1.Pod
	kernels []*kernel
	changed int
}

func prepareDead(ctx context.Context, env *bench.Env) ([]bench.Side, func(context.Context) error, error) {
	n, err := quiet(ctx, env)
	if err != nil {
		return nil, nil, err
	}
	count := env.Scaled(living) + 1
	h := &herd{network: n, names: make([]string, count), pods: make([]*corev1.Pod, count), kernels: make([]*kernel, count)}
	env.Cleanup(func() { h.remove(context.WithoutCancel(ctx)) })
	if err := each(ctx, count, 8, h.make); err != nil {
		return nil, nil, err
	}
	sides := []bench.Side{
		{Name: oneDead, Sample: h.withOneDead},
		{Name: allAlive, Sample: h.round},
	}
	return sides, h.check, nil
}

// make makes one gateway, its EIP and its rule.
func (h *herd) make(ctx context.Context, i int) error {
	name := "herd-" + strconv.Itoa(i)
	h.names[i] = name
	if err := h.makeGateway(ctx, name, nth(gatewayAddress, 2+i)); err != nil {
		return err
	}
	var err error
	if h.pods[i], err = h.gatewayPod(ctx, name); err != nil {
		return err
	}
	if _, err := h.makeEIP(ctx, name, name); err != nil {
		return err
	}
	rule := &kubeovnv1.IptablesDnatRule{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: kubeovnv1.IptablesDnatRuleSpec{
			EIP: name, ExternalPort: "80", Protocol: "tcp", Type: sharenat.TypeShare,
			InternalIP: inVPC(0).String(), InternalPort: strconv.Itoa(answerPort),
		},
	}
	if _, err := h.ovn.KubeovnV1().IptablesDnatRules().Create(ctx, rule, metav1.CreateOptions{}); err != nil {
		return err
	}
	if err := h.ruleReady(ctx, name); err != nil {
		return err
	}
	namespace, err := lab.PodNetns(h.pods[i])
	if err != nil {
		return err
	}
	h.kernels[i], err = watch(namespace)
	return err
}

func (p *place) ruleReady(ctx context.Context, name string) error {
	return until(ctx, "rule "+name, func(ctx context.Context) (bool, error) {
		rule, err := p.ovn.KubeovnV1().IptablesDnatRules().Get(ctx, name, metav1.GetOptions{})
		return err == nil && rule.Status.Ready, err
	})
}

// round changes the rule of every gateway, the last one's too, and measures all but that.
func (h *herd) round(ctx context.Context) ([]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	h.changed++
	to := inVPC(h.changed % realBackends)
	last := len(h.names) - 1
	if err := h.retarget(ctx, last, to); err != nil {
		return nil, err
	}
	samples := make([]float64, last)
	err := each(ctx, last, last, func(ctx context.Context, i int) error {
		select {
		case <-time.After(time.Duration(i) * stagger):
		case <-ctx.Done():
			return ctx.Err()
		}
		seen := h.kernels[i].expect(h.changed, to)
		began := time.Now()
		if err := h.retarget(ctx, i, to); err != nil {
			return err
		}
		at, err := sight(ctx, h.names[i], seen)
		samples[i] = at.Sub(began).Seconds()
		return err
	})
	return samples, err
}

func (h *herd) retarget(ctx context.Context, i int, to netip.Addr) error {
	_, err := h.ovn.KubeovnV1().IptablesDnatRules().Patch(ctx, h.names[i], types.MergePatchType,
		fmt.Appendf(nil, `{"spec":{"internalIp":%q}}`, to), metav1.PatchOptions{})
	return err
}

// withOneDead makes every call in the last gateway hang: another process has its lock, for longer than a call may take.
func (h *herd) withOneDead(ctx context.Context) ([]float64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pod := h.pods[len(h.pods)-1]
	holding := h.lab.Command(ctx, []string{
		"kubectl", "exec", "-i", "-n", pod.Namespace, pod.Name, "--", "flock", "/etc/kube-ovn/nat-gateway.lock", "sh", "-c", "echo held; cat",
	})
	hands, err := holding.StdinPipe()
	if err != nil {
		return nil, err
	}
	said, err := holding.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := holding.Start(); err != nil {
		return nil, err
	}
	if _, err := said.Read(make([]byte, 5)); err != nil {
		return nil, fmt.Errorf("take the lock of %s: %w", pod.Name, err)
	}
	samples, err := h.round(ctx)
	_ = hands.Close()
	_ = holding.Wait() // It was only there to hold the lock.
	if err != nil {
		return nil, err
	}
	return samples, h.ruleReady(ctx, h.names[len(h.names)-1])
}

// check looks whether every gateway holds its rule.
func (h *herd) check(ctx context.Context) error {
	return each(ctx, len(h.names), 4, func(ctx context.Context, i int) error {
		return poll(ctx, seldom, "what "+h.names[i]+" holds", func(ctx context.Context) (bool, error) {
			rule, err := h.ovn.KubeovnV1().IptablesDnatRules().Get(ctx, h.names[i], metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			addr, err := netip.ParseAddr(rule.Status.V4ip)
			if err != nil {
				return false, err
			}
			parsed, err := sharenat.ParseRule(rule, addr)
			if err != nil {
				return false, err
			}
			share := sharenat.Share{Identity: parsed.Identity, Backends: []sharenat.Backend{parsed.Backend}}
			listing, err := h.listing(ctx, h.pods[i])
			return err == nil && listing.Shares[share.Identity].Digest == share.Digest(), err
		})
	})
}

// remove takes everything away again; what is not there was not made.
func (h *herd) remove(ctx context.Context) {
	for _, k := range h.kernels {
		if k != nil {
			k.close()
		}
	}
	ovn := h.ovn.KubeovnV1()
	_ = each(ctx, len(h.names), 8, func(ctx context.Context, i int) error {
		_ = ovn.IptablesDnatRules().Delete(ctx, h.names[i], metav1.DeleteOptions{})
		_ = ovn.IptablesEIPs().Delete(ctx, h.names[i], metav1.DeleteOptions{})
		return ovn.VpcNatGateways().Delete(ctx, h.names[i], metav1.DeleteOptions{})
	})
	_ = until(ctx, "the gateways to go", func(ctx context.Context) (bool, error) {
		list, err := ovn.VpcNatGateways().List(ctx, metav1.ListOptions{})
		return err == nil && len(list.Items) <= 1, err
	})
}
