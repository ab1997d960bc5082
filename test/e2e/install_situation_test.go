// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/test/lab/node"

	. "github.com/kubeovn/kube-ovn/test/e2e/framework"
)

// installedKinds are those that installing makes objects of.
var installedKinds = []string{
	"configmaps", "customresourcedefinitions", "clusterroles", "clusterrolebindings", "deployments", "jobs", "leases", "networkpolicies",
	"poddisruptionbudgets", "roles", "rolebindings", "secrets", "serviceaccounts", "services", "validatingwebhookconfigurations",
}

// inventory lists the objects of these kinds.
func inventory(ctx context.Context) []string {
	GinkgoHelper()
	args := []string{"kubectl", "get", strings.Join(installedKinds, ","), "--namespace=" + SystemNamespace, "--output=name"}
	output, err := cluster.Lab.Command(ctx, args).Output()
	Expect(err).NotTo(HaveOccurred())
	return strings.Fields(string(output))
}

// since are the objects that were not there before.
func since(ctx context.Context, before []string) []string {
	GinkgoHelper()
	return slices.DeleteFunc(inventory(ctx), func(name string) bool { return slices.Contains(before, name) })
}

// tenant is what a user has, whom installing and uninstalling must leave it: a Service on an EIP, and a rule made by hand.
type tenant struct {
	*balancer

	uids map[string]string
}

const handMade = 2222

// newTenant makes all of it, and does not wait for it to be served.
func newTenant(ctx context.Context) *tenant {
	GinkgoHelper()
	s := cluster.NewScene(ctx)
	b := &balancer{Scene: s, Net: s.Network(ctx, "a"), Ports: []corev1.ServicePort{TCP(80), UDP(53)}}
	b.EIP = b.Net.EIP(ctx, "web")
	s.Deployment(ctx, Workload{Name: "web", Replicas: 2, Annotations: Primary(b.Net.Subnet)})
	s.Service(ctx, "web", b.EIP, b.Ports)
	b.Pods = s.Pods(ctx, "web", 2)
	t := &tenant{balancer: b}
	t.Rule(ctx, "hand", exclusiveRule(b.EIP, handMade, b.Backends()[0]))
	t.uids = t.owned(ctx)
	return t
}

// owned are the UIDs of what is the user's.
func (t *tenant) owned(ctx context.Context) map[string]string {
	GinkgoHelper()
	uids := map[string]string{}
	note := func(object metav1.Object, err error) {
		GinkgoHelper()
		Expect(err).NotTo(HaveOccurred())
		uids[fmt.Sprintf("%T %s", object, object.GetName())] = string(object.GetUID())
	}
	api := t.KubeOvn.KubeovnV1()
	vpc, err := api.Vpcs().Get(ctx, t.Net.Name, metav1.GetOptions{})
	note(vpc, err)
	subnet, err := api.Subnets().Get(ctx, t.Net.Subnet, metav1.GetOptions{})
	note(subnet, err)
	gateway, err := api.VpcNatGateways().Get(ctx, t.Net.Name, metav1.GetOptions{})
	note(gateway, err)
	eip, err := api.IptablesEIPs().Get(ctx, t.EIP, metav1.GetOptions{})
	note(eip, err)
	rule, err := api.IptablesDnatRules().Get(ctx, t.Name+"-hand", metav1.GetOptions{})
	note(rule, err)
	note(t.GetService(ctx, "web"), nil)
	return uids
}

// served waits until the Service is served, to everybody, and the rule made by hand with it.
func (t *tenant) served(ctx context.Context) {
	GinkgoHelper()
	t.Settle(ctx, 2)
	t.WaitRule(ctx, t.Name+"-hand")
	WaitAnswers(ctx, t.Outside(ctx), At(t.Addr, TCP(handMade)), t.Pods[0].Name)
}

// undisturbed does something while clients are at it: they notice nothing, and no rule is written anew, here or in the gateway.
func (t *tenant) undisturbed(ctx context.Context, what string, do func()) {
	GinkgoHelper()
	uids, ruleset := t.ruleUIDs(ctx), t.Ruleset(ctx, t.Gateway)
	// Installing keeps a small machine busy: who waits is not lost. What a gap in the rules would do shows below as well.
	l := startPatientLoad(ctx, t.balancer, Soon)
	do()
	l.lostNothing(ctx, what)
	Expect(t.ruleUIDs(ctx)).To(Equal(uids), "rules")
	Expect(t.Ruleset(ctx, t.Gateway)).To(Equal(ruleset), "ruleset of the gateway")
	Expect(t.owned(ctx)).To(Equal(t.uids), "what is the user's")
}

func (t *tenant) ruleUIDs(ctx context.Context) map[string]string {
	GinkgoHelper()
	rules, err := t.Rules(ctx, "web")
	Expect(err).NotTo(HaveOccurred())
	Expect(rules).NotTo(BeEmpty())
	uids := map[string]string{}
	for i := range rules {
		uids[rules[i].Name] = string(rules[i].UID)
	}
	return uids
}

// withdrawn wants nothing published and no rule left of the Service, and all that is the user's as it was. It was said first.
func (t *tenant) withdrawn(ctx context.Context, said string) {
	GinkgoHelper()
	Expect(said).To(ContainSubstring("Service " + t.Namespace + "/web: taking back its EXTERNAL-IP and conditions"))
	Expect(said).To(ContainSubstring("DNAT rules made for Services: 4 to delete"))
	Expect(t.GetService(ctx, "web").Status).To(Equal(corev1.ServiceStatus{}))
	Expect(t.Rules(ctx, "web")).To(BeEmpty())
	t.WaitHolds(ctx, t.Gateway, t.Addr)
	_, err := t.Outside(ctx).Ask(ctx, At(t.Addr, TCP(80)), AskHostname, 1)
	Expect(err).To(HaveOccurred(), "nobody should answer at %s", t.Addr)
	Expect(t.owned(ctx)).To(Equal(t.uids), "what is the user's")
	AskAll(ctx, t.Outside(ctx), At(t.Addr, TCP(handMade)), 10)
}

// imageUser is who runs in the product's image: root of the lab, where the lab has no other user.
func imageUser() uint32 {
	GinkgoHelper()
	const nonroot = 65532
	exists, err := node.UserExists(nonroot)
	Expect(err).NotTo(HaveOccurred())
	if !exists {
		return 0
	}
	return nonroot
}

// usersOf are the users that processes of a program run as.
func usersOf(program string) []uint32 {
	GinkgoHelper()
	files, err := filepath.Glob("/proc/[0-9]*")
	Expect(err).NotTo(HaveOccurred())
	var users []uint32
	for _, file := range files {
		name, err := os.ReadFile(filepath.Join(file, "cmdline"))
		info, statErr := os.Stat(file)
		if err != nil || statErr != nil {
			continue // It has ended.
		}
		if arg, _, _ := strings.Cut(string(name), "\x00"); arg == program {
			users = append(users, info.Sys().(*syscall.Stat_t).Uid)
		}
	}
	return users
}

// refusesNonsense waits until the webhook answers the API server, and refuses what it should.
func refusesNonsense(ctx context.Context, eip string) {
	GinkgoHelper()
	rule := &kubeovnv1.IptablesDnatRule{ObjectMeta: metav1.ObjectMeta{GenerateName: "nonsense-"}, Spec: exclusiveRule(eip, 0, netip.MustParseAddr("10.1.0.250"))}
	Wait(ctx, func(ctx context.Context) error {
		_, err := cluster.KubeOvn.KubeovnV1().IptablesDnatRules().Create(ctx, rule, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}).Should(MatchError(ContainSubstring("denied the request")))
}
