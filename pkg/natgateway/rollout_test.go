// SPDX-License-Identifier: Apache-2.0

package natgateway

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

func TestPlanRollout(t *testing.T) {
	former, latest := edition{"i:1", "p-"}, edition{"i:2", "p-"}
	member := func(name string, has edition, filled bool) rolloutMember {
		return rolloutMember{name: name, has: has, filled: filled}
	}
	tests := []struct {
		name          string
		members       []rolloutMember
		next          string
		held, filling []string
	}{
		{name: "nothing to do", members: []rolloutMember{member("a", latest, true), member("b", latest, false)}, filling: []string{"b"}},
		{name: "the first by name", members: []rolloutMember{member("b", former, true), member("a", former, true)}, next: "a", held: []string{"b"}},
		{
			name: "one is being filled", members: []rolloutMember{member("a", latest, false), member("b", former, true)},
			held: []string{"b"}, filling: []string{"a"},
		},
		{name: "the second", members: []rolloutMember{member("a", latest, true), member("b", former, true), member("c", former, true)}, next: "b", held: []string{"c"}},
		{
			name: "where the last one failed", members: []rolloutMember{member("a", former, true), member("b", edition{"typo", "p-"}, false), member("c", former, true)},
			next: "b", held: []string{"a", "c"},
		},
		{
			name: "back to the former image", members: []rolloutMember{member("a", edition{"typo", "p-"}, false), member("b", latest, true)},
			next: "a",
		},
		{name: "another prefix", members: []rolloutMember{member("a", edition{"i:2", "q-"}, true), member("b", latest, true)}, next: "a"},
		{
			name: "one that cannot be made", members: []rolloutMember{{name: "a", has: former, invalid: true}, {name: "b", has: latest, invalid: true}, member("c", former, true)},
			next: "c",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := planRollout(latest, tt.members)
			got := []any{r.next, slices.Clip(r.held), r.filling}
			want := []any{tt.next, tt.held, tt.filling}
			if diff := cmp.Diff(fmt.Sprint(want), fmt.Sprint(got)); diff != "" {
				t.Errorf("next, held, filling (-want +got):\n%s", diff)
			}
			for _, m := range tt.members {
				want := m.has
				if m.name == tt.next {
					want = latest
				}
				if got := r.editionFor(m.name); got != want {
					t.Errorf("%s gets %v, want %v", m.name, got, want)
				}
			}
			if got := r.editionFor("new"); got != latest {
				t.Errorf("a new gateway gets %v", got)
			}
		})
	}
}

// behaveLikeAnAPIServer makes the fake count a StatefulSet's generations, by its image and no later than it changes,
// and heed of which UID a pod is to be deleted.
func (f *fixture) behaveLikeAnAPIServer() {
	tracker := f.kube.Tracker()
	f.kube.PrependReactor("patch", "statefulsets", func(action clienttesting.Action) (bool, runtime.Object, error) {
		patch, _ := action.(clienttesting.PatchAction)
		obj, err := tracker.Get(action.GetResource(), action.GetNamespace(), patch.GetName())
		if apierrors.IsNotFound(err) {
			return false, nil, nil // it is made by this patch
		}
		set, ok := obj.(*appsv1.StatefulSet)
		if err != nil || !ok || strings.Contains(string(patch.GetPatch()), fmt.Sprintf(`"image":%q`, imageOf(set))) {
			return false, nil, err
		}
		set = set.DeepCopy()
		set.Generation++
		return false, nil, tracker.Update(action.GetResource(), set, set.Namespace)
	})
	f.kube.PrependReactor("delete", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		del, _ := action.(clienttesting.DeleteActionImpl)
		obj, err := tracker.Get(action.GetResource(), action.GetNamespace(), del.GetName())
		pod, ok := obj.(*corev1.Pod)
		if p := del.GetDeleteOptions().Preconditions; !ok || p == nil || p.UID == nil || *p.UID == pod.UID {
			return false, nil, err
		}
		return true, nil, apierrors.NewConflict(action.GetResource().GroupResource(), del.GetName(), errors.New("another UID"))
	})
}

func imageOf(obj runtime.Object) string {
	if set, ok := obj.(*appsv1.StatefulSet); ok {
		return set.Spec.Template.Spec.Containers[0].Image
	}
	return ""
}

func (f *fixture) set(gateway string) *appsv1.StatefulSet {
	set, err := f.kube.AppsV1().StatefulSets(testNamespace).Get(context.Background(), "vpc-nat-gw-"+gateway, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return &appsv1.StatefulSet{Spec: appsv1.StatefulSetSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{}}}}}}
	}
	f.must(err)
	return set
}

// images gives the image of each gateway's workload.
func (f *fixture) images(gateways ...string) string {
	var out []string
	for _, name := range gateways {
		out = append(out, name+"="+imageOf(f.set(name)))
	}
	return strings.Join(out, " ")
}

// roll does what the StatefulSet controller and the kubelet do once a workload is there: note the revision, and
// replace the pod.
func (f *fixture) roll(gateway string, tweaks ...func(*corev1.Pod)) {
	f.Helper()
	ctx, pods := context.Background(), f.kube.CoreV1().Pods(testNamespace)
	set := f.observe(gateway)
	pod := gatewayPod(0, imageOf(set))
	pod.Name, pod.UID = set.Name+"-0", types.UID(set.Name+imageOf(set))
	pod.Annotations[sharenat.GatewayPodAnnotation] = gateway
	pod.Labels[revisionLabel] = imageOf(set)
	pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind(kindStatefulSet))}
	for _, tweak := range tweaks {
		tweak(pod)
	}
	if err := pods.Delete(ctx, pod.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		f.Fatal(err)
	}
	f.createPod(pod)
}

// observe does what the StatefulSet controller does first: note the revision.
func (f *fixture) observe(gateway string) *appsv1.StatefulSet {
	f.Helper()
	set := f.set(gateway)
	set.Status.ObservedGeneration, set.Status.UpdateRevision = set.Generation, imageOf(set)
	set, err := f.kube.AppsV1().StatefulSets(testNamespace).UpdateStatus(context.Background(), set, metav1.UpdateOptions{})
	f.must(err)
	return set
}

// podImage gives the revision of a gateway's pod; empty when there is none.
func (f *fixture) podImage(gateway string) string {
	pod, err := f.kube.CoreV1().Pods(testNamespace).Get(context.Background(), "vpc-nat-gw-"+gateway+"-0", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return ""
	}
	f.must(err)
	return pod.Labels[revisionLabel]
}

func imagePullBackOff(pod *corev1.Pod) {
	pod.Status.Phase = corev1.PodPending
	pod.Status.Conditions[0].Status = corev1.ConditionFalse
	pod.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{
		Reason: "ImagePullBackOff", Message: `Back-off pulling image "gateway:tpyo"`,
	}}
}

func (f *fixture) setImage(image string) {
	f.Helper()
	_, err := f.kube.CoreV1().ConfigMaps(testNamespace).Update(context.Background(), configMap(imageConfigMap, imageKey, image), metav1.UpdateOptions{})
	f.must(err)
}

func (f *fixture) gatewayReady(name string) func() bool {
	return func() bool {
		gw, err := f.ovn.KubeovnV1().VpcNatGateways().Get(context.Background(), name, metav1.GetOptions{})
		return err == nil && gw.Status.Ready
	}
}

// threeGateways run, all with the image of the ConfigMap.
func threeGateways(t *testing.T) *fixture {
	t.Helper()
	named := func(name string) *kubeovnv1.VpcNatGateway {
		return gateway(func(gw *kubeovnv1.VpcNatGateway) { gw.Name, gw.UID = name, types.UID(name+"-uid") })
	}
	f := newFixture(t, named("a"), named("b"), named("c"))
	f.behaveLikeAnAPIServer()
	f.start()
	for _, name := range []string{"a", "b", "c"} {
		f.until("the workload is there", func() bool { return imageOf(f.set(name)) != "" })
		f.roll(name)
		f.until("the gateway is ready", f.gatewayReady(name))
	}
	return f
}

// becomes waits until the workloads have these images, and nothing more happens.
func (f *fixture) becomes(want string) {
	f.Helper()
	f.until("images are "+want, func() bool { return f.images("a", "b", "c") == want })
	f.settled()
	if got := f.images("a", "b", "c"); got != want {
		f.Fatalf("images are %s, want still %s", got, want)
	}
}

func TestOneGatewayAtATimeGetsTheImage(t *testing.T) {
	f := threeGateways(t)
	f.setImage("gateway:2")
	f.becomes("a=gateway:2 b=gateway:1 c=gateway:1")
	f.roll("a")
	f.becomes("a=gateway:2 b=gateway:2 c=gateway:1")

	// Another handler goes on the same way.
	f.start()
	f.becomes("a=gateway:2 b=gateway:2 c=gateway:1")
	// What else changes, and what is new, is not held up.
	_, err := f.ovn.KubeovnV1().VpcNatGateways().Patch(context.Background(), "c", types.MergePatchType, []byte(`{"spec":{"lanIp":"10.1.0.99"}}`), metav1.PatchOptions{})
	f.must(err)
	f.until("the spec is followed", func() bool { return f.set("c").Spec.Template.Annotations[addressAnnotation] == "10.1.0.99" })
	f.becomes("a=gateway:2 b=gateway:2 c=gateway:1")

	f.roll("b")
	f.becomes("a=gateway:2 b=gateway:2 c=gateway:2")
}

func TestTypoInTheImageStopsAtOneGateway(t *testing.T) {
	f := threeGateways(t)
	f.setImage("gateway:tpyo")
	f.becomes("a=gateway:tpyo b=gateway:1 c=gateway:1")
	f.roll("a", imagePullBackOff)
	f.until("it is told where it stopped", f.event(ReasonRolloutStopped, `2 gateways keep the former one: pod kube-system/vpc-nat-gw-a-0: ImagePullBackOff`))
	f.becomes("a=gateway:tpyo b=gateway:1 c=gateway:1")
	f.rolloutFigures("a failed", "b held", "c held")
	if !f.gatewayReady("b")() || !f.gatewayReady("c")() {
		t.Error("the others are not ready")
	}

	f.setImage("gateway:2")
	f.becomes("a=gateway:2 b=gateway:1 c=gateway:1")
	f.roll("a")
	f.becomes("a=gateway:2 b=gateway:2 c=gateway:1")
	f.roll("b")
	f.becomes("a=gateway:2 b=gateway:2 c=gateway:2")
	f.roll("c")
	f.rolloutFigures()
}

// A StatefulSet waits for its pod to become ready before it replaces it, which one with a wrong image never does.
func TestPodThatCannotStartIsReplaced(t *testing.T) {
	f := threeGateways(t)
	f.setImage("gateway:tpyo")
	f.becomes("a=gateway:tpyo b=gateway:1 c=gateway:1")
	f.roll("a", imagePullBackOff)
	f.setImage("gateway:2")
	f.becomes("a=gateway:2 b=gateway:1 c=gateway:1")
	if got := f.podImage("a"); got != "gateway:tpyo" {
		t.Fatalf("the pod is %q before there is another revision", got)
	}
	f.observe("a")
	f.until("the pod that cannot start is gone", func() bool { return f.podImage("a") == "" })
	f.roll("a")

	// A pod that is ready is the StatefulSet's to replace.
	f.becomes("a=gateway:2 b=gateway:2 c=gateway:1")
	f.observe("b")
	f.settled()
	if got := f.podImage("b"); got != "gateway:1" {
		t.Errorf("the pod that is ready is %q", got)
	}
}

// rolloutFigures waits until the metric says this of the gateways, and nothing else.
func (f *fixture) rolloutFigures(want ...string) {
	f.Helper()
	var b strings.Builder
	b.WriteString("# HELP kube_ovn_nat_gateway_rollout 1 for the gateway's place in the rollout of an image, else 0: held (keeps the former one " +
		"until the others are filled), filling (has the new one, is not filled yet), failed (cannot be filled, the others wait).\n" +
		"# TYPE kube_ovn_nat_gateway_rollout gauge\n")
	for _, gateway := range []string{"a", "b", "c"} {
		for _, state := range []string{"failed", "filling", "held"} {
			value := 0
			if slices.Contains(want, gateway+" "+state) {
				value = 1
			}
			fmt.Fprintf(&b, "kube_ovn_nat_gateway_rollout{gateway=%q,state=%q} %d\n", gateway, state, value)
		}
	}
	var err error
	f.until("the metric is as wanted", func() bool {
		err = testutil.GatherAndCompare(f.registry, strings.NewReader(b.String()), "kube_ovn_nat_gateway_rollout")
		return err == nil
	})
}
