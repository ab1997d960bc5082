// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kubeovn/kube-ovn/pkg/lbservice"
	"github.com/kubeovn/kube-ovn/test/lab"
	"github.com/kubeovn/kube-ovn/test/traffic"
)

const (
	// outside is a client of the external network, inside a Pod in the VPC.
	outside = "client1"
	inside  = "client"

	webPort    = 80
	stickyPort = 8000

	// connections is how many a client opens to see who answers.
	connections = 60
	// chance is how likely it is that connections spread evenly look uneven and fail the demo: once in 100,000 runs.
	chance = 1e-5
)

func (d *demo) network(ctx context.Context) error {
	if err := d.apply(ctx, "10-vpc.yaml"); err != nil {
		return err
	}
	return d.wait(ctx, "jsonpath={.status.standby}=true", "vpc/demo")
}

func (d *demo) gateway(ctx context.Context) error {
	if err := d.apply(ctx, "20-gateway.yaml"); err != nil {
		return err
	}
	if err := d.wait(ctx, "jsonpath={.status.ready}=true", "vpc-nat-gw/"+gateway, "iptables-eips/"+gateway); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"get", "pods", "-n", lab.SystemNamespace, "-l", "ovn.kubernetes.io/vpc-nat-gw=true", "-o", "wide"},
		{"get", "vpc-nat-gw,iptables-eips"},
	} {
		if err := d.kubectl(ctx, args...); err != nil {
			return err
		}
	}
	return d.await(ctx, "the EIP's address", eipResource, "", "", func(eips []*unstructured.Unstructured) bool {
		for _, eip := range eips {
			if eip.GetName() == gateway {
				d.address, _, _ = unstructured.NestedString(eip.Object, "status", "ip")
			}
		}
		return d.address != ""
	})
}

func (d *demo) application(ctx context.Context) error {
	if err := d.apply(ctx, "30-web.yaml"); err != nil {
		return err
	}
	if err := d.kubectl(ctx, "rollout", "status", "deployment/web", "-n", namespace, "--timeout="+patience.String()); err != nil {
		return err
	}
	if err := d.wait(ctx, "condition=Ready", "pod/"+inside, "-n", namespace); err != nil {
		return err
	}
	return d.kubectl(ctx, "get", "pods", "-n", namespace, "-o", "wide")
}

func (d *demo) service(ctx context.Context) error {
	// A client that tries all the time knows when the first answer comes.
	stream, err := traffic.Start[traffic.Stream](d.client(ctx, d.stream(100)))
	if err != nil {
		return err
	}
	if _, err := stream.Until(ctx, func(s traffic.Stream) bool { return s.Attempts > 0 }); err != nil {
		return err
	}
	applied := time.Now()
	var published time.Time
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error {
		err := d.awaitService(groupCtx, "an EXTERNAL-IP", "web", func(ingress []any) bool { return len(ingress) > 0 })
		published = time.Now()
		return err
	})
	if err := d.apply(ctx, "40-service.yaml"); err != nil {
		return err
	}
	if err := d.wait(ctx, "jsonpath={.status.loadBalancer.ingress[0].ip}", "service/web", "-n", namespace); err != nil {
		return err
	}
	if err := d.wait(ctx, "condition="+lbservice.ConditionReady, "service/web", "-n", namespace); err != nil {
		return err
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if _, err := stream.Until(ctx, func(s traffic.Stream) bool { return s.OK > 0 }); err != nil {
		return err
	}
	result, err := stream.Stop(ctx)
	if err != nil {
		return err
	}
	if err := d.awaitRules(ctx, "web", 3); err != nil {
		return err
	}
	if err := d.kubectl(ctx, "get", "services", "-n", namespace); err != nil {
		return err
	}
	if err := d.kubectl(ctx, "get", "iptables-dnat-rules", "-l", ownedBy("web")); err != nil {
		return err
	}
	address, answer := published.Sub(applied), result.Outages.First.Until.Sub(applied)
	d.good("EXTERNAL-IP %s after %s, first answer to %s after %s, kubectl apply included", d.address, seconds(address), outside, seconds(answer))
	d.note("Service applied, EXTERNAL-IP", "%s", seconds(address))
	d.note("Service applied, first answer", "%s", seconds(answer))
	return nil
}

func (d *demo) spread(ctx context.Context) error {
	pods, err := d.pods(ctx, 3)
	if err != nil {
		return err
	}
	fromOutside, err := traffic.Do[traffic.Spread](ctx, d.client(ctx, d.connections(webPort, connections)))
	if err != nil {
		return err
	}
	cmd, err := d.pod(ctx, d.connections(webPort, connections))
	if err != nil {
		return err
	}
	fromInside, err := traffic.Do[traffic.Spread](ctx, cmd)
	if err != nil {
		return err
	}
	slices.Sort(pods)
	rows := [][]string{{"who answered", "client outside", "client in the VPC"}}
	for _, pod := range pods {
		rows = append(rows, []string{pod, strconv.Itoa(fromOutside.Answers[pod]), strconv.Itoa(fromInside.Answers[pod])})
	}
	fits := []traffic.Fit{traffic.Even(fromOutside.Answers, pods), traffic.Even(fromInside.Answers, pods)}
	rows = append(rows,
		[]string{"no answer", strconv.Itoa(fromOutside.Failures.Count()), strconv.Itoa(fromInside.Failures.Count())},
		[]string{"chi-square, even", fmt.Sprintf("%.2f", fits[0].Statistic), fmt.Sprintf("%.2f", fits[1].Statistic)},
		[]string{"p", fmt.Sprintf("%.2f", fits[0].P), fmt.Sprintf("%.2f", fits[1].P)})
	d.table(rows)
	for i, result := range []traffic.Spread{fromOutside, fromInside} {
		if result.OK != connections {
			return fmt.Errorf("%d of %d connections were answered: %v", result.OK, connections, result.Failures)
		}
		if fits[i].P < chance {
			return fmt.Errorf("not an even spread: %s", fits[i])
		}
	}
	d.good("all answered, spread evenly over the three Pods")
	return nil
}

func (d *demo) affinity(ctx context.Context) error {
	if err := d.apply(ctx, "50-service-clientip.yaml"); err != nil {
		return err
	}
	if err := d.wait(ctx, "condition="+lbservice.ConditionReady, "service/web-sticky", "-n", namespace); err != nil {
		return err
	}
	if err := d.awaitRules(ctx, "web-sticky", 3); err != nil {
		return err
	}
	if err := d.kubectl(ctx, "get", "services", "-n", namespace); err != nil {
		return err
	}
	rows := [][]string{{"client", "connections", "answered by"}}
	for _, name := range append(slices.Clone(lab.Clients), inside) {
		cmd := d.netns(ctx, name, d.connections(stickyPort, 30))
		if name == inside {
			var err error
			if cmd, err = d.pod(ctx, d.connections(stickyPort, 30)); err != nil {
				return err
			}
		}
		result, err := traffic.Do[traffic.Spread](ctx, cmd)
		if err != nil {
			return err
		}
		rows = append(rows, []string{name, strconv.Itoa(result.Attempts), strings.Join(slices.Sorted(maps.Keys(result.Answers)), ", ")})
		if result.OK != 30 || len(result.Answers) != 1 {
			d.table(rows)
			return fmt.Errorf("%s did not stay with one Pod: %v, %v", name, result.Answers, result.Failures)
		}
	}
	d.table(rows)
	d.good("each client stays with the Pod that it first reached")
	return nil
}

func (d *demo) failover(ctx context.Context) error {
	before, err := d.lab.GatewayPods(ctx, gateway)
	if err != nil || len(before) != 1 {
		return fmt.Errorf("one gateway pod expected, not %d: %w", len(before), err)
	}
	stream, err := traffic.Start[traffic.Stream](d.client(ctx, d.stream(100)))
	if err != nil {
		return err
	}
	if _, err := stream.Until(ctx, func(s traffic.Stream) bool { return s.OK > 0 }); err != nil {
		return err
	}
	if err := d.kubectl(ctx, "delete", "pod", "-n", lab.SystemNamespace, before[0].Name, "--wait=false"); err != nil {
		return err
	}
	err = d.await(ctx, "a new gateway pod", podResource, lab.SystemNamespace, "ovn.kubernetes.io/vpc-nat-gw=true",
		func(pods []*unstructured.Unstructured) bool {
			return len(pods) == 1 && pods[0].GetUID() != before[0].UID && pods[0].GetAnnotations()["ovn.kubernetes.io/vpc_nat_gw_init"] == "true"
		})
	if err != nil {
		return err
	}
	if err := d.wait(ctx, "jsonpath={.status.ready}=true", "vpc-nat-gw/"+gateway); err != nil {
		return err
	}
	// A client repeats its first packet after a second, so that there may be no connection at all that went unanswered.
	replaced, err := stream.Now(ctx)
	if err != nil {
		return err
	}
	if _, err := stream.Until(ctx, func(s traffic.Stream) bool {
		return s.OK > replaced.OK+20 && (s.Outages.Last == nil || !s.Outages.Last.Until.IsZero())
	}); err != nil {
		return err
	}
	if err := d.kubectl(ctx, "get", "pods", "-n", lab.SystemNamespace, "-l", "ovn.kubernetes.io/vpc-nat-gw=true"); err != nil {
		return err
	}
	result, err := stream.Stop(ctx)
	if err != nil {
		return err
	}
	lost := fmt.Sprintf("%d of %d", result.Failed, result.Attempts)
	if result.Outages.Longest != nil {
		lost += fmt.Sprintf(" in %s (%s)", seconds(result.Outages.Longest.Length.Duration), kinds(result.Failures.Kinds))
	}
	d.good("connections lost while the Pod was replaced: %s; the slowest of the others was answered after %s", lost, seconds(result.Latency.Max.Duration))
	d.note("Gateway pod deleted: connections lost", "%s", lost)
	d.note("  the slowest of the others", "%s", seconds(result.Latency.Max.Duration))
	ports := []int{webPort, stickyPort}
	if d.beside {
		ports = ports[:1]
	}
	for _, port := range ports {
		after, err := traffic.Do[traffic.Spread](ctx, d.client(ctx, d.connections(port, 30)))
		if err != nil {
			return err
		}
		if after.OK != 30 {
			return fmt.Errorf("port %d after that: %d of 30 connections were answered: %v", port, after.OK, after.Failures)
		}
	}
	d.good("the new Pod serves what the old one did")
	return nil
}

// kinds lists failures by kind.
func kinds(counts map[traffic.Kind]int) string {
	var items []string
	for _, kind := range slices.Sorted(maps.Keys(counts)) {
		items = append(items, fmt.Sprintf("%s: %d", kind, counts[kind]))
	}
	return strings.Join(items, ", ")
}

// endpoint is a port of the address.
func (d *demo) endpoint(port int) traffic.Endpoint {
	return traffic.Endpoint{Target: net.JoinHostPort(d.address, strconv.Itoa(port))}
}

// connections is the command that opens some, one after the other.
func (d *demo) connections(port, count int) []string {
	return traffic.SpreadOptions{Endpoint: d.endpoint(port), Count: count}.Argv()
}

// stream is the command that opens so many a second to Service web, until it is told to end.
func (d *demo) stream(rate float64) []string {
	return append(traffic.StreamOptions{Endpoint: d.endpoint(webPort), Rate: rate}.Argv(), reportOften)
}

// reportOften has a command report ten times a second.
const reportOften = "--report=100ms"

// client makes a command run as the client outside.
func (d *demo) client(ctx context.Context, argv []string) *exec.Cmd {
	return d.netns(ctx, outside, argv)
}

// netns makes a command run as a client of the external network.
func (d *demo) netns(ctx context.Context, client string, argv []string) *exec.Cmd {
	return d.lab.Command(ctx, d.lab.ClientArgs(client, argv...))
}

// pod makes a command run as the client in the VPC.
func (d *demo) pod(ctx context.Context, argv []string) (*exec.Cmd, error) {
	args, err := d.lab.PodArgs(ctx, namespace, inside, argv...)
	if err != nil {
		return nil, err
	}
	return d.lab.Command(ctx, args), nil
}
