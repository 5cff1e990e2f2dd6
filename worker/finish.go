package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/meshnet/node/internal/fold"
	"github.com/meshnet/node/scheduler"
	"github.com/meshnet/node/schemas"
	"github.com/meshnet/node/worker/ledger"
)

// finish brings a turn that ran here to its one outcome: the swap to done, its final, its work record, the ack. What a
// crash or a lost lease leaves out, the redelivery does.
func (t *turn) finish(end ending) {
	var err error
	switch {
	case t.lease.left() <= 0 || t.ctx.Err() != nil:
		return // nothing more is sent
	case end.Reason == scheduler.Interrupted:
		err = t.handOver(end, 0)
	case end.refused != nil && end.refused.Reason == scheduler.RejectedDraining:
		err = t.handOver(end, 0)
	case end.refused != nil && end.refused.Reason == scheduler.RejectedQueueFull:
		err = t.handOver(end, end.refused.RetryAfter)
	default:
		err = t.conclude(end)
	}
	if err != nil && !errors.Is(err, errNotOurs) && t.s.hard.Err() == nil {
		t.s.log.Warn("the end of a turn is left to its redelivery", "turn", t.id, "error", err)
	}
}

// conclude writes the outcome, once a completed turn's tokens are out, tells it and acks the request.
func (t *turn) conclude(end ending) error {
	if end.Reason == scheduler.Completed {
		if err := t.awaitStored(); err != nil {
			return err
		}
	}
	rec, outcome, err := t.swapDone(end)
	if err != nil {
		return err
	}
	if err := t.s.tell(t.ctx, t.out, t.id, rec); err != nil {
		return err
	}
	if err := t.lease.ack(t.ctx); err != nil {
		return err
	}
	t.s.dropTwin(t.leased())
	t.s.metrics.ended(outcome)
	t.s.log.Info("turn done", "turn", t.id, "attempt", outcome.Attempt, "reason", outcome.Reason, "cause", outcome.Cause,
		"prompt_tokens", end.Usage.Prompt, "new_tokens", end.Usage.New, "ms", time.Since(t.claimed).Milliseconds())
	return nil
}

// awaitStored waits until the stream has a completed turn's tokens, which nobody could say again once the outcome is written.
// Past the deadline the outcome matters more.
func (t *turn) awaitStored() error {
	ctx, cancel := context.WithTimeout(t.ctx, max(0, t.s.clock.until(t.record().Deadline)))
	defer cancel()
	if _, err := t.s.stream.awaitStored(ctx, t.out); err != nil && t.ctx.Err() != nil {
		return fmt.Errorf("wait for the stream to have a turn's tokens: %w", err)
	}
	return nil
}

// swapDone writes the done record, unless the turn is another's by now.
func (t *turn) swapDone(end ending) (ledger.Record, ledger.Outcome, error) {
	t.swapping.Lock()
	defer t.swapping.Unlock()
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		held := t.record()
		decision := ledger.End(held, end.outcome())
		final, work := t.final(end, decision.Outcome), t.work(end, decision.Outcome, held)
		rec, err := withBytes(decision.Write, final, work)
		if err != nil {
			return rec, decision.Outcome, err
		}
		_, won, err := t.settleOwn(rec, held)
		if err != nil {
			return rec, decision.Outcome, err
		}
		if won {
			t.mu.Lock()
			t.over = true
			t.mu.Unlock()
			return rec, decision.Outcome, nil
		}
		if !wait(t.ctx, pause) {
			return rec, decision.Outcome, t.ctx.Err()
		}
	}
}

var errNotOurs = errors.New("the turn is another worker's")

// settleOwn swaps the owner's record, and returns its revision. Where it neither won nor failed, the record to replace
// has changed: decide again.
func (t *turn) settleOwn(wrote, held ledger.Record) (rev uint64, won bool, err error) {
	rev, err = t.s.ledger.swap(t.ctx, t.id, wrote)
	if err == nil {
		return rev, true, nil
	} else if !errors.Is(err, errSwap) {
		return 0, false, err
	}
	for {
		read, err := t.s.ledger.readUntil(t.ctx, t.id)
		if err != nil {
			return 0, false, err
		}
		switch ledger.AfterConflict(read, wrote, held) {
		case ledger.Won:
			return read.Rev, true, nil
		case ledger.Again:
			t.hold(read)
			return 0, false, nil
		case ledger.Lost:
			t.abandon("another worker has it")
			return 0, false, errNotOurs
		}
		if !wait(t.ctx, minPause) { // a replica that lags
			return 0, false, t.ctx.Err()
		}
	}
}

// handOver gives a running turn back, so that another worker goes on with it. That is no sign of poison.
func (t *turn) handOver(end ending, delay time.Duration) error {
	given, err := t.swapHandOver()
	if err != nil {
		return err
	}
	if !given { // a cancel came first
		end.Reason, end.refused = scheduler.Cancelled, nil
		return t.conclude(end)
	}
	t.s.stream.farewell(t.ctx, t.out)
	t.s.log.Info("turn handed over", "turn", t.id)
	if d := t.leased(); t.s.mine(d) && t.s.draining.Load() {
		// Nobody else reads this node's lane. The copy descends from the request that the record names, and so
		// may take the turn over.
		return t.s.moveLeased(t.ctx, d, t.lease, &move{to: schemas.AnyLane, cause: moveDrain})
	}
	return t.lease.nak(delay)
}

// sit writes that a turn which waited to be alone begins now, unless it was cancelled meanwhile. A turn that
// did not wait has nothing to write.
func (t *turn) sit() (cancelled bool, err error) {
	t.swapping.Lock()
	defer t.swapping.Unlock()
	for {
		held := t.record()
		if !held.Waiting || held.Cancel {
			return held.Cancel, nil
		}
		wrote := ledger.Begin(held)
		rev, won, err := t.settleOwn(wrote, held)
		if err != nil {
			return false, err
		}
		if won {
			wrote.Rev = rev
			t.hold(wrote)
		}
	}
}

// swapHandOver writes that the turn was handed over, unless it was cancelled.
func (t *turn) swapHandOver() (given bool, err error) {
	t.swapping.Lock()
	defer t.swapping.Unlock()
	for {
		held := t.record()
		if held.Cancel {
			return false, nil
		}
		_, given, err := t.settleOwn(ledger.HandOver(held), held)
		if given || err != nil {
			t.mu.Lock()
			t.over = given
			t.mu.Unlock()
			return given, err
		}
	}
}

// outcome is how the ending would have the turn end.
func (e ending) outcome() ledger.Outcome {
	if e.refused != nil {
		return ledger.Outcome{Reason: ledger.ReasonRejected}
	}
	return ledger.Outcome{Reason: string(e.Reason), Cause: string(e.Cause)}
}

// final is what a turn's readers are told.
func (t *turn) final(end ending, o ledger.Outcome) *schemas.Final {
	f := t.s.bareFinal(o)
	f.Count = max(len(end.Tokens)+t.plan.prefilled, len(t.plan.found))
	f.Usage, f.Timings = t.usage(end), timings(end.Timings)
	switch {
	case end.refused != nil && f.Reason == schemas.Rejected:
		f.Error = refusalDetail(end.refused)
	case f.Reason == schemas.Completed:
		f.Finish, f.Kept = schemas.Finish(end.Finish), end.Kept
	case f.Reason == schemas.CacheMiss:
		f.Error = &schemas.ErrorDetail{Miss: schemas.Miss(end.Miss), Message: "the session's KV is not hot here; send the turn without require_hot"}
	case f.Reason == schemas.Failed && end.Detail != "":
		f.Error = &schemas.ErrorDetail{Message: end.Detail}
	}
	return f
}

func refusalDetail(d *scheduler.Decision) *schemas.ErrorDetail {
	return &schemas.ErrorDetail{Reason: schemas.Reason(d.Reason), Field: d.Detail.Field, Needed: d.Detail.Needed,
		Available: d.Detail.Available, Message: d.Detail.Message, RetryAfterMS: d.RetryAfter.Milliseconds()}
}

func (t *turn) usage(end ending) schemas.Usage {
	u := end.Usage
	return schemas.Usage{
		PromptTokens:    max(0, u.Prompt-t.plan.prefilled),
		CachedTokens:    u.Cached,
		PrefilledTokens: u.Prefilled,
		ReplayedTokens:  u.Replayed,
		NewTokens:       u.New,
	}
}

func timings(t scheduler.Timings) schemas.Timings {
	return schemas.Timings{
		QueuedMS:     schemas.Milliseconds(t.Queued),
		FirstTokenMS: schemas.Milliseconds(t.FirstToken),
		TotalMS:      schemas.Milliseconds(t.Total),
	}
}

// work is what accounting is told.
func (t *turn) work(end ending, o ledger.Outcome, held ledger.Record) *schemas.WorkRecord {
	w := t.s.bareWork(t.id, t.req.Model, o, held.PayloadHash)
	w.Usage, w.Timings = t.usage(end), timings(end.Timings)
	w.StartedMS = t.claimed.Add(t.s.clock.ahead()).UnixMilli()
	if w.Reason == schemas.Completed {
		w.Finish = schemas.Finish(end.Finish)
	}
	return w
}

// bareFinal is the final of an outcome of which no more is known.
func (s *Service) bareFinal(o ledger.Outcome) *schemas.Final {
	return &schemas.Final{Reason: schemas.EndReason(o.Reason), Cause: schemas.Cause(o.Cause), Attempt: o.Attempt, Node: s.cfg.Node}
}

// bareWork is likewise the work record; nil for a turn that nobody claimed.
func (s *Service) bareWork(id schemas.TurnID, model schemas.Model, o ledger.Outcome, hash ledger.Hash) *schemas.WorkRecord {
	node, err := schemas.ParseNode(o.Node)
	if !o.Claimed || err != nil {
		return nil
	}
	now := s.clock.now().UnixMilli()
	reason := schemas.EndReason(o.Reason)
	return &schemas.WorkRecord{
		Tenant: id.Tenant, Session: id.Session, Turn: id.Turn, Node: node, Model: model, Attempt: o.Attempt,
		Reason: reason, Cause: schemas.Cause(o.Cause), Billable: reason.Billable(),
		StartedMS: now, FinishedMS: now, PayloadHash: schemas.Hash(hash),
	}
}

// withBytes is the done record with the bytes that everyone publishes.
func withBytes(rec ledger.Record, final *schemas.Final, work *schemas.WorkRecord) (ledger.Record, error) {
	finalBytes, err := schemas.Encode(final)
	if err != nil {
		return rec, fmt.Errorf("encode a final: %w", err)
	}
	var workBytes []byte
	if work != nil {
		if workBytes, err = schemas.Encode(work); err != nil {
			return rec, fmt.Errorf("encode a work record: %w", err)
		}
	}
	return rec.WithOutcome(finalBytes, workBytes), nil
}

// end writes the outcome of a turn that does not run here, tells it and acks the request. It is not done where
// another's swap won.
func (s *Service) end(ctx context.Context, d *delivery, decision ledger.Decision, why *schemas.ErrorDetail, told *fold.Fold) (done bool, err error) {
	final := s.bareFinal(decision.Outcome)
	if final.Reason == schemas.Rejected {
		final.Error = why
	}
	if told != nil {
		final.Count = told.Len()
	}
	work := s.bareWork(d.id, d.subject.Model, decision.Outcome, decision.Write.PayloadHash)
	rec, err := withBytes(decision.Write, final, work)
	if err != nil {
		return false, err
	}
	won, err := s.ledger.settle(ctx, d.id, &rec)
	if !won || err != nil {
		return false, err
	}
	s.metrics.ended(decision.Outcome)
	s.log.Info("turn done", "turn", d.id, "attempt", decision.Outcome.Attempt, "reason", decision.Outcome.Reason, "cause", decision.Outcome.Cause)
	return true, s.republish(ctx, d, rec)
}

// republish tells the outcome in a done record and acks the request.
func (s *Service) republish(ctx context.Context, d *delivery, rec ledger.Record) error {
	if err := d.lease.freshen(ctx); err != nil {
		return err
	}
	if err := s.tell(ctx, nil, d.id, rec); err != nil {
		return err
	}
	if err := d.lease.ack(ctx); err != nil {
		return err
	}
	s.dropTwin(d)
	return nil
}

// tell publishes the bytes of a done record: the final, after the tokens of out where it is not nil, and the work
// record, of which the stream keeps one a turn.
func (s *Service) tell(ctx context.Context, out *output, id schemas.TurnID, rec ledger.Record) error {
	var err error
	if out != nil {
		err = s.stream.final(ctx, out, rec.Final)
	} else {
		err = s.stream.keep(ctx, s.cfg.Prefix.Tokens(id), rec.Final)
	}
	if err != nil {
		return fmt.Errorf("publish the final of turn %s: %w", id, err)
	}
	if len(rec.Work) == 0 {
		return nil
	}
	work, err := schemas.Decode[schemas.WorkRecord](rec.Work)
	if err != nil {
		return fmt.Errorf("work record of turn %s: %w", id, err)
	}
	return s.tellWork(ctx, s.cfg.Prefix.Work(id, work.Node), rec.Work)
}

// tellWork publishes a work record until the stream has it, while ctx lasts.
func (s *Service) tellWork(ctx context.Context, subject string, data []byte) error {
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		err := s.keepWork(ctx, subject, data)
		if err == nil {
			return nil
		}
		s.metrics.publishErrors.WithLabelValues("work").Inc()
		if !wait(ctx, pause) {
			return fmt.Errorf("publish a work record: %w", errors.Join(ctx.Err(), err))
		}
	}
}

// keepWork publishes a work record once.
func (s *Service) keepWork(ctx context.Context, subject string, data []byte) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Periods.Request)
	defer cancel()
	msg := &nats.Msg{Subject: subject, Data: data}
	_, err := s.js.PublishMsg(ctx, msg, jetstream.WithExpectLastSequencePerSubject(0))
	var api *jetstream.APIError
	if errors.As(err, &api) && api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence {
		return nil // it is there
	}
	return err
}
