package ledger

import (
	"slices"
	"time"
)

// MaxStuck is how many takeovers in a row may find no new token: the last of them ends the turn.
const MaxStuck = 3

// exclusiveFrom is the first attempt that runs alone on its worker.
const exclusiveFrom = 3

// Waits of a request that another copy or another worker is busy with.
const (
	minDelay = 2 * time.Second
	maxDelay = 30 * time.Second
)

// Message is what a worker knows of a delivered request.
type Message struct {
	Seq         uint64   // its stream sequence
	Lineage     []uint64 // sequences of the copies that it was moved from
	PayloadHash Hash
	Deadline    time.Time // birth of its first copy plus what the client allowed, on the server's clock
	Deliveries  int       // how often it was delivered, 1 the first time; spaces waits, decides nothing

	// LastIndex is the last token index found in the token stream, −1 for none. It is read only where
	// [MayTakeOver] says so, so that nobody else needs to look it up.
	LastIndex int
}

// Self is the worker that a request arrived at.
type Self struct {
	Node, Boot string

	// Held is the record of the turn's live session here, as its owner last wrote or read it; nil
	// without one.
	Held *Record
}

// Action is what a worker does with a request that arrived.
type Action uint8

// The actions. Claim, Takeover, Finish, and Adopt with [Decision.Writes], act only once their record
// is written.
const (
	// Claim writes the first running record and starts the turn.
	Claim Action = iota + 1
	// Takeover writes the next attempt and goes on where the tokens found end.
	Takeover
	// Adopt gives this delivery to the live session, in place of the one it leased before.
	Adopt
	// Wait naks with the decision's delay.
	Wait
	// Finish writes the outcome, publishes it and acks.
	Finish
	// Republish publishes the record's final and work record again, then acks.
	Republish
)

// String returns the action as logs show it.
func (a Action) String() string {
	names := [...]string{"none", "claim", "takeover", "adopt", "wait", "finish", "republish"}
	if int(a) >= len(names) {
		return "unknown"
	}
	return names[a]
}

// Decision is what the rules say about an arrival, or about the end of a turn.
type Decision struct {
	Action Action

	// Write is the record to swap in where Writes is true; for Finish its bytes are still to be added
	// by [Record.WithOutcome]. For Republish it is the done record whose bytes are published.
	Write  Record
	Writes bool

	Outcome Outcome       // of Finish
	Delay   time.Duration // of Wait

	// Duplicate says that the request is a copy with another payload: it is never run, and changes
	// neither outcome nor bytes. Count it.
	Duplicate bool

	// BeatNow says that the live session here seems to have lost the turn: let its lease beat at once,
	// so that it finds out. It is not ended here, because its own swap may be what was read.
	BeatNow bool

	read Record // what the decision is about; Reject ends this one
}

// Arrive decides about a request that was delivered, given the turn's record and the time on the
// server's clock.
//
// Identity and shape are checked before. Feasibility is checked between the decision and its write:
// a Claim or Takeover that cannot run here becomes a move (no write), or [Decision.Reject].
func Arrive(rec Record, msg Message, self Self, now time.Time) Decision {
	// What the live session knows is true; an older answer comes from a replica that lags.
	if self.Held != nil && self.Held.Rev > rec.Rev {
		rec = *self.Held
	}
	d := Decision{
		Duplicate: rec.State != Absent && !rec.pays(msg.PayloadHash),
		BeatNow:   self.Held != nil && self.Held.State == Running && !rec.ownedAs(*self.Held),
	}
	switch rec.State {
	case Absent:
		return d.claim(rec, msg, self, now)
	case Running:
		return d.running(rec, msg, self, now)
	default:
		d.Action, d.Write = Republish, rec
		return d
	}
}

// claim decides about a turn that nobody has claimed.
func (d Decision) claim(rec Record, msg Message, self Self, now time.Time) Decision {
	rec.PayloadHash = msg.PayloadHash
	d.read = rec
	if !now.Before(msg.Deadline) {
		return d.finish(rec, Outcome{Reason: ReasonFailed, Cause: CauseDeadline})
	}
	d.Action, d.Writes = Claim, true
	d.Write = Record{
		State:       Running,
		Rev:         rec.Rev,
		PayloadHash: msg.PayloadHash,
		Attempt:     1,
		Node:        self.Node,
		Boot:        self.Boot,
		ReqSeq:      msg.Seq,
		Deadline:    msg.Deadline.Truncate(time.Millisecond),
		LastIndex:   -1,
	}
	return d
}

// running decides about a turn that is claimed, by this worker or another.
func (d Decision) running(rec Record, msg Message, self Self, now time.Time) Decision {
	mine := self.Held != nil && rec.ownedAs(*self.Held)
	switch {
	case mine && veryMessage(rec, msg) && !d.Duplicate && !rec.HandedOver:
		return d.adopt(rec, msg)
	case mine:
		// A live session ends itself, also at its deadline; one that hands over wants no new delivery.
		return d.wait(msg)
	case !now.Before(rec.Deadline):
		// Whatever the copy: the claimed request may have left the stream by age or by an operator's hand.
		return d.finish(rec, Outcome{Reason: ReasonFailed, Cause: CauseDeadline})
	case !MayTakeOver(rec, msg, self):
		return d.wait(msg)
	default:
		return d.takeOver(rec, msg, self)
	}
}

// adopt gives the live session a new delivery. Where that is of a moved copy the record follows it, so
// that an older copy left behind by a crash waits, and does not take over a session that is well.
func (d Decision) adopt(rec Record, msg Message) Decision {
	d.Action, d.Write = Adopt, rec
	if rec.ReqSeq != msg.Seq {
		d.Write.ReqSeq, d.Writes = msg.Seq, true
	}
	return d
}

// takeOver decides how a turn goes on whose owner is gone.
func (d Decision) takeOver(rec Record, msg Message, self Self) Decision {
	if rec.Cancel {
		return d.finish(rec, Outcome{Reason: ReasonCancelled})
	}
	next := rec
	next.Node, next.Boot, next.ReqSeq = self.Node, self.Boot, msg.Seq
	next.Attempt, next.LastIndex, next.HandedOver = rec.Attempt+1, msg.LastIndex, false
	next.Waiting = Exclusive(next.Attempt)
	switch {
	case msg.LastIndex > rec.LastIndex:
		next.Stuck = 0
	case !rec.HandedOver && !rec.Waiting: // what never ran has killed nobody
		next.Stuck++
	}
	if next.Stuck >= MaxStuck {
		return d.finish(rec, Outcome{Reason: ReasonFailed, Cause: CauseWorkerLost})
	}
	d.Action, d.Write, d.Writes, d.read = Takeover, next, true, rec
	return d
}

// finish ends the turn instead of running it.
func (d Decision) finish(rec Record, want Outcome) Decision {
	d.Action, d.Writes = Finish, true
	d.Write, d.Outcome = rec.ended(want)
	return d
}

// wait leaves the request for later.
func (d Decision) wait(msg Message) Decision {
	d.Action, d.Delay = Wait, Delay(msg.Deliveries)
	return d
}

// Reject turns a Claim or Takeover that can run nowhere into the end of the turn. Its outcome is
// rejected; any other decision stays as it is, because then the turn is not this worker's to refuse.
func (d Decision) Reject() Decision {
	if d.Action != Claim && d.Action != Takeover {
		return d
	}
	return d.finish(d.read, Outcome{Reason: ReasonRejected})
}

// MayTakeOver reports whether a request may take a running turn over from its owner: it is the very
// message that the owner works for, or the owner is this start of this worker, without a live session.
// Neither liveness nor delivery counts can give that right: both can be wrong about a busy owner.
func MayTakeOver(rec Record, msg Message, self Self) bool {
	if rec.State != Running || !rec.pays(msg.PayloadHash) || self.Held != nil {
		return false
	}
	return veryMessage(rec, msg) || (rec.Node == self.Node && rec.Boot == self.Boot)
}

// veryMessage reports whether the owner works for this message, or for one that it was moved from.
func veryMessage(rec Record, msg Message) bool {
	return msg.Seq == rec.ReqSeq || slices.Contains(msg.Lineage, rec.ReqSeq)
}

// Exclusive reports whether an attempt runs only while nothing else is active on its worker, so that a
// turn which kills workers takes no other with it, and is found.
func Exclusive(attempt int) bool { return attempt >= exclusiveFrom }

// Delay returns how long a request waits after its n-th delivery: 2 s, doubling to 30 s.
func Delay(deliveries int) time.Duration {
	delay := minDelay
	for range max(deliveries-1, 0) {
		delay *= 2
		if delay >= maxDelay {
			return maxDelay
		}
	}
	return delay
}
