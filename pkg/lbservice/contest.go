// SPDX-License-Identifier: Apache-2.0

package lbservice

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

const (
	// contestPause is how long an EXTERNAL-IP that was taken away twice is left away; each time after it is twice as long, up to
	// maxContestPause.
	contestPause    = time.Second
	maxContestPause = 5 * time.Minute
	// contestOver is how long nobody must have taken it away for the next one to count as the first.
	contestOver = 2 * maxContestPause
)

// contests remember the Services whose EXTERNAL-IP somebody else takes away as often as it is published. Who puts it right at once
// each time keeps the API server and all who watch Services busy, for nothing: the other one does the same.
type contests struct {
	mu       sync.Mutex
	services map[sharenat.Owner]contest
}

type contest struct {
	times int
	// last is when it was put right last.
	last time.Time
	// rival is the other writer, as far as it is known.
	rival string
}

func newContests() *contests { return &contests{services: map[sharenat.Owner]contest{}} }

// taken tells whether what was published is not there any more.
func taken(svc *corev1.Service) bool {
	old := sharenat.PublishedAddress(svc)
	return old != "" && !slices.ContainsFunc(svc.Status.LoadBalancer.Ingress, func(entry corev1.LoadBalancerIngress) bool { return entry.IP == old })
}

// rest says how long to leave a Service as it is, whose EXTERNAL-IP was taken away.
func (c *contests) rest(key sharenat.Owner, now time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	contest, ok := c.services[key]
	if !ok || contest.times == 0 {
		return 0
	}
	pause := min(contestPause<<min(contest.times-1, 20), maxContestPause)
	return contest.last.Add(pause).Sub(now)
}

// restored notes that an EXTERNAL-IP which was taken away is being put right, and by whom it was taken.
func (c *contests) restored(key sharenat.Owner, rival string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	contest := c.services[key]
	if now.Sub(contest.last) > contestOver {
		contest.times = 0
	}
	contest.times++
	contest.last, contest.rival = now, rival
	c.services[key] = contest
}

// rival is who takes a Service's EXTERNAL-IP away again and again; ok is false where nobody does, or not any more.
func (c *contests) rival(key sharenat.Owner, now time.Time) (name string, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	contest, ok := c.services[key]
	if !ok || contest.times < 2 {
		return "", false
	}
	if now.Sub(contest.last) > contestOver {
		delete(c.services, key)
		return "", false
	}
	return contest.rival, true
}

func (c *contests) forget(key sharenat.Owner) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.services, key)
}

// rivalOf is the last other writer of a Service's status.loadBalancer, by its field manager; "" where none is on record, as where it
// left nothing there that could be its own.
func rivalOf(svc *corev1.Service) string {
	var found *metav1.ManagedFieldsEntry
	for i := range svc.ManagedFields {
		entry := &svc.ManagedFields[i]
		if entry.Manager == fieldManager || entry.Subresource != "status" || entry.FieldsV1 == nil ||
			!strings.Contains(entry.FieldsV1.GetRawString(), `"f:loadBalancer"`) {
			continue
		}
		if found == nil || timeOf(entry).After(timeOf(found)) {
			found = entry
		}
	}
	if found == nil {
		return ""
	}
	return found.Manager
}

func timeOf(entry *metav1.ManagedFieldsEntry) time.Time {
	return cmp.Or(entry.Time, &metav1.Time{}).Time
}
