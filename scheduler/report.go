package scheduler

import (
	"time"

	"github.com/meshnet/node/hotkv"
)

// Report is what one tick did. Its slices are reused: it is valid until the next Tick.
type Report struct {
	Tick uint64 // 1 is the first

	Promoted  []TurnKey // left the queue for a place among the active sessions
	Started   []Started // got a slot
	Decoded   []TurnKey // got a token from the decode batch, replayed or new
	Prefilled []TurnKey // had at least one chunk evaluated
	Tokens    []NewToken
	Completed []TurnKey // ended Completed; TakeResults has every ending
	Suspended []TurnKey // gave their place to a turn of a tenant that held none, and are queued again
	Resumed   []TurnKey // were suspended, and have a slot again

	Occupancy     int // sessions in the decode batch; padding rows never count
	DecodeTokens  int // as they count: without first and replayed ones
	PrefillTokens int // evaluated ones
	Moves         int // sessions moved to a lower slot
	Saves         int // sessions saved to free their slots, parked or suspended, and beginnings of prompts saved for others
	Restores      int

	// How long the parts took, by the scheduler's clock. Open is slots, hot KV and moves.
	Open, Decode, Prefill time.Duration
}

// DidWork says whether the tick evaluated anything.
func (r *Report) DidWork() bool { return len(r.Prefilled) > 0 || len(r.Decoded) > 0 }

// Started tells that a turn got its slot.
type Started struct {
	Key          TurnKey
	Slot         int
	PromptTokens int
	CachedTokens int        // of the prompt, taken from hot KV: the session's, or with a Miss what it shares with others
	Miss         hotkv.Miss // why nothing was taken of the session's own; Hit where it was
	ResumeIndex  int        // index of the first new token: how many are replayed
	Queued       time.Duration
}

// NewToken is one new token of a turn.
type NewToken struct {
	Key   TurnKey
	Index int // within the turn
	Token Token
	EOG   bool // it ends the generation and has no text

	// Set where the engine audits: see Result.
	LogitHash uint64
	Gap       float32

	Probs *Probs // nil: not asked for
}

// Ending is how an accepted turn ended. There is exactly one for each.
type Ending struct {
	Key    TurnKey
	Epoch  uint64
	Reason EndReason
	Finish Finish     // of Completed
	Cause  FailCause  // of Failed
	Miss   hotkv.Miss // of CacheMiss
	Detail string     // for people; "" where Reason and Cause say it all
	Tokens []Token    // the turn's tokens from index 0 on, replayed ones included; the receiver's
	Kept   bool       // the session's KV is hot

	Usage   Usage
	Timings Timings
}

// Usage counts tokens.
type Usage struct {
	Prompt    int
	Cached    int // of the prompt, taken from hot KV
	Prefilled int // of the prompt, evaluated
	Replayed  int
	New       int // yielded by this attempt
}

// Timings are measured from Submit by the scheduler's clock.
type Timings struct {
	Queued     time.Duration // until it got a slot; zero if it never did
	FirstToken time.Duration // until its first new token; zero if there was none
	Total      time.Duration
}

// reset empties the report for the next tick and keeps its buffers.
func (r *Report) reset(tick uint64) {
	*r = Report{
		Tick:      tick,
		Promoted:  r.Promoted[:0],
		Started:   r.Started[:0],
		Decoded:   r.Decoded[:0],
		Prefilled: r.Prefilled[:0],
		Tokens:    r.Tokens[:0],
		Completed: r.Completed[:0],
		Suspended: r.Suspended[:0],
		Resumed:   r.Resumed[:0],
	}
}
