// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/kubeovn/kube-ovn/test/lab"
	"github.com/kubeovn/kube-ovn/test/traffic"
)

// load is constant traffic from several places.
type load struct {
	outside, inside *traffic.Process[traffic.Stream]
	held            *traffic.Process[traffic.Hold]
}

func (d *demo) startLoad(ctx context.Context) (*load, error) {
	l := &load{}
	var err error
	if l.outside, err = traffic.Start[traffic.Stream](d.client(ctx, d.stream(200))); err != nil {
		return nil, err
	}
	cmd, err := d.pod(ctx, d.stream(100))
	if err != nil {
		return nil, err
	}
	if l.inside, err = traffic.Start[traffic.Stream](cmd); err != nil {
		return nil, err
	}
	hold := traffic.HoldOptions{Endpoint: d.endpoint(webPort), Connections: 20}
	l.held, err = traffic.Start[traffic.Hold](d.netns(ctx, lab.Clients[1], append(hold.Argv(), reportOften)))
	return l, err
}

// answered waits until both streams have been answered by exactly these Pods, and no other, since they are watched.
func (l *load) answered(ctx context.Context, pods []string) error {
	for _, stream := range []*traffic.Process[traffic.Stream]{l.outside, l.inside} {
		from, err := stream.Now(ctx)
		if err != nil {
			return err
		}
		// That a Pod of n is not drawn in 20n tries happens once in 10⁸ times; then it takes some more.
		enough := from.OK + 20*len(pods)
		var who []string
		_, err = stream.Until(ctx, func(s traffic.Stream) bool {
			who = since(from.Backends, s.Backends)
			return s.OK >= enough && len(who) >= len(pods)
		})
		if err != nil {
			return err
		}
		if !slices.Equal(who, pods) {
			return fmt.Errorf("answered by %v, not by %v", who, pods)
		}
	}
	return nil
}

// since lists who has answered in between.
func since(from, to map[string]int) []string {
	var who []string
	for _, name := range slices.Sorted(maps.Keys(to)) {
		if to[name] > from[name] {
			who = append(who, name)
		}
	}
	return who
}

func (d *demo) scale(ctx context.Context) error {
	l, err := d.startLoad(ctx)
	if err != nil {
		return err
	}
	d.say("300 new connections a second, 200 from outside and 100 in the VPC, and 20 kept open from outside.")
	for _, replicas := range []int{3, 6, 2} {
		if replicas != 3 {
			if err := d.kubectl(ctx, "scale", "deployment/web", "-n", namespace, fmt.Sprintf("--replicas=%d", replicas)); err != nil {
				return err
			}
			if err := d.kubectl(ctx, "rollout", "status", "deployment/web", "-n", namespace, "--timeout="+patience.String()); err != nil {
				return err
			}
		}
		// Those that are on their way out still are Pods: nobody is answered by them any more, but who was, may be.
		pods, err := d.pods(ctx, replicas)
		if err != nil {
			return err
		}
		slices.Sort(pods)
		if err := l.answered(ctx, pods); err != nil {
			return fmt.Errorf("with %d Pods: %w", replicas, err)
		}
		d.good("all %d Pods answer, and only they", replicas)
	}
	return d.judge(ctx, l)
}

// judge ends the load and says what was lost.
func (d *demo) judge(ctx context.Context, l *load) error {
	outside, err := l.outside.Stop(ctx)
	if err != nil {
		return err
	}
	inside, err := l.inside.Stop(ctx)
	if err != nil {
		return err
	}
	held, err := l.held.Stop(ctx)
	if err != nil {
		return err
	}
	left, err := d.pods(ctx, 2)
	if err != nil {
		return err
	}
	rows := [][]string{{"connections", "client outside", "client in the VPC"}}
	for _, pod := range since(nil, outside.Backends) {
		rows = append(rows, []string{"to " + pod, strconv.Itoa(outside.Backends[pod]), strconv.Itoa(inside.Backends[pod])})
	}
	rows = append(rows,
		[]string{"all", strconv.Itoa(outside.Attempts), strconv.Itoa(inside.Attempts)},
		[]string{"lost", strconv.Itoa(outside.Failed), strconv.Itoa(inside.Failed)},
		[]string{"slowest", seconds(outside.Latency.Max.Duration), seconds(inside.Latency.Max.Duration)})
	d.table(rows)
	for _, stream := range []traffic.Stream{outside, inside} {
		if stream.Failed > 0 && !d.beside {
			return fmt.Errorf("%d of %d connections were lost: %v", stream.Failed, stream.Attempts, stream.Failures)
		}
	}
	all, lost := outside.Attempts+inside.Attempts, outside.Failed+inside.Failed
	d.good("%d connections, lost: %d", all, lost)
	d.note("Connections while scaling 3, 6, 2: lost", "%d of %d", lost, all)
	for _, cut := range held.Cuts {
		// One that was cut before its Pod had said its name was lost, whoever that was.
		if cut.Backend == "" || slices.Contains(left, cut.Backend) {
			return fmt.Errorf("a connection kept open was cut, and not because its Pod ended: %+v", cut)
		}
	}
	if held.Moved > 0 || held.NotOpened.Count() > 0 && !d.beside {
		return fmt.Errorf("connections kept open: %d moved, not opened: %v", held.Moved, held.NotOpened)
	}
	d.good("of the 20 kept open, %d ended with their Pods, no other was cut", held.Cut)
	return nil
}
