// SPDX-License-Identifier: Apache-2.0

package lbservice

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

var oneBackend = []string{"web eip-a:80 10.1.0.4:8080"}

func webPod() *corev1.Pod { return newPod("web-0", "sub-a", "10.1.0.4") }

func webSlice() *discoveryv1.EndpointSlice {
	return newSlice("web-x", testService, unnamed8080, endpointOf(webPod()))
}

// Whatever comes last, the Service is served then, without a retry.
func TestLateInputs(t *testing.T) {
	inputs := map[string]runtime.Object{
		"Service": newService(testService), "slice": webSlice(), "Pod": webPod(), "Subnet": newSubnet("sub-a", vpcA, "ovn"),
		"EIP": newEIP(eipA, eipAddrA, gwA), "gateway": newGateway(gwA, vpcA),
	}
	for last := range inputs {
		t.Run(last, func(t *testing.T) {
			var before []runtime.Object
			for name, obj := range inputs {
				if name != last {
					before = append(before, obj.DeepCopyObject())
				}
			}
			inCluster(t, before, func(cl *cluster) {
				if got := cl.rules(); len(got) > 0 {
					t.Fatalf("rules too early: %v", got)
				}
				cl.put(inputs[last].DeepCopyObject())
				cl.settle()
				cl.wantServed()
			})
		})
	}
}

func (cl *cluster) wantServed() {
	cl.t.Helper()
	if diff := cmp.Diff(oneBackend, cl.rules()); diff != "" {
		cl.t.Errorf("rules (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{eipAddrA}, cl.externalIPs(testService)); diff != "" {
		cl.t.Errorf("EXTERNAL-IP (-want +got):\n%s", diff)
	}
	if got := cl.readyReason(testService); got != ReasonProgrammed {
		cl.t.Errorf("reason: %s", got)
	}
}

func (cl *cluster) wantRules(want ...string) {
	cl.t.Helper()
	if diff := cmp.Diff(append([]string{}, want...), cl.rules()); diff != "" {
		cl.t.Errorf("rules (-want +got):\n%s", diff)
	}
}

func TestServed(t *testing.T) {
	inCluster(t, plan(newService(testService), webPod(), webSlice()), func(cl *cluster) {
		cl.wantServed()
	})
}

// A dual-NIC Pod is ready before the cache shows its second NIC's annotations.
func TestLateNIC(t *testing.T) {
	bare := newPod("dual", "ovn-default", "10.16.0.6", withPodAnnotation(networksAnnotation, "ns/net-a"), withPodAnnotation("net-a.ns.ovn"+logicalSwitchSuffix, "sub-a"))
	slice := newSlice("web-x", testService, unnamed8080, endpointOf(bare))
	inCluster(t, plan(newService(testService), bare, slice), func(cl *cluster) {
		cl.wantRules()
		if n := cl.eventsOf(EventBackendSkipped); n > 0 {
			t.Errorf("told of a Pod that is not finished: %d", n)
		}
		cl.put(newDualPod("dual", "10.16.0.6", "10.1.0.6"))
		cl.settle()
		cl.wantRules("web eip-a:80 10.1.0.6:8080")
	})
}

func TestSubnetMoves(t *testing.T) {
	inCluster(t, plan(newService(testService), webPod(), webSlice()), func(cl *cluster) {
		cl.put(newSubnet("sub-a", vpcB, "ovn"))
		cl.settle()
		cl.wantRules()
		cl.put(newSubnet("sub-a", vpcA, "ovn"))
		cl.settle()
		cl.wantServed()
	})
}

func TestSlices(t *testing.T) {
	inCluster(t, plan(newService(testService), newService("other", withPorts(tcpPort("", 81))), webPod(), webSlice()), func(cl *cluster) {
		cl.wantServed()
		relabelled := webSlice()
		relabelled.Labels[discoveryv1.LabelServiceName] = "other"
		cl.put(relabelled)
		cl.settle()
		cl.wantRules("other eip-a:81 10.1.0.4:8080")
		cl.remove(relabelled)
		cl.settle()
		cl.wantRules()
		if diff := cmp.Diff([]string{eipAddrA}, cl.externalIPs(testService)); diff != "" {
			t.Errorf("a Service without backends keeps its EXTERNAL-IP (-want +got):\n%s", diff)
		}
	})
}

func TestOrphansAtStart(t *testing.T) {
	owner := func(name string) sharenat.Owner { return sharenat.Owner{Namespace: testNamespace, Name: name} }
	inCluster(t, plan(
		newService(testService), webPod(), webSlice(), newManualRule("m", eipA, "9", "tcp", "share"),
		newService("left", func(s *corev1.Service) { s.Annotations = nil }),
		newRule(testOwner, eipA, 80, "10.1.0.4:8080", ready),
		newRule(testOwner, eipA, 80, "10.1.0.99:8080", ready),
		newRule(owner("gone"), eipA, 82, "10.1.0.4:8080", ready),
		newRule(owner("left"), eipA, 83, "10.1.0.4:8080", ready),
	), func(cl *cluster) {
		cl.wantRules(" eip-a:9 10.1.0.200:8080", oneBackend[0])
	})
}

// What went stale is deleted before anything is made, whatever Service it is of, and who waits for that is told.
func TestStaleRulesGoFirst(t *testing.T) {
	var objects []runtime.Object
	for i := range 20 {
		owner := sharenat.Owner{Namespace: testNamespace, Name: fmt.Sprintf("gone-%d", i)}
		objects = append(objects, newRule(owner, eipA, uint16(1000+i), "10.1.0.4:8080", ready)) //nolint:gosec // small
	}
	objects = append(objects, newService(testService), webPod(), webSlice())
	inCluster(t, plan(objects...), func(cl *cluster) {
		select {
		case <-cl.c.Swept():
		default:
			t.Error("the sweep has not ended")
		}
		writes := cl.writes()
		cl.wantServed()
		if len(writes) < 21 {
			t.Errorf("writes: %q", writes)
		}
		for i, write := range writes {
			if isDelete := strings.HasPrefix(write, "delete"); isDelete != (i < 20) {
				t.Errorf("write %d is %s", i, write)
			}
		}
	})
}

func TestRuleDeletedByHand(t *testing.T) {
	inCluster(t, plan(newService(testService), webPod(), webSlice()), func(cl *cluster) {
		cl.remove(cl.listRules()[0])
		cl.settle()
		cl.wantServed()
	})
}

// A rule that is being deleted is made anew once it is gone, and nothing is tried in between.
func TestRuleBeingDeleted(t *testing.T) {
	inCluster(t, plan(newService(testService), webPod(), webSlice()), func(cl *cluster) {
		cl.setHandler(false)
		rule := cl.listRules()[0]
		cl.put(deleting(rule.DeepCopy()))
		cl.settle()
		time.Sleep(programmingDelay) // virtual
		cl.settle()
		cl.writes()
		time.Sleep(10 * time.Minute) // virtual
		cl.settle()
		if got := cl.writes(); len(got) > 0 {
			t.Errorf("writes while waiting: %v", got)
		}
		cl.wantRules()
		cl.setHandler(true)
		cl.remove(rule)
		cl.settle()
		cl.wantServed()
	})
}

// A backend that flaps: ready, not ready, ready, while the handler is slow to remove its rule.
func TestFlappingBackend(t *testing.T) {
	inCluster(t, plan(newService(testService), webPod(), webSlice()), func(cl *cluster) {
		cl.setHandler(false)
		cl.put(newSlice("web-x", testService, unnamed8080, endpointOf(webPod(), notReady)))
		cl.settle()
		cl.put(webSlice())
		cl.settle()
		cl.wantRules()
		cl.setHandler(true)
		cl.remove(cl.listRules()[0])
		cl.settle()
		cl.wantServed()
	})
}

// A full exchange of backends: all additions are written before the first removal.
func TestAdditionsBeforeRemovals(t *testing.T) {
	pods := func(offset int) (objects []runtime.Object, slice *discoveryv1.EndpointSlice) {
		slice = newSlice("web-x", testService, unnamed8080)
		for i := range 30 {
			pod := newPod(fmt.Sprintf("web-%d", offset+i), "sub-a", fmt.Sprintf("10.1.0.%d", offset+i+2))
			objects = append(objects, pod)
			slice.Endpoints = append(slice.Endpoints, endpointOf(pod))
		}
		return objects, slice
	}
	first, slice := pods(0)
	second, exchanged := pods(100)
	inCluster(t, plan(append(append(first, second...), newService(testService), slice)...), func(cl *cluster) {
		cl.writes()
		lowest := 30
		cl.watchRules(func(rules []*kubeovnv1.IptablesDnatRule) { lowest = min(lowest, len(rules)) })
		cl.put(exchanged)
		cl.settle()
		got := slices.DeleteFunc(cl.writes(), func(write string) bool { return write == "patch services/status" })
		var want []string
		for _, verb := range []string{"create", "delete"} {
			for range 30 {
				want = append(want, verb+" iptables-dnat-rules")
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("writes (-want +got):\n%s", diff)
		}
		if lowest < 30 {
			t.Errorf("down to %d rules", lowest)
		}
	})
}

func TestNoWritesWhenNothingChanges(t *testing.T) {
	inCluster(t, plan(newService(testService), webPod(), webSlice()), func(cl *cluster) {
		cl.writes()
		cl.edit(testService, func(s *corev1.Service) { s.Labels = map[string]string{"x": "y"} })
		slice := webSlice()
		slice.Annotations = map[string]string{"x": "y"}
		cl.put(slice)
		pod := webPod()
		pod.Annotations["x"] = "y"
		cl.put(pod)
		eip := newEIP(eipA, eipAddrA, gwA)
		eip.Labels = map[string]string{"x": "y"}
		cl.put(eip)
		rule := cl.listRules()[0]
		rule.Status.V4ip = eipAddrA
		cl.put(rule)
		cl.settle()
		time.Sleep(time.Hour) // virtual
		cl.settle()
		if got := cl.writes(); len(got) > 0 {
			t.Errorf("writes: %v", got)
		}
		if got := cl.eventsOf(EventServed); got != 1 {
			t.Errorf("told %d times", got)
		}
	})
}

// A controller that starts on what another left writes nothing and tells nothing.
func TestRestartWritesNothing(t *testing.T) {
	objects := plan(newService(testService, withPorts(tcpPort("", 80), corev1.ServicePort{Name: "s", Port: 90, Protocol: corev1.ProtocolSCTP})),
		newService("other"), webPod(), webSlice())
	inCluster(t, objects, func(cl *cluster) {
		if n := len(cl.writes()); n == 0 {
			t.Fatal("no writes at the first start")
		}
		objects = plan(cl.service(testNamespace, testService), cl.service(testNamespace, "other"), webPod(), webSlice())
		for _, rule := range cl.listRules() {
			objects = append(objects, rule)
		}
	})
	inCluster(t, objects, func(cl *cluster) {
		if got := append(cl.writes(), cl.events()...); len(got) > 0 {
			t.Errorf("writes and events: %v", got)
		}
	})
}

func TestAffinityIsChangedInPlace(t *testing.T) {
	inCluster(t, plan(newService(testService), webPod(), webSlice()), func(cl *cluster) {
		cl.writes()
		uid := cl.listRules()[0].UID
		for _, step := range []func(*corev1.Service){
			func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP },
			func(s *corev1.Service) {
				s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr.To[int32](3)}}
			},
			func(s *corev1.Service) { s.Annotations[sharenat.SourceIPAnnotation] = sharenat.SourceIPMasquerade },
			func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityNone },
		} {
			cl.edit(testService, step)
			cl.settle()
			if diff := cmp.Diff([]string{"patch iptables-dnat-rules"}, cl.writes()); diff != "" {
				t.Errorf("writes (-want +got):\n%s", diff)
			}
		}
		if got := cl.listRules()[0]; got.UID != uid || got.Spec.SessionAffinity != "" || got.Annotations[sharenat.SourceIPAnnotation] != "masquerade" {
			t.Errorf("rule: %+v", got)
		}
	})
}

// What somebody edits on a live rule is set back in place, labels included.
func TestRuleEditedByHand(t *testing.T) {
	for name, edit := range map[string]func(*kubeovnv1.IptablesDnatRule){
		"spec":           func(r *kubeovnv1.IptablesDnatRule) { r.Spec.InternalIP, r.Spec.Type = "10.1.0.66", "exclusive" },
		"EIP":            func(r *kubeovnv1.IptablesDnatRule) { r.Spec.EIP = eipB },
		"no labels":      func(r *kubeovnv1.IptablesDnatRule) { r.Labels = nil },
		"one label":      func(r *kubeovnv1.IptablesDnatRule) { delete(r.Labels, sharenat.OwnerNameLabel) },
		"gateway label":  func(r *kubeovnv1.IptablesDnatRule) { r.Labels[sharenat.GatewayLabel] = "x" },
		"no annotations": func(r *kubeovnv1.IptablesDnatRule) { r.Annotations = nil },
	} {
		t.Run(name, func(t *testing.T) {
			inCluster(t, plan(newService(testService), webPod(), webSlice()), func(cl *cluster) {
				cl.writes()
				before := cl.listRules()[0]
				edited := before.DeepCopy()
				edit(edited)
				cl.put(edited)
				cl.settle()
				after := cl.listRules()[0]
				after.ResourceVersion = before.ResourceVersion
				if diff := cmp.Diff(before, after); diff != "" {
					t.Errorf("rule (-before +after):\n%s", diff)
				}
				if diff := cmp.Diff([]string{"patch iptables-dnat-rules"}, cl.writes()); diff != "" {
					t.Errorf("writes (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// A rule that lost its labels while nobody looked is known by its name, whatever its Service claims by now: the Service takes it away, and
// another that claims the port waits for that, not for a person.
func TestLostLabelsOfAPortThatIsGone(t *testing.T) {
	unlabelled := func(owner string, port uint16) *kubeovnv1.IptablesDnatRule {
		return newRule(sharenat.Owner{Namespace: testNamespace, Name: owner}, eipA, port, "10.1.0.4:8080", func(r *kubeovnv1.IptablesDnatRule) { r.Labels = nil })
	}
	for name, objects := range map[string][]runtime.Object{
		"its own port before": {unlabelled(testService, 81)},
		"another's":           {unlabelled("other", 80), newService("other", withPorts(tcpPort("", 81)))},
		"another's, who has no port of this EIP that is served": {unlabelled("other", 80), newService("other", withPorts(corev1.ServicePort{Port: 80, Protocol: corev1.ProtocolSCTP}))},
	} {
		t.Run(name, func(t *testing.T) {
			inCluster(t, plan(append(objects, newService(testService), webPod(), webSlice())...), func(cl *cluster) {
				cl.wantServed()
				if n := cl.eventsOf(EventConflict); n > 0 {
					t.Errorf("told of %d conflicts", n)
				}
			})
		})
	}
}

// Nor does it stay on an EIP that its Service has left, where it would keep the Service from making the rule that it needs.
func TestLostLabelsOnAnEIPThatIsLeft(t *testing.T) {
	left := newRule(testOwner, eipB, 80, "10.1.0.4:8080", func(r *kubeovnv1.IptablesDnatRule) { r.Labels = nil })
	inCluster(t, plan(left, newService(testService), webPod(), webSlice()), func(cl *cluster) {
		time.Sleep(time.Second) // virtual: the retries
		cl.settle()
		cl.wantServed()
		if n := cl.eventsOf(EventWriteFailed); n > 0 {
			t.Errorf("told of %d failures", n)
		}
	})
}

// Until its owner has taken it away, it is a Service's rule, which holds up those of the next owner, and not one made by hand, for which
// that would give up its own.
func TestAnothersRuleThatLostItsLabels(t *testing.T) {
	theirs := newRule(sharenat.Owner{Namespace: testNamespace, Name: "other"}, eipA, 80, "10.1.0.4:8080", func(r *kubeovnv1.IptablesDnatRule) { r.Labels = nil })
	c := idleController(t, plan(theirs, newService("other", withPorts(tcpPort("", 81))), newService(testService), webPod(), webSlice())...)
	out := Desired(c.snapshot(testOwner))
	if out.Ports[0].Err != "" || len(out.Rules) != 1 || !out.Rules[0].Held {
		t.Errorf("port: %+v, rules: %+v", out.Ports[0], out.Rules)
	}
}

// Many on one EIP do not get into each other's way, and each port is looked at for itself.
func TestNeighboursOnAnEIP(t *testing.T) {
	objects := plan(webPod())
	for port := range 20 {
		name := fmt.Sprintf("s%02d", port)
		objects = append(objects, newService(name, withPorts(tcpPort("", int32(100+port)))), newSlice(name+"-x", name, unnamed8080, endpointOf(webPod())))
	}
	want := func(port int, owner string) string { return fmt.Sprintf("%s eip-a:%d 10.1.0.4:8080", owner, 100+port) }
	inCluster(t, objects, func(cl *cluster) {
		var all []string
		for port := range 20 {
			all = append(all, want(port, fmt.Sprintf("s%02d", port)))
		}
		cl.wantRules(all...)
		cl.writes()
		// A rule made by hand takes one port, and an earlier Service another; nothing else is written.
		hand := newManualRule("hand", eipA, "103", "tcp", "share")
		cl.put(hand)
		cl.put(newService("a", withPorts(tcpPort("", 107))))
		cl.settle()
		cl.wantRules(append([]string{" eip-a:103 10.1.0.200:8080"}, slices.Delete(slices.Delete(slices.Clone(all), 7, 8), 3, 4)...)...)
		for name, reason := range map[string]string{"s03": ReasonPortConflict, "s07": ReasonPortConflict, "s04": ReasonProgrammed} {
			if got := cl.readyReason(name); got != reason {
				t.Errorf("%s: %s, not %s", name, got, reason)
			}
		}
		if got := slices.DeleteFunc(cl.writes(), func(w string) bool { return w == "patch services/status" }); !slices.Equal(got, []string{"delete iptables-dnat-rules", "delete iptables-dnat-rules"}) {
			t.Errorf("writes: %v", got)
		}
		cl.remove(hand)
		cl.remove(newService("a"))
		cl.settle()
		cl.wantRules(all...)
	})
}

func TestTakeover(t *testing.T) {
	backends := func(names ...string) []runtime.Object {
		out := []runtime.Object{webPod()}
		for _, name := range names {
			out = append(out, newSlice(name+"-x", name, unnamed8080, endpointOf(webPod())))
		}
		return out
	}
	const theirs = "a eip-a:80 10.1.0.4:8080"
	for _, tc := range []struct {
		name  string
		owner runtime.Object
		// before: the rules while the owner has the port.
		before  []string
		letsGo  func(*cluster)
		unowned bool
	}{
		{"the owner is deleted", newService("a"), []string{theirs}, func(cl *cluster) { cl.remove(newService("a")) }, false},
		{"the owner is being deleted", newService("a"), []string{theirs}, func(cl *cluster) { cl.put(deleting(cl.service(testNamespace, "a"))) }, false},
		{"the owner's annotation goes", newService("a"), []string{theirs}, func(cl *cluster) { cl.edit("a", func(s *corev1.Service) { s.Annotations = nil }) }, false},
		{"the owner's type changes", newService("a"), []string{theirs}, func(cl *cluster) {
			cl.edit("a", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP })
		}, false},
		{"a rule made by hand is deleted", newManualRule("m", eipA, "80", "TCP", "share"), []string{" eip-a:80 10.1.0.200:8080"}, func(cl *cluster) {
			cl.remove(newManualRule("m", eipA, "80", "TCP", "share"))
		}, false},
		{"a FIP is deleted", newFIP("f", eipA), []string{}, func(cl *cluster) { cl.remove(newFIP("f", eipA)) }, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inCluster(t, plan(append(backends("a", testService), newService(testService), tc.owner)...), func(cl *cluster) {
				cl.wantRules(tc.before...)
				if got := cl.externalIPs(testService); len(got) > 0 || cl.readyReason(testService) != ReasonPortConflict {
					t.Errorf("EXTERNAL-IP %v, reason %s", got, cl.readyReason(testService))
				}
				cl.edit(testService, func(s *corev1.Service) { s.Labels = map[string]string{"x": "y"} })
				cl.settle()
				if n := cl.eventsOf(EventConflict); n != 1 {
					t.Errorf("told %d times", n)
				}
				tc.letsGo(cl)
				cl.settle()
				cl.wantServed()
			})
		})
	}
}

// An owner that comes later takes the port, and there is no moment with rules of both.
func TestEarlierServiceComesLater(t *testing.T) {
	for _, handler := range []bool{true, false} {
		t.Run(fmt.Sprintf("handler=%v", handler), func(t *testing.T) {
			inCluster(t, plan(newService(testService), webPod(), webSlice(), newSlice("a-x", "a", unnamed8080, endpointOf(webPod()))), func(cl *cluster) {
				cl.wantServed()
				cl.setHandler(handler)
				cl.watchRules(oneOwner(t))
				cl.put(newService("a"))
				cl.settle()
				cl.wantRules("a eip-a:80 10.1.0.4:8080")
				if got := cl.externalIPs(testService); len(got) > 0 {
					t.Errorf("the loser keeps %v", got)
				}
			})
		})
	}
}

// oneOwner checks that no port of an EIP has live rules of two Services.
func oneOwner(t *testing.T) func([]*kubeovnv1.IptablesDnatRule) {
	t.Helper()
	return func(rules []*kubeovnv1.IptablesDnatRule) {
		owners := map[string]string{}
		for _, rule := range rules {
			owner, managed, _ := sharenat.OwnerOf(rule.Labels)
			if !managed || rule.DeletionTimestamp != nil {
				continue
			}
			port := rule.Spec.EIP + ":" + rule.Spec.ExternalPort
			if other, ok := owners[port]; ok && other != owner.String() {
				t.Errorf("%s has rules of %s and of %s", port, other, owner)
			}
			owners[port] = owner.String()
		}
	}
}

func TestMoves(t *testing.T) {
	a, b := newService("a", withPorts(tcpPort("", 80))), newService("b", withPorts(tcpPort("", 81)))
	podA, podB := newPod("pa", "sub-a", "10.1.0.4"), newPod("pb", "sub-a", "10.1.0.5")
	far := newPod("pf", "sub-b", "10.2.0.4")
	objects := plan(a, b, podA, podB, far,
		newSlice("a-x", "a", unnamed8080, endpointOf(podA), endpointOf(far)), newSlice("b-x", "b", unnamed8080, endpointOf(podB)))
	inCluster(t, objects, func(cl *cluster) {
		cl.watchRules(oneOwner(t))
		cl.wantRules("a eip-a:80 10.1.0.4:8080", "b eip-a:81 10.1.0.5:8080")

		// Ports swapped.
		cl.edit("a", withPorts(tcpPort("", 81)))
		cl.edit("b", withPorts(tcpPort("", 80)))
		cl.settle()
		cl.wantRules("a eip-a:81 10.1.0.4:8080", "b eip-a:80 10.1.0.5:8080")

		// A Service moved to an EIP of another gateway, where it reaches other Pods.
		cl.edit("a", withEIP(eipB))
		cl.settle()
		cl.wantRules("a eip-b:81 10.2.0.4:8080", "b eip-a:80 10.1.0.5:8080")
		if diff := cmp.Diff([]string{eipAddrB}, cl.externalIPs("a")); diff != "" {
			t.Errorf("EXTERNAL-IP (-want +got):\n%s", diff)
		}

		// And the other one, to the same EIP: it has a backend's name only in vpc-a.
		cl.edit("b", withEIP(eipB))
		cl.settle()
		cl.wantRules("a eip-b:81 10.2.0.4:8080")

		cl.edit("a", withEIP(eipA))
		cl.edit("b", withEIP(eipA))
		cl.settle()
		cl.wantRules("a eip-a:81 10.1.0.4:8080", "b eip-a:80 10.1.0.5:8080")
	})
}

// The same backends at another EIP: the rules keep their names, so each is made anew once the old one is gone.
func TestMovesWithItsBackends(t *testing.T) {
	inCluster(t, plan(newService(testService), webPod(), webSlice(), newEIP("eip-c", "203.0.113.30", gwA)), func(cl *cluster) {
		uid := cl.listRules()[0].UID
		cl.edit(testService, withEIP("eip-c"))
		cl.settle()
		cl.wantRules("web eip-c:80 10.1.0.4:8080")
		rule := cl.listRules()[0]
		if rule.UID == uid || rule.Labels[sharenat.EIPAddressLabel] != "203.0.113.30" {
			t.Errorf("rule: %+v", rule.ObjectMeta)
		}
	})
}

func TestServiceLeaves(t *testing.T) {
	theirs := metav1.Condition{Type: "example.com/Ready", Status: metav1.ConditionTrue, Reason: "X", LastTransitionTime: testTime}
	foreign := corev1.LoadBalancerIngress{IP: "198.51.100.1"}
	for name, leave := range map[string]func(*corev1.Service){
		"annotation":     func(s *corev1.Service) { s.Annotations = nil },
		"type":           func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeNodePort },
		"class":          func(s *corev1.Service) { s.Spec.LoadBalancerClass = ptr.To("example.com/lb") },
		"being deleted":  func(s *corev1.Service) { deleting(s) },
		"EIP that isn't": withEIP("none"),
	} {
		for _, slice := range []*discoveryv1.EndpointSlice{webSlice(), newSlice("web-x", testService, unnamed8080)} {
			t.Run(fmt.Sprintf("%s, %d backends", name, len(slice.Endpoints)), func(t *testing.T) {
				inCluster(t, plan(newService(testService, withConditions(theirs), withIngress(foreign)), webPod(), slice), func(cl *cluster) {
					if diff := cmp.Diff([]string{foreign.IP, eipAddrA}, cl.externalIPs(testService)); diff != "" {
						t.Fatalf("EXTERNAL-IP (-want +got):\n%s", diff)
					}
					cl.edit(testService, leave)
					cl.settle()
					cl.wantRules()
					status := cl.service(testNamespace, testService).Status
					if name == "EIP that isn't" {
						if got := readyReason(&status); got != ReasonEIPNotFound {
							t.Errorf("reason %s", got)
						}
						meta.RemoveStatusCondition(&status.Conditions, ConditionReady)
					}
					want := corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{foreign}}, Conditions: []metav1.Condition{theirs}}
					if diff := cmp.Diff(want, status); diff != "" {
						t.Errorf("status (-want +got):\n%s", diff)
					}
				})
			})
		}
	}
}

func TestGrantWithdrawn(t *testing.T) {
	inCluster(t, plan(newService(testService), webPod(), webSlice()), func(cl *cluster) {
		cl.put(newEIP(eipA, eipAddrA, gwA, withGrant("other")))
		cl.settle()
		cl.wantRules()
		if got := cl.externalIPs(testService); len(got) > 0 || cl.readyReason(testService) != ReasonNotGranted {
			t.Errorf("EXTERNAL-IP %v, reason %s", got, cl.readyReason(testService))
		}
		cl.put(newEIP(eipA, eipAddrA, gwA, withGrant("other,ns")))
		cl.settle()
		cl.wantServed()
	})
}

// An EIP that is not ready for a moment costs no connection.
func TestEIPNotReadyForAMoment(t *testing.T) {
	inCluster(t, plan(newService(testService), webPod(), webSlice()), func(cl *cluster) {
		uid := cl.listRules()[0].UID
		cl.put(newEIP(eipA, eipAddrA, gwA, func(e *kubeovnv1.IptablesEIP) { e.Status.Ready = false }))
		cl.settle()
		cl.wantRules(oneBackend...)
		if got := cl.readyReason(testService); got != ReasonEIPNotReady {
			t.Errorf("reason: %s", got)
		}
		cl.put(newEIP(eipA, eipAddrA, gwA))
		cl.settle()
		cl.wantServed()
		if cl.listRules()[0].UID != uid {
			t.Error("the rule was made anew")
		}
	})
}

func TestSkippedBackendIsToldOnceAPod(t *testing.T) {
	far := newPod("far", "sub-b", "10.2.0.4")
	inCluster(t, plan(newService(testService), far, newSlice("web-x", testService, unnamed8080, endpointOf(far))), func(cl *cluster) {
		for i := range 5 {
			cl.edit(testService, func(s *corev1.Service) { s.Labels = map[string]string{"x": strconv.Itoa(i)} })
			cl.settle()
		}
		if n := cl.eventsOf(EventBackendSkipped); n != 1 {
			t.Errorf("told %d times", n)
		}
		// Another Pod of the same name is another Pod.
		far.UID = "uid-again"
		cl.put(far)
		cl.put(newSlice("web-x", testService, unnamed8080, endpointOf(far)))
		cl.settle()
		if n := cl.eventsOf(EventBackendSkipped); n != 1 {
			t.Errorf("told %d times of the second Pod", n)
		}
	})
}

// A Service that is made anew under its name is told everything, even where nobody saw that it had been gone.
func TestEventsOfAServiceMadeAnew(t *testing.T) {
	inCluster(t, plan(newService(testService), webPod(), webSlice()), func(cl *cluster) {
		if n := cl.eventsOf(EventServed); n != 1 {
			t.Errorf("told %d times", n)
		}
		for _, uid := range []types.UID{"uid-again", "uid-again", "uid-once-more"} {
			before := cl.service(testNamespace, testService).UID
			cl.put(newService(testService, func(s *corev1.Service) { s.UID = uid }))
			cl.settle()
			want := 1
			if uid == before {
				want = 0
			}
			if n := cl.eventsOf(EventServed); n != want {
				t.Errorf("after %s, %s was told %d times", before, uid, n)
			}
		}
	})
}

// A write that fails is tried again, tells the user once, and does not keep removals from being made.
func TestFailedWrite(t *testing.T) {
	second := newPod("web-1", "sub-a", "10.1.0.5")
	inCluster(t, plan(newService(testService), webPod(), second, webSlice()), func(cl *cluster) {
		cl.writes()
		cl.events()
		failures := 0
		cl.setFail(func(action clienttesting.Action) error {
			if action.GetVerb() == "create" && failures < 3 {
				failures++
				return apierrors.NewForbidden(rulesGVR.GroupResource(), "x", errors.New("no"))
			}
			return nil
		})
		cl.put(newSlice("web-x", testService, unnamed8080, endpointOf(second)))
		cl.settle()
		cl.wantRules()
		time.Sleep(time.Second) // virtual: the retries
		cl.settle()
		cl.wantRules("web eip-a:80 10.1.0.5:8080")
		if n := cl.eventsOf(EventWriteFailed); n != 1 {
			t.Errorf("told %d times", n)
		}
	})
}

// The cache is behind: what is created is there already, what is patched is gone, the Service's status was written by another.
func TestStaleCache(t *testing.T) {
	for name, fail := range map[string]func(clienttesting.Action) error{
		"create": func(a clienttesting.Action) error {
			if a.GetVerb() == "create" {
				return apierrors.NewAlreadyExists(rulesGVR.GroupResource(), "x")
			}
			return nil
		},
		"status": func(a clienttesting.Action) error {
			if a.GetVerb() == "patch" && a.GetSubresource() == "status" {
				return apierrors.NewConflict(a.GetResource().GroupResource(), "x", errors.New("stale"))
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			inCluster(t, plan(webPod(), webSlice()), func(cl *cluster) {
				left := 2
				cl.setFail(func(a clienttesting.Action) error {
					err := fail(a)
					if err != nil && left > 0 {
						left--
						return err
					}
					return nil
				})
				cl.put(newService(testService))
				cl.settle()
				time.Sleep(time.Second) // virtual: the retries
				cl.settle()
				cl.wantServed()
				if n := cl.eventsOf(EventWriteFailed); n > 0 {
					t.Error("told the user of our own delay")
				}
			})
		})
	}
}

// A rule made by hand that happens to have our rule's name is left alone.
func TestNameTaken(t *testing.T) {
	taken := newManualRule(newRule(testOwner, eipA, 80, "10.1.0.4:8080").Name, eipB, "9", "tcp", "exclusive")
	inCluster(t, plan(taken, newService(testService), webPod(), webSlice()), func(cl *cluster) {
		cl.wantRules(" eip-b:9 10.1.0.200:8080")
		if n := cl.eventsOf(EventWriteFailed); n != 1 {
			t.Errorf("told %d times", n)
		}
		cl.remove(taken)
		time.Sleep(time.Minute) // virtual: the retries
		cl.settle()
		cl.wantServed()
	})
}

func TestManyBackends(t *testing.T) {
	objects := plan(newService(testService))
	slice := newSlice("web-x", testService, unnamed8080)
	for i := range 500 {
		pod := newPod(fmt.Sprintf("web-%d", i), "sub-a", fmt.Sprintf("10.1.%d.%d", i/250, i%250+2))
		objects = append(objects, pod)
		slice.Endpoints = append(slice.Endpoints, endpointOf(pod))
	}
	inCluster(t, append(objects, slice), func(cl *cluster) {
		writes := map[string]int{}
		for _, write := range cl.writes() {
			writes[write]++
		}
		if len(cl.rules()) != 500 || writes["create iptables-dnat-rules"] != 500 || writes["patch services/status"] > 2 {
			t.Errorf("writes: %v", writes)
		}
		cl.remove(slice)
		cl.settle()
		cl.wantRules()
	})
}

var histories = flag.Uint64("histories", 200, "how many random histories to play")

// Random histories: at every step at most one Service has rules for a port; at rest it is the right one.
func TestRandomInterleavings(t *testing.T) {
	const steps = 60
	for seed := range *histories {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			randomHistory(t, rand.New(rand.NewPCG(seed, 1)), steps, seed%2 == 0)
		})
	}
}

// randomHistory plays one history, with a handler that is done at once, or one that takes its time.
func randomHistory(t *testing.T, r *rand.Rand, steps int, handler bool) {
	t.Helper()
	names := []string{"a", "b", "c", "d"}
	objects := plan(webPod())
	for _, name := range names {
		objects = append(objects, newSlice(name+"-x", name, []discoveryv1.EndpointPort{slicePort("p", 8080)}, endpointOf(webPod()), endpointOf(newPod("far", "sub-b", "10.2.0.4"))))
	}
	objects = append(objects, newPod("far", "sub-b", "10.2.0.4"))
	inCluster(t, objects, func(cl *cluster) {
		cl.watchRules(oneOwner(t))
		cl.setHandler(handler)
		there := map[string]runtime.Object{}
		toggle := func(key string, obj runtime.Object) {
			if old, ok := there[key]; ok {
				cl.remove(old)
				delete(there, key)
				return
			}
			cl.put(obj)
			there[key] = obj
		}
		for range steps {
			name, eip, port := names[r.IntN(len(names))], []string{eipA, eipB}[r.IntN(2)], int32(80+r.IntN(2))
			switch r.IntN(7) {
			case 0, 1:
				toggle(name, newService(name, withEIP(eip), withPorts(tcpPort("p", port))))
			case 2, 3:
				if _, ok := there[name]; ok {
					cl.edit(name, withPorts(tcpPort("p", port)))
				}
			case 4:
				if _, ok := there[name]; ok {
					cl.edit(name, withEIP(eip))
				}
			case 5:
				toggle(fmt.Sprintf("m-%s-%d", eip, port), newManualRule(fmt.Sprintf("m-%s-%d", eip, port), eip, strconv.Itoa(int(port)), "TCP", "share"))
			case 6:
				if r.IntN(4) == 0 {
					toggle("f-"+eip, newFIP("f-"+eip, eip))
				}
			}
			if r.IntN(2) == 0 {
				goruntime.Gosched()
			} else if r.IntN(3) == 0 {
				cl.rest()
				cl.wantRules(expectedRules(cl, names, there)...)
			} else if r.IntN(3) == 0 {
				cl.finish()
			}
		}
		cl.rest()
		cl.wantRules(expectedRules(cl, names, there)...)
	})
}

// rest lets the controller and a slow handler come to an end.
func (cl *cluster) rest() {
	cl.settle()
	for range 3 {
		if cl.finish() {
			cl.settle()
		}
	}
}

// expectedRules says what there should be at rest, in the words of the rule itself.
func expectedRules(cl *cluster, names []string, there map[string]runtime.Object) []string {
	backend := map[string]string{eipA: "10.1.0.4:8080", eipB: "10.2.0.4:8080"}
	out := []string{}
	taken := map[string]bool{}
	for key, obj := range there {
		if rule, ok := obj.(*kubeovnv1.IptablesDnatRule); ok {
			taken[rule.Spec.EIP+":"+rule.Spec.ExternalPort] = true
			out = append(out, fmt.Sprintf(" %s:%s 10.1.0.200:8080", rule.Spec.EIP, rule.Spec.ExternalPort))
		}
		if strings.HasPrefix(key, "f-") {
			for _, port := range []string{":80", ":81"} {
				taken[strings.TrimPrefix(key, "f-")+port] = true
			}
		}
	}
	for _, name := range names {
		if _, ok := there[name]; !ok {
			continue
		}
		svc := cl.service(testNamespace, name)
		eip, port := sharenat.EIPName(svc), strconv.Itoa(int(svc.Spec.Ports[0].Port))
		if !taken[eip+":"+port] {
			taken[eip+":"+port] = true
			out = append(out, fmt.Sprintf("%s %s:%s %s", name, eip, port, backend[eip]))
		}
	}
	return sorted(out)
}

// The condition follows the rules' readiness.
func TestReadyFollowsTheRules(t *testing.T) {
	inCluster(t, plan(webPod(), webSlice()), func(cl *cluster) {
		cl.setHandler(false)
		cl.put(newService(testService))
		cl.settle()
		if got := cl.readyReason(testService); got != ReasonProgramming {
			t.Errorf("reason: %s", got)
		}
		cl.finish()
		cl.settle()
		cl.wantServed()
		rule := cl.listRules()[0]
		rule.Status.Ready = false
		cl.put(rule)
		cl.settle()
		time.Sleep(programmingDelay) // virtual
		cl.settle()
		if got := cl.readyReason(testService); got != ReasonProgramming {
			t.Errorf("reason: %s", got)
		}
	})
}

// What is over in a moment is not told.
func TestAMomentOfProgrammingIsNotTold(t *testing.T) {
	inCluster(t, plan(newService(testService), webPod(), webSlice()), func(cl *cluster) {
		cl.momentOfProgramming(programmingDelay / 2)
		if got := cl.writes(); len(got) > 0 {
			t.Errorf("writes: %v", got)
		}
		cl.wantServed()
	})
}

// Nor where the Service is not served in all that it asks for; and of what it is not, there is one event, however long a change takes.
func TestWhatIsNotServedIsToldOnce(t *testing.T) {
	inCluster(t, plan(webPod(), webSlice()), func(cl *cluster) {
		cl.c.SetAbilities(stockV117)
		cl.put(newService(testService, clientIP(600)))
		cl.settle()
		cl.momentOfProgramming(programmingDelay / 2)
		if got := cl.writes(); len(got) > 0 {
			t.Errorf("writes: %v", got)
		}
		cl.momentOfProgramming(2 * programmingDelay)
		if got := cl.readyReason(testService); got != ReasonAffinityNotServed {
			t.Errorf("reason: %s", got)
		}
		if got := cl.eventsOf(EventNote); got != 1 {
			t.Errorf("told %d times", got)
		}
	})
}

// momentOfProgramming has a rule not ready for a time, and gives what comes of it time to be written.
func (cl *cluster) momentOfProgramming(long time.Duration) {
	cl.setHandler(false)
	cl.writes()
	for _, step := range []struct {
		ready bool
		long  time.Duration
	}{{false, long}, {true, 2 * programmingDelay}} {
		rule := cl.listRules()[0]
		rule.Status.Ready = step.ready
		cl.put(rule)
		cl.settle()
		time.Sleep(step.long) // virtual
		cl.settle()
	}
}

// A deletion means the rule that was seen, not one of the same name that came after it.
func TestDeletionIsOfOneRule(t *testing.T) {
	inCluster(t, plan(newService(testService), webPod(), webSlice()), func(cl *cluster) {
		rule := cl.listRules()[0]
		seen := rule.DeepCopy()
		seen.UID = "uid-before"
		if err := cl.c.deleteRule(t.Context(), seen); err != nil {
			t.Fatal(err)
		}
		cl.settle()
		if got := cl.listRules(); len(got) != 1 || got[0].UID != rule.UID {
			t.Errorf("rules: %v", got)
		}
	})
}

func TestNewNeedsItsInputs(t *testing.T) {
	if _, err := New(Options{}); err == nil {
		t.Error("want an error")
	}
}
