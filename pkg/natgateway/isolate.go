// SPDX-License-Identifier: Apache-2.0

package natgateway

import (
	"context"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/kubeovn/kube-ovn/pkg/sharenat"
)

// maxProbes bounds how many calls of a pass are spent on finding out which identities a script does not take.
const maxProbes = 64

// firstRetry is when a script that would not take an identity is asked again for the first time.
const firstRetry = time.Second

// syncAll makes a sync, in parts where the script refuses it as a whole: what is to go goes, and what is accepted is
// there, before anything is set aside. Identities that were refused before come last, so that they hold up nothing.
func (s *session) syncAll(ctx context.Context, a *Action) error {
	main, suspects := s.suspects(a)
	err := s.sync(ctx, main)
	if refused(err) && !main.Full {
		err = s.refill(ctx, main, err)
	}
	switch {
	case refused(err) && len(main.Set) > 0:
		if err := s.isolate(ctx, main, err); err != nil {
			return err
		}
	case err != nil:
		return err
	}
	if suspects == nil {
		return nil
	}
	err = s.sync(ctx, suspects)
	if !refused(err) {
		return err
	}
	return s.isolate(ctx, suspects, err)
}

// suspects divides a sync into what may be expected to be accepted and the identities that were refused before.
func (s *session) suspects(a *Action) (main, suspects *Action) {
	var clean, suspect []*DesiredShare
	s.p.update(func(p *program) {
		for _, share := range a.Set {
			if p.rejected[share.Identity] == "" {
				clean = append(clean, share)
			} else {
				suspect = append(suspect, share)
			}
		}
	})
	if len(suspect) == 0 || len(clean)+len(a.Remove) == 0 && !a.Full {
		return a, nil
	}
	rest := *a
	rest.Set = clean
	return &rest, &Action{Verb: sharenat.SyncVerb, Set: suspect}
}

// refill answers a refused delta with a full state, where it is the pod that refuses and not what is new: its table
// may have been laid out by somebody else, and only a full state replaces it. What tells is something that the pod
// holds already. It gives the refusal where there still is one.
func (s *session) refill(ctx context.Context, a *Action, first error) error {
	held, wanted := s.wantedShares()
	if len(held) > 0 {
		if err := s.sync(ctx, &Action{Verb: sharenat.SyncVerb, Set: held[:1]}); err == nil {
			return first
		} else if !refused(err) {
			return err
		}
	}
	klog.FromContext(ctx).Info("Gateway pod refuses a delta, replacing its table",
		"gateway", s.gateway, "why", first.Error())
	err := s.sync(ctx, &Action{Verb: sharenat.SyncVerb, Full: true, Set: wanted})
	switch {
	case err == nil && len(a.Forget) > 0:
		return s.sync(ctx, &Action{Verb: sharenat.SyncVerb, Forget: a.Forget})
	case !refused(err) || len(held) == 0 || len(held) == len(wanted):
		return err
	}
	// Something new is wrong as well. The table has to be replaced all the same; then what is new speaks for itself.
	if err := s.sync(ctx, &Action{Verb: sharenat.SyncVerb, Full: true, Set: held}); err != nil {
		return err
	}
	return s.sync(ctx, &Action{Verb: sharenat.SyncVerb, Set: a.Set, Forget: a.Forget})
}

// wantedShares gives all that the pod should hold, without what was set aside, and what of it it holds already.
func (s *session) wantedShares() (held, wanted []*DesiredShare) {
	have := s.p.content
	for id, share := range s.want.Shares {
		if have.Rejected[id] == share.Digest {
			continue
		}
		wanted = append(wanted, share)
		if have.Shares[id] == share.Digest {
			held = append(held, share)
		}
	}
	sortShares(held)
	sortShares(wanted)
	return held, wanted
}

// isolate finds, by halving, the identities that make a script refuse a sync, so that they alone are left out until
// they change or are tried again.
func (s *session) isolate(ctx context.Context, a *Action, first error) error {
	remove := a.Remove
	if a.Full {
		remove = s.unwanted()
	}
	if len(remove) > 0 {
		err := s.sync(ctx, &Action{Verb: sharenat.SyncVerb, Remove: remove, Keep: a.Keep, Forget: a.Forget})
		if err != nil {
			return err
		}
	}
	probe := &prober{session: s, left: maxProbes}
	if err := probe.search(ctx, a.Set, first); err != nil {
		return err
	}
	if !probe.accepted && len(probe.untried) > 0 {
		probe.refusal = first
	}
	s.noteRejected(ctx, probe)
	return nil
}

// unwanted gives the identities that the pod holds and that are not wanted.
func (s *session) unwanted() []sharenat.Identity {
	var out []sharenat.Identity
	for id := range s.p.content.Shares {
		if s.want.Shares[id] == nil {
			out = append(out, id)
		}
	}
	slices.SortFunc(out, sharenat.Identity.Compare)
	return out
}

// noteRejected sets aside what was refused. Each identity is told of, once; where the fault is not theirs, what the
// script says is.
func (s *session) noteRejected(ctx context.Context, probe *prober) {
	var news []error
	s.p.update(func(p *program) {
		if p.rejected == nil {
			p.rejected = map[sharenat.Identity]string{}
		}
		for _, r := range probe.rejected {
			p.content.Rejected[r.share.Identity] = r.share.Digest
			if why := r.why.Error(); p.rejected[r.share.Identity] != why {
				p.rejected[r.share.Identity] = why
				news = append(news, r.why)
			}
		}
		for _, share := range probe.untried {
			p.content.Rejected[share.Identity] = share.Digest
		}
		if probe.refusal != nil {
			if news = nil; p.refusal != probe.refusal.Error() {
				news = []error{probe.refusal}
			}
			p.refusal = probe.refusal.Error()
		}
		// It may have been the moment's fault. Who is rejected for good is asked less and less often; who was not looked
		// at is soon.
		if p.retry = min(max(2*p.retry, firstRetry), s.c.CheckInterval); len(probe.untried) > 0 {
			p.retry = firstRetry
		}
		if next := s.c.Clock.Now().Add(p.retry); next.Before(p.nextCheck) {
			p.nextCheck = next
		}
	})
	for _, err := range news {
		klog.FromContext(ctx).Error(err, "Gateway pod rejects what it is sent",
			"gateway", s.gateway, "everything", probe.refusal != nil)
		s.c.gatewayEvent(s.gateway, ReasonRejectedByGateway, err.Error())
	}
}

type rejection struct {
	share *DesiredShare
	why   error
}

type prober struct {
	*session
	left     int // probes
	accepted bool
	rejected []rejection
	// untried are identities of a set that is refused, for which no probes were left.
	untried []*DesiredShare
	// refusal is what the script says to everything.
	refusal error
}

// search looks into a set that is refused. Where both halves fail with one text, and so does an identity of each,
// while nothing was accepted, the fault is not theirs: more calls would tell no more.
func (b *prober) search(ctx context.Context, set []*DesiredShare, why error) error {
	if len(set) == 1 {
		b.rejected = append(b.rejected, rejection{set[0], why})
		return nil
	}
	if b.left < 2 {
		b.untried = append(b.untried, set...)
		return nil
	}
	halves := [][]*DesiredShare{set[:len(set)/2], set[len(set)/2:]}
	whys, err := b.try(ctx, halves)
	if err != nil {
		return err
	}
	if len(set) > 2 && b.alike(whys, why) {
		last := len(set) - 1
		ends, err := b.try(ctx, [][]*DesiredShare{set[:1], set[last:]})
		if err != nil {
			return err
		}
		if b.alike(ends, why) {
			b.refusal = why
			for _, share := range set {
				b.rejected = append(b.rejected, rejection{share, why})
			}
			return nil
		}
	}
	for i, half := range halves {
		if whys[i] == nil {
			continue
		}
		if err := b.search(ctx, half, whys[i]); err != nil {
			return err
		}
	}
	return nil
}

// try sends each set by itself, and gives the refusals.
func (b *prober) try(ctx context.Context, sets [][]*DesiredShare) ([]error, error) {
	whys := make([]error, len(sets))
	for i, set := range sets {
		b.left--
		err := b.sync(ctx, &Action{Verb: sharenat.SyncVerb, Set: set})
		switch {
		case err == nil:
			b.accepted = true
		case refused(err):
			whys[i] = err
		default:
			return nil, err
		}
	}
	return whys, nil
}

// alike says that nothing was accepted, and that all refusals have one text.
func (b *prober) alike(whys []error, text error) bool {
	differs := func(why error) bool { return why == nil || why.Error() != text.Error() }
	return !b.accepted && !slices.ContainsFunc(whys, differs)
}
