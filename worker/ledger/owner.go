package ledger

import "time"

// Verdict is what a beat of a live session found.
type Verdict uint8

// The verdicts.
const (
	// Continue: the record is still the session's. It is the newest one the owner knows.
	Continue Verdict = iota + 1
	// CancelTurn: a cancel won. Interrupt the session, then [End] it.
	CancelTurn
	// Expire: the deadline is over. Interrupt the session, then [End] it as failed by deadline.
	Expire
	// Abandon: the record is no longer the session's. End it silently: no final, no ack, no nak.
	Abandon
	// Reread: the answer is older than what the owner knows. It confirms nothing; a lease that no
	// answer confirms runs out.
	Reread
)

// String returns the verdict as logs show it.
func (v Verdict) String() string {
	names := [...]string{"none", "continue", "cancel", "expire", "abandon", "reread"}
	if int(v) >= len(names) {
		return "unknown"
	}
	return names[v]
}

// Beat judges the record that a live session read with its lease's beat, against the one that it held
// so far. After any verdict but Reread and Abandon the read record is the held one. While a swap of [End],
// [HandOver] or [Begin] is outstanding, leases go on but [AfterConflict] alone judges what is read: the record
// may have become done by the session's own hand.
func Beat(read, held Record, now time.Time) Verdict {
	switch {
	case read.Rev < held.Rev:
		return Reread
	case !read.ownedAs(held):
		return Abandon
	case read.Cancel:
		return CancelTurn
	case !now.Before(read.Deadline):
		return Expire
	default:
		return Continue
	}
}

// End decides how the owner of a running turn ends it: with the outcome it wants, except that a cancel
// in its record binds it. The decision is a Finish. Held is the newest record that the owner knows.
func End(held Record, want Outcome) Decision {
	return Decision{}.finish(held, want)
}

// HandOver returns the record by which a draining owner gives its turn up, before it naks the request:
// the takeover that follows is no sign of poison. A conflict is judged by [AfterConflict]; a cancel
// found then is written by [End] instead.
func HandOver(held Record) Record {
	held.HandedOver = true
	return held
}

// Begin returns the record by which the owner of a turn that waited to be alone says that it runs now: from
// here on its loss is a sign of poison. It is written before anything is evaluated. A conflict is judged by
// [AfterConflict]; a cancel found then is written by [End] instead.
func Begin(held Record) Record {
	held.Waiting = false
	return held
}

// Ending is what the owner of a running turn does after a swap that failed or got no clear answer.
type Ending uint8

// The endings.
const (
	// Won: the register holds what the owner wrote. Go on as after a clear success.
	Won Ending = iota + 1
	// Again: the turn is still the owner's, with the record read (a cancel may have been added). Hold
	// that one, decide again ([End]) and swap again.
	Again
	// ReadAgain: the answer is older than what the owner knows, from a replica that lags.
	ReadAgain
	// Lost: the turn is another's, or done by another. Stop silently; a redelivery repairs.
	Lost
)

// String returns the ending as logs show it.
func (e Ending) String() string {
	names := [...]string{"none", "won", "again", "read-again", "lost"}
	if int(e) >= len(names) {
		return "unknown"
	}
	return names[e]
}

// AfterConflict judges the record that was read after an owner's swap failed or got no clear answer:
// wrote is what it tried to write, held what it tried to replace.
func AfterConflict(read, wrote, held Record) Ending {
	switch {
	case read.Equal(wrote):
		return Won
	case read.Rev < held.Rev:
		return ReadAgain
	case read.ownedAs(held):
		return Again
	default:
		return Lost
	}
}

// Settle judges the record that was read after the swap of an arrival or a cancel failed or got no clear
// answer. Won: act as after a clear success. Again: write the same once more; it was not applied (yet),
// or a lagging replica answered. Lost: another's swap won; decide again with the record read.
func Settle(read, wrote Record) Ending {
	switch {
	case read.Equal(wrote):
		return Won
	case read.Rev <= wrote.Rev:
		return Again
	default:
		return Lost
	}
}
