// SPDX-License-Identifier: Apache-2.0

package natgateway

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// refusePorts makes the script refuse each of these ports, in words of its own for each.
func (f *fixture) refusePorts(ports ...uint16) {
	f.script.with(func() {
		f.script.refuse = func(s sharenat.Share) string {
			for _, port := range ports {
				if s.Port == port {
					return fmt.Sprintf("port %d: unlucky", port)
				}
			}
			return ""
		}
	})
}

// rejected says that the rule repeats what the gateway says.
func (f *fixture) rejected(name, text string) func() bool {
	return func() bool {
		r := f.rule(name)
		return !r.Status.Ready && len(r.Status.Conditions) == 1 && r.Status.Conditions[0].Reason == ReasonRejectedByGateway &&
			strings.Contains(r.Status.Conditions[0].Message, text)
	}
}

func (f *fixture) deleteRule(name string) {
	f.Helper()
	f.must(f.ovn.KubeovnV1().IptablesDnatRules().Delete(context.Background(), name, metav1.DeleteOptions{}))
	f.until("rule "+name+" is gone", func() bool { return f.rule(name) == nil })
}

// Two identities that are refused together keep nothing else from being done: neither what comes, nor what goes.
func TestTwoRefusedIdentitiesHarmNobody(t *testing.T) {
	f := newFixture(t, gateway(), eip("e", withV4(eipAddress)),
		rule("bad1", "e", "10.1.0.4:80", managedBy("s1", eipAddress), port("81")),
		rule("bad2", "e", "10.1.0.4:80", managedBy("s2", eipAddress), port("82")))
	f.refusePorts(81, 82)
	f.createPod(gatewayPod(0, "c1"))
	f.start()
	f.until("the one says why", f.rejected("bad1", "port 81: unlucky"))
	f.until("the other says why", f.rejected("bad2", "port 82: unlucky"))
	f.until("EIP is ready", f.eipReady("e"))
	f.createRule(rule("good", "e", "10.1.0.4:80", managedBy("s3", eipAddress), port("83")))
	f.until("the good one is ready", f.rulesReady(1))
	f.deleteRule("good")
	f.deleteRule("bad1")
	f.deleteRule("bad2")
	if f.event(ReasonProgramFailed, "")() {
		t.Error("a pass has ended in error")
	}
}

// A call that is refused again and again does not keep what is to go.
func TestDeletionDoesNotWaitForARefusedCall(t *testing.T) {
	f := running(t)
	f.createRule(rule("a", "e", "10.1.0.4:80", managedBy("s", eipAddress)))
	f.until("rule is ready", f.rulesReady(1))
	f.script.with(func() {
		f.script.intercept = func(_ context.Context, call Call) error {
			if call.Verb != verbExclusiveAdd {
				return nil
			}
			return &CallError{Pod: call.Pod, Verb: call.Verb, ExitCode: 1, Stderr: "no such table"}
		}
	})
	f.createRule(rule("b", "e", "10.1.0.4:80", exclusive, claimed, port("81")))
	f.until("it is told", f.event(ReasonProgramFailed, "no such table"))
	f.deleteRule("a")
}

// A gateway that refuses everything is asked a few times, and then again later; what it says is what is told, once.
func TestGatewayThatRefusesEverything(t *testing.T) {
	f := running(t)
	f.script.with(func() { f.script.refuse = func(sharenat.Share) string { return "Operation not supported" } })
	const rules = 40
	f.stop() // so that the next handler finds all of them at once
	for i := range rules {
		f.add(rule(fmt.Sprintf("r%02d", i), "e", "10.1.0.4:80", managedBy(fmt.Sprintf("s%d", i), eipAddress),
			port(strconv.Itoa(8000+i))))
	}
	f.start()
	for i := range rules {
		f.until("each rule says why", f.rejected(fmt.Sprintf("r%02d", i), "Operation not supported"))
	}
	f.script.takeCalls()
	var lists, changes []Call
	f.until("it is tried again", func() bool {
		more, calls := f.script.takeCalls()
		lists, changes = append(lists, more...), append(changes, calls...)
		return len(lists) >= 2
	})
	if len(changes) > 8*len(lists) {
		t.Errorf("%d calls after %d listings", len(changes), len(lists))
	}
	f.script.with(func() { f.script.refuse = nil })
	f.until("all is well again", f.rulesReady(rules))
	told := 0
	for len(f.recorder.Events) > 0 {
		if e := <-f.recorder.Events; strings.Contains(e, "Operation not supported") {
			told++
		}
	}
	if told != 1+rules { // one of the gateway, and one of each rule
		t.Errorf("%d events of %d rules", told, rules)
	}
}

// jam makes a pod refuse what a table of another layout refuses: every delta, and, where it is told so, full states too.
func (f *fixture) jam(fullToo bool) (jammed func() bool) {
	is := true
	f.script.with(func() {
		f.script.intercept = func(_ context.Context, call Call) error {
			if call.Verb != sharenat.SyncVerb {
				return nil
			}
			full := strings.HasPrefix(string(call.Stdin), "share-state v1 full")
			var refused bool
			f.script.with(func() {
				is = is && (fullToo || !full)
				refused = is
			})
			if !refused {
				return nil
			}
			return &CallError{Pod: call.Pod, Verb: call.Verb, ExitCode: 1, Stderr: "nft refused: File exists"}
		}
	})
	return func() (now bool) { f.script.with(func() { now = is }); return now }
}

func TestTableOfAnotherLayoutIsReplaced(t *testing.T) {
	f := running(t)
	f.createRule(rule("a", "e", "10.1.0.4:80", managedBy("s1", eipAddress)))
	f.until("rule is ready", f.rulesReady(1))
	jammed := f.jam(false)
	f.createRule(rule("b", "e", "10.1.0.4:80", managedBy("s2", eipAddress), port("81")))
	f.until("the new one is ready", f.rulesReady(2)) // the next check is in an hour
	if jammed() {
		t.Error("the table is as it was")
	}
	f.jam(false)
	f.deleteRule("b")
	f.jam(false)
	f.refusePorts(82)
	f.createRule(rule("bad", "e", "10.1.0.4:80", managedBy("s3", eipAddress), port("82")))
	f.until("one that is wrong as well says why", f.rejected("bad", "port 82: unlucky"))
	if n := f.script.backends(podKey(0)); n != 1 || !f.rule("a").Status.Ready {
		t.Errorf("%d backends are programmed", n)
	}
}

func TestTableThatCannotBeReplacedIsTold(t *testing.T) {
	f := running(t)
	f.createRule(rule("a", "e", "10.1.0.4:80", managedBy("s1", eipAddress)))
	f.until("rule is ready", f.rulesReady(1))
	f.jam(true)
	f.createRule(rule("b", "e", "10.1.0.4:80", managedBy("s2", eipAddress), port("81")))
	f.until("the rule says why", f.rejected("b", "nft refused: File exists"))
	f.script.with(func() { f.script.intercept = nil })
	f.until("the new one is ready", f.rulesReady(2))
}
