package ledger

// CancelStep is what a worker does with a request to cancel a turn.
type CancelStep uint8

// The steps. After a written one, and after CancelMarked, the answer is: cancelled.
const (
	// CancelUnclaimed ends a turn that nobody has claimed: write the outcome, publish its final.
	CancelUnclaimed CancelStep = iota + 1
	// CancelMark writes the flag that binds whoever ends the turn, then pokes its owner.
	CancelMark
	// CancelMarked found the flag: poke the owner again, write nothing.
	CancelMarked
	// CancelTooLate found the turn done: the answer is the record's reason, write nothing.
	CancelTooLate
)

// String returns the step as logs show it.
func (s CancelStep) String() string {
	names := [...]string{"none", "unclaimed", "mark", "marked", "too-late"}
	if int(s) >= len(names) {
		return "unknown"
	}
	return names[s]
}

// Cancellation is what the rules say about a request to cancel a turn.
type Cancellation struct {
	Step CancelStep

	// Write is the record to swap in, for CancelUnclaimed (whose bytes are still to be added by
	// [Record.WithOutcome]) and CancelMark; for the others the record as it is.
	Write   Record
	Outcome Outcome // of CancelUnclaimed
}

// Writes reports whether the cancel needs its swap to win before it may be answered. After a failed or
// unclear one, [Settle] says how to go on; nothing else may be answered in between.
func (c Cancellation) Writes() bool { return c.Step == CancelUnclaimed || c.Step == CancelMark }

// Cancel decides about a request to cancel a turn. The swap that wins binds everyone: a reply of
// cancelled is given only once the register says so.
func Cancel(rec Record) Cancellation {
	switch {
	case rec.State == Absent:
		write, outcome := rec.ended(Outcome{Reason: ReasonCancelled})
		return Cancellation{Step: CancelUnclaimed, Write: write, Outcome: outcome}
	case rec.State == Done:
		return Cancellation{Step: CancelTooLate, Write: rec}
	case rec.Cancel:
		return Cancellation{Step: CancelMarked, Write: rec}
	default:
		rec.Cancel = true
		return Cancellation{Step: CancelMark, Write: rec}
	}
}
