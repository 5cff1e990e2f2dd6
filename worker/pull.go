package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/meshnet/node/internal/part"
	"github.com/meshnet/node/schemas"
)

// puller fetches requests: never more than there are free places. They are given out by places (pledge for
// the lane of all, claim and take for this node's own), and there is one function that fetches into them (fetch). A worker that is
// full remembers by the places' signals that it owes a fetch. Beyond them there is room for guests, to whom others give way (pullFull).
type puller struct {
	s     *Service
	hints chan struct{} // has room for one: something was published into this node's own lane

	own, shared jetstream.Consumer // made anew by each open
}

// supervise pulls until ctx ends, whatever happens to the stream and its consumers.
func (p *puller) supervise(ctx context.Context) {
	sub, err := p.s.control.Subscribe(p.s.cfg.Prefix.Own(p.s.cfg.Node), func(*nats.Msg) { signal(p.hints) })
	if err != nil {
		p.s.log.Warn("no news of the own lane: it is looked at now and then", "error", err)
	} else {
		defer func() { _ = sub.Unsubscribe() }() // fails only where the connection is closed
	}
	// Its error is that ctx ended.
	_ = part.Supervisor{
		Max: p.s.cfg.Periods.ReconnectMax,
		Failed: func(err error, inARow int, wait time.Duration) {
			p.s.ready.Store(false)
			p.s.ads.Nudge()
			p.s.log.Warn("pulling failed; it is tried again", "error", err, "in_a_row", inARow, "wait", wait)
		},
	}.Run(ctx, p.run)
}

// run opens the consumers and pulls until something fails.
func (p *puller) run(ctx context.Context) error {
	if err := p.open(ctx); err != nil {
		return err
	}
	p.s.setReady()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var group sync.WaitGroup
	defer group.Wait()
	fail := func(f func(context.Context) error) {
		group.Go(func() {
			if err := f(ctx); err != nil {
				cancel(err)
			}
		})
	}
	fail(p.pullOwn)
	fail(p.pullShared)
	fail(p.pullFull)
	fail(p.watch)
	<-ctx.Done()
	return context.Cause(ctx)
}

func (p *puller) open(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*p.s.cfg.Periods.Request)
	defer cancel()
	if _, err := p.s.provision.stores(ctx); err != nil {
		return err
	}
	var err error
	if p.own, err = p.s.provision.durable(ctx, p.s.provision.ownConsumer(p.s.cfg.Node)); err != nil {
		return err
	}
	p.shared, err = p.s.provision.durable(ctx, p.s.provision.sharedConsumer(p.s.cfg.Model))
	return err
}

// pullShared fetches from the lane of all whenever there is room. Now and then it looks into the own lane first.
func (p *puller) pullShared(ctx context.Context) error {
	look := time.NewTicker(p.s.cfg.Periods.LaneSweep)
	defer look.Stop()
	for ctx.Err() == nil {
		if p.s.places.room() == 0 {
			select {
			case <-p.s.places.freed:
			case <-ctx.Done():
			}
			continue
		}
		select {
		case <-look.C:
			if err := p.lookIntoOwn(); err != nil {
				return err
			}
		default:
		}
		if _, err := p.fetch(p.shared, p.s.places.pledge(p.s.places.limit), p.s.cfg.Periods.FetchExpiry); err != nil {
			return err
		}
	}
	return nil
}

// lookIntoOwn takes what waits in the own lane without news of it, as far as there is room.
func (p *puller) lookIntoOwn() error {
	for left := 1; left > 0; {
		free := p.s.places.take()
		if free == nil {
			return nil
		}
		var err error
		if left, err = p.fetch(p.own, []*place{free}, 0); err != nil {
			return err
		}
	}
	return nil
}

// pullOwn fetches from the own lane when something was published into it.
func (p *puller) pullOwn(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.hints:
		}
		told, expiry := time.Now(), p.s.cfg.Periods.FetchExpiry // the news may come before the stream has the request
		for left := 1; left > 0; expiry = 0 {                   // one piece of news may be of several requests
			claimed := p.s.places.claim(ctx)
			if claimed == nil {
				return nil
			}
			if time.Since(told) > expiry {
				expiry = 0 // the stream has had it for long, and it may have been moved
			}
			var err error
			if left, err = p.fetch(p.own, []*place{claimed}, expiry); err != nil {
				return err
			}
		}
	}
}

// fetch asks a consumer for as many requests as there are places, and hands over what comes. It waits up to expiry for
// them; zero takes what is there. It says how many were left behind the last one that came. A fetch under way is never cancelled: what the server has sent by then would be
// stranded until AckWait.
func (p *puller) fetch(consumer jetstream.Consumer, pledged []*place, expiry time.Duration) (left int, err error) {
	if len(pledged) == 0 {
		return 0, nil
	}
	sent := time.Now()
	var batch jetstream.MessageBatch
	if expiry == 0 {
		batch, err = consumer.FetchNoWait(len(pledged))
	} else {
		batch, err = consumer.Fetch(len(pledged), jetstream.FetchMaxWait(expiry))
	}
	if err == nil {
		for msg := range batch.Messages() {
			place := pledged[0]
			pledged = pledged[1:]
			if meta, err := msg.Metadata(); err == nil {
				left = int(meta.NumPending)
			}
			if !place.hold(p.tenantOf(msg)) {
				place = nil // lent to the own lane: another node may have the request at once
			}
			p.s.tasks.Go(func() { p.s.accept(msg, sent, place, false) })
		}
		err = batch.Error()
	}
	for _, place := range pledged {
		place.release()
	}
	result := "ok"
	if err != nil {
		result = "error"
	}
	p.s.metrics.fetches.WithLabelValues(result).Inc()
	if err != nil {
		return left, fmt.Errorf("fetch requests: %w", err)
	}
	return left, nil
}

// tenantOf is on whose behalf a request was published; none where its subject says nothing, which ends it.
func (p *puller) tenantOf(msg jetstream.Msg) schemas.Tenant {
	subject, err := p.s.cfg.Prefix.ParseRequest(msg.Subject())
	if err != nil {
		return schemas.Tenant{}
	}
	return subject.Tenant
}

// pullFull is what there is to do while there is no room here: the own lane is emptied, and guests are looked for. It is the only one
// that takes requests for which it has no place.
func (p *puller) pullFull(ctx context.Context) error {
	sweep, look := time.NewTicker(p.s.cfg.Periods.LaneSweep), time.NewTicker(p.s.cfg.Periods.Guests)
	defer sweep.Stop()
	defer look.Stop()
	g := newGuests(p)
	for {
		came := false
		select {
		case <-ctx.Done():
			return nil
		case <-look.C:
			came = g.look(ctx)
		case <-sweep.C:
			came = p.s.places.full()
		}
		if !came {
			continue
		}
		if err := p.s.fetchAndMove(ctx, p.own, false); err != nil {
			return fmt.Errorf("empty the own lane: %w", err)
		}
	}
}

// errStalled: the server has requests for this worker and room was told of, and yet no fetch waits there.
var errStalled = errors.New("requests wait at the consumer, there is room, and no fetch of anyone reaches it")

// watch looks for stores that were deleted, and for stalls. Two sights in a row are one: a fetch may be between two
// of its own.
func (p *puller) watch(ctx context.Context) error {
	tick := time.NewTicker(p.s.cfg.Periods.Watchdog)
	defer tick.Stop()
	for sights := 0; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		short, cancel := context.WithTimeout(ctx, p.s.cfg.Periods.Request)
		_, err := p.s.provision.stores(short) // nobody is told when a stream to which events go is gone
		var info *jetstream.ConsumerInfo
		if err == nil {
			info, err = p.shared.Info(short)
		}
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("look at the stores: %w", err)
		case info.NumPending > 0 && info.NumWaiting == 0 && p.s.places.room() > 0:
			sights++
		default:
			sights = 0
		}
		if sights == 2 {
			p.s.metrics.stalls.Inc()
			return errStalled
		}
	}
}
