// SPDX-License-Identifier: Apache-2.0

package lbservice

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kubeovn/kube-ovn/pkg/latency"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// triggered is a slice of the Service web as Kubernetes' controller writes it after a change at that time.
func triggered(at string, pods ...*corev1.Pod) *discoveryv1.EndpointSlice {
	slice := newSlice("web-x", testService, unnamed8080)
	for _, pod := range pods {
		slice.Endpoints = append(slice.Endpoints, endpointOf(pod))
	}
	if at != "" {
		slice.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: at}
	}
	return slice
}

func now() string { return time.Now().Format(time.RFC3339Nano) }

// measured gives the number of changes that were measured, and their times' sum.
func (cl *cluster) measured() (count uint64, sum time.Duration) {
	cl.t.Helper()
	families, err := cl.registry.Gather()
	if err != nil {
		cl.t.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if family.GetName() == "kube_ovn_nftable_lb_programming_duration_seconds" && m.GetLabel()[0].GetValue() == gwA {
				h := m.GetHistogram()
				return h.GetSampleCount(), time.Duration(h.GetSampleSum() * float64(time.Second)).Round(time.Millisecond)
			}
		}
	}
	return 0, 0
}

func (cl *cluster) wantMeasured(count uint64, sum time.Duration) {
	cl.t.Helper()
	if gotCount, gotSum := cl.measured(); gotCount != count || gotSum != sum {
		cl.t.Errorf("measured %d changes of %v, want %d of %v", gotCount, gotSum, count, sum)
	}
}

// pods are as many Pods of the address plan.
func pods(n int) []*corev1.Pod {
	return []*corev1.Pod{newPod("web-0", "sub-a", "10.1.0.4"), newPod("web-1", "sub-a", "10.1.0.5"), newPod("web-2", "sub-a", "10.1.0.6")}[:n]
}

// Where another process runs the gateways, a change has arrived when the rules are ready.
func TestLatencyByRules(t *testing.T) {
	p := pods(3)
	inCluster(t, plan(newService(testService), p[0], p[1], p[2], webSlice()), func(cl *cluster) {
		cl.wantMeasured(0, 0)
		cl.setHandler(false)
		cl.put(triggered(now(), p[0], p[1]))
		cl.settle()
		time.Sleep(3 * time.Second) // virtual
		cl.finish()
		cl.settle()
		count, sum := cl.measured()
		if count != 1 || sum < 3*time.Second || sum > 3500*time.Millisecond {
			t.Errorf("measured %d changes of %v, want one of 3 s", count, sum)
		}
		// Endpoints that go: until no gateway holds them.
		cl.put(triggered(now(), p[0]))
		cl.settle()
		time.Sleep(5 * time.Second) // virtual
		if n, _ := cl.measured(); n != 1 {
			t.Errorf("%d changes measured while a gateway still holds the backend", n)
		}
		cl.finish()
		cl.settle()
		if count, total := cl.measured(); count != 2 || total-sum < 5*time.Second {
			t.Errorf("measured %d changes, the last of %v", count, total-sum)
		}
	})
}

func TestLatencyIsNotMeasured(t *testing.T) {
	p := pods(3)
	for _, tc := range []struct {
		name string
		do   func(*cluster)
	}{
		{"a time from before the start", func(cl *cluster) { cl.put(triggered("1999-12-31T00:00:00Z", p[0], p[1])) }},
		{"a new slice without a time", func(cl *cluster) {
			slice := triggered("", p[1])
			slice.Name = "web-y"
			cl.put(slice)
		}},
		{"a change that needs no rule", func(cl *cluster) {
			slice := triggered(now(), p[0])
			slice.Endpoints[0].NodeName = new(string)
			cl.put(slice)
		}},
		{"a Service that is not ours", func(cl *cluster) {
			cl.edit(testService, func(svc *corev1.Service) { delete(svc.Annotations, sharenat.EIPAnnotation) })
			cl.settle()
			cl.put(triggered(now(), p[0], p[1]))
		}},
		{"a Service that has lost its only port", func(cl *cluster) {
			cl.put(newManualRule("by-hand", eipA, "80", "tcp", sharenat.TypeShare))
			cl.settle()
			cl.put(triggered(now(), p[0], p[1]))
		}},
		{"a Service without an EIP", func(cl *cluster) {
			cl.remove(newEIP(eipA, eipAddrA, gwA))
			cl.settle()
			cl.put(triggered(now(), p[0], p[1]))
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inCluster(t, plan(newService(testService), p[0], p[1], p[2], webSlice()), func(cl *cluster) {
				time.Sleep(time.Second) // virtual
				tc.do(cl)
				cl.settle()
				time.Sleep(time.Minute) // virtual
				cl.wantMeasured(0, 0)
			})
		})
	}
}

// Where a slice does not say when it was changed, it is when that was seen.
func TestLatencySinceSeen(t *testing.T) {
	p := pods(3)
	const earlier = "1999-12-31T23:00:00Z" // a bubble begins with the year 2000
	for _, tc := range []struct {
		name string
		do   func(*cluster)
	}{
		{"no time", func(cl *cluster) { cl.put(triggered("", p[0], p[1])) }},
		{"a time that is none", func(cl *cluster) { cl.put(triggered("soon", p[0], p[1])) }},
		{"a slice that is deleted", func(cl *cluster) { cl.remove(triggered(earlier, p[0])) }},
		{"the time of the change before", func(cl *cluster) { cl.put(triggered(earlier, p[0], p[1])) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inCluster(t, plan(newService(testService), p[0], p[1], p[2], triggered(earlier, p[0])), func(cl *cluster) {
				time.Sleep(time.Hour) // virtual
				tc.do(cl)
				cl.settle()
				if count, sum := cl.measured(); count != 1 || sum > time.Second {
					t.Errorf("measured %d changes of %v, want one of less than a second", count, sum)
				}
			})
		})
	}
}

// The digests are those that the handler computes: what both expect of an identity is the same text.
func TestDecisionOf(t *testing.T) {
	id := func(port uint16) sharenat.Identity {
		addr, _ := sharenat.ParseIPv4(eipAddrA)
		return sharenat.Identity{EIP: addr, Port: port, Protocol: sharenat.TCP}
	}
	share := sharenat.Share{Identity: id(80)}
	for _, backend := range []string{"10.1.0.4", "10.1.0.5"} {
		addr, err := sharenat.ParseBackendAddr(backend, "8080")
		if err != nil {
			t.Fatal(err)
		}
		share.Backends = append(share.Backends, sharenat.Backend{Addr: addr})
	}
	svc := newService(testService, withPorts(tcpPort("", 80), tcpPort("none", 81)))
	p := pods(2)
	s := newSnapshot(svc, withPods(p...), withSlices(triggered("", p[1], p[0])))
	want := latency.Decision{Gateway: gwA, Digests: map[sharenat.Identity]string{id(80): share.Digest(), id(81): ""}}
	if diff := cmp.Diff(want, decisionOf(s, Desired(s))); diff != "" {
		t.Errorf("decision (-want +got):\n%s", diff)
	}
	blocked := newSnapshot(svc, func(s *Snapshot) { s.EIP = nil })
	if diff := cmp.Diff(latency.Decision{}, decisionOf(blocked, Desired(blocked))); diff != "" {
		t.Errorf("decision without an EIP (-want +got):\n%s", diff)
	}
}

func TestRulesAreCounted(t *testing.T) {
	p := pods(2)
	inCluster(t, plan(newService(testService), p[0], p[1], webSlice()), func(cl *cluster) {
		want := func(ready, notReady, deleting float64) {
			t.Helper()
			got := map[string]float64{}
			families, err := cl.registry.Gather()
			if err != nil {
				t.Fatal(err)
			}
			for _, family := range families {
				for _, m := range family.GetMetric() {
					if family.GetName() == "kube_ovn_nftable_lb_rules" {
						got[m.GetLabel()[0].GetValue()+" "+m.GetLabel()[1].GetValue()] = m.GetGauge().GetValue()
					}
				}
			}
			if diff := cmp.Diff(map[string]float64{gwA + " ready": ready, gwA + " not_ready": notReady, gwA + " deleting": deleting}, got); diff != "" {
				t.Errorf("rules (-want +got):\n%s", diff)
			}
		}
		want(1, 0, 0)
		cl.setHandler(false)
		cl.put(triggered("", p[1]))
		cl.settle()
		want(0, 1, 1)
		cl.finish()
		cl.settle()
		want(1, 0, 0)
		// One that loses its labels is set right, and still counted once.
		edited := cl.listRules()[0].DeepCopy()
		edited.Labels = nil
		cl.put(edited)
		cl.settle()
		want(1, 0, 0)
		// Hand-made rules are not counted, and a gateway without rules has no series.
		cl.setHandler(true)
		cl.put(newManualRule("by-hand", eipB, "80", "tcp", sharenat.TypeShare))
		cl.remove(cl.service(testNamespace, testService))
		cl.settle()
		if n, err := testutil.GatherAndCount(cl.registry, "kube_ovn_nftable_lb_rules"); n != 0 || err != nil {
			t.Errorf("%d series of rules with no Service left, %v", n, err)
		}
	})
}

func TestMetricNames(t *testing.T) {
	inCluster(t, plan(newService(testService), newService("zzz"), webPod(), webSlice()), func(cl *cluster) {
		problems, err := testutil.GatherAndLint(cl.registry)
		if err != nil || len(problems) > 0 {
			t.Error(problems, err)
		}
	})
}
