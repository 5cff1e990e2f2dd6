package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/meshnet/node/scheduler"
	"github.com/meshnet/node/schemas"
)

// publisher sends the events of all live turns, in order, through a connection of their own. The goroutine that
// drives the engine only appends to outputs and signals; run alone publishes. What the server had not confirmed when
// the connection broke is sent again: readers know an index twice.
type publisher struct {
	conn    *nats.Conn
	js      jetstream.JetStream
	timeout time.Duration
	every   time.Duration // between confirmations
	failed  func(kind string)

	wake chan struct{} // has room for one
	down bool          // the last publish failed; belongs to run

	mu      sync.Mutex // guards what follows, and the first part of every output
	outputs map[*output]struct{}
	dirty   map[*output]struct{}
	gen     uint64 // reconnects that outputs were rewound for
}

func newPublisher(conn *nats.Conn, js jetstream.JetStream, p Periods, failed func(kind string)) *publisher {
	return &publisher{conn: conn, js: js, timeout: p.Request, every: p.FlushTokens, failed: failed,
		wake: make(chan struct{}, 1), outputs: map[*output]struct{}{}, dirty: map[*output]struct{}{}}
}

func (p *publisher) signal() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *publisher) add(o *output) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.outputs[o] = struct{}{}
}

func (p *publisher) remove(o *output) {
	p.mu.Lock()
	defer p.mu.Unlock()
	o.closed = true
	delete(p.outputs, o)
	delete(p.dirty, o)
}

// begin says that an attempt yields tokens from now on.
func (p *publisher) begin(o *output, s *schemas.Started) {
	p.mu.Lock()
	o.begun = s
	p.dirty[o] = struct{}{}
	p.mu.Unlock()
	p.signal()
}

// appendLocked says a token. The caller holds mu, and signals once a tick.
func (p *publisher) appendLocked(o *output, t scheduler.NewToken) {
	o.tokens = append(o.tokens, t)
	p.dirty[o] = struct{}{}
}

// end says that no token will follow: of this attempt, or of a turn that is whole with them.
func (p *publisher) end(o *output, whole bool) {
	p.mu.Lock()
	o.ended, o.whole = true, whole
	p.dirty[o] = struct{}{}
	p.mu.Unlock()
	p.signal()
}

// keepalive says that a turn is alive if nothing was said for it in so long, and when to ask again.
func (p *publisher) keepalive(o *output, silence time.Duration) (next time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if left := silence - time.Since(o.lastSpoke); left > 0 {
		return left
	}
	o.keepalive = true
	p.dirty[o] = struct{}{}
	p.signal()
	return silence
}

// run publishes until ctx ends.
func (p *publisher) run(ctx context.Context) {
	status := p.conn.StatusChanged(nats.CONNECTED)
	defer p.conn.RemoveStatusListener(status)
	tick := time.NewTicker(p.every)
	defer tick.Stop()
	confirmed := make(chan uint64)
	asking := false
	var confirmations sync.WaitGroup
	defer confirmations.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		case <-status:
			p.down = false
		case gen := <-confirmed:
			asking = false
			p.confirm(gen)
			continue
		case <-tick.C:
			p.down = false // whatever it was, try again
			if !asking && p.ask() {
				asking = true
				confirmations.Go(func() { p.flush(ctx, confirmed) })
			}
		}
		p.round()
	}
}

// reconnects counts how often the connection was made anew: what was sent before may be lost.
func (p *publisher) reconnects() uint64 { return p.conn.Stats().Reconnects }

// round publishes what is to be said.
func (p *publisher) round() {
	if p.down {
		return
	}
	p.mu.Lock()
	if gen := p.reconnects(); gen != p.gen {
		p.gen = gen
		for o := range p.outputs {
			o.rewind()
			p.dirty[o] = struct{}{}
		}
	}
	work := make([]*output, 0, len(p.dirty))
	for o := range p.dirty {
		work = append(work, o)
	}
	clear(p.dirty)
	p.mu.Unlock()
	for i, o := range work {
		if err := p.speak(o); err != nil {
			p.failed("token")
			p.down = true
			p.mu.Lock()
			for _, o := range work[i:] {
				if !o.closed {
					p.dirty[o] = struct{}{}
				}
			}
			p.mu.Unlock()
			return
		}
	}
}

// speak publishes what one output has to say.
func (p *publisher) speak(o *output) error {
	p.mu.Lock()
	now := pending{begun: o.begun, tokens: o.tokens, ended: o.ended, whole: o.whole, keepalive: o.keepalive, closed: o.closed}
	o.keepalive = false
	gen := p.gen
	p.mu.Unlock()
	if now.closed || !o.lease.valid() {
		return nil
	}
	o.convert(&now)
	spoke, err := p.publish(o, &now)
	p.mu.Lock()
	defer p.mu.Unlock()
	if spoke {
		o.lastSpoke = time.Now()
	}
	if err == nil && now.ended {
		o.sentGen, o.sentEnd = gen, true
		close(o.sentAll)
		o.sentAll = make(chan struct{})
	}
	return err
}

func (p *publisher) publish(o *output, now *pending) (spoke bool, err error) {
	if now.begun != nil && !o.sentStarted {
		if err := send(p.conn, o.subject, now.begun); err != nil {
			return spoke, err
		}
		o.sentStarted, spoke = true, true
	}
	for o.sent < len(now.tokens) {
		e := o.next(now)
		if err := send(p.conn, o.subject, e); err != nil {
			return spoke, err
		}
		o.sent += len(e.TokenIDs)
		spoke = true
	}
	if now.keepalive && (!spoke || now.ended) {
		if err := send(p.conn, o.subject, &schemas.Keepalive{Attempt: o.attempt, LastIndex: o.base + o.sent - 1}); err != nil {
			return spoke, err
		}
		spoke = true
	}
	return spoke, nil
}

// encodable is an event.
type encodable interface {
	*schemas.Started | *schemas.Tokens | *schemas.Keepalive
}

func send[E encodable](conn *nats.Conn, subject string, event E) error {
	var data []byte
	var err error
	switch e := any(event).(type) {
	case *schemas.Started:
		data, err = schemas.Encode(e)
	case *schemas.Tokens:
		data, err = schemas.Encode(e)
	case *schemas.Keepalive:
		data, err = schemas.Encode(e)
	}
	if err != nil {
		return err
	}
	return conn.Publish(subject, data)
}

// ask notes what a confirmation would confirm, and says whether there is anything.
func (p *publisher) ask() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	any := false
	for o := range p.outputs {
		o.asked, o.askedStarted = o.sent, o.sentStarted
		any = any || o.asked > o.kept || o.askedStarted != o.keptStarted
	}
	return any
}

// flush waits until the server has everything that was published, and tells of which connection that is true.
func (p *publisher) flush(ctx context.Context, confirmed chan<- uint64) {
	gen := p.reconnects()
	short, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	if err := p.conn.FlushWithContext(short); err != nil || p.reconnects() != gen {
		gen = ^uint64(0) // of none
	}
	select {
	case confirmed <- gen:
	case <-ctx.Done():
	}
}

func (p *publisher) confirm(gen uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if gen != p.gen {
		return
	}
	for o := range p.outputs {
		o.kept, o.keptStarted = max(o.kept, o.asked), o.keptStarted || o.askedStarted
	}
}

// final publishes a turn's final after all its tokens, and waits until the stream has it. It tries again while
// ctx lasts; after a reconnect the tokens come first again.
func (p *publisher) final(ctx context.Context, o *output, data []byte) error {
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		gen := p.reconnects()
		if err := p.awaitSent(ctx, o, gen); err != nil {
			return err
		}
		err := p.keep(ctx, o.subject, data)
		if err == nil && p.reconnects() == gen {
			return nil
		}
		if err != nil {
			p.failed("final")
		}
		if !wait(ctx, pause) {
			return fmt.Errorf("publish a final: %w", errors.Join(ctx.Err(), err))
		}
	}
}

// keep publishes into a stream, once.
func (p *publisher) keep(ctx context.Context, subject string, data []byte) error {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	_, err := p.js.Publish(ctx, subject, data)
	return err
}

// farewell publishes what is left of an attempt that is handed over, and a keepalive with its last index, so that
// readers know that the turn goes on; then it waits until the server has them all. Whoever takes the turn over makes
// up for what fails here.
func (p *publisher) farewell(ctx context.Context, o *output) {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	p.mu.Lock()
	o.keepalive, o.sentEnd = true, false
	p.mu.Unlock()
	if err := p.awaitSent(ctx, o, p.reconnects()); err == nil {
		err = p.conn.FlushWithContext(ctx)
		if err == nil {
			return
		}
	}
	p.failed("token")
}

// progress is what an output's session is at.
func (p *publisher) progress(o *output) (phase schemas.SessionPhase, last int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	phase = schemas.PhaseWaiting
	if o.begun != nil {
		phase = schemas.PhaseActive
	}
	return phase, o.base + len(o.tokens) - 1
}

// awaitSent waits until all tokens of an ended output were published through a connection.
func (p *publisher) awaitSent(ctx context.Context, o *output, gen uint64) error {
	for {
		p.mu.Lock()
		if o.sentEnd && o.sentGen >= gen {
			p.mu.Unlock()
			return nil
		}
		sent := o.sentAll
		p.dirty[o] = struct{}{}
		p.mu.Unlock()
		p.signal()
		select {
		case <-sent:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
