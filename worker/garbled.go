package worker

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/meshnet/node/schemas"
	"github.com/meshnet/node/worker/ledger"
)

// A register that cannot be read was overwritten by somebody else: JetStream's permissions cannot keep everyone from
// having an answer of the server put there. What it held is lost, and is made good by what else is known of the turn.

// garbled says whether a register, as it was read, cannot be understood: it is absent, and yet there is a revision, which
// the next swap replaces.
func garbled(rec ledger.Record) bool { return rec.State == ledger.Absent && rec.Rev != 0 }

// foundGarbled counts one and says so.
func (s *Service) foundGarbled(id schemas.TurnID, err error) {
	s.metrics.guardReject(err)
	s.log.Warn("the ledger's record of a turn was overwritten: it is made good by what else is known", "turn", id, "error", err)
}

// read returns a turn's register. One that is garbled holds the turn's outcome again if its final or its work record can
// be found: what has ended never runs again.
func (s *Service) read(ctx context.Context, id schemas.TurnID) (ledger.Record, error) {
	for {
		rec, err := s.ledger.readUntil(ctx, id)
		if err != nil || !garbled(rec) {
			return rec, err
		}
		done, err := s.recall(ctx, id)
		if err != nil || done.State != ledger.Done {
			return rec, err
		}
		done.Rev = rec.Rev
		if won, err := s.ledger.settle(ctx, id, &done); won || err != nil {
			return done, err
		}
	}
}

// readFor is read for a request that was delivered. A garbled register may have been that of a running turn. It is taken
// for one whose owner works for this request, so that it goes on here as its next attempt: readers tell its
// events from those of an owner that does not know yet, and whose next beat finds the turn another's.
func (s *Service) readFor(ctx context.Context, d *delivery) (ledger.Record, error) {
	rec, err := s.read(ctx, d.id)
	if err != nil || !garbled(rec) {
		return rec, err
	}
	told, err := s.told(ctx, d.id)
	if err != nil {
		return rec, err
	}
	lost := ledger.Record{
		State:       ledger.Running,
		Rev:         rec.Rev,
		PayloadHash: ledger.Hash(schemas.PayloadHash(d.payload)),
		Attempt:     1,
		ReqSeq:      d.meta.Sequence.Stream,
		Deadline:    d.deadline(),
		LastIndex:   -1,
	}
	if told != nil {
		lost.Attempt = max(1, told.Attempt())
		if started := told.Started(); started != nil {
			lost.Node = started.Node.String()
		}
	}
	return lost, nil
}

// recall makes the done record of a turn from its final and its work record, as far as they can be found. It is absent
// where there is neither.
func (s *Service) recall(ctx context.Context, id schemas.TurnID) (ledger.Record, error) {
	told, err := s.told(ctx, id)
	if err != nil {
		return ledger.Record{}, err
	}
	work, err := s.recordedWork(ctx, id)
	if err != nil {
		return ledger.Record{}, err
	}
	var final *schemas.Final
	if told != nil {
		final = told.Final()
	}
	switch {
	case final == nil && work == nil:
		return ledger.Record{}, nil
	case final == nil:
		final = &schemas.Final{Reason: work.Reason, Finish: work.Finish, Cause: work.Cause, Attempt: work.Attempt, Node: work.Node,
			Count: work.Usage.ReplayedTokens + work.Usage.NewTokens, Usage: work.Usage, Timings: work.Timings}
	}
	done := ledger.Record{State: ledger.Done, Attempt: final.Attempt, Reason: string(final.Reason)}
	if work != nil {
		done.PayloadHash = ledger.Hash(work.PayloadHash)
	}
	return withBytes(done, final, work)
}

// recordedWork is the work record of a turn in its stream; nil where there is none.
func (s *Service) recordedWork(ctx context.Context, id schemas.TurnID) (*schemas.WorkRecord, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Periods.Request)
	defer cancel()
	stream, err := s.js.Stream(ctx, s.cfg.Prefix.WorkStream())
	if err != nil {
		return nil, fmt.Errorf("read the work record of turn %s: %w", id, err)
	}
	msg, err := stream.GetLastMsgForSubject(ctx, s.cfg.Prefix.WorkOf(id))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the work record of turn %s: %w", id, err)
	}
	work, err := schemas.Decode[schemas.WorkRecord](msg.Data)
	if err != nil {
		s.metrics.guardReject(err)
		return nil, nil // that was overwritten too
	}
	return work, nil
}
