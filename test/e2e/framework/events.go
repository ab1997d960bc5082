// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"slices"
	"strings"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// Events are the notes of the events about a Service that have a reason, each as often as it was told, sorted.
func (s *Scene) Events(ctx context.Context, service, reason string) ([]string, error) {
	list, err := s.Kube.EventsV1().Events(s.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=" + reason})
	if err != nil {
		return nil, err
	}
	var notes []string
	for i := range list.Items {
		event := &list.Items[i]
		if event.Regarding.Kind != "Service" || event.Regarding.Name != service {
			continue
		}
		times := 1
		if event.Series != nil {
			times = int(event.Series.Count)
		}
		notes = append(notes, slices.Repeat([]string{event.Note}, times)...)
	}
	slices.Sort(notes)
	return notes, nil
}

// WaitEvents waits until a Service has exactly as many events of a reason as there are texts, each with one of them in it.
func (s *Scene) WaitEvents(ctx context.Context, service, reason string, texts ...string) {
	GinkgoHelper()
	matchers := make([]any, len(texts))
	for i, text := range texts {
		matchers[i] = ContainSubstring(text)
	}
	Wait(ctx, func(ctx context.Context) ([]string, error) { return s.Events(ctx, service, reason) }).
		Should(ConsistOf(matchers...), "events %s of Service %s", reason, service)
}

// WaitTold waits until a Service has exactly one event of a reason with a text in it, whatever else it was told.
func (s *Scene) WaitTold(ctx context.Context, service, reason, text string) {
	GinkgoHelper()
	Wait(ctx, func(ctx context.Context) ([]string, error) {
		notes, err := s.Events(ctx, service, reason)
		return slices.DeleteFunc(notes, func(note string) bool { return !strings.Contains(note, text) }), err
	}).Should(HaveLen(1), "events %s of Service %s with %q", reason, service, text)
}

// Condition is a Service's condition of a type; the zero value when it has none.
func Condition(service *corev1.Service, conditionType string) metav1.Condition {
	if c := meta.FindStatusCondition(service.Status.Conditions, conditionType); c != nil {
		return *c
	}
	return metav1.Condition{}
}

// WaitPortErrors waits until a Service's status has these errors of its ports, "" for a port without.
func (s *Scene) WaitPortErrors(ctx context.Context, service string, wanted map[int32]string) {
	GinkgoHelper()
	Wait(ctx, func(g Gomega, ctx context.Context) {
		svc, err := s.Kube.CoreV1().Services(s.Namespace).Get(ctx, service, metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(svc.Status.LoadBalancer.Ingress).NotTo(BeEmpty(), "ingress of Service %s", service)
		errors := map[int32]string{}
		for _, port := range svc.Status.LoadBalancer.Ingress[0].Ports {
			errors[port.Port] = ""
			if port.Error != nil {
				errors[port.Port] = *port.Error
			}
		}
		g.Expect(errors).To(Equal(wanted), "ports of Service %s", service)
	}).Should(Succeed())
}

// RuleWatch has seen every rule that there was since it began, however short.
type RuleWatch struct {
	mu   sync.Mutex
	seen map[string]bool
}

// WatchRules begins to watch the rules of the scene's Services.
func (s *Scene) WatchRules(ctx context.Context) *RuleWatch {
	GinkgoHelper()
	watched := &RuleWatch{seen: map[string]bool{}}
	events, err := s.KubeOvn.KubeovnV1().IptablesDnatRules().Watch(ctx, metav1.ListOptions{
		LabelSelector: sharenat.OwnerNamespaceLabel + "=" + s.Namespace,
	})
	must(err, "watch rules")
	DeferCleanup(events.Stop)
	go func() {
		for event := range events.ResultChan() {
			if rule, ok := event.Object.(*kubeovnv1.IptablesDnatRule); ok {
				watched.mu.Lock()
				watched.seen[rule.Labels[sharenat.OwnerNameLabel]+" "+rule.Spec.ExternalPort+"/"+rule.Spec.Protocol] = true
				watched.mu.Unlock()
			}
		}
	}()
	return watched
}

// Of lists the ports, as "80/tcp", that a Service has had rules for.
func (w *RuleWatch) Of(service string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	ports := []string{}
	for seen := range w.seen {
		if port, ok := strings.CutPrefix(seen, service+" "); ok {
			ports = append(ports, port)
		}
	}
	slices.Sort(ports)
	return ports
}
