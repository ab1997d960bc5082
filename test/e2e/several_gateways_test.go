// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/kubeovn/kube-ovn/pkg/lbservice"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
	"github.com/kubeovn/kube-ovn/test/lab"
	"github.com/kubeovn/kube-ovn/test/lab/fabric"

	. "github.com/kubeovn/kube-ovn/test/e2e/framework"
)

// clientAddresses are those of so many clients behind the router.
func clientAddresses(count int) []netip.Addr {
	addr, out := netip.MustParseAddr("203.0.113.201"), []netip.Addr{}
	for range count {
		out, addr = append(out, addr), addr.Next()
	}
	return out
}

// held is a connection that is kept open and used.
type held struct {
	from netip.Addr
	conn net.Conn
	who  string
}

// several is a balancer behind three gateway pods, with the router before them.
type several struct {
	*Scene

	net    *Network
	eip    string
	addr   netip.Addr
	pods   []corev1.Pod
	router *Multipath
	client *SpaceClient
	from   []netip.Addr
}

func newSeveral(ctx context.Context, clients int, affinity corev1.ServiceAffinity) *several {
	GinkgoHelper()
	s := &several{Scene: cluster.NewScene(ctx)}
	s.net = s.NetworkWithoutGateway(ctx, "a")
	s.Deployment(ctx, Workload{Name: "web", Replicas: 3, Annotations: Primary(s.net.Subnet)})
	s.pods = s.net.MakeSeveral(ctx, 3)
	s.eip = s.net.EIP(ctx, "web")
	s.Service(ctx, "web", s.eip, []corev1.ServicePort{TCP(80)}, func(service *corev1.Service) {
		service.Spec.SessionAffinity = affinity
		if affinity == corev1.ServiceAffinityClientIP {
			service.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr.To[int32](600)}}
		}
	})
	s.addr = s.WaitExternalIP(ctx, "web")
	s.WaitRules(ctx, "web", Addresses(s.Pods(ctx, "web", 3), ovn), TCP(80))
	s.from = clientAddresses(clients)
	s.AddClientAddresses(ctx, lab.Clients[0], s.from...)
	s.router = s.Multipath(ctx, s.addr, s.pods)
	s.client = s.Outside(ctx).(*SpaceClient)
	return s
}

// share is what every pod should hold for the Service at a port.
func (s *several) share(ctx context.Context, port int32) sharenat.Share {
	GinkgoHelper()
	return Masqueraded(ShareOf(s.addr, TCP(port), Addresses(s.Pods(ctx, "web", 3), ovn)))
}

// ask makes one connection from an address.
func (s *several) ask(ctx context.Context, from netip.Addr) (string, error) {
	conn, err := s.client.Dial(ctx, At(s.addr, TCP(80)), netip.AddrPortFrom(from, 0))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	return AskOn(conn, false, AskHostname)
}

// askAll has every client connect once, and says who answered each; "" for a client that nobody answered.
func (s *several) askAll(ctx context.Context) map[netip.Addr]string {
	var mu sync.Mutex
	answers := map[netip.Addr]string{}
	var asking sync.WaitGroup
	for _, from := range s.from {
		asking.Go(func() {
			who, err := s.ask(ctx, from)
			if err != nil {
				who = ""
			}
			mu.Lock()
			defer mu.Unlock()
			answers[from] = who
		})
	}
	asking.Wait()
	return answers
}

// hold has every client open a connection that stays.
func (s *several) hold(ctx context.Context) []*held {
	GinkgoHelper()
	var all []*held
	for _, from := range s.from {
		conn, err := s.client.Dial(ctx, At(s.addr, TCP(80)), netip.AddrPortFrom(from, 0))
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(conn.Close)
		who, err := AskOn(conn, false, AskHostname)
		Expect(err).NotTo(HaveOccurred())
		all = append(all, &held{from, conn, who})
	}
	return all
}

// alive uses every connection once, and gives the addresses of those that were answered.
func alive(all []*held) map[netip.Addr]bool {
	var mu sync.Mutex
	answered := map[netip.Addr]bool{}
	var asking sync.WaitGroup
	for _, h := range all {
		asking.Go(func() {
			who, err := AskOn(h.conn, false, AskHostname)
			mu.Lock()
			defer mu.Unlock()
			answered[h.from] = err == nil && who == h.who
		})
	}
	asking.Wait()
	return answered
}

// paths says which gateway pod each client goes by: its VPC address is what the backends see.
func (s *several) paths(ctx context.Context) map[netip.Addr]string {
	GinkgoHelper()
	paths := map[netip.Addr]string{}
	for _, from := range s.from {
		conn, err := s.client.Dial(ctx, At(s.addr, TCP(80)), netip.AddrPortFrom(from, 0))
		Expect(err).NotTo(HaveOccurred())
		seen, err := AskOn(conn, false, AskClientIP)
		_ = conn.Close() // It has said what was asked.
		Expect(err).NotTo(HaveOccurred())
		paths[from] = s.podAt(seen)
	}
	return paths
}

// podAt is the gateway pod with the VPC address that a backend saw.
func (s *several) podAt(seen string) string {
	GinkgoHelper()
	source := netip.MustParseAddrPort(seen).Addr()
	for i := range s.pods {
		if Address(&s.pods[i], ovn) == source {
			return s.pods[i].Name
		}
	}
	Fail("no gateway pod has address " + seen)
	return ""
}

// setReady is what the node controller writes on a Pod whose node is lost, and the kubelet when it is back.
func (s *several) setReady(ctx context.Context, pod *corev1.Pod, status corev1.ConditionStatus) {
	GinkgoHelper()
	patch := fmt.Sprintf(`{"status":{"conditions":[{"type":"Ready","status":%q}]}}`, status)
	_, err := s.Kube.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	Expect(err).NotTo(HaveOccurred())
}

// kill ends a gateway pod without a warning.
func (s *several) kill(ctx context.Context, name string) {
	GinkgoHelper()
	pods := s.Kube.CoreV1().Pods(s.pods[0].Namespace)
	Expect(pods.Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})).To(Succeed())
	Wait(ctx, func(ctx context.Context) error {
		_, err := pods.Get(ctx, name, metav1.GetOptions{})
		return err
	}).Should(MatchError(apierrors.IsNotFound, "NotFound"))
}

func count[K comparable](all map[K]bool, want bool) int {
	n := 0
	for _, is := range all {
		if is == want {
			n++
		}
	}
	return n
}

var _ = Describe("A gateway of three pods", Serial, Lab, func() {
	It("answers by each of them, from outside and from the VPC, each pod being filled before a rule is ready", func(ctx SpecContext) {
		s := newSeveral(ctx, 24, corev1.ServiceAffinityNone)
		for i := range s.pods {
			s.WaitHolds(ctx, &s.pods[i], s.addr, s.share(ctx, 80))
		}
		inside := s.ClientIn(ctx, "inside", s.net.Subnet)
		WaitAnswers(ctx, s.Outside(ctx), At(s.addr, TCP(80)), Names(s.Pods(ctx, "web", 3))...)
		WaitAnswers(ctx, inside, At(s.addr, TCP(80)), Names(s.Pods(ctx, "web", 3))...)
		AskAll(ctx, inside, At(s.addr, TCP(80)), 30)
		by := map[string]int{}
		for _, pod := range s.paths(ctx) {
			by[pod]++
		}
		Expect(by).To(HaveLen(3), "clients by gateway pod: %v", by)
		Expect(s.askAll(ctx)).NotTo(ContainElement(""))

		By("one that is slow: it keeps its rule from being ready, and nobody from being updated")
		release := s.HoldLock(ctx, &s.pods[0])
		s.Service(ctx, "slow", s.eip, []corev1.ServicePort{TCP(81)}, Selecting("web"))
		for i := range s.pods[1:] {
			s.WaitHolds(ctx, &s.pods[1+i], s.addr, s.share(ctx, 80), s.share(ctx, 81))
		}
		rules, err := s.Rules(ctx, "slow")
		Expect(err).NotTo(HaveOccurred())
		Expect(rules).To(HaveLen(3))
		for i := range rules {
			Expect(rules[i].Status.Ready).To(BeFalse(), "rule %s, which one pod does not hold yet", rules[i].Name)
		}
		Expect(ReadyReason(s.GetService(ctx, "slow"))).NotTo(Equal("Programmed"))
		Expect(s.askAll(ctx)).NotTo(ContainElement(""))

		By("one that is cut off, so that its node's kubelet is not heard of: nobody waits for it")
		s.setReady(ctx, &s.pods[0], corev1.ConditionFalse)
		s.WaitRules(ctx, "slow", Addresses(s.Pods(ctx, "web", 3), ovn), TCP(81))
		s.WaitReason(ctx, "slow", lbservice.ReasonProgrammed)
		s.setReady(ctx, &s.pods[0], corev1.ConditionTrue)
		release()
		s.net.WaitGateway(ctx)
		s.WaitRules(ctx, "slow", Addresses(s.Pods(ctx, "web", 3), ovn), TCP(81))
		s.WaitHolds(ctx, &s.pods[0], s.addr, s.share(ctx, 80), s.share(ctx, 81))
	})

	It("loses with a pod that pod's connections and pins, and nobody else's", Measurement, func(ctx SpecContext) {
		const clients = 24
		s := newSeveral(ctx, clients, corev1.ServiceAffinityClientIP)
		paths := s.paths(ctx)
		pinned := s.askAll(ctx)
		Expect(pinned).NotTo(ContainElement(""))
		Expect(s.askAll(ctx)).To(Equal(pinned), "affinity, with all pods there")
		connections := s.hold(ctx)
		Expect(count(alive(connections), true)).To(Equal(clients))

		victim := s.pods[0]
		// The router is told at once here; how long it takes to find out is its own.
		s.kill(ctx, victim.Name)
		withdrawn := time.Now()
		s.router.Withdraw(ctx, victim.Name)
		Wait(ctx, func(ctx context.Context) map[netip.Addr]string { return s.askAll(ctx) }).ShouldNot(ContainElement(""))
		recovered := time.Since(withdrawn)
		after := s.askAll(ctx)
		survived := alive(connections)
		moved, kept, keptByOthers, lost := 0, 0, 0, 0
		for _, from := range s.from {
			mine := paths[from] == victim.Name
			same := after[from] == pinned[from]
			if mine {
				moved++
				if same {
					kept++
				}
				if !survived[from] {
					lost++
				}
				continue
			}
			Expect(survived[from]).To(BeTrue(), "connection of %s, which went by %s", from, paths[from])
			Expect(same).To(BeTrue(), "pin of %s, which went by %s", from, paths[from])
			keptByOthers++
		}
		Measured{What: "gateway pod of 3 killed: connections lost", Result: fmt.Sprintf("%d of %d, all of them that pod's %d; others' kept: %d", lost, clients, moved, keptByOthers)}.Report()
		Measured{What: "gateway pod of 3 killed: ClientIP pins that stayed", Result: fmt.Sprintf("%d of %d of others, %d of %d of that pod's (1 in 3 by chance)", keptByOthers, clients-moved, kept, moved)}.Report()
		Measured{What: "gateway pod of 3 killed: every client answered again after the route's withdrawal", Result: recovered.Round(time.Millisecond).String()}.Report()

		By("its successor is filled before it counts")
		pods := s.GatewayPods(ctx, s.net.Name, 3)
		s.net.WaitGateway(ctx)
		for i := range pods {
			s.WaitHolds(ctx, &pods[i], s.addr, s.affine(s.share(ctx, 80)))
			if pods[i].UID != s.pods[1].UID && pods[i].UID != s.pods[2].UID {
				s.router.Announce(ctx, &pods[i])
			}
		}
		Expect(s.askAll(ctx)).NotTo(ContainElement(""))
		back := alive(connections)
		for _, from := range s.from {
			if paths[from] != victim.Name {
				Expect(back[from]).To(BeTrue(), "connection of %s after a pod has come", from)
			}
		}
	})

	It("in one network segment, without a router: a neighbour goes by one pod, and by its successor once that has announced itself", Measurement, func(ctx SpecContext) {
		s := newSeveral(ctx, 1, corev1.ServiceAffinityNone)
		neighbour, to := s.OutsideClients(ctx, 2)[1], At(s.addr, TCP(80))
		RunIn(ctx, fabric.Namespace{Name: lab.Clients[1]}, "ip", "route", "del", s.addr.String()+"/32")
		seen := sources(ctx, neighbour, to, 20)
		Expect(seen).To(HaveLen(1), "gateway pods that a neighbour goes by")
		victim := s.podAt(netip.AddrPortFrom(seen[0], 0).String())
		transcript := AskConstantly(ctx, neighbour, to)
		Wait(ctx, transcript.Attempts).Should(BeNumerically(">", 3))
		s.kill(ctx, victim)
		before := transcript.Attempts()
		for _, pod := range s.GatewayPods(ctx, s.net.Name, 3) {
			s.WaitHolds(ctx, &pod, s.addr, s.share(ctx, 80))
		}
		Wait(ctx, func(ctx context.Context) error {
			_, err := neighbour.Ask(ctx, to, AskHostname, 20)
			return err
		}).WithTimeout(2 * Timeout).Should(Succeed())
		Wait(ctx, transcript.Attempts).Should(BeNumerically(">", before))
		transcript.Stop()
		Measured{What: "gateway pod of 3 killed in one network segment: its neighbour's longest time without an answer", Result: transcript.Gap().Round(time.Millisecond).String()}.Report()
	})
})

// affine is a share with the affinity of newSeveral's Service.
func (s *several) affine(share sharenat.Share) sharenat.Share {
	share.Affinity = sharenat.Affinity{ClientIP: true, TimeoutSeconds: 600}
	return share
}
