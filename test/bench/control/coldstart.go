// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/test/bench"
	"github.com/kubeovn/kube-ovn/test/lab/controlplane"
)

const (
	// What the controller has in flight at once: rules that it makes, and statuses that it writes.
	serviceWrites = 16
	creators      = 4 * serviceWrites
	statusers     = 16

	oursCold  = "ours, from the start of the process until every rule is ready"
	plainCold = "a client that makes the same writes, as many at once"
	oursRules = "ours, writes of each rule"
)

func coldStartMeasure() bench.Measure {
	const rounds = 5
	return bench.Measure{
		Name: "control/cold-start",
		Title: fmt.Sprintf("kube-ovn-controller starts, and of %d Services of %d backends no rule is there; %d times, up to %d",
			bigServices/rounds, bigBackends, rounds, bigServices),
		Unit:     "s",
		Rounds:   rounds,
		NoWarmUp: true,
		Aims:     []bench.Aim{{Of: oursCold, Over: plainCold, Max: 1.3}, {Of: oursRules, Max: 2}},
		Prepare:  prepareColdStart,
	}
}

// coldStarts make the cluster a large one: each finds so many Services more.
type coldStarts struct {
	*network

	services int
	copies   *copies
	env      *bench.Env
	// What all rounds took, in seconds.
	ours, plain float64
	cpu         map[string][]cpu // by side
}

// note what a side took of the processors; times as much, where it was a part of the side.
func (c *coldStarts) note(side string, times float64, used cpu) {
	c.cpu[side] = append(c.cpu[side], cpu{machine: times * used.machine, server: times * used.server})
	var machine, server []float64
	for _, used := range c.cpu[side] {
		machine, server = append(machine, used.machine), append(server, used.server)
	}
	c.env.Note("CPU of all processes: "+side, bench.Median(machine), "s")
	c.env.Note("CPU of the API server: "+side, bench.Median(server), "s")
}

func prepareColdStart(ctx context.Context, env *bench.Env) ([]bench.Side, func(context.Context) error, error) {
	n, err := quiet(ctx, env)
	if err != nil {
		return nil, nil, err
	}
	if n.grown > 0 {
		return nil, nil, errors.New("the cluster is large already")
	}
	c := &coldStarts{network: n, services: max(1, env.Scaled(bigServices)/env.Rounds), env: env, cpu: map[string][]cpu{}}
	if c.copies, err = n.makeCopies(ctx); err != nil {
		return nil, nil, err
	}
	env.Cleanup(func() { _ = n.withProxy(context.WithoutCancel(ctx)) })
	if err := n.withoutProxy(ctx); err != nil {
		return nil, nil, err
	}
	ours := &joint{round: c.start}
	sides := []bench.Side{ours.side(oursCold, ""), {Name: plainCold, Sample: c.write}, ours.side(oursRules, "writes")}
	return sides, c.check, nil
}

func (c *coldStarts) start(ctx context.Context) (map[string][]float64, error) {
	s, err := c.growBy(ctx, c.env, c.services)
	if err != nil {
		return nil, err
	}
	c.note(oursCold, 1, s.cpu)
	c.ours += s.took.Seconds()
	return map[string][]float64{oursCold: {s.took.Seconds()}, oursRules: {s.writes}}, nil
}

// write makes a part of the writes: all would take minutes.
func (c *coldStarts) write(ctx context.Context) ([]float64, error) {
	const part = 4
	before, err := c.network.cpu(ctx)
	if err != nil {
		return nil, err
	}
	took, err := c.copies.write(ctx, c.services*bigBackends/part)
	if err != nil {
		return nil, err
	}
	after, err := c.network.cpu(ctx)
	if err != nil {
		return nil, err
	}
	c.note(plainCold, part, after.since(before))
	c.plain += part * took.Seconds()
	return []float64{part * took.Seconds()}, nil
}

func (c *coldStarts) check(ctx context.Context) error {
	title := fmt.Sprintf("all %d Services: ", c.grown)
	c.env.Note(title+"ours", c.ours, "s")
	c.env.Note(title+"the same writes, of which a quarter was made", c.plain, "s")
	return c.verifyBig(ctx)
}

// copies are rules of another kind with the same schema, which nobody watches.
type copies struct {
	client rest.Interface
	made   int
}

const (
	copiesGroup    = "bench.kubeovn.io"
	copiesResource = "copied-dnat-rules"
)

func (n *network) makeCopies(ctx context.Context) (*copies, error) {
	if n.copies != nil {
		return n.copies, nil
	}
	definitions, err := apiextensionsclient.NewForConfig(n.config)
	if err != nil {
		return nil, err
	}
	crds := definitions.CustomResourceDefinitions()
	original, err := crds.Get(ctx, "iptables-dnat-rules.kubeovn.io", metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	crd := &apiextensions.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: copiesResource + "." + copiesGroup}, Spec: *original.Spec.DeepCopy()}
	crd.Spec.Group = copiesGroup
	crd.Spec.Names = apiextensions.CustomResourceDefinitionNames{Plural: copiesResource, Singular: "copied-dnat-rule", Kind: "CopiedDnatRule", ListKind: "CopiedDnatRuleList"}
	if _, err := crds.Create(ctx, crd, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	config := rest.CopyConfig(n.config)
	config.GroupVersion = &schema.GroupVersion{Group: copiesGroup, Version: "v1"}
	config.APIPath, config.NegotiatedSerializer = "/apis", scheme.Codecs.WithoutConversion()
	c := &copies{}
	if c.client, err = rest.RESTClientFor(config); err != nil {
		return nil, err
	}
	n.copies = c
	return c, until(ctx, "the copies' kind", func(ctx context.Context) (bool, error) {
		return c.client.Get().Resource(copiesResource).Do(ctx).Error() == nil, nil
	})
}

// write makes so many rules and writes the status of each, as the controller would.
func (c *copies) write(ctx context.Context, count int) (time.Duration, error) {
	first := c.made
	c.made += count
	began := time.Now()
	made := make(chan string, count)
	group, writing := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer close(made)
		return each(writing, count, creators, func(ctx context.Context, i int) error {
			name, err := c.post(ctx, first+i)
			if err == nil {
				made <- name
			}
			return err
		})
	})
	for range statusers {
		group.Go(func() error {
			for name := range made {
				err := c.client.Patch(types.MergePatchType).Resource(copiesResource).Name(name).SubResource("status").Body(copiedStatus).Do(writing).Error()
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return 0, err
	}
	took := time.Since(began)
	// What they take in the API server would slow down what comes next.
	_, err := controlplane.Erase(ctx, "/registry/"+copiesGroup+"/"+copiesResource+"/")
	return took, err
}

// create makes so many rules, as many at once as the controller does for one Service.
func (c *copies) create(ctx context.Context, count int) (time.Duration, error) {
	first := c.made
	c.made += count
	began := time.Now()
	err := each(ctx, count, serviceWrites, func(ctx context.Context, i int) error {
		_, err := c.post(ctx, first+i)
		return err
	})
	return time.Since(began), err
}

// post makes one rule, and gives its name.
func (c *copies) post(ctx context.Context, i int) (string, error) {
	rule := copyOf(i)
	data, err := json.Marshal(rule)
	if err != nil {
		return "", err
	}
	return rule.Name, c.client.Post().Resource(copiesResource).Body(data).Do(ctx).Error()
}

// copyOf is like the rules that the controller makes.
func copyOf(i int) *kubeovnv1.IptablesDnatRule {
	return &kubeovnv1.IptablesDnatRule{
		TypeMeta: metav1.TypeMeta{APIVersion: copiesGroup + "/v1", Kind: "CopiedDnatRule"},
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("lb-cold-%012x", i),
			Labels: map[string]string{
				"ovn.kubernetes.io/nftable-lb-svc-ns": "bench", "ovn.kubernetes.io/nftable-lb-svc-name": "cold-1", "ovn.kubernetes.io/vpc-nat-gw-name": "bench",
				"ovn.kubernetes.io/vpc_dnat_eport": "1000", "ovn.kubernetes.io/eip_v4_ip": "203.0.113.10",
			},
			Annotations: map[string]string{
				"ovn.kubernetes.io/vpc_eip": "big-0", "ovn.kubernetes.io/nftable-lb-svc-source-ip": "masquerade",
				"ovn.kubernetes.io/nftable-lb-svc-pod-uid": "4b4e9a0e-4b0e-4e0e-8b0e-0e4b4e9a0e4b",
			},
			Finalizers: []string{"kubeovn.io/kube-ovn-controller"},
		},
		Spec: kubeovnv1.IptablesDnatRuleSpec{
			EIP: "big-0", ExternalPort: "1000", Protocol: "tcp", InternalIP: nth(vpcBackends, i%bigPods).String(), InternalPort: "9100", Type: "share",
		},
	}
}

var copiedStatus = []byte(`{"status":{"ready":true,"v4ip":"203.0.113.10","natGwDp":"bench","protocol":"tcp","externalPort":"1000",` +
	`"internalIp":"10.1.128.1","internalPort":"9100","conditions":[{"type":"Ready","status":"True","reason":"Programmed",` +
	`"observedGeneration":1,"lastUpdateTime":"2026-01-01T00:00:00Z","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`)
