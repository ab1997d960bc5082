// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/client/clientset/versioned"
	"github.com/kubeovn/kube-ovn/pkg/client/informers/externalversions"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// DefaultController is the user as whom a kube-ovn-controller writes that is installed in the usual way.
const DefaultController = "system:serviceaccount:kube-system:ovn"

// Options of a Validator.
type Options struct {
	Policy
	// KubeOvnClient reads live what a refusal rests on.
	KubeOvnClient versioned.Interface
	// The factories are started by the host, after New.
	KubeInformers    informers.SharedInformerFactory
	KubeOvnInformers externalversions.SharedInformerFactory
	// Metrics may be nil.
	Metrics *Metrics
	// LiveReadTimeout bounds all live reads for one answer, which has to reach the API server before its own patience ends. Default: 2 s.
	LiveReadTimeout time.Duration
}

// Validator answers requests from informers' caches.
type Validator struct {
	Options

	rules, fips, eips, gateways, services cache.SharedIndexInformer
}

// Names of the indexes. The informers may be shared with other controllers, hence the prefix.
const (
	rulesByEIP      = "admission.eip"
	rulesByIdentity = "admission.identity"
	fipsByEIP       = "admission.eip"
	eipsByGateway   = "admission.gateway"
	servicesByEIP   = "admission.eip"
)

// New registers the informers and indexes that a Validator needs. It reads and writes nothing.
func New(opts Options) (*Validator, error) {
	if len(opts.Controllers) == 0 {
		opts.Controllers = []string{DefaultController}
	}
	if opts.LiveReadTimeout <= 0 {
		opts.LiveReadTimeout = 2 * time.Second
	}
	if opts.Metrics == nil {
		opts.Metrics = NewMetrics(nil)
	}
	kinds := opts.KubeOvnInformers.Kubeovn().V1()
	v := &Validator{
		Options:  opts,
		rules:    kinds.IptablesDnatRules().Informer(),
		fips:     kinds.IptablesFIPRules().Informer(),
		eips:     kinds.IptablesEIPs().Informer(),
		gateways: kinds.VpcNatGateways().Informer(),
		services: opts.KubeInformers.Core().V1().Services().Informer(),
	}
	err := errors.Join(
		v.rules.AddIndexers(cache.Indexers{
			rulesByEIP:      indexBy(func(r *kubeovnv1.IptablesDnatRule) string { return r.Spec.EIP }),
			rulesByIdentity: indexBy(identityKeyOf),
		}),
		v.fips.AddIndexers(cache.Indexers{fipsByEIP: indexBy(func(f *kubeovnv1.IptablesFIPRule) string { return f.Spec.EIP })}),
		v.eips.AddIndexers(cache.Indexers{eipsByGateway: indexBy(func(e *kubeovnv1.IptablesEIP) string { return e.Spec.NatGwDp })}),
		v.services.AddIndexers(cache.Indexers{servicesByEIP: indexBy(sharenat.EIPName)}),
	)
	if err != nil {
		return nil, fmt.Errorf("add indexes: %w", err)
	}
	return v, nil
}

// HasSynced says that every cache is filled.
func (v *Validator) HasSynced() bool {
	for _, informer := range v.informers() {
		if !informer.HasSynced() {
			return false
		}
	}
	return true
}

func (v *Validator) informers() []cache.SharedIndexInformer {
	return []cache.SharedIndexInformer{v.rules, v.fips, v.eips, v.gateways, v.services}
}

func (v *Validator) waitForSync(ctx context.Context) bool {
	if v.HasSynced() {
		return true
	}
	var synced []cache.InformerSynced
	for _, informer := range v.informers() {
		synced = append(synced, informer.HasSynced)
	}
	return cache.WaitForCacheSync(ctx.Done(), synced...)
}

// Review answers a request. It waits for the caches to be filled.
func (v *Validator) Review(ctx context.Context, req Request) (Verdict, error) {
	if !v.waitForSync(ctx) {
		return Verdict{}, fmt.Errorf("wait for caches: %w", context.Cause(ctx))
	}
	ctx, cancel := context.WithTimeout(ctx, v.LiveReadTimeout)
	defer cancel()
	l := &live{client: v.KubeOvnClient, metrics: v.Metrics, done: map[Ref]bool{}}
	s := v.snapshot(ctx, req, l)
	verdict := v.Decide(req, s)
	for l.confirm(ctx, s, verdict) {
		if v.catchUp(ctx, l.outdated) {
			s = v.snapshot(ctx, req, l)
		}
		verdict = v.Decide(req, s)
	}
	return verdict, nil
}

// catchUpTime is how long the caches are waited for once they are known to be behind. Mostly they are by milliseconds.
const catchUpTime = 200 * time.Millisecond

// catchUp waits until the caches do not hold objects in versions any more that are known to be outdated. Where one rule has just gone, others have
// mostly gone with it, and need not be read one by one then.
func (v *Validator) catchUp(ctx context.Context, outdated map[Ref]string) bool {
	if len(outdated) == 0 {
		return false
	}
	behind := func() bool {
		for ref, version := range outdated {
			if is, there := v.cachedVersion(ref); there && is == version {
				return true
			}
		}
		return false
	}
	return wait.PollUntilContextTimeout(ctx, 5*time.Millisecond, catchUpTime, true, func(context.Context) (bool, error) {
		return !behind(), nil
	}) == nil
}

func (v *Validator) cachedVersion(ref Ref) (version string, there bool) {
	informer := map[Kind]cache.SharedIndexInformer{KindRule: v.rules, KindFIP: v.fips, KindEIP: v.eips, KindGateway: v.gateways}[ref.Kind]
	obj, there, err := informer.GetIndexer().GetByKey(ref.Name)
	if err != nil || !there {
		return "", false
	}
	o, ok := obj.(metav1.Object)
	if !ok {
		return "", false
	}
	return o.GetResourceVersion(), true
}

// snapshot collects what may matter for a request.
func (v *Validator) snapshot(ctx context.Context, req Request, l *live) *Snapshot {
	s := &Snapshot{}
	for _, obj := range []metav1.Object{req.Old, req.New} {
		switch o := obj.(type) {
		case *kubeovnv1.IptablesDnatRule:
			if obj == req.New {
				v.addRule(ctx, s, l, o)
			}
		case *kubeovnv1.IptablesFIPRule:
			if obj == req.New {
				s.EIPs = v.named(ctx, l, o.Spec.EIP)
				v.addUsers(s, o.Spec.EIP)
			}
		case *kubeovnv1.IptablesEIP:
			if obj == req.New {
				s.Gateways = v.gatewayNamed(ctx, l, o.Spec.NatGwDp)
			}
			if obj == req.Old {
				v.addUsers(s, o.Name)
				s.Services = list[corev1.Service](v.services, servicesByEIP, o.Name)
			}
		case *kubeovnv1.VpcNatGateway:
			if obj == req.Old {
				s.EIPs = list[kubeovnv1.IptablesEIP](v.eips, eipsByGateway, o.Name)
				for _, eip := range s.EIPs {
					v.addUsers(s, eip.Name)
				}
			}
		case *corev1.Service:
			if obj == req.New && sharenat.Qualifies(o) {
				v.addService(ctx, s, l, o)
			}
		}
	}
	return s
}

func (v *Validator) addRule(ctx context.Context, s *Snapshot, l *live, rule *kubeovnv1.IptablesDnatRule) {
	name := rule.Spec.EIP
	s.EIPs = v.named(ctx, l, name)
	s.FIPs = list[kubeovnv1.IptablesFIPRule](v.fips, fipsByEIP, name)
	s.Services = list[corev1.Service](v.services, servicesByEIP, name)
	if key := identityKeyOf(rule); key != "" {
		s.Rules = list[kubeovnv1.IptablesDnatRule](v.rules, rulesByIdentity, key)
	}
}

func (v *Validator) addUsers(s *Snapshot, eip string) {
	s.Rules = append(s.Rules, list[kubeovnv1.IptablesDnatRule](v.rules, rulesByEIP, eip)...)
	s.FIPs = append(s.FIPs, list[kubeovnv1.IptablesFIPRule](v.fips, fipsByEIP, eip)...)
}

func (v *Validator) addService(ctx context.Context, s *Snapshot, l *live, svc *corev1.Service) {
	name := sharenat.EIPName(svc)
	s.EIPs = v.named(ctx, l, name)
	s.FIPs = list[kubeovnv1.IptablesFIPRule](v.fips, fipsByEIP, name)
	s.Services = list[corev1.Service](v.services, servicesByEIP, name)
	for _, claim := range sharenat.ClaimsOf(svc) {
		s.Rules = append(s.Rules, list[kubeovnv1.IptablesDnatRule](v.rules, rulesByIdentity, identityKey(name, claim))...)
	}
}

// named gives the EIP with a name, none or one. An EIP that the cache does not have may have been made a moment ago.
func (v *Validator) named(ctx context.Context, l *live, name string) []*kubeovnv1.IptablesEIP {
	if eip := cached[kubeovnv1.IptablesEIP](v.eips, name); eip != nil {
		return []*kubeovnv1.IptablesEIP{eip}
	}
	s := &Snapshot{}
	if isName(name) {
		l.read(ctx, s, Ref{KindEIP, name})
	}
	return s.EIPs
}

// gatewayNamed does the same for gateways.
func (v *Validator) gatewayNamed(ctx context.Context, l *live, name string) []*kubeovnv1.VpcNatGateway {
	if gw := cached[kubeovnv1.VpcNatGateway](v.gateways, name); gw != nil {
		return []*kubeovnv1.VpcNatGateway{gw}
	}
	s := &Snapshot{}
	if isName(name) {
		l.read(ctx, s, Ref{KindGateway, name})
	}
	return s.Gateways
}

// identityKeyOf is "" for a rule that claims nothing.
func identityKeyOf(rule *kubeovnv1.IptablesDnatRule) string {
	claim, ok := sharenat.ClaimOfRule(rule)
	if !ok || rule.Spec.EIP == "" {
		return ""
	}
	return identityKey(rule.Spec.EIP, claim)
}

func identityKey(eip string, claim sharenat.Claim) string { return eip + "/" + claim.String() }

func indexBy[T any](key func(*T) string) cache.IndexFunc {
	return func(obj any) ([]string, error) {
		object, ok := obj.(*T)
		if !ok {
			return nil, nil
		}
		if k := key(object); k != "" {
			return []string{k}, nil
		}
		return nil, nil
	}
}

func list[T any](informer cache.SharedIndexInformer, index, key string) []*T {
	objects, err := informer.GetIndexer().ByIndex(index, key)
	if err != nil {
		return nil // only for an index that does not exist; New made them all
	}
	out := make([]*T, 0, len(objects))
	for _, obj := range objects {
		if object, ok := obj.(*T); ok {
			out = append(out, object)
		}
	}
	return out
}

// cached gives an object of cluster scope, nil when it is not there.
func cached[T any](informer cache.SharedIndexInformer, name string) *T {
	obj, _, err := informer.GetIndexer().GetByKey(name)
	if err != nil {
		return nil // a thread-safe store has no errors
	}
	object, _ := obj.(*T)
	return object
}
