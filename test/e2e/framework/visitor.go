// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	. "github.com/onsi/ginkgo/v2"

	"github.com/kubeovn/kube-ovn/test/lab"
	"github.com/kubeovn/kube-ovn/test/lab/fabric"
)

// Visitor is a client of the external network with a source address of its own. There can be many: they share a network namespace.
type Visitor struct {
	SpaceClient

	Addr netip.Addr
}

// Ask implements Client.
func (v *Visitor) Ask(ctx context.Context, to Target, question string, count int) ([]string, error) {
	var answers []string
	for range count {
		answer, err := v.one(ctx, to, question)
		if err != nil {
			return answers, fmt.Errorf("%s asks %s: %w", v.name, to, err)
		}
		answers = append(answers, answer)
	}
	return answers, nil
}

func (v *Visitor) one(ctx context.Context, to Target, question string) (string, error) {
	conn, err := v.Dial(ctx, to, netip.AddrPortFrom(v.Addr, 0))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	return AskOn(conn, to.UDP, question)
}

// Visit makes count new connections and returns who answered each.
func (v *Visitor) Visit(ctx context.Context, to Target, count int) []string {
	GinkgoHelper()
	answers, err := v.Ask(ctx, to, AskHostname, count)
	must(err, "%d of %d connections of %s to %s were answered", len(answers), count, v.name, to)
	return answers
}

// crowds numbers the prefixes of visitors in this process.
var crowds atomic.Int32

// crowdPrefix is a prefix for visitors that nobody else uses: 198.18.0.0/15 is for tests such as these.
func crowdPrefix() netip.Prefix {
	number := GinkgoParallelProcess()*100 + int(crowds.Add(1))%100
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{198, byte(18 + number>>8&1), byte(number), 0}), 24)
}

// Visitors are that many clients in the namespace of an external client, to which the upstream router leads.
func (c *Cluster) Visitors(ctx context.Context, count int) []*Visitor {
	GinkgoHelper()
	space := fabric.Namespace{Name: lab.Clients[0]}
	prefix := crowdPrefix()
	upstream := fabric.Namespace{Name: fabric.UpstreamNamespace}
	route := []string{prefix.String(), "via", addressIn(ctx, space)}
	RunIn(ctx, upstream, append([]string{"ip", "route", "add"}, route...)...)
	DeferCleanup(func(ctx context.Context) { RunIn(ctx, upstream, append([]string{"ip", "route", "del"}, route...)...) })
	return crowd(ctx, space, prefix, count)
}

// crowd makes visitors of the first addresses of a prefix, all of which the namespace takes for its own from now on.
func crowd(ctx context.Context, space fabric.Namespace, prefix netip.Prefix, count int) []*Visitor {
	GinkgoHelper()
	RunIn(ctx, space, "ip", "route", "add", "local", prefix.String(), "dev", "lo")
	DeferCleanup(func(ctx context.Context) {
		RunIn(ctx, space, "ip", "route", "del", "local", prefix.String(), "dev", "lo")
	})
	visitors := make([]*Visitor, count)
	addr := prefix.Addr()
	for i := range visitors {
		addr = addr.Next()
		visitors[i] = &Visitor{SpaceClient{name: addr.String(), space: space}, addr}
	}
	return visitors
}

// addressIn is the address by which a client is in the external network.
func addressIn(ctx context.Context, space fabric.Namespace) string {
	GinkgoHelper()
	addr, err := netip.ParsePrefix(firstField(RunIn(ctx, space, "sh", "-c", "ip -4 -o addr show dev eth0 primary | awk '{ print $4 }'")))
	must(err, "address of %s", space.Name)
	return addr.Addr().String()
}

func firstField(s string) string {
	var field string
	_, _ = fmt.Sscan(s, &field) // Empty where there is none.
	return field
}

// VisitorsBehindOne are clients whose addresses are all translated to one and the same on their way out, as behind a router at home.
func (c *Cluster) VisitorsBehindOne(ctx context.Context, count int) []*Visitor {
	GinkgoHelper()
	space := fabric.Namespace{Name: lab.Clients[1]}
	prefix := crowdPrefix()
	table := strings.NewReplacer(".", "-", "/", "-").Replace("behind-" + prefix.String())
	RunIn(ctx, space, "nft", fmt.Sprintf("table ip %s { chain out { type nat hook postrouting priority srcnat; ip saddr %s masquerade; }; }", table, prefix))
	DeferCleanup(func(ctx context.Context) { RunIn(ctx, space, "nft", "delete", "table", "ip", table) })
	return crowd(ctx, space, prefix, count)
}

// EachVisitor does something for every visitor at the same time, and collects what comes of it.
func EachVisitor[T any](visitors []*Visitor, do func(*Visitor) T) []T {
	GinkgoHelper()
	results := make([]T, len(visitors))
	failed := make([]bool, len(visitors))
	var group sync.WaitGroup
	for i, v := range visitors {
		group.Go(func() {
			defer GinkgoRecover()
			failed[i] = true
			results[i] = do(v)
			failed[i] = false
		})
	}
	group.Wait()
	if slices.Contains(failed, true) {
		Fail("a visitor has failed")
	}
	return results
}
