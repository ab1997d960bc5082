// SPDX-License-Identifier: Apache-2.0

package natgateway

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	kubeinformers "k8s.io/client-go/informers"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/client/clientset/versioned/fake"
	"github.com/kubeovn/kube-ovn/pkg/client/informers/externalversions"
	"github.com/kubeovn/kube-ovn/pkg/latency"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// The address plan of these tests:
//
//	203.0.113.0/24  external subnet, gateway .1, EIPs from .10 on (.2–.9 are excluded)
//	10.1.0.0/16     the gateway's VPC subnet "inner", gateway 10.1.0.1, gateway pods at 10.1.0.254 and below
//	10.2.0.0/16     another subnet of the same VPC
const (
	testNamespace = "kube-system"
	testGateway   = "gw"
	testImage     = "gateway:1"
)

// fakeScript is a semantic fake of nat-gateway.sh in every pod: it keeps what the verbs would leave behind, and lists it.
type fakeScript struct {
	mu    sync.Mutex
	pods  map[types.NamespacedName]*fakeKernel
	calls []Call
	// intercept, when set, runs before each call outside the lock; its error is the call's.
	intercept func(ctx context.Context, call Call) error
	// legacy scripts know neither list nor sync.
	legacy bool
	// refuse, when set, names what is wrong with a share.
	refuse func(sharenat.Share) string
}

type fakeKernel struct {
	initialized bool
	eips        map[string]bool
	routes      map[string]string
	dnats       map[string]bool
	shares      map[sharenat.Identity]sharenat.Share
	stale       int
}

var _ Executor = (*fakeScript)(nil)

func newFakeScript() *fakeScript { return &fakeScript{pods: map[types.NamespacedName]*fakeKernel{}} }

// Exec implements Executor.
func (f *fakeScript) Exec(ctx context.Context, call Call) ([]byte, error) {
	f.mu.Lock()
	f.calls = append(f.calls, call)
	intercept := f.intercept
	f.mu.Unlock()
	if intercept != nil {
		if err := intercept(ctx, call); err != nil {
			return nil, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	out, complaint := f.run(f.kernel(call.Pod), call)
	if complaint != "" {
		return nil, &CallError{Pod: call.Pod, Verb: call.Verb, ExitCode: 1, Stderr: complaint, Err: errors.New("command terminated with exit code 1")}
	}
	return []byte(out), nil
}

func (f *fakeScript) kernel(pod types.NamespacedName) *fakeKernel {
	k := f.pods[pod]
	if k == nil {
		k = &fakeKernel{eips: map[string]bool{}, routes: map[string]string{}, dnats: map[string]bool{}, shares: map[sharenat.Identity]sharenat.Share{}}
		f.pods[pod] = k
	}
	return k
}

func (f *fakeScript) run(k *fakeKernel, call Call) (out, complaint string) {
	if f.legacy && (call.Verb == sharenat.ListVerb || call.Verb == sharenat.SyncVerb) {
		return "", "Usage: nat-gateway.sh [init|…]"
	}
	for _, arg := range call.Args {
		f1, rest, _ := strings.Cut(arg, ",")
		switch call.Verb {
		case verbEIPAdd:
			k.eips[arg] = true
		case verbEIPDel:
			delete(k.eips, arg)
		case verbRouteAdd:
			k.routes[f1] = rest
		case verbRouteDel:
			delete(k.routes, arg)
		case verbExclusiveAdd:
			k.dnats[arg] = true
		case verbExclusiveDel:
			delete(k.dnats, arg)
		case verbShareAdd:
			s := parseLegacyShare(arg)
			k.shares[s.Identity] = s
		case verbShareDel:
			fields := strings.Split(arg, ",")
			delete(k.shares, mustIdentity(fields[0], fields[1], fields[2]))
		}
	}
	switch call.Verb {
	case verbInit:
		k.initialized = true
	case sharenat.ListVerb:
		return k.list(), ""
	case sharenat.SyncVerb:
		return "", f.sync(k, string(call.Stdin))
	}
	return "", ""
}

// sync applies all of the input or nothing.
func (f *fakeScript) sync(k *fakeKernel, stdin string) string {
	lines := strings.Split(strings.TrimSuffix(stdin, "\n"), "\n")
	if lines[len(lines)-1] != "end" {
		return "input cut short"
	}
	next := map[sharenat.Identity]sharenat.Share{}
	if lines[0] == "share-state v1 delta" {
		for id, s := range k.shares {
			next[id] = s
		}
	}
	var current *sharenat.Share
	var set []sharenat.Share
	flush := func() {
		if current != nil {
			set = append(set, *current)
		}
		current = nil
	}
	for _, line := range lines[1 : len(lines)-1] {
		fields := strings.Fields(line)
		switch fields[0] {
		case "identity":
			flush()
			timeout, _ := strconv.Atoi(fields[5])
			current = &sharenat.Share{
				Identity: mustIdentity(fields[1], fields[2], fields[3]),
				Affinity: sharenat.Affinity{ClientIP: fields[4] == "clientip", TimeoutSeconds: int32(timeout)}, //nolint:gosec // a test
			}
			if len(fields) > 6 {
				current.Sources, _ = sharenat.ParseSources(strings.TrimPrefix(fields[6], "sources="))
			}
		case "backend":
			addr, _ := sharenat.ParseBackendAddr(fields[1], fields[2])
			current.Backends = append(current.Backends, sharenat.Backend{Addr: addr, Masquerade: len(fields) > 3})
		case "remove":
			delete(next, mustIdentity(fields[1], fields[2], fields[3]))
		}
	}
	flush()
	for _, s := range set {
		if f.refuse != nil {
			if why := f.refuse(s); why != "" {
				return why
			}
		}
		next[s.Identity] = s
	}
	k.shares = next
	if lines[0] == "share-state v1 full" {
		k.stale = 0
	}
	return ""
}

func (k *fakeKernel) list() string {
	var b strings.Builder
	b.WriteString("gateway-state v1\n")
	if k.initialized {
		b.WriteString("init eth0,net1\n")
	}
	for eip := range k.eips {
		b.WriteString("eip " + eip + "\n")
	}
	for cidr, hop := range k.routes {
		b.WriteString("route " + cidr + " " + hop + "\n")
	}
	for dnat := range k.dnats {
		b.WriteString("dnat " + strings.ReplaceAll(dnat, ",", " ") + "\n")
	}
	for id, s := range k.shares {
		fmt.Fprintf(&b, "identity %s %d %s %s %d\n", id.EIP, id.Port, id.Protocol, s.Digest(), len(s.Backends))
	}
	for i := range k.stale {
		fmt.Fprintf(&b, "stale dnat-%012d\n", i)
	}
	b.WriteString("end\n")
	return b.String()
}

func parseLegacyShare(arg string) sharenat.Share {
	fields := strings.Split(arg, ",")
	timeout, _ := strconv.Atoi(fields[4])
	s := sharenat.Share{
		Identity: mustIdentity(fields[0], fields[1], fields[2]),
		Affinity: sharenat.Affinity{ClientIP: fields[3] == "clientip", TimeoutSeconds: int32(timeout)}, //nolint:gosec // a test
	}
	for b := range strings.SplitSeq(fields[5], "@") {
		s.Backends = append(s.Backends, sharenat.Backend{Addr: netip.MustParseAddrPort(b)})
	}
	return s
}

func mustIdentity(eip, port, protocol string) sharenat.Identity {
	n, err := sharenat.ParsePort(port)
	if err != nil {
		panic(err)
	}
	return sharenat.Identity{EIP: netip.MustParseAddr(eip), Port: n, Protocol: sharenat.Protocol(protocol)}
}

// takeCalls gives the calls since the last take, listings and changes apart.
func (f *fakeScript) takeCalls() (lists, changes []Call) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, call := range f.calls {
		if call.Verb == sharenat.ListVerb {
			lists = append(lists, call)
		} else {
			changes = append(changes, call)
		}
	}
	f.calls = nil
	return lists, changes
}

func (f *fakeScript) with(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
}

func (f *fakeScript) backends(pod types.NamespacedName) (total int) {
	f.with(func() {
		for _, s := range f.kernel(pod).shares {
			total += len(s.Backends)
		}
	})
	return total
}

func verbs(calls []Call) []string {
	var out []string
	for _, c := range calls {
		out = append(out, c.Verb)
	}
	return out
}

// fixture is a cluster of fakes with one handler.
type fixture struct {
	*testing.T
	kube     *kubefake.Clientset
	ovn      *fake.Clientset
	script   *fakeScript
	recorder *events.FakeRecorder
	registry *prometheus.Registry
	tracker  *latency.Tracker
	stop     func()
	tweak    func(*Controller)
}

// newFixture makes a cluster that has the ConfigMaps, the subnets and the VPC of the address plan.
func newFixture(t *testing.T, objects ...runtime.Object) *fixture {
	t.Helper()
	objects = append(objects,
		&kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: sharenat.DefaultExternalSubnet}, Spec: kubeovnv1.SubnetSpec{
			CIDRBlock: "203.0.113.0/24", Gateway: "203.0.113.1", ExcludeIps: []string{"203.0.113.2..203.0.113.9"}, Provider: "ovn-vpc-external-network.kube-system",
		}},
		&kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "inner"}, Spec: kubeovnv1.SubnetSpec{
			CIDRBlock: "10.1.0.0/16", Gateway: "10.1.0.1", Vpc: "tenant", Provider: "ovn",
		}},
		&kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "second"}, Spec: kubeovnv1.SubnetSpec{
			CIDRBlock: "10.2.0.0/16", Gateway: "10.2.0.1", Vpc: "tenant", Provider: "ovn",
		}},
		&kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "tenant"}, Status: kubeovnv1.VpcStatus{Subnets: []string{"inner", "second"}}},
	)
	f := &fixture{
		T:        t,
		kube:     kubefake.NewClientset(configMap(imageConfigMap, imageKey, testImage), configMap(switchConfigMap, switchKey, "true")),
		ovn:      fake.NewSimpleClientset(),
		script:   newFakeScript(),
		recorder: events.NewFakeRecorder(10000),
	}
	finalize(f.ovn)
	for _, obj := range objects {
		f.add(obj)
	}
	f.ovn.ClearActions()
	t.Cleanup(func() {
		if f.stop != nil {
			f.stop()
		}
	})
	return f
}

// add creates an object by its own resource name, which a tracker would guess wrong.
func (f *fixture) add(obj runtime.Object) {
	f.Helper()
	var err error
	ctx, v1 := context.Background(), f.ovn.KubeovnV1()
	switch o := obj.(type) {
	case *kubeovnv1.Subnet:
		_, err = v1.Subnets().Create(ctx, o, metav1.CreateOptions{})
	case *kubeovnv1.Vpc:
		_, err = v1.Vpcs().Create(ctx, o, metav1.CreateOptions{})
	case *kubeovnv1.VpcNatGateway:
		_, err = v1.VpcNatGateways().Create(ctx, o, metav1.CreateOptions{})
	case *kubeovnv1.IptablesEIP:
		_, err = v1.IptablesEIPs().Create(ctx, o, metav1.CreateOptions{})
	case *kubeovnv1.IptablesDnatRule:
		_, err = v1.IptablesDnatRules().Create(ctx, o, metav1.CreateOptions{})
	default:
		f.Fatalf("no way to create a %T", obj)
	}
	f.must(err)
}

// finalize teaches the fake what finalizers are: a delete only marks what has some, and the last one to go takes the object along.
func finalize(client *fake.Clientset) {
	tracker := client.Tracker()
	react := clienttesting.ObjectReaction(tracker)
	client.PrependReactor("delete", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		del, _ := action.(clienttesting.DeleteAction)
		obj, err := tracker.Get(action.GetResource(), "", del.GetName())
		if err != nil {
			return true, nil, err
		}
		obj = obj.DeepCopyObject()
		m, _ := meta.Accessor(obj)
		if len(m.GetFinalizers()) == 0 {
			return false, nil, nil
		}
		if m.GetDeletionTimestamp() == nil {
			now := metav1.Now()
			m.SetDeletionTimestamp(&now)
			return true, obj, tracker.Update(action.GetResource(), obj, "")
		}
		return true, obj, nil
	})
	client.PrependReactor("patch", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		handled, obj, err := react(action)
		if err != nil || obj == nil {
			return handled, obj, err
		}
		m, _ := meta.Accessor(obj)
		if m.GetDeletionTimestamp() != nil && len(m.GetFinalizers()) == 0 {
			err = tracker.Delete(action.GetResource(), "", m.GetName())
		}
		return handled, obj, err
	})
}

func configMap(name, key, value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: name}, Data: map[string]string{key: value}}
}

// start runs a handler; a second start is a restart with empty memory.
func (f *fixture) start() {
	f.Helper()
	if f.stop != nil {
		f.stop()
	}
	kubeFactory := kubeinformers.NewSharedInformerFactory(f.kube, 0)
	ovnFactory := externalversions.NewSharedInformerFactory(f.ovn, 0)
	f.registry = prometheus.NewRegistry()
	metrics, err := NewMetrics(f.registry)
	f.must(err)
	f.tracker, err = latency.NewTracker(f.registry)
	f.must(err)
	c, err := New(Options{
		KubeClient: f.kube, KubeOvnClient: f.ovn, Executor: f.script, KubeInformers: kubeFactory, KubeOvnInformers: ovnFactory,
		Namespace: testNamespace, Recorder: f.recorder, Metrics: metrics, Latency: f.tracker, CheckInterval: time.Hour, CallTimeout: time.Minute,
	})
	if err != nil {
		f.Fatal(err)
	}
	if f.tweak != nil {
		f.tweak(c)
	}
	ctx, cancel := context.WithCancel(context.Background())
	kubeFactory.Start(ctx.Done())
	ovnFactory.Start(ctx.Done())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx, 2) }()
	f.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			f.Error(err)
		}
		kubeFactory.Shutdown()
		ovnFactory.Shutdown()
	})
	f.until("caches are filled", c.HasSynced)
}

// until waits for a condition.
func (f *fixture) until(what string, ok func() bool) {
	f.Helper()
	deadline := time.After(2 * time.Minute)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline:
			f.script.with(func() { f.Logf("calls: %v", verbs(f.script.calls)) })
			f.Fatalf("waited in vain: %s", what)
		case <-tick.C:
		}
	}
}

// settled waits until the handler does nothing any more: no write and no call for a while. The while is counted in looks
// as well, since a machine that has more to do keeps the handler from its work as it keeps who looks.
func (f *fixture) settled() {
	f.Helper()
	last, since, looks := -1, time.Now(), 0
	f.until("nothing happens any more", func() bool {
		n := len(f.writes())
		f.script.with(func() { n += len(f.script.calls) })
		if n != last {
			last, since, looks = n, time.Now(), 0
		}
		looks++
		return time.Since(since) > 150*time.Millisecond && looks > 50
	})
}

// writes gives the actions of the handler and of the test that change kubeovn.io objects.
func (f *fixture) writes() []clienttesting.Action {
	return slices.DeleteFunc(f.ovn.Actions(), func(a clienttesting.Action) bool {
		return slices.Contains([]string{"get", "list", "watch"}, a.GetVerb())
	})
}

func (f *fixture) patches(resource, name string) (out []clienttesting.PatchActionImpl) {
	for _, a := range f.writes() {
		if p, ok := a.(clienttesting.PatchActionImpl); ok && a.GetResource().Resource == resource && (name == "" || p.Name == name) {
			out = append(out, p)
		}
	}
	return out
}

func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

func gateway(tweaks ...func(*kubeovnv1.VpcNatGateway)) *kubeovnv1.VpcNatGateway {
	gw := &kubeovnv1.VpcNatGateway{
		ObjectMeta: metav1.ObjectMeta{Name: testGateway, UID: "gw-uid"},
		Spec:       kubeovnv1.VpcNatGatewaySpec{Vpc: "tenant", Subnet: "inner", LanIP: "10.1.0.254", Replicas: 1},
	}
	for _, tweak := range tweaks {
		tweak(gw)
	}
	return gw
}

func eip(name string, tweaks ...func(*kubeovnv1.IptablesEIP)) *kubeovnv1.IptablesEIP {
	e := &kubeovnv1.IptablesEIP{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.IptablesEIPSpec{NatGwDp: testGateway}}
	for _, tweak := range tweaks {
		tweak(e)
	}
	return e
}

func withV4(addr string) func(*kubeovnv1.IptablesEIP) {
	return func(e *kubeovnv1.IptablesEIP) { e.Spec.V4ip = addr }
}

// rule is made by hand, of type share, for port 80/tcp of the EIP.
func rule(name, eip, backend string, tweaks ...func(*kubeovnv1.IptablesDnatRule)) *kubeovnv1.IptablesDnatRule {
	addr, port, _ := strings.Cut(backend, ":")
	r := &kubeovnv1.IptablesDnatRule{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: kubeovnv1.IptablesDnatRuleSpec{
			EIP: eip, ExternalPort: "80", Protocol: "tcp", InternalIP: addr, InternalPort: port, Type: sharenat.TypeShare,
		},
	}
	for _, tweak := range tweaks {
		tweak(r)
	}
	return r
}

// managedBy makes a rule what the Service controller would have made: complete from birth.
func managedBy(service, address string) func(*kubeovnv1.IptablesDnatRule) {
	return func(r *kubeovnv1.IptablesDnatRule) {
		r.Labels = sharenat.Owner{Namespace: "default", Name: service}.Labels()
		r.Labels[sharenat.GatewayLabel] = testGateway
		r.Labels[sharenat.ExternalPortLabel] = r.Spec.ExternalPort
		r.Labels[sharenat.EIPAddressLabel] = address
		r.Annotations = map[string]string{sharenat.RuleEIPAnnotation: r.Spec.EIP}
		r.Finalizers = []string{finalizer}
	}
}

func claimed(r *kubeovnv1.IptablesDnatRule) { r.Finalizers = []string{finalizer} }

func exclusive(r *kubeovnv1.IptablesDnatRule) { r.Spec.Type = sharenat.TypeExclusive }

func port(external string) func(*kubeovnv1.IptablesDnatRule) {
	return func(r *kubeovnv1.IptablesDnatRule) { r.Spec.ExternalPort = external }
}

func clientIP(seconds int32) func(*kubeovnv1.IptablesDnatRule) {
	return func(r *kubeovnv1.IptablesDnatRule) {
		r.Spec.SessionAffinity, r.Spec.SessionAffinityTimeoutSeconds = sharenat.SessionAffinityIP, seconds
	}
}

func podKey(i int) types.NamespacedName {
	return types.NamespacedName{Namespace: testNamespace, Name: fmt.Sprintf("vpc-nat-gw-gw-%d", i)}
}

// gatewayPod is a running pod of the gateway.
func gatewayPod(i int, container string) *corev1.Pod {
	key := podKey(i)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: key.Namespace, Name: key.Name, UID: types.UID(fmt.Sprintf("uid-%d", i)), Labels: workloadLabels("vpc-nat-gw-gw"),
			Annotations: map[string]string{
				sharenat.GatewayPodAnnotation: testGateway, switchAnnotation: "inner", addressAnnotation: fmt.Sprintf("10.1.0.%d", 254-i),
				"ovn-vpc-external-network.kube-system" + addressSuffix: fmt.Sprintf("203.0.113.%d", 10+2*i),
			},
		},
		Spec: corev1.PodSpec{NodeName: fmt.Sprintf("node-%d", i)},
		Status: corev1.PodStatus{
			Phase:      corev1.PodRunning,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			ContainerStatuses: []corev1.ContainerStatus{{
				Name: containerName, ContainerID: "containerd://" + container, Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
			}},
		},
	}
}

func (f *fixture) createPod(pod *corev1.Pod) {
	f.Helper()
	_, err := f.kube.CoreV1().Pods(pod.Namespace).Create(context.Background(), pod, metav1.CreateOptions{})
	f.must(err)
}

func (f *fixture) createEIP(e *kubeovnv1.IptablesEIP) {
	f.Helper()
	_, err := f.ovn.KubeovnV1().IptablesEIPs().Create(context.Background(), e, metav1.CreateOptions{})
	f.must(err)
}

func (f *fixture) createRule(r *kubeovnv1.IptablesDnatRule) {
	f.Helper()
	_, err := f.ovn.KubeovnV1().IptablesDnatRules().Create(context.Background(), r, metav1.CreateOptions{})
	f.must(err)
}

func (f *fixture) eip(name string) *kubeovnv1.IptablesEIP {
	e, err := f.ovn.KubeovnV1().IptablesEIPs().Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return e
}

func (f *fixture) rule(name string) *kubeovnv1.IptablesDnatRule {
	r, err := f.ovn.KubeovnV1().IptablesDnatRules().Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return r
}

func (f *fixture) gateway() *kubeovnv1.VpcNatGateway {
	gw, err := f.ovn.KubeovnV1().VpcNatGateways().Get(context.Background(), testGateway, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return gw
}

func (f *fixture) rulesReady(n int) func() bool {
	return func() bool {
		list, err := f.ovn.KubeovnV1().IptablesDnatRules().List(context.Background(), metav1.ListOptions{})
		f.must(err)
		ready := 0
		for i := range list.Items {
			if list.Items[i].Status.Ready {
				ready++
			}
		}
		return ready == n
	}
}

func (f *fixture) eipReady(name string) func() bool {
	return func() bool { e := f.eip(name); return e != nil && e.Status.Ready }
}
