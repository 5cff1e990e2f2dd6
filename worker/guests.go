package worker

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/meshnet/node/schemas"
)

// lookAhead is how many requests a full worker looks through at once.
const lookAhead = 256

// guests looks for requests of tenants that have no turn here while this worker is full. The lane of all is first come, first served:
// without that a tenant with one request waits behind all those of a tenant that floods the lane, and never reaches the scheduler, which
// would give it the next slot. What it passes over goes back at once, in the order it had.
type guests struct {
	p       *puller
	skipped map[schemas.Tenant]bool // whose requests were passed over by the last look
}

func (p *puller) pullGuests(ctx context.Context) error {
	if p.s.cfg.Scheduler.Budget.SuspendBudgetBytes == 0 {
		return nil // no session ever gives way
	}
	g := &guests{p: p, skipped: map[schemas.Tenant]bool{}}
	tick := time.NewTicker(p.s.cfg.Periods.Guests)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if !p.s.places.full() {
			continue
		}
		if err := g.look(ctx); err != nil && ctx.Err() == nil {
			return fmt.Errorf("look past the head of the lane: %w", err)
		}
	}
}

// look takes the first request of each tenant that waits and has no turn here, as far as there are places for guests.
func (g *guests) look(ctx context.Context) error {
	s := g.p.s
	short, cancel := context.WithTimeout(ctx, s.cfg.Periods.Request)
	defer cancel()
	info, err := g.p.shared.Info(short)
	if err != nil {
		return err
	}
	if info.NumPending == 0 && len(g.skipped) == 0 {
		return nil // everyone was looked at, by this worker or another
	}
	wanted, err := g.waiting(short)
	if err != nil {
		return err
	}
	known := info.NumPending == 0
	for tenant := range wanted {
		known = known && !g.skipped[tenant]
	}
	if known || len(wanted) == 0 {
		return nil
	}
	places := s.places.pledgeGuests(len(wanted))
	defer func() {
		for _, place := range places {
			place.release()
		}
	}()
	if len(places) == 0 {
		return nil
	}
	sent := time.Now()
	batch, err := g.p.shared.FetchNoWait(min(lookAhead, int(info.NumPending)+info.NumAckPending))
	if err != nil {
		return err
	}
	clear(g.skipped)
	var passed []jetstream.Msg
	for msg := range batch.Messages() {
		subject, err := s.cfg.Prefix.ParseRequest(msg.Subject())
		if err == nil && wanted[subject.Tenant] && len(places) > 0 {
			delete(wanted, subject.Tenant)
			place := places[0]
			places = places[1:]
			place.hold()
			s.metrics.guests.Inc()
			s.tasks.Go(func() { s.accept(msg, sent, place, false) })
			continue
		}
		g.skipped[subject.Tenant] = true
		passed = append(passed, msg)
	}
	// Only now: what is given back while the fetch lasts would come again with it.
	for _, msg := range passed {
		if err := msg.Nak(); err != nil {
			return fmt.Errorf("give back what was passed over: %w", err)
		}
	}
	return batch.Error()
}

// waiting are the tenants that have requests in the lane of all, and no turn here. Theirs may be running elsewhere.
func (g *guests) waiting(ctx context.Context) (map[schemas.Tenant]bool, error) {
	s := g.p.s
	stream, err := s.js.Stream(ctx, s.cfg.Prefix.RequestStream())
	if err != nil {
		return nil, err
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(s.cfg.Prefix.Shared(s.cfg.Model)))
	if err != nil {
		return nil, err
	}
	here := map[string]bool{}
	for _, t := range s.turns.all() {
		here[t.key.Tenant] = true
	}
	wanted := map[schemas.Tenant]bool{}
	for subject := range info.State.Subjects {
		if parsed, err := s.cfg.Prefix.ParseRequest(subject); err == nil && !here[parsed.Tenant.String()] {
			wanted[parsed.Tenant] = true
		}
	}
	return wanted, nil
}
