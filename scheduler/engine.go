package scheduler

import (
	"errors"
	"fmt"

	"github.com/meshnet/node/hotkv"
)

// Token is an index into the model's vocabulary.
type Token = int32

// NoToken marks the absence of a token, for example a row that is sampled rather than forced.
const NoToken Token = -1

// State is a slot's KV as a self-describing, checksummed blob that can be put into any empty slot of
// an engine with the same restore fingerprint. Whoever holds a State calls Free exactly once.
type State = hotkv.State

// Engine is what the scheduler drives: one model with Facts().Slots isolated KV streams.
//
// Every method except Facts is called from one goroutine, the one that calls Scheduler.Tick; an engine
// may panic on concurrent use. No method is called with a lock of the scheduler held. An engine never
// sees a slot outside [0, Slots), a token outside [0, VocabTokens) or a position outside the context.
//
// The engine keeps the positions: slot s holds the KV of positions [0, n). Chunks and rows carry the
// position at which the scheduler believes their first token goes; where the two differ the KV is not
// what the scheduler thinks it is, and the result is a cache miss.
type Engine interface {
	// Facts are constant for the engine's life. Safe for concurrent use.
	Facts() Facts

	// Fingerprints say what the KV depends on. The scheduler asks again at every activation; a change is an error.
	Fingerprints() Fingerprints

	// Bind says which adapter of Facts().Adapters, or "" for none, evaluates what is prefilled into and decoded in a slot
	// until the slot is bound again, whatever is released or closed. It follows the KV in Move. KV that the slot holds of
	// another adapter is dropped.
	Bind(slot int, adapter string)

	// Reopen attaches a sampler to a slot, which may already hold kept KV. history is the prompt: samplers with a memory
	// (penalties) accept it before the first draw. yielded are the turn's own tokens so far, none where it begins: the
	// sampler is then as if it had chosen them all. The slices are not kept.
	Reopen(slot int, sampling Sampling, history, yielded []Token) error

	// Prefill evaluates one chunk of one session's prompt.
	Prefill(chunk Chunk) Result

	// Decode evaluates one row for each member of a decode batch. Rows are in ascending slot order, and of slots that are
	// bound to one adapter. The
	// results are in the order of the rows, one each; the slice belongs to the engine and is valid until its next call.
	Decode(rows []Row) []Result

	// Save copies a slot's KV, which stays in the slot. exactLen is recorded in the state's header.
	Save(slot, exactLen int) (State, error)

	// Restore puts a state into an empty slot, which is bound to the adapter that made it: a state of another is
	// ErrStateRecipe. The state still belongs to the caller. After an error the
	// slot is empty; the error wraps ErrStateRecipe or ErrStateInvalid.
	Restore(slot int, state State) error

	// Trim drops the KV from position keep on. After an error the slot is empty; it wraps ErrTrimRefused where
	// the model cannot drop part of its state.
	Trim(slot, keep int) error

	// Move puts the KV and the sampler of slot from into the empty slot to. After an error from is as it was and to is empty.
	Move(from, to int) error

	// Close detaches the sampler and leaves the KV in the slot (it is then parked). Idempotent.
	Close(slot int)

	// Release detaches the sampler and drops the KV. Idempotent.
	Release(slot int)
}

// Chunk is a part of one session's prompt. Where Facts().LeastChunk is 0, it never crosses a multiple of Facts().PrefillChunk.
type Chunk struct {
	Slot   int
	Pos    int     // position of Tokens[0]
	Tokens []Token // at least one, at most PrefillChunk
	Last   bool    // the prompt ends here: the result is the first token of the turn
	Forced Token   // with Last: the first token is this one (a replay), not a sampled one; else NoToken
}

// Row is one member of a decode batch.
type Row struct {
	Slot   int
	Pos    int   // position of Token
	Token  Token // the input: the session's newest token
	Index  int   // index, within the turn, of the token this row yields; seeds the draw
	Forced Token // the yielded token, where it is known (a replay); NoToken to sample it
}

// Outcome says what a chunk or a row came to.
type Outcome uint8

// The outcomes of a chunk or a row.
const (
	OutcomeNone  Outcome = iota // evaluated; the chunk was not the prompt's last
	OutcomeToken                // evaluated; Result.Token is the next token
	OutcomeMiss                 // the slot does not hold the KV the scheduler expected; nothing was evaluated
	OutcomeError                // Result.Err says why; the slot's KV must be considered lost
)

// Result is what one chunk or one row came to.
type Result struct {
	Outcome Outcome
	Token   Token
	EOG     bool // Token ends the generation (end of sequence, end of turn, …)
	Err     *EngineError

	// LogitHash and Gap are set by engines that audit (Facts().Audit): a hash over the whole logit row
	// the token was chosen from, and the distance between its two largest logits.
	LogitHash uint64
	Gap       float32

	Probs *Probs // of a sampled token, where Sampling.Probs asks for them
}

// EngineCause is the closed set of reasons for which an engine gives up one session.
type EngineCause string

// The engine causes.
const (
	CauseNoKV    EngineCause = "no-kv"      // no KV cell for the row
	CauseFatal   EngineCause = "fatal"      // the backend failed
	CauseNaN     EngineCause = "nan-logits" // the logits are not numbers
	CauseAborted EngineCause = "aborted"    // the call was interrupted
	CauseSampler EngineCause = "sampler"    // no token can be chosen from the logits
	CauseGrammar EngineCause = "grammar"    // the turn's grammar lets no token follow
)

// EngineError is the failure of one session in an engine call.
type EngineError struct {
	Cause  EngineCause
	Detail string
}

func (e *EngineError) Error() string {
	if e.Detail == "" {
		return fmt.Sprintf("engine: %s", e.Cause)
	}
	return fmt.Sprintf("engine: %s: %s", e.Cause, e.Detail)
}

// Errors of Restore and Trim.
var (
	// ErrStateRecipe: the state was saved under another restore fingerprint.
	ErrStateRecipe = errors.New("saved state has another recipe")
	// ErrStateInvalid: the state is cut, corrupt or did not restore to the positions it claims.
	ErrStateInvalid = errors.New("saved state is not valid")
	// ErrTrimRefused: this model cannot drop part of its state.
	ErrTrimRefused = errors.New("model cannot trim its state")
)

// Fingerprints identify the recipe of an engine's KV.
type Fingerprints struct {
	Restore string // what makes a saved state loadable
	Exact   string // also what makes its bits equal: backend, CPU variant, threads, chunk, flash attention, exact mode
}

// TrimKind says how much of a sequence a model can drop.
type TrimKind string

// The trim kinds.
const (
	TrimAny    TrimKind = "any"    // back to any position
	TrimWindow TrimKind = "window" // while the attention window before the position is still there
	TrimNone   TrimKind = "none"   // not at all (recurrent state)
)

// Facts are the constants of a loaded engine.
type Facts struct {
	Slots         int   // KV streams that sessions may hold
	ContextTokens int   // positions per slot, as declared (padding not counted)
	BytesPerToken int64 // KV bytes of one position
	FixedBytes    int64 // KV bytes of a slot whatever its length (recurrent state)
	VocabTokens   int
	PrefillChunk  int // the grid: tokens of a chunk, at most

	// LeastChunk says that chunks of at least so many tokens give every position the same bits, wherever the prompt is cut
	// into them; PrefillChunk is then at least 2 × LeastChunk − 1. 0 says that only equal cuts give equal bits.
	LeastChunk int

	WeightBytes int64
	FirstLayer  int // the layer range [FirstLayer, LastLayer] this engine owns
	LastLayer   int
	Head, Tail  bool // owns the embedding, owns the output head; both are needed
	Exact       bool // rows are padded so that bits do not depend on the crowd
	Trim        TrimKind
	CanPad      bool // a padding row can be removed after the step
	Audit       bool // results carry LogitHash and Gap
	Threads     int
	Adapters    []Adapter // loaded; names are unique
}

// KVBytes is the size of the KV of one slot that holds n positions.
func (f Facts) KVBytes(n int) int64 {
	if n == 0 {
		return 0
	}
	return f.FixedBytes + int64(n)*f.BytesPerToken
}
