// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubeovn/kube-ovn/pkg/lbservice"
)

// abilitiesAuto is the value of --nat-gw-handler-abilities that stands for looking.
const abilitiesAuto = "auto"

// abilities says what the handler of the gateways does for Services, now and whenever that changes.
type abilities struct {
	mu   sync.Mutex
	now  lbservice.Abilities
	tell func(lbservice.Abilities)
}

// set is told what the handler does.
func (a *abilities) set(now lbservice.Abilities) (changed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	changed = a.now != now
	a.now = now
	if changed && a.tell != nil {
		a.tell(now)
	}
	return changed
}

func (a *abilities) get() lbservice.Abilities {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.now
}

// follow has f called with what the handler does now, and when that changes.
func (a *abilities) follow(f func(lbservice.Abilities)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tell = f
	f(a.now)
}

// abilities of Kube-OVN's own controller, as far as its Deployment and Pods tell. One that has the flag to serve Services, whatever its
// value, or that is newer than v1.17, programs session affinity, but not when it changes on a rule that is there. v1.17 and what says
// nothing of itself spread connections, and no more. None obeys the annotations of this project's own. Of several, the least counts:
// in an upgrade, Pods of before still program rules, in their way, and nobody looks at these again. ok is false where there is none.
func (s *stock) abilities(self identity) (all lbservice.Abilities, ok bool) {
	all = lbservice.AllAbilities
	count := func(containers []corev1.Container) { all, ok = all.And(abilitiesOf(containers)), true }
	for _, d := range s.deployments {
		if !self.isOf(d.Namespace, d.Name) {
			count(d.Spec.Template.Spec.Containers)
		}
	}
	for _, pod := range s.pods {
		if !ended(pod) && !self.isOf(pod.Namespace, stockName) {
			count(pod.Spec.Containers)
		}
	}
	if !ok {
		return lbservice.Abilities{}, false
	}
	return all, true
}

func abilitiesOf(containers []corev1.Container) lbservice.Abilities {
	c := stockContainer(containers)
	if c == nil {
		return lbservice.Abilities{}
	}
	_, _, told := boolFlag(slices.Concat(c.Command, c.Args), serveFlag)
	return lbservice.Abilities{Affinity: told || afterV117(imageVersion(c.Image))}
}

// stockContainer is the one that Kube-OVN's controller runs in: that of its name, or else the first.
func stockContainer(containers []corev1.Container) *corev1.Container {
	if len(containers) == 0 {
		return nil
	}
	return &containers[max(slices.IndexFunc(containers, func(c corev1.Container) bool { return c.Name == stockName }), 0)]
}

// abilitiesOfFlags are those that the flags tell without looking; ok is false where they leave it to looking.
func (o *options) abilitiesOfFlags() (known lbservice.Abilities, ok bool, err error) {
	text := cmp.Or(o.handlerAbilities, abilitiesAuto)
	if text != abilitiesAuto {
		if known, err = lbservice.ParseAbilities(text); err != nil {
			return known, false, err
		}
	}
	if o.enableNatGw {
		return lbservice.AllAbilities, true, nil
	}
	return known, text != abilitiesAuto, nil
}
