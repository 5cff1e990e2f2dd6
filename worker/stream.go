package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/meshnet/node/scheduler"
	"github.com/meshnet/node/schemas"
)

// publisher sends the events of all live turns, in order, through a connection of their own. The goroutine that
// drives the engine only appends to outputs and signals; run alone publishes.
//
// The stream of events confirms them, because the server that took one may die before it has passed it on. One confirmation
// is asked for in each round, by its last event; they come in order, so that one which is missing is seen. At a
// break (the connection or the stream was made anew, a publish failed, or a confirmation did not come) all outputs begin anew: readers
// know an index twice. It is from the first token on, because the stream is kept in memory, and may have been lost with
// what it had confirmed.
type publisher struct {
	conn    *nats.Conn
	js      jetstream.JetStream
	store   string        // the stream of events
	timeout time.Duration // of an answer
	every   time.Duration // between two looks for one that is missing
	failed  func(kind string)

	inbox  string        // for confirmations: followed by a round's number
	wake   chan struct{} // has room for one
	faults atomic.Uint64 // breaks that were none of the connection's

	// What follows belongs to run.
	down   bool      // the last publish failed
	rounds uint64    // that said something
	held   *nats.Msg // the newest event of the round under way: if nothing follows, it asks for the confirmation
	spoken []*output // in the round under way

	mu       sync.Mutex // guards what follows, and the first parts of every output
	outputs  map[*output]struct{}
	dirty    map[*output]struct{}
	broken   uint64         // breaks that the outputs were rewound for
	awaited  []confirmation // in the order of their rounds
	patience time.Duration  // with a confirmation: doubles from timeout with each that is missed, so that a slow server gets not more to do
}

// confirmation is the answer that a round waits for.
type confirmation struct {
	round  uint64
	asked  time.Time
	covers []coverage
}

// coverage is how many events of an output are stored when a round is.
type coverage struct {
	of     *output
	events int
}

func newPublisher(conn *nats.Conn, js jetstream.JetStream, store string, p Periods, failed func(kind string)) *publisher {
	return &publisher{conn: conn, js: js, store: store, timeout: p.Request, patience: p.Request, every: p.Confirm, failed: failed, inbox: conn.NewInbox(),
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
	p.outputs[o], o.breaks = struct{}{}, p.broken
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
	confirmations, err := p.conn.Subscribe(p.inbox+".*", p.confirmed)
	if err != nil {
		return // the connection is closed
	}
	defer func() { _ = confirmations.Unsubscribe() }() // fails only where the connection is closed
	status := p.conn.StatusChanged(nats.CONNECTED)
	defer p.conn.RemoveStatusListener(status)
	tick := time.NewTicker(p.every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		case <-status:
			p.down = false
		case <-tick.C:
			p.down = false // whatever it was, try again
			if p.overdue() {
				p.failed("token")
				p.faults.Add(1)
			}
		}
		p.round()
	}
}

// breaks counts the times that what was sent before may have been lost. It may wait as long as a write to the connection
// does, so nobody calls it with mu held: the engine's goroutine must not wait for mu.
func (p *publisher) breaks() uint64 { return p.conn.Stats().Reconnects + p.faults.Load() }

// lost makes all outputs begin anew: what the stream had confirmed is gone.
func (p *publisher) lost() {
	p.faults.Add(1)
	p.signal()
}

// confirmed takes the stream's answer to a round.
func (p *publisher) confirmed(msg *nats.Msg) {
	round, err := strconv.ParseUint(msg.Subject[len(p.inbox)+1:], 10, 64)
	var ack struct {
		Stream string `json:"stream"`
		Seq    uint64 `json:"seq"`
	}
	if err := errors.Join(err, json.Unmarshal(msg.Data, &ack)); err != nil || ack.Stream != p.store || ack.Seq == 0 {
		return // nobody stores events now: the confirmation will be missed
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.awaited) == 0 || p.awaited[0].round != round {
		return // of before a break; or the one before is missing, and with it perhaps its events
	}
	for _, c := range p.awaited[0].covers {
		if c.of.stored = c.events; c.of.stored == c.of.published {
			c.of.tell()
		}
	}
	p.awaited = p.awaited[1:]
	p.patience = p.timeout
}

// mostPatience is how many times as long as usual a confirmation may take at last.
const mostPatience = 4

// overdue says whether a confirmation that somebody needs has not come in time.
func (p *publisher) overdue() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.awaited) > 0 && time.Since(p.awaited[0].asked) > p.patience {
		for _, c := range p.awaited[0].covers {
			if !c.of.closed && c.of.lease.valid() {
				p.patience = min(2*p.patience, mostPatience*p.timeout)
				return true
			}
		}
		p.awaited = p.awaited[1:]
	}
	return false
}

// round publishes what is to be said.
func (p *publisher) round() {
	if p.down {
		return
	}
	for _, o := range p.due(p.breaks()) {
		if err := p.speak(o); err != nil {
			p.fail()
			return
		}
	}
	if err := p.close(); err != nil {
		p.fail()
	}
}

// due are the outputs that have something to say: all of them after a break.
func (p *publisher) due(breaks uint64) []*output {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.broken != breaks {
		p.broken, p.awaited = breaks, nil
		for o := range p.outputs {
			o.rewind(breaks)
			p.dirty[o] = struct{}{}
		}
	}
	work := make([]*output, 0, len(p.dirty))
	for o := range p.dirty {
		work = append(work, o)
	}
	clear(p.dirty)
	return work
}

// fail makes the next round begin anew: the library may also have dropped what it had taken before.
func (p *publisher) fail() {
	p.failed("token")
	p.down, p.held, p.spoken = true, nil, nil
	p.faults.Add(1)
}

// close ends a round: its last event asks for the confirmation of them all.
func (p *publisher) close() error {
	if p.held == nil {
		return nil
	}
	msg := p.held
	p.rounds++
	c := confirmation{round: p.rounds, asked: time.Now(), covers: make([]coverage, 0, len(p.spoken))}
	p.mu.Lock() // before it is sent: the answer may be quick
	for _, o := range p.spoken {
		c.covers = append(c.covers, coverage{o, o.published})
	}
	p.awaited = append(p.awaited, c)
	p.mu.Unlock()
	p.held, p.spoken = nil, p.spoken[:0]
	return p.conn.PublishRequest(msg.Subject, p.inbox+"."+strconv.FormatUint(c.round, 10), msg.Data)
}

// speak publishes what one output has to say.
func (p *publisher) speak(o *output) error {
	p.mu.Lock()
	now := pending{begun: o.begun, tokens: o.tokens, ended: o.ended, whole: o.whole, keepalive: o.keepalive, closed: o.closed}
	o.keepalive = false
	p.mu.Unlock()
	if now.closed || !o.lease.valid() {
		return nil
	}
	o.convert(&now)
	if err := p.publish(o, &now); err != nil || !now.ended {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	o.sentEnd = true
	o.tell()
	return nil
}

func (p *publisher) publish(o *output, now *pending) error {
	spoke := false
	if now.begun != nil && !o.sentStarted {
		if err := send(p, o, now.begun); err != nil {
			return err
		}
		o.sentStarted, spoke = true, true
	}
	for o.sent < len(now.tokens) {
		e := o.next(now)
		if err := send(p, o, e); err != nil {
			return err
		}
		o.sent += len(e.TokenIDs)
		spoke = true
	}
	if now.keepalive && (!spoke || now.ended) {
		return send(p, o, &schemas.Keepalive{Attempt: o.attempt, LastIndex: o.base + o.sent - 1})
	}
	return nil
}

// encodable is an event.
type encodable interface {
	*schemas.Started | *schemas.Tokens | *schemas.Keepalive
}

func send[E encodable](p *publisher, o *output, event E) error {
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
	p.mu.Lock()
	o.published++
	o.lastSpoke = time.Now()
	p.mu.Unlock()
	before := p.held
	p.held = &nats.Msg{Subject: o.subject, Data: data}
	if n := len(p.spoken); n == 0 || p.spoken[n-1] != o {
		p.spoken = append(p.spoken, o)
	}
	if before == nil {
		return nil
	}
	return p.conn.Publish(before.Subject, before.Data)
}

// final publishes a turn's final after all its tokens, and waits until the stream has it. It tries again while
// ctx lasts; after a break the tokens come first again.
func (p *publisher) final(ctx context.Context, o *output, data []byte) error {
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		breaks, err := p.awaitStored(ctx, o)
		if err != nil {
			return err
		}
		err = p.keep(ctx, o.subject, data)
		if err == nil && p.breaks() == breaks {
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
// readers know that the turn goes on; then it waits until the stream has them all. Whoever takes the turn over makes
// up for what fails here.
func (p *publisher) farewell(ctx context.Context, o *output) {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	p.mu.Lock()
	o.keepalive, o.sentEnd = true, false
	p.mu.Unlock()
	if _, err := p.awaitStored(ctx, o); err != nil {
		p.failed("token")
	}
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

// awaitStored waits until the stream has all events of an ended output, and says after which break that was.
func (p *publisher) awaitStored(ctx context.Context, o *output) (breaks uint64, err error) {
	for {
		p.mu.Lock()
		if o.sentEnd && o.stored == o.published {
			breaks = o.breaks
			p.mu.Unlock()
			return breaks, nil
		}
		progress := o.progress
		if !o.sentEnd {
			p.dirty[o] = struct{}{}
			p.signal()
		}
		p.mu.Unlock()
		select {
		case <-progress:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}
