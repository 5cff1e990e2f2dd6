package ledger

import (
	"bytes"
	"time"
)

// State says how far a turn has come. It only ever grows.
type State uint8

// The states of a turn's register.
const (
	Absent  State = iota // nobody has claimed or ended the turn
	Running              // a worker claimed it
	Done                 // it has its one outcome, for ever
)

// String returns the state as logs show it.
func (s State) String() string {
	switch s {
	case Absent:
		return "absent"
	case Running:
		return "running"
	case Done:
		return "done"
	default:
		return "unknown"
	}
}

// Hash identifies a request's payload. The zero Hash is an unknown one, and differs from none: a turn
// that was cancelled before any worker saw its request is done without having one.
type Hash [32]byte

// Record is a turn's register: as it was read, or as it shall be written.
type Record struct {
	State State

	// Rev is the store's revision of the record as read, 0 for an absent one (or that of one which could not be read). In a record that shall be
	// written it is the revision to replace: 0 asks for Create. It is no part of the content.
	Rev uint64

	// PayloadHash is that of the request which was claimed first. Running and done.
	PayloadHash Hash

	// Attempt counts claims: 1, then +1 at each takeover. A turn that ended unclaimed has 0.
	Attempt int

	// The rest of the first part belongs to a running record alone.

	Node, Boot string    // the owner: a worker and one start of it
	ReqSeq     uint64    // stream sequence of the request that the owner works for
	Cancel     bool      // a cancel won: the outcome is cancelled, whoever writes it
	HandedOver bool      // the owner drained and gave the turn up; the next takeover is not counted
	Waiting    bool      // the owner has not begun: it waits to be alone ([Exclusive]); losing it is not counted either
	Deadline   time.Time // in whole milliseconds
	Stuck      int       // takeovers in a row that found no new token, of attempts that ran and were not handed over
	LastIndex  int       // the last token index found when this attempt began, −1 for none

	// And this part to a done one.

	Reason      string // the outcome's reason: completed, cancelled, failed, rejected, cache-miss
	Final, Work []byte // the exact bytes of the final and of the work record; no work where unclaimed
}

// Equal reports whether two records have the same content, whatever their revisions.
func (r Record) Equal(o Record) bool {
	if r.State != o.State {
		return false
	}
	switch r.State {
	case Running:
		return r.ownedAs(o) && r.PayloadHash == o.PayloadHash && r.ReqSeq == o.ReqSeq &&
			r.Cancel == o.Cancel && r.HandedOver == o.HandedOver && r.Waiting == o.Waiting &&
			r.Deadline.UnixMilli() == o.Deadline.UnixMilli() &&
			r.Stuck == o.Stuck && r.LastIndex == o.LastIndex
	case Done:
		return r.PayloadHash == o.PayloadHash && r.Attempt == o.Attempt && r.Reason == o.Reason &&
			bytes.Equal(r.Final, o.Final) && bytes.Equal(r.Work, o.Work)
	default:
		return true
	}
}

// WithOutcome returns the record with the encoded final and work record of its outcome: the last step
// before a done record is written. Work is empty exactly where the outcome was not claimed.
func (r Record) WithOutcome(final, work []byte) Record {
	r.Final, r.Work = final, work
	return r
}

// ownedAs reports whether two running records are the same attempt of the same start of a worker.
func (r Record) ownedAs(o Record) bool {
	return r.State == Running && o.State == Running &&
		r.Node == o.Node && r.Boot == o.Boot && r.Attempt == o.Attempt
}

// pays reports whether a message carries the payload that the record knows, as far as it knows one.
func (r Record) pays(hash Hash) bool {
	return r.PayloadHash == hash || r.PayloadHash == Hash{}
}

// Reasons and causes of the outcomes that the rules themselves write.
const (
	ReasonCancelled = "cancelled"
	ReasonFailed    = "failed"
	ReasonRejected  = "rejected"

	CauseDeadline   = "deadline"
	CauseWorkerLost = "worker-lost"
)

// Outcome says how a turn ends; the caller encodes its final and work record from it.
type Outcome struct {
	Reason string
	Cause  string // for failed turns

	// Claimed says that a worker had claimed the turn: there is a work record, and Node and Attempt are
	// the owner's. Otherwise there is none, and they are empty.
	Claimed bool
	Node    string
	Attempt int
}

// ended returns the record that ends r with an outcome, still without its bytes, and the outcome as it
// then is: a cancel that won before binds whoever ends the turn.
func (r Record) ended(want Outcome) (Record, Outcome) {
	if r.Cancel {
		want.Reason, want.Cause = ReasonCancelled, ""
	}
	want.Claimed, want.Node, want.Attempt = r.State == Running, r.Node, r.Attempt
	return Record{
		State:       Done,
		Rev:         r.Rev,
		PayloadHash: r.PayloadHash,
		Attempt:     r.Attempt,
		Reason:      want.Reason,
	}, want
}
