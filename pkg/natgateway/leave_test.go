// SPDX-License-Identifier: Apache-2.0

package natgateway

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

func TestLeaversHeed(t *testing.T) {
	web, dns := mustIdentity(eipAddress, "80", "tcp"), mustIdentity(eipAddress, "53", "udp")
	p1, p2 := netip.MustParseAddrPort("10.1.0.1:80"), netip.MustParseAddrPort("10.1.0.2:80")
	sync := func(remove ...sharenat.Identity) []Action {
		return []Action{{Verb: verbEIPAdd}, {Verb: sharenat.SyncVerb, Remove: remove}}
	}
	for _, tc := range []struct {
		name    string
		fates   map[sharenat.Connections]Fate
		actions []Action
		want    string // the input of the sync; empty: there is none
	}{
		{"nobody left", nil, nil, ""},
		{"a Pod that lives keeps its connections", map[sharenat.Connections]Fate{{Identity: web, Backend: p1}: Alive}, nil, ""},
		{"one that was withdrawn as well, while the identity stays", map[sharenat.Connections]Fate{{Identity: web, Backend: p1}: Withdrawn}, nil, ""},
		{"a Pod has ended", map[sharenat.Connections]Fate{{Identity: web, Backend: p1}: Ended, {Identity: web, Backend: p2}: Alive}, nil, "forget 203.0.113.11 80 tcp 10.1.0.1 80"},
		{"the identity goes, all Pods are ready", map[sharenat.Connections]Fate{{Identity: web, Backend: p1}: Withdrawn, {Identity: web, Backend: p2}: Withdrawn}, sync(web), "remove 203.0.113.11 80 tcp"},
		{"the identity goes, all Pods are not ready", map[sharenat.Connections]Fate{{Identity: web, Backend: p1}: Alive, {Identity: web, Backend: p2}: Alive}, sync(web), "remove 203.0.113.11 80 tcp keep-tcp"},
		{
			"the identity goes, each Pod has another fate",
			map[sharenat.Connections]Fate{{Identity: web, Backend: p1}: Alive, {Identity: web, Backend: p2}: Withdrawn, {Identity: dns, Backend: p2}: Ended},
			sync(dns, web),
			"remove 203.0.113.11 53 udp\nremove 203.0.113.11 80 tcp keep-tcp\nforget 203.0.113.11 80 tcp 10.1.0.2 80",
		},
		{"an identity goes that nobody knows the backends of", map[sharenat.Connections]Fate{{Identity: dns, Backend: p1}: Alive}, sync(web), "remove 203.0.113.11 80 tcp"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := leavers{}
			for connections := range tc.fates {
				l[connections] = leaving{}
			}
			var got strings.Builder
			for _, a := range l.heed(tc.actions, func(c sharenat.Connections, _ leaving) Fate { return tc.fates[c] }) {
				if a.Verb == sharenat.SyncVerb {
					stdin, err := a.stdin()
					if err != nil {
						t.Fatal(err)
					}
					got.WriteString(changes(stdin))
				}
			}
			if diff := cmp.Diff(tc.want, got.String()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// changes gives the lines between the first and the last.
func changes(stdin []byte) string {
	_, lines, _ := strings.Cut(string(stdin), "\n")
	return strings.TrimSuffix(strings.TrimSuffix(lines, "end\n"), "\n")
}

// backendPod is a Pod with an address in a subnet.
func backendPod(name, address, subnet string, ready corev1.ConditionStatus) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, UID: types.UID(name),
			Annotations: map[string]string{switchAnnotation: subnet, addressAnnotation: address},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}},
	}
}

// lines gives what the syncs since the last look were told.
func (f *fixture) lines() (out []string) {
	_, calls := f.script.takeCalls()
	for _, call := range calls {
		if call.Verb == sharenat.SyncVerb {
			out = append(out, changes(call.Stdin))
		}
	}
	return out
}

// holds waits until so many rules are ready and nothing is under way, and forgets what the syncs were told until then.
func (f *fixture) holds(rules int) {
	f.Helper()
	f.until("rules are ready", f.rulesReady(rules))
	f.settled()
	f.lines()
}

// told compares what the syncs since the last look were told.
func (f *fixture) told(when string, want ...string) {
	f.Helper()
	if diff := cmp.Diff(want, f.lines()); diff != "" {
		f.Errorf("%s (-want +got):\n%s", when, diff)
	}
}

func (f *fixture) deleteRules(names ...string) {
	f.Helper()
	for _, name := range names {
		f.must(f.ovn.KubeovnV1().IptablesDnatRules().Delete(context.Background(), name, metav1.DeleteOptions{}))
		f.until("rule "+name+" is gone", func() bool { return f.rule(name) == nil })
	}
}

func (f *fixture) deletePod(name string) {
	f.Helper()
	f.must(f.kube.CoreV1().Pods("default").Delete(context.Background(), name, metav1.DeleteOptions{}))
}

// The only backend is not ready any more, comes back, and ends at last.
func TestConnectionsLastAsLongAsTheirPod(t *testing.T) {
	f := running(t)
	// The same address in another VPC is somebody else's.
	f.createPod(backendPod("stranger", "10.1.0.1", sharenat.DefaultExternalSubnet, corev1.ConditionTrue))
	f.createPod(backendPod("p", "10.1.0.1", "inner", corev1.ConditionFalse))
	a := rule("a", "e", "10.1.0.1:80", managedBy("s", eipAddress))
	for range 2 {
		f.createRule(a.DeepCopy())
		f.holds(1)
		f.deleteRules("a")
		f.told("a backend that is not ready", "remove 203.0.113.11 80 tcp keep-tcp")
	}
	f.settled()
	f.deletePod("p")
	f.settled()
	f.told("the Pod has ended", "forget 203.0.113.11 80 tcp 10.1.0.1 80")
}

func TestConnectionsGoWithAnIdentityThatIsTakenAway(t *testing.T) {
	f := running(t)
	f.createPod(backendPod("p", "10.1.0.1", "inner", corev1.ConditionTrue))
	f.createRule(rule("a", "e", "10.1.0.1:80", managedBy("s", eipAddress)))
	f.holds(1)
	f.deleteRules("a")
	f.deletePod("p")
	f.settled()
	f.told("the rule is deleted", "remove 203.0.113.11 80 tcp")
}

// It was not ready, its rule is deleted, and it is ready again before anybody has looked.
func TestConnectionsOutliveAFlap(t *testing.T) {
	f := running(t)
	pod := backendPod("p", "10.1.0.1", "inner", corev1.ConditionTrue)
	pod.Status.Conditions[0].LastTransitionTime = metav1.Now()
	f.createPod(pod)
	f.createRule(rule("a", "e", "10.1.0.1:80", managedBy("s", eipAddress)))
	f.holds(1)
	f.deleteRules("a")
	f.told("the rule is deleted", "remove 203.0.113.11 80 tcp keep-tcp")
}

// While the handler was down, the Pod went and another one got its address. Times are told to the second, so that only a rule that names its Pod
// tells it from one that came at once.
func TestConnectionsNeverReachAnotherPodWithTheAddress(t *testing.T) {
	for name, tc := range map[string]struct {
		pod   string
		after time.Duration
	}{
		"a rule that names its Pod":             {pod: "uid-of-the-first"},
		"a rule without, and a Pod that is new": {after: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			f := running(t)
			made := time.Now().Truncate(time.Second)
			first := rule("a", "e", "10.1.0.1:80", managedBy("s", eipAddress))
			first.CreationTimestamp = metav1.NewTime(made)
			if tc.pod != "" {
				metav1.SetMetaDataAnnotation(&first.ObjectMeta, sharenat.PodUIDAnnotation, tc.pod)
			}
			f.createRule(first)
			f.createRule(rule("b", "e", "10.1.0.2:80", managedBy("s", eipAddress)))
			f.createPod(backendPod("b", "10.1.0.2", "inner", corev1.ConditionTrue))
			f.until("rules are ready", f.rulesReady(2))
			f.settled()
			other := backendPod("other", "10.1.0.1", "inner", corev1.ConditionFalse)
			other.UID = "uid-of-the-other"
			other.CreationTimestamp = metav1.NewTime(made.Add(tc.after))
			f.createPod(other)
			f.start()
			f.settled()
			f.lines()
			f.deleteRules("a")
			f.told("the rule is deleted", "identity 203.0.113.11 80 tcp none 0\nbackend 10.1.0.2 80\nforget 203.0.113.11 80 tcp 10.1.0.1 80")
		})
	}
}

// A Pod that is made anew with its address, as one of a StatefulSet with a fixed address, is younger than a rule that went on, and yet the one it means.
func TestConnectionsOfThePodThatTheRuleNamesAreKept(t *testing.T) {
	f := running(t)
	made := time.Now().Truncate(time.Second)
	first := rule("a", "e", "10.1.0.1:80", managedBy("s", eipAddress))
	first.CreationTimestamp = metav1.NewTime(made)
	metav1.SetMetaDataAnnotation(&first.ObjectMeta, sharenat.PodUIDAnnotation, "uid")
	f.createRule(first)
	pod := backendPod("p", "10.1.0.1", "inner", corev1.ConditionFalse)
	pod.UID = "uid"
	pod.CreationTimestamp = metav1.NewTime(made.Add(time.Minute))
	f.createPod(pod)
	f.holds(1)
	f.deleteRules("a")
	f.told("the rule is deleted", "remove 203.0.113.11 80 tcp keep-tcp")
}

func TestNonsenseLeavesNoConnections(t *testing.T) {
	f := running(t)
	bad := rule("bad", "e", "not-an-address:80", claimed, port("81"))
	worse := rule("worse", "e", "10.1.0.1:http", claimed, port("http"))
	f.createRule(bad)
	f.createRule(worse)
	f.settled()
	f.lines()
	f.deleteRules("bad", "worse")
	f.settled()
	if got := f.lines(); len(got) > 0 {
		t.Errorf("calls: %q", got)
	}
}
