package worker

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/meshnet/node/hotkv"
	"github.com/meshnet/node/internal/text"
	"github.com/meshnet/node/scheduler"
	"github.com/meshnet/node/schemas"
	"github.com/meshnet/node/worker/ledger"
)

// turn is one attempt of a turn on this worker, from before its claim is written until its last swap is settled. It
// has two goroutines: run brings it to its end, keep holds its lease and reads the ledger.
type turn struct {
	s     *Service
	id    schemas.TurnID
	key   scheduler.TurnKey
	req   *schemas.Request
	plan  *plan
	lease *lease
	place *place
	out   *output

	control   *nats.Subscription // nil: it could not be made
	claimed   time.Time
	lastToken time.Time // belongs to the goroutine that drives the engine

	nudges chan struct{}   // has room for one: beat now
	heard  chan struct{}   // has room for one: the client is there
	ended  chan ending     // has room for one
	gone   chan struct{}   // closed when nothing of the turn runs any more
	ctx    context.Context // of its sends: ends with its lease
	cancel context.CancelFunc

	// swapping is held while the owner's swap is under way and not settled: what a beat would read meanwhile is no
	// one's to judge.
	swapping sync.Mutex

	mu        sync.Mutex // guards what follows
	held      ledger.Record
	delivery  *delivery // that lease is for
	submitted bool
	stopped   bool // ended before it was submitted
	over      bool // its last swap, done or handed over, is written
}

// ending is how an attempt ended: by the scheduler, or refused by it.
type ending struct {
	scheduler.Ending
	refused *scheduler.Decision
}

// record is the newest one the owner knows.
func (t *turn) record() ledger.Record {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.held
}

func (t *turn) hold(rec ledger.Record) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held = rec
}

// leased is the delivery that the lease is for.
func (t *turn) leased() *delivery {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.delivery
}

// adopt goes on with another delivery of the request. It fails where the lease is lost or spent.
func (t *turn) adopt(d *delivery) bool {
	if !t.lease.adopt(d.lease) {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.delivery = d
	return true
}

// hasEnded says whether the done record is written.
func (t *turn) hasEnded() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.over
}

// begin starts the goroutines of a claimed turn.
func (t *turn) begin() {
	t.s.stream.add(t.out)
	t.s.tasks.Go(t.run)
}

// run is the turn's life. Whatever ends it, the turn is no longer live afterwards.
func (t *turn) run() {
	var keeping sync.WaitGroup
	keeping.Go(t.keep)
	end, clean := t.generate()
	t.place.end()
	if clean {
		t.s.stream.end(t.out, end.Reason == scheduler.Completed)
		t.finish(end)
	}
	t.cancel()
	keeping.Wait()
	t.deafen()
	t.s.stream.remove(t.out)
	t.s.turns.remove(t)
	t.place.release()
	close(t.gone)
}

// listen takes what clients and other workers tell the owner. Without it a turn runs as well: a poke saves time, and
// a client whose heartbeats cannot be heard is told so by the turn's end.
func (t *turn) listen() *nats.Subscription {
	sub, err := t.s.control.Subscribe(t.s.cfg.Prefix.Control(t.id), func(msg *nats.Msg) {
		c, err := schemas.Decode[schemas.Control](msg.Data)
		if err != nil {
			t.s.metrics.guardReject(err)
			return
		}
		if c.Kind == schemas.ControlPoke {
			t.nudge()
			return
		}
		signal(t.heard)
	})
	if err != nil {
		t.s.log.Warn("no control messages for a turn", "turn", t.id, "error", err)
		return nil
	}
	return sub
}

// deafen ends listen.
func (t *turn) deafen() {
	if t.control != nil {
		_ = t.control.Unsubscribe() // fails only where the connection is closed
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// nudge makes the lease beat now.
func (t *turn) nudge() { signal(t.nudges) }

// generate runs the turn on the scheduler. It is not clean where the service was killed.
func (t *turn) generate() (end ending, clean bool) {
	seat := t.s.places.seat(ledger.Exclusive(t.record().Attempt))
	defer seat.leave()
	granted := seat.granted
	deadline := time.NewTimer(max(0, t.s.clock.until(t.record().Deadline)))
	defer deadline.Stop()
	heartbeat := newOptionalTimer(t.req.Heartbeat())
	defer heartbeat.stop()
	silence := time.NewTimer(t.s.cfg.Periods.Keepalive)
	defer silence.Stop()
	for {
		select {
		case <-granted:
			granted = nil
			t.seated()
		case <-deadline.C:
			t.stop(scheduler.Failed, scheduler.FailDeadline, "the deadline has passed")
		case <-heartbeat.C():
			t.stop(scheduler.Failed, scheduler.FailHeartbeatLost, "no heartbeat of the client for "+t.req.Heartbeat().String())
		case <-t.heard:
			heartbeat.reset()
		case <-silence.C:
			silence.Reset(t.s.stream.keepalive(t.out, t.s.cfg.Periods.Keepalive))
		case end := <-t.ended:
			return end, true
		case <-t.s.hard.Done():
			return ending{}, false
		}
	}
}

// seated submits the turn, once the ledger says that it runs.
func (t *turn) seated() {
	switch cancelled, err := t.sit(); {
	case err != nil:
		t.stop(scheduler.Failed, scheduler.FailWorkerLost, err.Error()) // unless it was abandoned by then
	case cancelled:
		t.stop(scheduler.Cancelled, "", "")
	default:
		t.submit()
	}
}

// submit gives the turn to the scheduler.
func (t *turn) submit() {
	t.mu.Lock()
	if t.stopped || t.s.clock.until(t.held.Deadline) <= 0 { // at its deadline generate stops it: it failed, and was not refused
		t.mu.Unlock()
		return
	}
	d := t.s.sched.Submit(t.request()) // under the lock, so that no stop falls between the two; it does not wait
	t.submitted = true
	t.mu.Unlock()
	t.s.metrics.admission(d.Reason)
	if d.Rejected() {
		t.deliver(ending{Ending: scheduler.Ending{Key: t.key, Reason: scheduler.Failed}, refused: &d})
	}
}

// request is what the scheduler gets. The caller holds mu.
func (t *turn) request() scheduler.Request {
	return scheduler.Request{
		Tenant:       t.key.Tenant,
		Session:      t.key.Session,
		Turn:         t.key.Turn,
		Epoch:        t.req.Epoch,
		Prompt:       t.plan.prompt,
		Adapter:      t.plan.adapter.Name,
		MaxNewTokens: t.req.MaxNewTokens - t.plan.prefilled,
		Sampling:     t.plan.sampling,
		Grammar:      scheduler.Grammar{Text: t.plan.grammar, Yielded: t.plan.prefilled},
		Keep:         t.req.Keep,
		RequireHot:   t.req.RequireHot,
		Replay:       t.plan.replay,
		Continued:    len(t.plan.found) > 0,
		Deadline:     time.Now().Add(t.s.clock.until(t.held.Deadline)),
		Priority:     t.req.Priority,
		Stop:         t.stopper(),
	}
}

// stopper decides whether a stop string ends the turn, by the text that the turn's readers get. nil: there is none.
func (t *turn) stopper() func(scheduler.Token) bool {
	if len(t.req.Stop) == 0 {
		return nil
	}
	said := text.New(t.s.textOptions(t.req))
	next := func(token scheduler.Token) bool {
		chunk, err := said.Next(token)
		return err == nil && chunk.Stopped // a token that has no text cannot complete anything
	}
	for _, token := range t.plan.found[:t.plan.prefilled] { // the scheduler knows them as part of the prompt
		next(token)
	}
	return next
}

// deliver takes the turn's ending. Only the first counts.
func (t *turn) deliver(end ending) {
	select {
	case t.ended <- end:
	default:
	}
}

// stop ends the turn early. The first to stop it decides how it ends.
func (t *turn) stop(reason scheduler.EndReason, cause scheduler.FailCause, detail string) {
	t.mu.Lock()
	submitted := t.submitted
	first := !t.stopped
	t.stopped = true
	t.mu.Unlock()
	switch {
	case submitted:
		if reason != scheduler.Interrupted { // the scheduler was told to interrupt all
			if _, err := t.s.sched.Cancel(t.key, reason, cause, detail); err != nil {
				t.s.log.Error("cannot stop a turn", "turn", t.id, "error", err)
			}
		}
	case first:
		t.deliver(ending{Ending: scheduler.Ending{Key: t.key, Reason: reason, Cause: cause, Detail: detail, Tokens: t.plan.replay}})
	}
}

// started tells the turn's readers that it begins.
func (t *turn) started(s scheduler.Started) {
	e := &schemas.Started{
		Attempt:          t.record().Attempt,
		Node:             t.s.cfg.Node,
		ResumeIndex:      t.plan.prefilled + s.ResumeIndex,
		PromptTokens:     s.PromptTokens - t.plan.prefilled,
		CachedTokens:     min(s.CachedTokens, s.PromptTokens-t.plan.prefilled),
		Miss:             schemas.Miss(s.Miss),
		Exact:            t.plan.exact && (s.CachedTokens == 0 || s.Miss != hotkv.Hit || t.s.facts.Exact), // what is shared is as good as cold
		ModelFingerprint: t.plan.adapter.Mark(t.s.cfg.ModelFingerprint),
		ExactFingerprint: t.plan.adapter.Mark(t.s.prints.Exact),
	}
	if t.plan.sampling.Temperature > 0 {
		e.Seed = &t.plan.sampling.Seed
	}
	t.s.stream.begin(t.out, e)
}

// optionalTimer is a timer, or none for a duration of zero.
type optionalTimer struct {
	d     time.Duration
	timer *time.Timer
}

func newOptionalTimer(d time.Duration) *optionalTimer {
	if d == 0 {
		return &optionalTimer{}
	}
	return &optionalTimer{d: d, timer: time.NewTimer(d)}
}

func (o *optionalTimer) C() <-chan time.Time {
	if o.timer == nil {
		return nil
	}
	return o.timer.C
}

func (o *optionalTimer) reset() {
	if o.timer != nil {
		o.timer.Reset(o.d)
	}
}

func (o *optionalTimer) stop() {
	if o.timer != nil {
		o.timer.Stop()
	}
}
