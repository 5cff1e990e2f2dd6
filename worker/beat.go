package worker

import (
	"time"

	"github.com/meshnet/node/scheduler"
	"github.com/meshnet/node/worker/ledger"
)

// retriesInABeat is how often a failed beat is tried again before the next one is due.
const retriesInABeat = 4

// keep holds the turn's lease: a beat each third of AckWait, or at once when nudged. When the lease is lost the turn ends
// and sends nothing more.
func (t *turn) keep() {
	period := t.s.cfg.Periods.AckWait / 3
	next := period
	for {
		timer := time.NewTimer(max(0, min(next, t.lease.left())))
		select {
		case <-t.ctx.Done():
			timer.Stop()
			return
		case <-t.nudges:
			timer.Stop()
		case <-timer.C:
		}
		if next = period; !t.beat() {
			next = period / retriesInABeat
		}
		if !t.lease.valid() && t.ctx.Err() == nil {
			t.abandon("no answer to its renewals in time")
			return
		}
	}
}

// beat renews the lease and reads the ledger. The lease runs on only if both were answered and the record is
// still the turn's.
func (t *turn) beat() bool {
	sent, msg, err := t.lease.ask(t.ctx)
	if err == nil && t.judge() {
		t.lease.extend(sent, msg)
		return true
	}
	return false
}

// judge reads the turn's record, and says whether it confirms the turn.
func (t *turn) judge() bool {
	if !t.swapping.TryLock() {
		return true // the swap under way finds out itself
	}
	defer t.swapping.Unlock()
	if t.hasEnded() {
		return true
	}
	read, err := t.s.ledger.read(t.ctx, t.id)
	if err != nil {
		return false
	}
	held := t.record()
	verdict := ledger.Beat(read, held, t.s.clock.now())
	switch verdict {
	case ledger.Reread:
		return false
	case ledger.Abandon:
		t.abandon("another worker has it")
		return false
	case ledger.CancelTurn:
		t.hold(read)
		t.stop(scheduler.Cancelled, "", "")
	case ledger.Expire:
		t.hold(read)
		t.stop(scheduler.Failed, scheduler.FailDeadline, "the deadline has passed")
	case ledger.Continue:
		t.hold(read)
	}
	return true
}

// abandon ends the turn here without a word: it is, or may be, another worker's.
func (t *turn) abandon(why string) {
	if !t.lease.lose() {
		return
	}
	t.s.metrics.leasesLost.Inc()
	t.s.log.Warn("lease lost: the turn is left to whoever has it", "turn", t.id, "why", why)
	t.cancel()
	t.stop(scheduler.Failed, scheduler.FailWorkerLost, "the lease was lost")
}
