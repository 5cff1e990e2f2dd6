package scheduler

import (
	"time"

	"github.com/meshnet/node/hotkv"
)

// phase is where a live turn is. It only ever moves forward, except that a suspended turn is in phaseQueued again.
type phase uint8

const (
	phaseTokenizing phase = iota // Submit is tokenising its prompt
	phaseQueued                  // waits for room, or for an earlier turn of its session
	phaseOpening                 // active: its KV is reserved, it waits for a slot
	phasePrefill                 // holds a slot; its prompt is being evaluated
	phaseDecode                  // yields one token for each batch it is in
	phaseEnded                   // its Ending is recorded; nothing refers to it any more but a call in flight
)

// turn is the scheduler's state of one accepted request. Its fields are guarded by Scheduler.mu; those of
// an active turn are written by the ticking goroutine only, except for the verdict and by FailStalled.
type turn struct {
	key    TurnKey
	req    Request
	phase  phase
	pledge bool // phaseTokenizing: it holds a place among the active sessions, else one in the queue

	// verdict is how the turn is to end. Once set it stays: the first mark wins. A waiting turn leaves at
	// once, an active one at the next tick boundary.
	verdict verdict

	adapter   int   // 0 for none, else 1 + its index in Facts.Adapters
	reserved  int64 // KV bytes of the whole generation
	overtaken int   // how often a later turn went ahead because this one's KV did not fit

	slot     int     // −1 before it has one
	pos      int     // positions of its KV
	tokens   []Token // of this turn, replayed ones included
	exactLen int     // how far its KV will be exact, as good as cold, once the prompt is evaluated

	chain []digest // names of the prompt's beginnings, one each Facts.unit; nil until they are needed
	saves []int    // positions at which its KV is to be saved for others

	leader  *turn // the turn that this one waits for, without a slot; nil if it waits for none. It
	awaited int   // will save so many tokens of KV

	cached    int        // prompt tokens taken from hot KV, its session's or shared
	prefilled int        // prompt tokens evaluated
	miss      hotkv.Miss // what the look-up for the session's hot KV came to
	reading   reading    // of the session's KV from disk
	tookHot   bool       // the session's earlier KV was handed to this turn
	kept      bool       // its KV went into the hot store

	follows     bool     // an earlier turn of its session is live
	account     *account // its tenant's; set while it is live
	ran         int      // tokens evaluated since it got its place
	suspensions int      // how often it gave its place to another tenant's turn
	saved       State    // its KV while it is suspended; nil where it has none

	seq                         uint64 // order of arrival
	submitted, opened, firstNew time.Time
}

// verdict is a terminal mark; the zero value is none.
type verdict struct {
	reason EndReason
	finish Finish
	cause  FailCause
	miss   hotkv.Miss
	detail string
}

func failed(cause FailCause, detail string) verdict {
	return verdict{reason: Failed, cause: cause, detail: detail}
}

func completed(finish Finish) verdict { return verdict{reason: Completed, finish: finish} }

// mark sets the verdict unless there is one.
func (t *turn) mark(v verdict) bool {
	if t.marked() {
		return false
	}
	t.verdict = v
	return true
}

func (t *turn) marked() bool  { return t.verdict.reason != "" }
func (t *turn) waiting() bool { return t.phase == phaseTokenizing || t.phase == phaseQueued }
func (t *turn) active() bool  { return t.phase >= phaseOpening && t.phase <= phaseDecode }

// finalLen is the length of the KV once the turn has run: the prompt's evaluation yields the first
// token, and the last one is never evaluated.
func (t *turn) finalLen() int64 {
	return max(1, int64(len(t.req.Prompt))) + int64(t.req.MaxNewTokens) - 1
}

// forced is the token of that index where it is replayed, else NoToken.
func (t *turn) forced(index int) Token {
	if index < len(t.req.Replay) {
		return t.req.Replay[index]
	}
	return NoToken
}

// full says whether the turn has all the tokens it may have.
func (t *turn) full() bool { return len(t.tokens) >= t.req.MaxNewTokens }

// ending is what the turn came to.
func (t *turn) ending(now time.Time) Ending {
	v := t.verdict
	replayed := min(len(t.tokens), len(t.req.Replay))
	e := Ending{
		Key: t.key, Epoch: t.req.Epoch,
		Reason: v.reason, Finish: v.finish, Cause: v.cause, Miss: v.miss, Detail: v.detail,
		Tokens: t.tokens, Kept: t.kept,
		Usage: Usage{
			Prompt: len(t.req.Prompt), Cached: t.cached, Prefilled: t.prefilled,
			Replayed: replayed, New: len(t.tokens) - replayed,
		},
		Timings: Timings{Total: now.Sub(t.submitted)},
	}
	if !t.opened.IsZero() {
		e.Timings.Queued = t.opened.Sub(t.submitted)
	}
	if !t.firstNew.IsZero() {
		e.Timings.FirstToken = t.firstNew.Sub(t.submitted)
	}
	return e
}
