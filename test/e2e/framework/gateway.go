// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
	"github.com/kubeovn/kube-ovn/test/lab/stock"
)

// script is nat-gateway.sh in a gateway pod.
const script = "/kube-ovn/nat-gateway.sh"

// GatewayPods waits until a gateway has so many ready pods and returns them by name.
func (c *Cluster) GatewayPods(ctx context.Context, gateway string, count int) []corev1.Pod {
	GinkgoHelper()
	var pods []corev1.Pod
	Wait(ctx, func(g Gomega, ctx context.Context) {
		list, err := c.Kube.CoreV1().Pods("").List(ctx, metav1.ListOptions{LabelSelector: "ovn.kubernetes.io/vpc-nat-gw=true"})
		g.Expect(err).NotTo(HaveOccurred())
		pods = slices.DeleteFunc(list.Items, func(pod corev1.Pod) bool {
			return pod.Annotations[sharenat.GatewayPodAnnotation] != gateway || !isReady(&pod)
		})
		g.Expect(pods).To(HaveLen(count), "ready pods of VpcNatGateway %s", gateway)
	}).Should(Succeed())
	slices.SortFunc(pods, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return pods
}

// GatewayPod is the only pod of a gateway.
func (c *Cluster) GatewayPod(ctx context.Context, gateway string) *corev1.Pod {
	GinkgoHelper()
	return &c.GatewayPods(ctx, gateway, 1)[0]
}

// Script runs a verb of nat-gateway.sh in a gateway pod.
func (c *Cluster) Script(ctx context.Context, pod *corev1.Pod, stdin, verb string, args ...string) (string, error) {
	return c.Exec(ctx, pod, strings.NewReader(stdin), append([]string{"bash", script, verb}, args...)...)
}

// Listing is what a gateway pod says it holds; where only Kube-OVN's own script is in it, which says nothing, the identities that nft
// has there.
func (c *Cluster) Listing(ctx context.Context, pod *corev1.Pod) (*sharenat.Listing, error) {
	text, err := c.Script(ctx, pod, "", sharenat.ListVerb)
	var execErr *ExecError
	if errors.As(err, &execErr) && strings.HasPrefix(execErr.Stderr, "Usage: ") {
		return c.stockListing(ctx, pod)
	}
	if err != nil {
		return nil, err
	}
	return sharenat.ParseListing(strings.NewReader(text))
}

func (c *Cluster) stockListing(ctx context.Context, pod *corev1.Pod) (*sharenat.Listing, error) {
	text, err := c.Exec(ctx, pod, nil, "bash", "-c", "nft list tables | grep -q kube-ovn || exit 0; nft -n -T list table ip kube-ovn")
	if err != nil {
		return nil, err
	}
	shares, err := stock.Shares(text)
	if err != nil {
		return nil, err
	}
	listing := &sharenat.Listing{Shares: map[sharenat.Identity]sharenat.Holding{}}
	for i := range shares {
		listing.Shares[shares[i].Identity] = sharenat.Holding{Digest: shares[i].Digest(), Backends: len(shares[i].Backends)}
	}
	return listing, nil
}

// ShareOf is an identity with backends that all have the same port, in its canonical form.
func ShareOf(eip netip.Addr, port corev1.ServicePort, backends []netip.Addr) sharenat.Share {
	GinkgoHelper()
	protocol, err := sharenat.ParseProtocol(string(port.Protocol))
	must(err, "protocol of port %s", port.Name)
	share := sharenat.Share{Identity: sharenat.Identity{EIP: eip, Port: uint16(port.Port), Protocol: protocol}}
	for _, backend := range backends {
		share.Backends = append(share.Backends, sharenat.Backend{Addr: netip.AddrPortFrom(backend, uint16(port.TargetPort.IntVal))})
	}
	share.Normalize()
	return share
}

// Masqueraded has the gateway put its own address in place of the clients'.
func Masqueraded(share sharenat.Share) sharenat.Share {
	share.Backends = slices.Clone(share.Backends)
	for i := range share.Backends {
		share.Backends[i].Masquerade = true
	}
	return share
}

// WaitHolds waits until a gateway pod holds exactly these identities on an EIP, to the last backend, and nothing stale.
func (c *Cluster) WaitHolds(ctx context.Context, pod *corev1.Pod, eip netip.Addr, shares ...sharenat.Share) {
	GinkgoHelper()
	wanted := map[string]string{}
	for i := range shares {
		wanted[shares[i].String()] = holding(shares[i].Digest(), len(shares[i].Backends))
	}
	Wait(ctx, func(g Gomega, ctx context.Context) {
		listing, err := c.Listing(ctx, pod)
		g.Expect(err).NotTo(HaveOccurred())
		held := map[string]string{}
		for id, share := range listing.Shares {
			if id.EIP == eip {
				held[id.String()] = holding(share.Digest, share.Backends)
			}
		}
		g.Expect(held).To(Equal(wanted), "identities of %s in gateway pod %s", eip, pod.Name)
		g.Expect(listing.Stale).To(BeZero(), "stale objects in gateway pod %s", pod.Name)
	}).WithPolling(4 * Poll).Should(Succeed())
}

func holding(digest string, backends int) string {
	return fmt.Sprintf("%s, %d backends", digest, backends)
}

// Ruleset is all that nft has in a gateway pod, a line an object. What differs between two looks without anybody having
// changed a thing is not in it: counters, what is left of timeouts, and the order of a set's elements.
func (c *Cluster) Ruleset(ctx context.Context, pod *corev1.Pod) []string {
	GinkgoHelper()
	text, err := c.Exec(ctx, pod, nil, "nft", "-j", "list", "ruleset")
	must(err, "list the ruleset of %s", pod.Name)
	var ruleset struct{ Nftables []any }
	must(json.Unmarshal([]byte(text), &ruleset), "read the ruleset of %s", pod.Name)
	var lines []string
	for _, object := range ruleset.Nftables {
		lines = append(lines, toJSON(steady(object)))
	}
	return lines
}

// steady takes out of a ruleset what changes by itself.
func steady(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for _, key := range []string{"packets", "bytes", "expires"} {
			delete(v, key)
		}
		for key, item := range v {
			v[key] = steady(item)
			if elements, ok := v[key].([]any); ok && key == "elem" {
				slices.SortFunc(elements, func(a, b any) int { return strings.Compare(toJSON(a), toJSON(b)) })
			}
		}
	case []any:
		for i := range v {
			v[i] = steady(v[i])
		}
	}
	return value
}

func toJSON(value any) string {
	text, err := json.Marshal(value)
	must(err, "encode what was decoded")
	return string(text)
}
