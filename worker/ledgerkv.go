package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/meshnet/node/schemas"
	"github.com/meshnet/node/worker/ledger"
)

// turnLedger keeps the registers of package ledger in the bucket of turns. It is safe for concurrent use.
type turnLedger struct {
	kv      jetstream.KeyValue
	timeout time.Duration               // of one answer
	garbled func(schemas.TurnID, error) // is told of each register that cannot be read
}

// errSwap is the answer to a swap that lost, or that may have: only reading again tells.
var errSwap = errors.New("the ledger holds another revision, or its answer is missing")

// read returns a turn's register. One that cannot be understood is absent at its revision, which the next swap
// replaces.
func (l *turnLedger) read(ctx context.Context, id schemas.TurnID) (ledger.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	entry, err := l.kv.Get(ctx, id.Key())
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return ledger.Record{}, nil
	}
	if err != nil {
		return ledger.Record{}, fmt.Errorf("read turn %s in the ledger: %w", id, err)
	}
	rec, err := decodeRecord(entry.Value())
	if err != nil {
		l.garbled(id, err)
		rec = ledger.Record{}
	}
	rec.Rev = entry.Revision()
	return rec, nil
}

// swap writes a record in place of the revision that it names, and returns the new revision. An error
// that is errSwap leaves open who won; any other one means that nothing was written.
func (l *turnLedger) swap(ctx context.Context, id schemas.TurnID, rec ledger.Record) (uint64, error) {
	value, err := encodeRecord(rec)
	if err != nil {
		return 0, fmt.Errorf("write turn %s to the ledger: %w", id, err)
	}
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	var rev uint64
	if rec.Rev == 0 {
		rev, err = l.kv.Create(ctx, id.Key(), value)
	} else {
		rev, err = l.kv.Update(ctx, id.Key(), value, rec.Rev)
	}
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errSwap, err)
	}
	return rev, nil
}

// settle writes the record of an arrival or a cancel and says whether that swap won; then rec has its
// revision. If another's won, the caller decides again. The error is that ctx ended first, or that the record
// cannot be written at all.
func (l *turnLedger) settle(ctx context.Context, id schemas.TurnID, rec *ledger.Record) (won bool, err error) {
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		rev, err := l.swap(ctx, id, *rec)
		if err == nil {
			rec.Rev = rev
			return true, nil
		}
		if !errors.Is(err, errSwap) {
			return false, err
		}
		read, err := l.readUntil(ctx, id)
		if err != nil {
			return false, err
		}
		switch ledger.Settle(read, *rec) {
		case ledger.Won:
			rec.Rev = read.Rev
			return true, nil
		case ledger.Lost:
			return false, nil
		}
		if !wait(ctx, pause) { // a lagging replica answered, or the swap was not applied
			return false, ctx.Err()
		}
	}
}

const (
	minPause = 10 * time.Millisecond
	maxPause = time.Second
)

// readUntil reads until there is an answer or ctx ends.
func (l *turnLedger) readUntil(ctx context.Context, id schemas.TurnID) (ledger.Record, error) {
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		rec, err := l.read(ctx, id)
		if err == nil || ctx.Err() != nil {
			return rec, err
		}
		if !wait(ctx, pause) {
			return rec, ctx.Err()
		}
	}
}

// wait is false if ctx ended first.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func encodeRecord(rec ledger.Record) ([]byte, error) {
	if rec.State == ledger.Done {
		return schemas.Encode(&schemas.LedgerRecord{Done: &schemas.DoneRecord{
			Reason:      schemas.EndReason(rec.Reason),
			Attempt:     rec.Attempt,
			Final:       rec.Final,
			Work:        rec.Work,
			PayloadHash: schemas.Hash(rec.PayloadHash),
		}})
	}
	node, err := schemas.ParseNode(rec.Node)
	if err != nil {
		return nil, err
	}
	boot, err := schemas.ParseBoot(rec.Boot)
	if err != nil {
		return nil, err
	}
	return schemas.Encode(&schemas.LedgerRecord{Running: &schemas.RunningRecord{
		Node:                  node,
		Boot:                  boot,
		Attempt:               rec.Attempt,
		ReqSeq:                rec.ReqSeq,
		Cancel:                rec.Cancel,
		DeadlineMS:            rec.Deadline.UnixMilli(),
		PayloadHash:           schemas.Hash(rec.PayloadHash),
		TakeoversWithoutToken: rec.Stuck,
		LastIndex:             rec.LastIndex,
		HandedOver:            rec.HandedOver,
		Waiting:               rec.Waiting,
	}})
}

func decodeRecord(value []byte) (ledger.Record, error) {
	rec, err := schemas.Decode[schemas.LedgerRecord](value)
	if err != nil {
		return ledger.Record{}, err
	}
	if d := rec.Done; d != nil {
		return ledger.Record{
			State:       ledger.Done,
			PayloadHash: ledger.Hash(d.PayloadHash),
			Attempt:     d.Attempt,
			Reason:      string(d.Reason),
			Final:       d.Final,
			Work:        d.Work,
		}, nil
	}
	r := rec.Running
	return ledger.Record{
		State:       ledger.Running,
		PayloadHash: ledger.Hash(r.PayloadHash),
		Attempt:     r.Attempt,
		Node:        r.Node.String(),
		Boot:        r.Boot.String(),
		ReqSeq:      r.ReqSeq,
		Cancel:      r.Cancel,
		HandedOver:  r.HandedOver,
		Waiting:     r.Waiting,
		Deadline:    time.UnixMilli(r.DeadlineMS),
		Stuck:       r.TakeoversWithoutToken,
		LastIndex:   r.LastIndex,
	}, nil
}
