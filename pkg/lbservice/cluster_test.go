// SPDX-License-Identifier: Apache-2.0

package lbservice

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	ovnfake "github.com/kubeovn/kube-ovn/pkg/client/clientset/versioned/fake"
	"github.com/kubeovn/kube-ovn/pkg/client/informers/externalversions"
	"github.com/kubeovn/kube-ovn/pkg/latency"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// cluster is a fake API server with a controller on it. It runs in a synctest bubble, so that settle is exact and takes no time.
//
// Beyond the fake clientsets it does what the controller relies on: resource versions and UIDs, preconditions, finalizers.
type cluster struct {
	t        *testing.T
	kube     *kubefake.Clientset
	ovn      *ovnfake.Clientset
	recorder *events.FakeRecorder
	registry *prometheus.Registry
	c        *Controller

	mu      sync.Mutex
	version int
	// fail, when set, may refuse a write before it is made.
	fail func(action clienttesting.Action) error
	// handler finishes the deletion of rules and makes rules ready at once, as a gateway handler does.
	handler bool
	// onRules is called with all rules after each change of one.
	onRules func([]*kubeovnv1.IptablesDnatRule)
}

var rulesGVR = kubeovnv1.SchemeGroupVersion.WithResource("iptables-dnat-rules")

// inCluster runs a test in a bubble, with the objects of the address plan and those given in the API server before the controller starts.
func inCluster(t *testing.T, objects []runtime.Object, test func(*cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cl := &cluster{t: t, kube: kubefake.NewSimpleClientset(), ovn: ovnfake.NewSimpleClientset(), recorder: events.NewFakeRecorder(10000), handler: true, registry: prometheus.NewRegistry()}
		cl.serve(&cl.kube.Fake, cl.kube.Tracker())
		cl.serve(&cl.ovn.Fake, cl.ovn.Tracker())
		for _, obj := range objects {
			cl.put(obj)
		}
		kubeInformers := informers.NewSharedInformerFactory(cl.kube, 0)
		ovnInformers := externalversions.NewSharedInformerFactory(cl.ovn, 0)
		tracker, err := latency.NewTracker(cl.registry)
		if err != nil {
			t.Fatal(err)
		}
		cl.c, err = New(Options{
			KubeClient: cl.kube, KubeOvnClient: cl.ovn, KubeInformers: kubeInformers, KubeOvnInformers: ovnInformers, Recorder: cl.recorder,
			Metrics: NewMetrics(cl.registry), Latency: tracker, Abilities: AllAbilities,
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), klog.Logger{}))
		kubeInformers.Start(ctx.Done())
		ovnInformers.Start(ctx.Done())
		done := make(chan error, 1)
		go func() { done <- cl.c.Run(ctx, 4) }()
		defer func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
			kubeInformers.Shutdown()
			ovnInformers.Shutdown()
			cl.checkVerbs()
		}()
		cl.settle()
		test(cl)
	})
}

// plan is the EIPs, gateways and Subnets of the address plan.
func plan(more ...runtime.Object) []runtime.Object {
	return append([]runtime.Object{
		newEIP(eipA, eipAddrA, gwA), newEIP(eipB, eipAddrB, gwB), newGateway(gwA, vpcA), newGateway(gwB, vpcB),
		newSubnet("ovn-default", sharenat.DefaultVPC, "ovn"), newSubnet("sub-a", vpcA, "ovn"), newSubnet("sub-a2", vpcA, "ovn"), newSubnet("sub-b", vpcB, "ovn"),
	}, more...)
}

// settle waits until every goroutine of the bubble waits, that is, until nothing is left to do. It lets pass the time that readiness is
// gathered for, and less than any retry takes: what needs one does not happen in here.
func (cl *cluster) settle() {
	cl.t.Helper()
	synctest.Wait()
	time.Sleep((readyDelay + minBackoff) / 2) // virtual
	synctest.Wait()
}

func (cl *cluster) nextVersion() string {
	cl.version++
	return strconv.Itoa(cl.version)
}

func (cl *cluster) serve(fake *clienttesting.Fake, tracker clienttesting.ObjectTracker) {
	fake.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		cl.mu.Lock()
		defer cl.mu.Unlock()
		switch action.GetVerb() {
		case "create", "patch", "delete":
			if cl.fail != nil {
				if err := cl.fail(action); err != nil {
					return true, nil, err
				}
			}
		}
		gvr, namespace := action.GetResource(), action.GetNamespace()
		switch a := action.(type) {
		case clienttesting.CreateActionImpl:
			obj := a.GetObject().DeepCopyObject()
			o, err := meta.Accessor(obj)
			if err != nil {
				return true, nil, err
			}
			o.SetUID(types.UID(fmt.Sprintf("uid-%s-%d", o.GetName(), cl.version)))
			o.SetResourceVersion(cl.nextVersion())
			cl.handle(obj)
			err = tracker.Create(gvr, obj, namespace)
			cl.changed(gvr)
			return true, obj, err
		case clienttesting.PatchActionImpl:
			obj, err := cl.patch(tracker, a)
			cl.changed(gvr)
			return true, obj, err
		case clienttesting.DeleteActionImpl:
			err := cl.delete(tracker, gvr, namespace, a.Name, a.DeleteOptions.Preconditions)
			cl.changed(gvr)
			return true, nil, err
		}
		return false, nil, nil
	})
}

func (cl *cluster) patch(tracker clienttesting.ObjectTracker, a clienttesting.PatchActionImpl) (runtime.Object, error) {
	obj, err := tracker.Get(a.GetResource(), a.GetNamespace(), a.GetName())
	if err != nil {
		return nil, err
	}
	o, err := meta.Accessor(obj)
	if err != nil {
		return nil, err
	}
	var precondition struct{ Metadata metav1.ObjectMeta }
	if err := json.Unmarshal(a.GetPatch(), &precondition); err != nil {
		return nil, err
	}
	p := precondition.Metadata
	if p.UID != "" && p.UID != o.GetUID() || p.ResourceVersion != "" && p.ResourceVersion != o.GetResourceVersion() {
		return nil, apierrors.NewConflict(a.GetResource().GroupResource(), a.GetName(), fmt.Errorf("precondition"))
	}
	// The default reaction patches a copy in a tracker of its own, so that watchers see the change once, with its version.
	scratch := clienttesting.NewObjectTracker(patchScheme, patchCodecs.UniversalDecoder())
	if err := scratch.Create(a.GetResource(), obj, a.GetNamespace()); err != nil {
		return nil, err
	}
	_, patched, err := clienttesting.ObjectReaction(scratch)(a)
	if err != nil {
		return nil, err
	}
	if o, err = meta.Accessor(patched); err != nil {
		return nil, err
	}
	o.SetResourceVersion(cl.nextVersion())
	cl.handle(patched)
	return patched, tracker.Update(a.GetResource(), patched, a.GetNamespace())
}

func (cl *cluster) delete(tracker clienttesting.ObjectTracker, gvr schema.GroupVersionResource, namespace, name string, pre *metav1.Preconditions) error {
	obj, err := tracker.Get(gvr, namespace, name)
	if err != nil {
		return err
	}
	o, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	if pre != nil && pre.UID != nil && *pre.UID != o.GetUID() {
		return apierrors.NewConflict(gvr.GroupResource(), name, fmt.Errorf("precondition"))
	}
	if len(o.GetFinalizers()) == 0 || cl.handler && gvr == rulesGVR {
		return tracker.Delete(gvr, namespace, name)
	}
	if o.GetDeletionTimestamp() == nil {
		o.SetDeletionTimestamp(&metav1.Time{Time: testTime.Time})
		o.SetResourceVersion(cl.nextVersion())
		return tracker.Update(gvr, obj, namespace)
	}
	return nil
}

// handle makes a rule ready as a gateway handler would, without a write of its own.
func (cl *cluster) handle(obj runtime.Object) {
	if rule, ok := obj.(*kubeovnv1.IptablesDnatRule); ok && cl.handler {
		rule.Status.Ready = true
	}
}

func (cl *cluster) changed(gvr schema.GroupVersionResource) {
	if gvr == rulesGVR && cl.onRules != nil {
		cl.onRules(cl.listRules())
	}
}

// put creates or replaces an object, as its user would.
func (cl *cluster) put(obj runtime.Object) {
	cl.t.Helper()
	cl.mu.Lock()
	defer cl.mu.Unlock()
	cl.putLocked(obj)
}

func (cl *cluster) putLocked(obj runtime.Object) {
	cl.t.Helper()
	o, err := meta.Accessor(obj)
	if err != nil {
		cl.t.Fatal(err)
	}
	o.SetResourceVersion(cl.nextVersion())
	tracker, gvr := cl.trackerOf(obj)
	write := func() error { return tracker.Update(gvr, obj, o.GetNamespace()) }
	if _, err := tracker.Get(gvr, o.GetNamespace(), o.GetName()); apierrors.IsNotFound(err) {
		write = func() error { return tracker.Create(gvr, obj, o.GetNamespace()) }
	}
	if err := write(); err != nil {
		cl.t.Fatal(err)
	}
	cl.changed(gvr)
}

// remove deletes an object, finalizers or not.
func (cl *cluster) remove(obj runtime.Object) {
	cl.t.Helper()
	cl.mu.Lock()
	defer cl.mu.Unlock()
	cl.removeLocked(obj)
}

func (cl *cluster) removeLocked(obj runtime.Object) {
	cl.t.Helper()
	o, err := meta.Accessor(obj)
	if err != nil {
		cl.t.Fatal(err)
	}
	tracker, gvr := cl.trackerOf(obj)
	if err := tracker.Delete(gvr, o.GetNamespace(), o.GetName()); err != nil {
		cl.t.Fatal(err)
	}
	cl.changed(gvr)
}

func (cl *cluster) trackerOf(obj runtime.Object) (clienttesting.ObjectTracker, schema.GroupVersionResource) {
	switch obj.(type) {
	case *corev1.Service:
		return cl.kube.Tracker(), corev1.SchemeGroupVersion.WithResource("services")
	case *corev1.Pod:
		return cl.kube.Tracker(), corev1.SchemeGroupVersion.WithResource("pods")
	case *discoveryv1.EndpointSlice:
		return cl.kube.Tracker(), discoveryv1.SchemeGroupVersion.WithResource("endpointslices")
	case *kubeovnv1.IptablesDnatRule:
		return cl.ovn.Tracker(), rulesGVR
	case *kubeovnv1.IptablesEIP:
		return cl.ovn.Tracker(), kubeovnv1.SchemeGroupVersion.WithResource("iptables-eips")
	case *kubeovnv1.IptablesFIPRule:
		return cl.ovn.Tracker(), kubeovnv1.SchemeGroupVersion.WithResource("iptables-fip-rules")
	case *kubeovnv1.VpcNatGateway:
		return cl.ovn.Tracker(), kubeovnv1.SchemeGroupVersion.WithResource("vpc-nat-gateways")
	case *kubeovnv1.Subnet:
		return cl.ovn.Tracker(), kubeovnv1.SchemeGroupVersion.WithResource("subnets")
	}
	cl.t.Fatalf("unknown kind %T", obj)
	return nil, schema.GroupVersionResource{}
}

// service is the Service as it is now.
func (cl *cluster) service(namespace, name string) *corev1.Service {
	cl.t.Helper()
	obj, err := cl.kube.Tracker().Get(corev1.SchemeGroupVersion.WithResource("services"), namespace, name)
	if err != nil {
		cl.t.Fatal(err)
	}
	return obj.(*corev1.Service)
}

// edit changes a Service as its user would, keeping its status.
func (cl *cluster) edit(name string, f func(*corev1.Service)) {
	cl.t.Helper()
	cl.mu.Lock()
	defer cl.mu.Unlock()
	svc := cl.service(testNamespace, name)
	f(svc)
	cl.putLocked(svc)
}

func (cl *cluster) listRules() []*kubeovnv1.IptablesDnatRule {
	obj, err := cl.ovn.Tracker().List(rulesGVR, kubeovnv1.SchemeGroupVersion.WithKind("IptablesDnatRule"), "")
	if err != nil {
		cl.t.Error(err)
		return nil
	}
	var out []*kubeovnv1.IptablesDnatRule
	for i := range obj.(*kubeovnv1.IptablesDnatRuleList).Items {
		out = append(out, &obj.(*kubeovnv1.IptablesDnatRuleList).Items[i])
	}
	return out
}

// rules lists the live rules as "owner eip:port ip:port".
func (cl *cluster) rules() []string {
	out := []string{}
	for _, rule := range cl.listRules() {
		if rule.DeletionTimestamp == nil {
			out = append(out, fmt.Sprintf("%s %s:%s %s:%s", rule.Labels[sharenat.OwnerNameLabel], rule.Spec.EIP, rule.Spec.ExternalPort, rule.Spec.InternalIP, rule.Spec.InternalPort))
		}
	}
	return sorted(out)
}

func (cl *cluster) externalIPs(name string) []string {
	cl.t.Helper()
	out := []string{}
	for _, ingress := range cl.service(testNamespace, name).Status.LoadBalancer.Ingress {
		out = append(out, ingress.IP)
	}
	return out
}

func (cl *cluster) readyReason(name string) string {
	cl.t.Helper()
	status := cl.service(testNamespace, name).Status
	return readyReason(&status)
}

// finish is what a slow gateway handler does in the end: deleted rules go, the others become ready. It tells whether it did anything.
func (cl *cluster) finish() (done bool) {
	cl.t.Helper()
	cl.mu.Lock()
	defer cl.mu.Unlock()
	for _, rule := range cl.listRules() {
		switch {
		case rule.DeletionTimestamp != nil:
			cl.removeLocked(rule)
			done = true
		case !rule.Status.Ready:
			rule.Status.Ready = true
			cl.putLocked(rule)
			done = true
		}
	}
	return done
}

// writes lists what was written since the last call, as "verb resource[/subresource]".
func (cl *cluster) writes() []string {
	var out []string
	for _, fake := range []*clienttesting.Fake{&cl.ovn.Fake, &cl.kube.Fake} {
		for _, action := range fake.Actions() {
			switch verb := action.GetVerb(); verb {
			case "get", "list", "watch":
			default:
				out = append(out, strings.TrimSuffix(fmt.Sprintf("%s %s/%s", verb, action.GetResource().Resource, action.GetSubresource()), "/"))
			}
		}
		fake.ClearActions()
	}
	return out
}

// checkVerbs: objects are changed by patches that name what they change, never by Update.
func (cl *cluster) checkVerbs() {
	allowed := []string{"create iptables-dnat-rules", "patch iptables-dnat-rules", "delete iptables-dnat-rules", "patch services/status"}
	for _, write := range cl.writes() {
		if !slices.Contains(allowed, write) {
			cl.t.Errorf("unexpected write: %s", write)
		}
	}
}

// events takes the events recorded since the last call.
func (cl *cluster) events() []string {
	var out []string
	for {
		select {
		case e := <-cl.recorder.Events:
			out = append(out, e)
		default:
			return out
		}
	}
}

func (cl *cluster) eventsOf(reason string) int {
	n := 0
	for _, e := range cl.events() {
		if strings.Contains(e, reason) {
			n++
		}
	}
	return n
}

var (
	patchScheme = runtime.NewScheme()
	patchCodecs = serializer.NewCodecFactory(patchScheme)
)

func init() {
	// A fake watcher's buffer, which must hold what a burst of writes makes of it.
	watch.DefaultChanSize = 2000
	utilruntime.Must(corev1.AddToScheme(patchScheme))
	utilruntime.Must(kubeovnv1.AddToScheme(patchScheme))
}

// The next ones change what the API server does, between its requests.

func (cl *cluster) setHandler(on bool) {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	cl.handler = on
}

func (cl *cluster) setFail(f func(clienttesting.Action) error) {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	cl.fail = f
}

func (cl *cluster) watchRules(f func([]*kubeovnv1.IptablesDnatRule)) {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	cl.onRules = f
}

// idleController is one that does not run, and whose caches hold these objects.
func idleController(tb testing.TB, objects ...runtime.Object) *Controller {
	tb.Helper()
	kube, ovn := kubefake.NewClientset(), ovnfake.NewSimpleClientset()
	c, err := New(Options{
		KubeClient: kube, KubeOvnClient: ovn,
		KubeInformers: informers.NewSharedInformerFactory(kube, 0), KubeOvnInformers: externalversions.NewSharedInformerFactory(ovn, 0),
	})
	if err != nil {
		tb.Fatal(err)
	}
	for _, object := range objects {
		var informer cache.SharedIndexInformer
		switch object.(type) {
		case *corev1.Service:
			informer = c.in.services
		case *corev1.Pod:
			informer = c.in.pods
		case *discoveryv1.EndpointSlice:
			informer = c.in.slices
		case *kubeovnv1.Subnet:
			informer = c.in.subnets
		case *kubeovnv1.IptablesEIP:
			informer = c.in.eips
		case *kubeovnv1.VpcNatGateway:
			informer = c.in.gateways
		case *kubeovnv1.IptablesDnatRule:
			informer = c.in.rules
		default:
			tb.Fatalf("no cache of %T", object)
		}
		if err := informer.GetIndexer().Add(object); err != nil {
			tb.Fatal(err)
		}
	}
	return c
}
