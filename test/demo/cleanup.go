// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kubeovn/kube-ovn/test/lab"
	"github.com/kubeovn/kube-ovn/test/traffic"
)

// identityChain is a chain that nat-gateway.sh makes for an identity.
var identityChain = regexp.MustCompile(`\bdnat-[0-9a-f]{12}\b`)

func (d *demo) cleanup(ctx context.Context) error {
	for _, part := range []func(context.Context) error{d.letGo, d.deleteServices, d.deleteNetwork} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	d.good("nothing is left")
	return nil
}

// letGo shows that a Service can leave, and gives its address back.
func (d *demo) letGo(ctx context.Context) error {
	d.say("A Service without the annotation is not ours any more:")
	if err := d.kubectl(ctx, "annotate", "service/web", "-n", namespace, "ovn.kubernetes.io/eip-"); err != nil {
		return err
	}
	err := d.awaitService(ctx, "EXTERNAL-IP of Service web to be withdrawn", "web", func(ingress []any) bool { return len(ingress) == 0 })
	if err != nil {
		return err
	}
	if err := d.awaitNoRules(ctx, ownedBy("web")); err != nil {
		return err
	}
	if err := d.kubectl(ctx, "get", "services", "-n", namespace); err != nil {
		return err
	}
	result, err := traffic.Do[traffic.Spread](ctx, d.client(ctx, d.connections(webPort, 1)))
	if err != nil {
		return err
	}
	if result.OK > 0 {
		return fmt.Errorf("%s is still answered by %v", outside, result.Answers)
	}
	d.good("EXTERNAL-IP is withdrawn, and %s is not answered any more (%s)", outside, kinds(result.Failures.Kinds))
	return nil
}

func (d *demo) awaitNoRules(ctx context.Context, selector string) error {
	return d.await(ctx, "the rules to be gone", ruleResource, "", selector, func(rules []*unstructured.Unstructured) bool { return len(rules) == 0 })
}

func (d *demo) deleteServices(ctx context.Context) error {
	args := []string{"delete", "-f", manifests + "/40-service.yaml", "-f", manifests + "/30-web.yaml"}
	if !d.beside {
		args = append(args, "-f", manifests+"/50-service-clientip.yaml")
	}
	if err := d.kubectl(ctx, args...); err != nil {
		return err
	}
	if err := d.awaitNoRules(ctx, ""); err != nil {
		return err
	}
	if err := d.kubectl(ctx, "get", "iptables-dnat-rules"); err != nil {
		return err
	}
	if !d.beside {
		if err := d.listNothing(ctx); err != nil {
			return err
		}
	}
	argv, err := d.lab.GatewayArgs(ctx, gateway, "nft", "list", "ruleset")
	if err != nil {
		return err
	}
	ruleset, err := d.output(ctx, argv)
	if err != nil {
		return err
	}
	if chain := identityChain.FindString(ruleset); chain != "" {
		d.block(dim, ruleset)
		return fmt.Errorf("the gateway still has chain %s", chain)
	}
	d.good("no rule in the cluster, and no identity and none of their chains in the gateway")
	return nil
}

// listNothing has the gateway say that it holds nothing. Kube-OVN's own script has no word for it.
func (d *demo) listNothing(ctx context.Context) error {
	d.say("What the gateway holds by its own account:")
	argv := []string{"kubectl", "exec", "-n", lab.SystemNamespace, d.gatewayPodName(ctx), "--", "bash", "/kube-ovn/nat-gateway.sh", "nft-dnat-map-list"}
	d.command(argv)
	listing, err := d.output(ctx, argv)
	d.block("", listing)
	if err != nil {
		return err
	}
	for line := range strings.Lines(listing) {
		if kind, _, _ := strings.Cut(line, " "); kind == "identity" || kind == "stale" || kind == "dnat" {
			return fmt.Errorf("the gateway still has: %s", line)
		}
	}
	return nil
}

func (d *demo) deleteNetwork(ctx context.Context) error {
	err := d.kubectl(ctx, "delete", "--timeout="+patience.String(), "-f", manifests+"/20-gateway.yaml", "-f", manifests+"/10-vpc.yaml")
	if err != nil {
		return err
	}
	err = d.await(ctx, "the gateway's pod to be gone", podResource, lab.SystemNamespace, "ovn.kubernetes.io/vpc-nat-gw=true",
		func(pods []*unstructured.Unstructured) bool { return len(pods) == 0 })
	if err != nil {
		return err
	}
	d.say("What is there is what Kube-OVN comes with:")
	left, err := d.inventory(ctx)
	if err != nil {
		return err
	}
	d.block("", left)
	if left != d.before {
		return fmt.Errorf("that is not what there was before: %s", strings.Fields(d.before))
	}
	return nil
}
