// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/lbservice"
	"github.com/kubeovn/kube-ovn/pkg/natgateway"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// handlerState is what the handler makes of these rules and FIPs, on the EIPs of the address plan.
func handlerState(rules []*kubeovnv1.IptablesDnatRule, fips []*kubeovnv1.IptablesFIPRule) *natgateway.State {
	in := natgateway.Snapshot{Gateway: gwA, Rules: map[natgateway.GroupKey][]*kubeovnv1.IptablesDnatRule{}}
	for name, cidr := range map[string]string{eipA: "203.0.113.10/24", eipB: "203.0.113.20/24"} {
		in.EIPs = append(in.EIPs, natgateway.SnapshotEIP{Name: name, CIDR: netip.MustParsePrefix(cidr), FIP: sharenat.FIPOf(fips, name)})
	}
	for _, rule := range rules {
		key := natgateway.GroupOf(rule)
		in.Rules[key] = append(in.Rules[key], rule)
	}
	return natgateway.Desired(in, nil)
}

// unprogrammed names the rules that the handler does not program, and those that it programs otherwise than they ask, and why.
func unprogrammed(rules map[string]*kubeovnv1.IptablesDnatRule, fips map[string]*kubeovnv1.IptablesFIPRule) (lost, otherwise map[string]string) {
	list := slices.Collect(maps.Values(rules))
	state := handlerState(list, slices.Collect(maps.Values(fips)))
	lost, otherwise = map[string]string{}, map[string]string{}
	for _, rule := range list {
		switch v := state.Verdict(rule); {
		case v == nil:
			lost[rule.Name] = "unknown"
		case v.Outcome == natgateway.Lost || v.Outcome == natgateway.Invalid:
			lost[rule.Name] = v.Message
		case v.Message != "":
			otherwise[rule.Name] = v.Message
		}
	}
	return lost, otherwise
}

// world is a cluster that changes only by what the webhook admits.
type world struct {
	r     *rand.Rand
	rules map[string]*kubeovnv1.IptablesDnatRule
	fips  map[string]*kubeovnv1.IptablesFIPRule
}

func (w *world) snapshot() *Snapshot {
	s := aCluster()
	s.Rules, s.FIPs = slices.Collect(maps.Values(w.rules)), slices.Collect(maps.Values(w.fips))
	return s
}

func pick[T any](r *rand.Rand, items ...T) T { return items[r.IntN(len(items))] }

// randomRule is mostly a good one, often in somebody's way.
func (w *world) randomRule() (*kubeovnv1.IptablesDnatRule, bool) {
	r := w.r
	managed := r.IntN(2) == 0
	rule := newRule("hand-"+strconv.Itoa(r.IntN(4)),
		port(pick(r, "80", "80", "80", "81")), onEIP(pick(r, eipA, eipA, eipA, eipB)), backend(pick(r, "10.1.0.4", "10.1.0.5", "10.1.0.6")),
		pick(r, func(*kubeovnv1.IptablesDnatRule) {}, pinned(60), pinned(0), pinned(10800), annotation(sharenat.SourceRangesAnnotation, "10.0.0.0/8")),
		spec(func(s *ruleSpec) { s.Protocol = pick(r, "tcp", "TCP") }))
	if !managed && r.IntN(4) == 0 {
		rule.Spec.Type, rule.Spec.SessionAffinity, rule.Spec.SessionAffinityTimeoutSeconds = pick(r, sharenat.TypeExclusive, ""), "", 0
	}
	if managed {
		rule.Name = "lb-" + strconv.Itoa(r.IntN(4))
		owned(pick(r, web, api))(rule)
	}
	if r.IntN(10) == 0 {
		pick(r, port("080"), port(""), backend("x"), spec(func(s *ruleSpec) { s.Protocol = "sctp" }))(rule)
	}
	return rule, managed
}

// TestAgreesWithHandler: in clusters that change only by what is admitted, the handler programs every rule; and whatever is refused, the handler
// would not have programmed all of, or not as it asks.
func TestAgreesWithHandler(t *testing.T) {
	admitted, refused := 0, 0
	for seed := range uint64(200) {
		w := &world{r: rand.New(rand.NewPCG(seed, 1)), rules: map[string]*kubeovnv1.IptablesDnatRule{}, fips: map[string]*kubeovnv1.IptablesFIPRule{}}
		for step := range 60 {
			rules, fips := maps.Clone(w.rules), maps.Clone(w.fips)
			req := w.change(rules, fips)
			v := policy.Decide(req, w.snapshot())
			lost, otherwise := unprogrammed(rules, fips)
			if len(v.Refusals) == 0 {
				admitted++
				w.rules, w.fips = rules, fips
				if len(lost) > 0 {
					t.Fatalf("seed %d, step %d: %s %s is admitted, but then the handler does not program %v", seed, step, req.Operation, nameOf(req), lost)
				}
				continue
			}
			refused++
			if len(lost) == 0 && len(otherwise) == 0 {
				t.Fatalf("seed %d, step %d: %s %s is refused (%v), but the handler would program all as they ask", seed, step, req.Operation, nameOf(req), texts(v.Refusals))
			}
		}
	}
	t.Logf("%d changes admitted, %d refused", admitted, refused)
	if admitted < 1000 || refused < 1000 {
		t.Errorf("%d changes admitted, %d refused: the histories do not try enough", admitted, refused)
	}
}

// change makes a random change and the request for it.
func (w *world) change(rules map[string]*kubeovnv1.IptablesDnatRule, fips map[string]*kubeovnv1.IptablesFIPRule) Request {
	switch w.r.IntN(10) {
	case 0:
		fip := newFIP("fip", pick(w.r, eipA, eipB))
		old, there := fips[fip.Name]
		fips[fip.Name] = fip
		if there {
			return updating(old, fip)
		}
		return creating(fip)
	case 1, 2:
		if names := slices.Sorted(maps.Keys(rules)); len(names) > 0 {
			name := pick(w.r, names...)
			old := rules[name]
			if w.r.IntN(2) == 0 { // it is gone at once, or it stays for a while
				delete(rules, name)
			} else if counts(old) {
				rules[name] = deleting(old.DeepCopy())
			}
			return removing(old)
		}
		delete(fips, "fip")
		return removing(newFIP("fip", eipA))
	}
	rule, managed := w.randomRule()
	old, there := rules[rule.Name]
	if there && !counts(old) {
		delete(rules, rule.Name)
		return removing(old)
	}
	req := creating(rule)
	if there {
		// A managed rule never changes its owner.
		rule.Labels = old.Labels
		req = updating(old, rule)
	}
	rules[rule.Name] = rule
	if managed {
		req = byController(req)
	}
	return req
}

func nameOf(req Request) string {
	if req.New != nil {
		return req.New.GetName()
	}
	return req.Old.GetName()
}

// TestAffinityInPlace: the Service controller changes the affinity of a live identity rule by rule, in any order, while backends come and
// go; so does a person, of rules made by hand. Every step is admitted, and after every step the handler programs all backends, with the
// old affinity or the new.
func TestAffinityInPlace(t *testing.T) {
	for _, byHand := range []bool{false, true} {
		for seed := range uint64(60) {
			affinityInPlace(t, byHand, seed)
		}
	}
}

func affinityInPlace(t *testing.T, byHand bool, seed uint64) {
	t.Helper()
	type affinity struct {
		kind    string
		timeout int32
	}
	changes := [][2]affinity{
		{{}, {sharenat.SessionAffinityIP, 60}}, {{sharenat.SessionAffinityIP, 60}, {}}, {{sharenat.SessionAffinityIP, 60}, {sharenat.SessionAffinityIP, 61}},
	}
	set := func(a affinity) ruleTweak {
		return spec(func(s *ruleSpec) { s.SessionAffinity, s.SessionAffinityTimeoutSeconds = a.kind, a.timeout })
	}
	make1 := func(i int, a affinity) *kubeovnv1.IptablesDnatRule {
		addr := fmt.Sprintf("10.1.0.%d", 4+i)
		if byHand {
			return newRule(fmt.Sprintf("hand-%d", i), backend(addr), set(a))
		}
		return newRule(sharenat.RuleName(web, "tcp", 80, mustBackend(addr+":8080")), owned(web), backend(addr), set(a))
	}
	r := rand.New(rand.NewPCG(seed, 2))
	change := changes[int(seed)%len(changes)]
	before, after := change[0], change[1]
	rules := map[string]*kubeovnv1.IptablesDnatRule{}
	var todo []func() Request
	for i := range 8 {
		switch old := make1(i, before); {
		case i < 6: // one that is there
			rules[old.Name] = old
			todo = append(todo, func() Request {
				changed := make1(i, after)
				rules[old.Name] = changed
				return updating(old, changed)
			})
		case !byHand: // one that is added
			todo = append(todo, func() Request {
				rules[old.Name] = make1(i, after)
				return creating(rules[old.Name])
			})
		}
	}
	r.Shuffle(len(todo), func(i, j int) { todo[i], todo[j] = todo[j], todo[i] })
	for step, do := range todo {
		s := aCluster()
		s.Rules = slices.Collect(maps.Values(rules))
		req := do()
		if !byHand {
			req = byController(req)
		}
		v := policy.Decide(req, s)
		if len(v.Refusals) > 0 {
			t.Fatalf("seed %d, step %d: refused: %v", seed, step, texts(v.Refusals))
		}
		last := step == len(todo)-1
		if told := len(v.Warnings) > 0; told != (byHand && !last) {
			t.Fatalf("seed %d, step %d: warnings %q", seed, step, v.Warnings)
		}
		state := handlerState(slices.Collect(maps.Values(rules)), nil)
		share := state.Shares[sharenat.Identity{EIP: netip.MustParseAddr("203.0.113.10"), Port: 80, Protocol: sharenat.TCP}]
		if share == nil || len(share.Backends) != len(rules) {
			t.Fatalf("seed %d, step %d: %d rules make %+v", seed, step, len(rules), share)
		}
		was, _ := sharenat.ParseAffinity(before.kind, before.timeout)
		is, _ := sharenat.ParseAffinity(after.kind, after.timeout)
		if share.Affinity != is && (last || share.Affinity != was) {
			t.Fatalf("seed %d, step %d: affinity %q", seed, step, share.Affinity)
		}
		if first := slices.Min(slices.Collect(maps.Keys(rules))); share.Affinity != affinityOf(t, rules[first]) {
			t.Fatalf("seed %d, step %d: not the affinity of the first rule by name", seed, step)
		}
	}
}

func affinityOf(t *testing.T, rule *kubeovnv1.IptablesDnatRule) sharenat.Affinity {
	t.Helper()
	a, err := sharenat.ParseAffinity(rule.Spec.SessionAffinity, rule.Spec.SessionAffinityTimeoutSeconds)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestAgreesWithServiceController: a Service is warned of exactly the ports that its controller will not serve, and of whose they are.
func TestAgreesWithServiceController(t *testing.T) {
	warned := 0
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 3))
		eip := newEIP(eipA, "203.0.113.10", gwA)
		if r.IntN(2) == 0 {
			granted(pick(r, "shop", "shop,billing", "*", "billing"))(eip)
		}
		s := objects(eip, newGateway(gwA))
		owners := []sharenat.Owner{web, api, {Namespace: "billing", Name: "web"}, {Namespace: web.Namespace + "-b", Name: "web"}}
		for _, owner := range owners {
			if r.IntN(3) == 0 {
				continue
			}
			svc := newService(owner, func(svc *corev1.Service) {
				svc.Spec.Ports = nil
				for _, p := range []int32{80, 81, 99} {
					if r.IntN(2) == 0 {
						svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Port: p, Protocol: pick(r, corev1.ProtocolTCP, "", corev1.ProtocolUDP, corev1.ProtocolSCTP)})
					}
				}
			})
			if r.IntN(8) == 0 {
				deleting(svc)
			}
			s.Services = append(s.Services, svc)
		}
		for range r.IntN(4) {
			w := &world{r: r}
			rule, _ := w.randomRule()
			if r.IntN(3) == 0 { // one that lost its labels
				rule.Labels = nil
				if b, err := sharenat.ParseBackendAddr(rule.Spec.InternalIP, rule.Spec.InternalPort); err == nil {
					rule.Name = sharenat.RuleName(pick(r, owners...), "tcp", 80, b)
				}
			}
			if rule.Spec.EIP != eipA || find(s.Rules, rule.Name) != nil {
				continue
			}
			if r.IntN(5) == 0 {
				deleting(rule)
			}
			s.Rules = append(s.Rules, rule)
		}
		if r.IntN(6) == 0 {
			s.FIPs = append(s.FIPs, newFIP("fip", eipA))
		}
		for _, svc := range s.Services {
			got := policy.Decide(creating(svc), s)
			want := warningsOf(s, svc)
			warned += len(want)
			if diff := cmp.Diff(want, got.Warnings); diff != "" {
				t.Fatalf("seed %d, Service %s/%s (-controller +webhook):\n%s", seed, svc.Namespace, svc.Name, diff)
			}
		}
	}
	if warned < 1000 {
		t.Errorf("%d warnings: the clusters do not try enough", warned)
	}
}

// warningsOf words the Service controller's own decision as the webhook does.
func warningsOf(s *Snapshot, svc *corev1.Service) []string {
	rules := byName(s.Rules)
	outcome := lbservice.Desired(&lbservice.Snapshot{
		Key: sharenat.OwnerOfService(svc), Service: svc, EIP: s.EIPs[0], Gateway: s.Gateways[0], Claimants: s.Services, EIPRules: rules, FIPs: s.FIPs,
	})
	var out []string
	for _, p := range outcome.Ports {
		if p.Err == lbservice.PortProtocolUnsupported {
			out = append(out, fmt.Sprintf("port %d/%s is not served: only TCP and UDP are", p.Port, p.Protocol))
		}
	}
	if outcome.Blocked == lbservice.ReasonNotGranted {
		for i := range svc.Spec.Ports {
			if svc.Spec.Ports[i].Protocol == corev1.ProtocolSCTP {
				out = append(out, fmt.Sprintf("port %d/SCTP is not served: only TCP and UDP are", svc.Spec.Ports[i].Port))
			}
		}
		return append(out, fmt.Sprintf("namespace %s may not use IptablesEIP %s: its annotation %s does not list it", svc.Namespace, eipA, sharenat.GrantAnnotation))
	}
	for _, p := range outcome.Ports {
		if p.Err == lbservice.PortConflict {
			out = append(out, fmt.Sprintf("port %s of IptablesEIP %s belongs to %s", &p, eipA, p.Holder))
		}
	}
	return out
}

// TestAgreesWithScript runs nat-gateway.sh itself on the fields of rules, good and bad, with programs beside it that only say yes. What it refuses
// is refused here, and what it takes is admitted.
func TestAgreesWithScript(t *testing.T) {
	run := scriptIn(t, t.TempDir())
	base := ruleSpec{EIP: eipA, ExternalPort: "80", Protocol: "tcp", InternalIP: "10.1.0.4", InternalPort: "8080"}
	fields := map[string]func(*ruleSpec, string){
		"externalPort": func(s *ruleSpec, v string) { s.ExternalPort = v },
		"protocol":     func(s *ruleSpec, v string) { s.Protocol = v },
		"internalIp":   func(s *ruleSpec, v string) { s.InternalIP = v },
		"internalPort": func(s *ruleSpec, v string) { s.InternalPort = v },
	}
	values := []string{
		"", "0", "080", "80", "65535", "65536", "99999999999999999999", "-1", "+80", "8e1", "80 ", "٨٠",
		"TCP", "Udp", "sctp", "tcp;", "10.1.0.4", "10.1.0.04", "10.1.0.256", "10.1.0", "10.1.0.4/32", "0.0.0.0", "255.255.255.255",
		"::ffff:10.1.0.4", "$(id)", "a\nb", "{ accept }", "\x00", "\xff",
	}
	for _, field := range slices.Sorted(maps.Keys(fields)) {
		for i, value := range values {
			for _, kind := range []string{sharenat.TypeShare, sharenat.TypeExclusive} {
				if kind == sharenat.TypeExclusive && i%3 != 0 {
					continue // it reads arguments by the same functions
				}
				s := base
				s.Type = kind
				fields[field](&s, value)
				agree(t, run, s)
			}
		}
	}
	for _, affinity := range []string{"", "ClientIP"} {
		for _, timeout := range []int32{-1, 0, 1, 86400, 86401} {
			s := base
			s.Type, s.SessionAffinity, s.SessionAffinityTimeoutSeconds = sharenat.TypeShare, affinity, timeout
			agree(t, run, s)
		}
	}
}

func agree(t *testing.T, run func(args ...string) error, s ruleSpec) {
	t.Helper()
	verb, arg := "dnat-add", strings.Join([]string{"203.0.113.10", s.ExternalPort, s.Protocol, s.InternalIP, s.InternalPort}, ",")
	if s.Type == sharenat.TypeShare {
		affinity, timeout := "none", s.SessionAffinityTimeoutSeconds
		if s.SessionAffinity != "" {
			affinity = strings.ToLower(s.SessionAffinity)
			if timeout == 0 { // stands for the default
				timeout = sharenat.DefaultAffinityTime
			}
		}
		verb, arg = "nft-dnat-map-add", fmt.Sprintf("203.0.113.10,%s,%s,%s,%d,%s:%s", s.ExternalPort, s.Protocol, affinity, timeout, s.InternalIP, s.InternalPort)
	}
	var err error
	if strings.ContainsRune(arg, 0) {
		err = os.ErrInvalid // no argument of a process can hold it
	} else {
		err = run(verb, arg)
	}
	v := policy.Decide(creating(&kubeovnv1.IptablesDnatRule{ObjectMeta: metav1.ObjectMeta{Name: "r"}, Spec: s}), aCluster())
	if (err == nil) != (len(v.Refusals) == 0) {
		t.Errorf("%s %q: the script says %v, the webhook %v", verb, arg, err, texts(v.Refusals))
	}
}

// scriptIn gives a way to run the script as a process that can change nothing outside a directory.
func scriptIn(t *testing.T, dir string) func(args ...string) error {
	t.Helper()
	text, err := os.ReadFile("../../dist/images/vpcnatgateway/nat-gateway.sh")
	if err != nil {
		t.Fatal(err)
	}
	where := "RUN_DIR=/run\n[[ -d /etc/kube-ovn && -w /etc/kube-ovn ]] && RUN_DIR=/etc/kube-ovn\n"
	if !strings.Contains(string(text), where) {
		t.Fatal("the script takes its lock in another way than this test knows")
	}
	room := "\tlocal base=/tmp\n\t[[ -d /dev/shm && -w /dev/shm ]] && base=/dev/shm\n"
	if !strings.Contains(string(text), room) {
		t.Fatal("the script works in another place than this test knows")
	}
	script := strings.Replace(string(text), where, "RUN_DIR="+dir+"\n", 1)
	script = strings.Replace(script, room, "\tlocal base="+dir+"\n", 1)
	path := filepath.Join(dir, "nat-gateway.sh")
	yes := "#!/bin/sh\nexit 0\n"
	files := map[string]string{
		path: script, "nft": yes, "conntrack": yes, "iptables-restore": yes,
		"iptables": "#!/bin/sh\necho '-N SHARED_DNAT'\n", "iptables-legacy": "#!/bin/sh\nexit 1\n",
	}
	for name, content := range files {
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		if err := os.WriteFile(name, []byte(content), 0o755); err != nil { //nolint:gosec // programs
			t.Fatal(err)
		}
	}
	return func(args ...string) error {
		cmd := exec.CommandContext(t.Context(), "bash", append([]string{path}, args...)...)
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
}
