package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
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
// The stream of events confirms each event, because the server that took one may die before it has passed it on. At a
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

	inbox  string        // for confirmations: followed by an output's number, and that of the last break
	wake   chan struct{} // has room for one
	down   bool          // the last publish failed; belongs to run
	faults atomic.Uint64 // breaks that were none of the connection's

	mu       sync.Mutex // guards what follows, and the first parts of every output
	outputs  map[uint64]*output
	newest   uint64        // number of an output
	patience time.Duration // with a confirmation: doubles from timeout with each that is missed, so that a slow server gets not more to do
	dirty    map[*output]struct{}
}

func newPublisher(conn *nats.Conn, js jetstream.JetStream, store string, p Periods, failed func(kind string)) *publisher {
	return &publisher{conn: conn, js: js, store: store, timeout: p.Request, patience: p.Request, every: p.Confirm, failed: failed, inbox: conn.NewInbox(),
		wake: make(chan struct{}, 1), outputs: map[uint64]*output{}, dirty: map[*output]struct{}{}}
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
	p.newest++
	o.number = p.newest
	p.outputs[o.number] = o
}

func (p *publisher) remove(o *output) {
	p.mu.Lock()
	defer p.mu.Unlock()
	o.closed = true
	delete(p.outputs, o.number)
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
	confirmations, err := p.conn.Subscribe(p.inbox+".*.*", p.confirmed)
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

// confirmed takes the stream's answer to an event.
func (p *publisher) confirmed(msg *nats.Msg) {
	number, breaks, _ := strings.Cut(msg.Subject[len(p.inbox)+1:], ".")
	n, err1 := strconv.ParseUint(number, 10, 64)
	b, err2 := strconv.ParseUint(breaks, 10, 64)
	var ack struct {
		Stream string `json:"stream"`
		Seq    uint64 `json:"seq"`
	}
	if err := errors.Join(err1, err2, json.Unmarshal(msg.Data, &ack)); err != nil || ack.Stream != p.store || ack.Seq == 0 {
		return // nobody stores events now: the confirmation will be missed
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.outputs[n]
	if o == nil || o.breaks != b || o.stored >= o.published {
		return
	}
	o.stored++
	o.moved, p.patience = time.Now(), p.timeout
	if o.stored == o.published {
		o.tell()
	}
}

// mostPatience is how many times as long as usual a confirmation may take at last.
const mostPatience = 4

// overdue says whether a confirmation has not come in time.
func (p *publisher) overdue() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, o := range p.outputs {
		if o.stored < o.published && time.Since(o.moved) > p.patience && o.lease.valid() {
			p.patience = min(2*p.patience, mostPatience*p.timeout)
			return true
		}
	}
	return false
}

// round publishes what is to be said.
func (p *publisher) round() {
	if p.down {
		return
	}
	breaks := p.breaks()
	p.mu.Lock()
	for _, o := range p.outputs {
		if o.breaks != breaks {
			o.rewind(breaks)
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
			p.faults.Add(1) // the library may have dropped what it had taken before, too
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
	p.mu.Lock() // before it is sent: the answer may be quick
	now := time.Now()
	if o.stored == o.published {
		o.moved = now
	}
	o.published++
	o.lastSpoke = now
	reply := fmt.Sprintf("%s.%d.%d", p.inbox, o.number, o.breaks)
	p.mu.Unlock()
	return p.conn.PublishRequest(o.subject, reply, data)
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
