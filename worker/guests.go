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
	vain    int                     // looks in a row that fetched and found no guest
}

const (
	// mostVain bounds how much more seldom a worker looks whose looks are in vain: its guests run elsewhere.
	mostVain = 3 // doublings
	// lookers is how many workers of a model look as often as they may. More share these looks: one is as good as another for a tenant
	// that waits, and each is handed what the lane begins with.
	lookers = 8
)

// lookEvery is how long a worker waits for its next look, of so many that serve the model.
func lookEvery(period time.Duration, vain, serving int) time.Duration {
	return period << min(vain, mostVain) * time.Duration(max(lookers, serving)) / lookers
}

func (p *puller) pullGuests(ctx context.Context) error {
	if p.s.cfg.Scheduler.Budget.SuspendBudgetBytes == 0 {
		return nil // no session ever gives way
	}
	g := &guests{p: p, skipped: map[schemas.Tenant]bool{}}
	for wait(ctx, lookEvery(p.s.cfg.Periods.Guests, g.vain, p.s.cfg.Peers.Serving(p.s.cfg.Model))) {
		if !p.s.places.full() {
			continue
		}
		if err := g.look(ctx); err != nil && ctx.Err() == nil {
			return fmt.Errorf("look past the head of the lane: %w", err)
		}
	}
	return nil
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
	waiting, err := g.waiting(short)
	if err != nil {
		return err
	}
	wanted, places := s.places.pledgeGuests(waiting)
	defer func() {
		for _, place := range places {
			place.release()
		}
	}()
	unknown := info.NumPending > 0
	for tenant := range wanted {
		unknown = unknown || g.skipped[tenant]
	}
	if !unknown || len(places) == 0 {
		return nil
	}
	sent := time.Now()
	batch, err := g.p.shared.FetchNoWait(min(lookAhead, int(info.NumPending)+info.NumAckPending))
	if err != nil {
		return err
	}
	g.vain++
	clear(g.skipped)
	var passed []jetstream.Msg
	for msg := range batch.Messages() {
		subject, err := s.cfg.Prefix.ParseRequest(msg.Subject())
		if err == nil && wanted[subject.Tenant] && len(places) > 0 {
			delete(wanted, subject.Tenant)
			place := places[0]
			places = places[1:]
			place.hold(subject.Tenant)
			g.vain = 0
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

// waiting are the tenants that have requests in the lane of all. Some may be running, here or elsewhere.
func (g *guests) waiting(ctx context.Context) (tenants []schemas.Tenant, err error) {
	s := g.p.s
	stream, err := s.js.Stream(ctx, s.cfg.Prefix.RequestStream())
	if err != nil {
		return nil, err
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(s.cfg.Prefix.Shared(s.cfg.Model)))
	if err != nil {
		return nil, err
	}
	for subject := range info.State.Subjects {
		if parsed, err := s.cfg.Prefix.ParseRequest(subject); err == nil {
			tenants = append(tenants, parsed.Tenant)
		}
	}
	return tenants, nil
}
