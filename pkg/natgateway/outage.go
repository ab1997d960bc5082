// SPDX-License-Identifier: Apache-2.0

package natgateway

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	kubeovnv1 "github.com/kubeovn/kube-ovn/pkg/apis/kubeovn/v1"
	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// outageStore remembers which gateways have no pod that serves, and since when.
type outageStore struct {
	mu    sync.Mutex
	items map[string]outage
}

type outage struct {
	since    time.Time
	declared bool // rules and EIPs say so
}

// begin notes that a gateway does not serve, and says since when it does not.
func (s *outageStore) begin(gateway string, now time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.items[gateway]
	if !ok {
		if s.items == nil {
			s.items = map[string]outage{}
		}
		o.since = now
		s.items[gateway] = o
	}
	return o.since
}

// declare says that rules and EIPs are to say so, and whether that is new.
func (s *outageStore) declare(gateway string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.items[gateway]
	if o.declared {
		return false
	}
	o.declared = true
	s.items[gateway] = o
	return true
}

func (s *outageStore) isDeclared(gateway string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.items[gateway].declared
}

func (s *outageStore) end(gateway string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.items, gateway)
}

// watchOutage has rules and EIPs say that their gateway does not serve, once its last pod has been missing for the grace
// time. A pod that comes in time changes nothing for them. Rules and EIPs that say so wait for the gateway's pods.
func (c *Controller) watchOutage(ctx context.Context, gw *kubeovnv1.VpcNatGateway) {
	if c.serves(gw.Name) {
		c.outages.end(gw.Name)
		return
	}
	now := c.Clock.Now()
	if left := c.grace - now.Sub(c.outages.begin(gw.Name, now)); left > 0 {
		c.gatewayQueue.AddAfter(gw.Name, left)
		return
	}
	if !c.outages.declare(gw.Name) {
		return
	}
	message := "no pod of the gateway is ready"
	if why := c.obstacle(gw.Name); why != "" {
		message += ": " + why
	}
	klog.FromContext(ctx).Info("Gateway does not serve", "why", message)
	c.Recorder.Eventf(gw, nil, corev1.EventTypeWarning, ReasonGatewayNotReady,
		sharenat.EventAction(actionReconcile, message), "%s", message)
	for _, eip := range listIndex[*kubeovnv1.IptablesEIP](c.eipIndexer, byGateway, gw.Name) {
		c.eipQueue.Add(eip.Name)
		for _, rule := range listIndex[*kubeovnv1.IptablesDnatRule](c.ruleIndexer, byEIP, eip.Name) {
			c.ruleQueue.Add(rule.Name)
		}
	}
}

// serves says that a gateway has a pod that is ready and was filled. One that another run of the handler has filled
// counts until its container is known to be another one: nothing may be wrong but the way to it.
func (c *Controller) serves(gateway string) bool {
	for _, pod := range c.podsOf(gateway) {
		if !counts(pod) {
			continue
		}
		p := c.programs.get(keyOf(pod))
		if p.isFilled(runningContainer(pod)) || pod.Annotations[sharenat.GatewayInitAnnotation] == "true" && p.isFirstSeen() {
			return true
		}
	}
	return false
}

// isFirstSeen says that no other container was seen running in the pod.
func (p *program) isFirstSeen() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.containers < 2
}
