// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
	"github.com/kubeovn/kube-ovn/test/lab/fabric"
)

// Scene is what one spec makes. Its names are its own, and all of it is gone before the spec has ended.
type Scene struct {
	*Cluster

	// Name begins the name of everything in the scene. Namespace is the scene's.
	Name      string
	Namespace string

	// outside are the clients of the external network so far.
	outside []Client

	mu     sync.Mutex
	things []thing
}

// thing is an object of the scene, by what takes it away and what tells that it is there.
type thing struct {
	what   string
	remove func(context.Context) error
	// check returns a NotFound error once the object is gone; nil: nobody waits for that.
	check func(context.Context) error
}

// NewScene makes an empty scene.
func (c *Cluster) NewScene(ctx context.Context) *Scene {
	GinkgoHelper()
	name := fmt.Sprintf("e2e-%d-%s", GinkgoParallelProcess(), rand.String(4))
	s := &Scene{Cluster: c, Name: name, Namespace: name}
	DeferCleanup(s.clean)
	s.MakeNamespace(ctx, name)
	return s
}

// MakeNamespace makes a namespace, which is removed with the scene.
func (s *Scene) MakeNamespace(ctx context.Context, name string) {
	GinkgoHelper()
	namespaces := s.Kube.CoreV1().Namespaces()
	_, err := namespaces.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	must(err, "create namespace %s", name)
	s.track("namespace "+name, deletion(namespaces, name), nil)
	// Pods are refused before their namespace has its service account.
	Wait(ctx, func(ctx context.Context) error {
		_, err := s.Kube.CoreV1().ServiceAccounts(name).Get(ctx, "default", metav1.GetOptions{})
		return err
	}).Should(Succeed())
}

// deleter is the part of a typed client that takes an object away.
type deleter interface {
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

func deletion(client deleter, name string) func(context.Context) error {
	return func(ctx context.Context) error { return client.Delete(ctx, name, metav1.DeleteOptions{}) }
}

// track has an object removed with the scene.
func (s *Scene) track(what string, remove, check func(context.Context) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.things = append(s.things, thing{what, remove, check})
}

// getter is the part of a typed client that finds an object.
type getter[T any] interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (T, error)
}

func presence[T any](client getter[T], name string) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := client.Get(ctx, name, metav1.GetOptions{})
		return err
	}
}

// clean takes everything away, the last that came first, and waits until the gateways have let go of it.
func (s *Scene) clean(ctx context.Context) {
	GinkgoHelper()
	for _, t := range slices.Backward(s.things) {
		if err := t.remove(ctx); err != nil && !apierrors.IsNotFound(err) {
			Expect(err).NotTo(HaveOccurred(), "remove %s", t.what)
		}
	}
	for _, t := range slices.Backward(s.things) {
		if t.check != nil {
			Wait(ctx, t.check).Should(MatchError(apierrors.IsNotFound, "NotFound"), "%s should be gone", t.what)
		}
	}
	Wait(ctx, func(g Gomega, ctx context.Context) {
		rules, err := s.KubeOvn.KubeovnV1().IptablesDnatRules().List(ctx,
			metav1.ListOptions{LabelSelector: sharenat.OwnerNamespaceLabel + "=" + s.Namespace})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(names(rules.Items)).To(BeEmpty(), "rules should be gone with their Services")
	}).Should(Succeed())
	s.nothingRefused(ctx)
}

// nothingRefused looks whether all that the scene made was such as stock Kube-OVN takes: a network that it refuses proves
// nothing to its users. Of rules made by hand some are bad on purpose.
func (s *Scene) nothingRefused(ctx context.Context) {
	GinkgoHelper()
	events, err := s.Kube.CoreV1().Events(metav1.NamespaceDefault).List(ctx,
		metav1.ListOptions{FieldSelector: "type=Warning,reason=" + fabric.ReasonRefused})
	must(err, "list events")
	for _, event := range events.Items {
		if about := event.InvolvedObject; strings.HasPrefix(about.Name, s.Name+"-") && about.Kind != "IptablesDnatRule" {
			Expect(event.Message).To(BeEmpty(), "%s %s was refused", about.Kind, about.Name)
		}
	}
}
