// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"github.com/kubeovn/kube-ovn/test/lab"
	"github.com/kubeovn/kube-ovn/test/lab/supervise"
)

const (
	// manifests is where the manifests are, below the top of the source tree.
	manifests = "test/demo/manifests"

	// The names in them.
	namespace = "demo"
	gateway   = "demo"

	// patience is how long a step waits for what should be there within seconds.
	patience = time.Minute
	// stepPatience bounds a step, which may wait several times.
	stepPatience = 3 * time.Minute
)

var (
	podResource  = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	svcResource  = schema.GroupVersionResource{Version: "v1", Resource: "services"}
	eipResource  = schema.GroupVersionResource{Group: "kubeovn.io", Version: "v1", Resource: "iptables-eips"}
	ruleResource = schema.GroupVersionResource{Group: "kubeovn.io", Version: "v1", Resource: "iptables-dnat-rules"}
)

// figure is a line of the summary.
type figure struct{ what, value string }

type demo struct {
	*console

	lab     *lab.Handle
	dynamic dynamic.Interface
	// beside says that Kube-OVN's own controller, or who stands in for it, runs the gateways. What it does not do is not shown, and
	// what is lost by it is counted.
	beside bool
	// before is what there was before the demo began.
	before string
	// address is the IptablesEIP's.
	address string
	figures []figure
}

func newDemo(handle *lab.Handle, console *console) (*demo, error) {
	client, err := dynamic.NewForConfig(handle.Config())
	if err != nil {
		return nil, err
	}
	return &demo{console: console, lab: handle, dynamic: client, beside: handle.BesideStock()}, nil
}

// step is one thing to show.
type step struct {
	title string
	do    func(context.Context) error
}

const affinityTitle = "ClientIP affinity, on a second Service at the same address"

func (d *demo) run(ctx context.Context) error {
	var err error
	if d.before, err = d.inventory(ctx); err != nil {
		return err
	}
	steps := []step{
		{"A VPC with a Subnet: the tenant's own network", d.network},
		{"Its NAT gateway, and an address for it", d.gateway},
		{"An application in the VPC: a Deployment of three Pods", d.application},
		{"A Service of type LoadBalancer, with one annotation", d.service},
		{"Who answers 60 connections", d.spread},
		{affinityTitle, d.affinity},
		{"Scaled from 3 to 6 to 2 under constant traffic", d.scale},
		{"The gateway's Pod is deleted", d.failover},
		{"All is cleaned up, and nothing is left", d.cleanup},
	}
	if d.beside {
		d.say("Beside Kube-OVN " + d.lab.StockRelease() + ", whose own controller, or rather a stand-in for it, runs the gateways. It does not know ClientIP affinity, so that is not shown.")
		steps = slices.DeleteFunc(steps, func(s step) bool { return s.title == affinityTitle })
	}
	for _, step := range steps {
		d.heading(step.title)
		began := time.Now()
		if err := within(ctx, step.do); err != nil {
			return err
		}
		d.block(dim, "("+seconds(time.Since(began))+")")
	}
	return nil
}

// within bounds a step: one that takes longer waits for what does not come, and says so while it can still be looked at.
func within(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, stepPatience, errors.New("the step took more than "+stepPatience.String()))
	defer cancel()
	return do(ctx)
}

func (d *demo) note(what, format string, args ...any) {
	d.figures = append(d.figures, figure{what, fmt.Sprintf(format, args...)})
}

func (d *demo) summary() {
	d.heading("In figures")
	var rows [][]string
	for _, f := range d.figures {
		rows = append(rows, []string{f.what, f.value})
	}
	d.table(rows)
}

// kubectl runs kubectl as a user would and shows it.
func (d *demo) kubectl(ctx context.Context, args ...string) error {
	argv := append([]string{"kubectl"}, args...)
	d.command(argv)
	out, err := d.output(ctx, argv)
	d.block("", out)
	return err
}

// output runs a command in the lab, at the top of the source tree.
func (d *demo) output(ctx context.Context, argv []string) (string, error) {
	cmd := d.lab.Command(ctx, argv)
	cmd.Dir = d.lab.Root()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, lastLine(out.String()))
	}
	return out.String(), nil
}

func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return text[strings.LastIndexByte(text, '\n')+1:]
}

// apply shows a manifest and applies it.
func (d *demo) apply(ctx context.Context, name string) error {
	path := filepath.Join(manifests, name)
	text, err := os.ReadFile(filepath.Join(d.lab.Root(), path))
	if err != nil {
		return err
	}
	_, shown, _ := strings.Cut(string(text), "\n") // without the license's line
	d.block(dim, shown)
	return d.kubectl(ctx, "apply", "-f", path)
}

// wait shows how a user waits for something.
func (d *demo) wait(ctx context.Context, condition string, args ...string) error {
	return d.kubectl(ctx, append([]string{"wait", "--for=" + condition, "--timeout=" + patience.String()}, args...)...)
}

// await waits until the objects of a kind, in a namespace ("": all) and with a label selector, are as they should be.
func (d *demo) await(ctx context.Context, what string, resource schema.GroupVersionResource, ns, selector string,
	fulfilled func([]*unstructured.Unstructured) bool,
) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errors.New("it took more than "+patience.String()))
	defer cancel()
	informer := dynamicinformer.NewFilteredDynamicInformer(d.dynamic, resource, ns, 0, cache.Indexers{},
		func(options *metav1.ListOptions) { options.LabelSelector = selector })
	changed := make(chan struct{}, 1)
	poke := func(any) {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	registration, err := informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: poke, UpdateFunc: func(_, object any) { poke(object) }, DeleteFunc: poke,
	})
	if err != nil {
		return err
	}
	go informer.Informer().Run(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		return fmt.Errorf("wait for %s: %w", what, context.Cause(ctx))
	}
	for {
		var objects []*unstructured.Unstructured
		for _, item := range informer.Informer().GetStore().List() {
			objects = append(objects, item.(*unstructured.Unstructured))
		}
		if fulfilled(objects) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, context.Cause(ctx))
		case <-changed:
		}
	}
}

// awaitService waits until a Service's ingress is as it should be.
func (d *demo) awaitService(ctx context.Context, what, name string, fulfilled func(ingress []any) bool) error {
	return d.await(ctx, what, svcResource, namespace, "", func(services []*unstructured.Unstructured) bool {
		for _, service := range services {
			if service.GetName() != name {
				continue
			}
			ingress, _, err := unstructured.NestedSlice(service.Object, "status", "loadBalancer", "ingress")
			return err == nil && fulfilled(ingress)
		}
		return false
	})
}

// inventory names all objects that the demo could leave behind.
func (d *demo) inventory(ctx context.Context) (string, error) {
	return d.output(ctx, []string{
		"kubectl", "get", "-A", "-o", "name",
		"namespaces,statefulsets,deployments,pods,services,vpcs,subnets,vpc-nat-gw,iptables-eips,iptables-dnat-rules",
	})
}

// ownedBy selects the rules of a Service.
func ownedBy(service string) string {
	return "ovn.kubernetes.io/nftable-lb-svc-ns=" + namespace + ",ovn.kubernetes.io/nftable-lb-svc-name=" + service
}

// awaitRules waits until a Service has so many rules and the gateway holds all of them.
func (d *demo) awaitRules(ctx context.Context, service string, count int) error {
	what := fmt.Sprintf("%d rules of Service %s to be in the gateway", count, service)
	return d.await(ctx, what, ruleResource, "", ownedBy(service), func(rules []*unstructured.Unstructured) bool {
		for _, rule := range rules {
			ready, _, err := unstructured.NestedBool(rule.Object, "status", "ready")
			if err != nil || !ready || rule.GetDeletionTimestamp() != nil {
				return false
			}
		}
		return len(rules) == count
	})
}

// pods waits until there are so many Pods of the application, none on its way out, and returns their names.
func (d *demo) pods(ctx context.Context, count int) ([]string, error) {
	var names []string
	what := fmt.Sprintf("%d Pods", count)
	err := d.await(ctx, what, podResource, namespace, "app=web", func(pods []*unstructured.Unstructured) bool {
		names = nil
		for _, pod := range pods {
			if pod.GetDeletionTimestamp() == nil {
				names = append(names, pod.GetName())
			}
		}
		return len(pods) == count && len(names) == count
	})
	return names, err
}

// explain shows what is needed to see why the demo failed. The lab's dump has the rest.
func (d *demo) explain(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	pod := d.gatewayPodName(ctx)
	for _, argv := range [][]string{
		{"get", "vpc-nat-gw,iptables-eips,iptables-dnat-rules", "-o", "wide"},
		{"get", "pods", "-A", "-o", "wide"},
		{"describe", "services", "-n", namespace},
		{"exec", "-n", lab.SystemNamespace, pod, "--", "bash", "/kube-ovn/nat-gateway.sh", "nft-dnat-map-list"},
		{"exec", "-n", lab.SystemNamespace, pod, "--", "nft", "list", "ruleset"},
	} {
		if err := d.kubectl(ctx, argv...); err != nil {
			d.block(red, err.Error())
		}
	}
	d.say("the end of kube-ovn-controller's log:")
	d.block(dim, supervise.Tail(d.lab.Log(lab.Controller), 30))
}

func (d *demo) gatewayPodName(ctx context.Context) string {
	pods, err := d.lab.GatewayPods(ctx, gateway)
	if err != nil || len(pods) == 0 {
		return "vpc-nat-gw-" + gateway + "-0"
	}
	return pods[0].Name
}
