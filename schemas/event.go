package schemas

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/meshnet/node/sampling"
)

// MaxEventTokens bounds the tokens of one Tokens event.
const MaxEventTokens = 4096

// EventKind tells the events apart. The set is closed.
type EventKind string

// The event kinds.
const (
	KindStarted   EventKind = "started"
	KindToken     EventKind = "token"
	KindKeepalive EventKind = "keepalive"
	KindFinal     EventKind = "final"
)

// EventKinds lists every event kind.
func EventKinds() []EventKind { return []EventKind{KindStarted, KindToken, KindKeepalive, KindFinal} }

// Valid says whether it is one of the set.
func (k EventKind) Valid() bool { return slices.Contains(EventKinds(), k) }

// Event is one of *Started, *Tokens, *Keepalive, *Final: what a worker publishes on a turn's token subject.
// DecodeEvent makes one; switch on its type.
type Event interface {
	EventKind() EventKind
	EventAttempt() int // the attempt that speaks; 0 for a final of a turn that was never claimed
	event()
}

// Started tells that an attempt begins to yield tokens.
type Started struct {
	Versioned
	Kind         EventKind `msgpack:"kind" json:"kind"`
	Attempt      int       `msgpack:"attempt" json:"attempt"`
	Node         Node      `msgpack:"node" json:"node"`
	ResumeIndex  int       `msgpack:"resume_index" json:"resume_index"` // where the stream goes on: what is from there on is void
	PromptTokens int       `msgpack:"prompt_tokens" json:"prompt_tokens"`
	CachedTokens int       `msgpack:"cached_tokens" json:"cached_tokens"`   // of the prompt, taken from hot KV: the session's, or with a miss what it shares with others
	Miss         Miss      `msgpack:"miss,omitempty" json:"miss,omitempty"` // why nothing was taken of the session's own; "" where something was
	Exact        bool      `msgpack:"exact" json:"exact"`                   // it goes on with the same bits as an undisturbed turn
	Seed         *uint64   `msgpack:"seed,omitempty" json:"seed,omitempty"` // of the sampling; absent where it is greedy
	// By these a later attempt knows whether the tokens so far can be its own: which model yielded them, and
	// the recipe that their bits depend on.
	ModelFingerprint string `msgpack:"model_fingerprint,omitempty" json:"model_fingerprint,omitempty"`
	ExactFingerprint string `msgpack:"exact_fingerprint,omitempty" json:"exact_fingerprint,omitempty"`
}

// Tokens carries one or more tokens.
type Tokens struct {
	Versioned
	Kind     EventKind `msgpack:"kind" json:"kind"`
	Attempt  int       `msgpack:"attempt" json:"attempt"`
	Index    int       `msgpack:"index" json:"index"` // of the first, within the turn
	TokenIDs []int64   `msgpack:"token_ids" json:"token_ids"`
	Text     string    `msgpack:"text" json:"text"` // whole characters; may lag behind the tokens
	// Bytes are those of the text as the tokens have them, where the request says raw: they may end within a character, and
	// are not made UTF-8. They lag only as far as a stop string may have begun.
	Bytes []byte `msgpack:"bytes,omitempty" json:"bytes,omitempty"`
	// Probs has an entry for each token, where the sampling asks for n_probs.
	Probs []TokenProbs `msgpack:"logprobs,omitempty" json:"logprobs,omitempty"`
}

// TokenProbs are natural logarithms of probabilities, by the model's own logits: before biases, penalties, filters and
// temperature. They are at least LeastLogProb.
type TokenProbs struct {
	LogProb  float64   `msgpack:"logprob" json:"logprob"`           // of the token
	TopIDs   []int64   `msgpack:"top_ids" json:"top_ids"`           // the likeliest tokens, likeliest first
	TopProbs []float64 `msgpack:"top_logprobs" json:"top_logprobs"` // theirs
}

// LeastLogProb stands for what the model holds impossible, since JSON has no infinity.
const LeastLogProb = -9999

// Keepalive tells that the turn is alive though nothing is to be said.
type Keepalive struct {
	Versioned
	Kind      EventKind `msgpack:"kind" json:"kind"`
	Attempt   int       `msgpack:"attempt" json:"attempt"`
	LastIndex int       `msgpack:"last_index" json:"last_index"` // of the last token published; -1 before the first
}

// Final is how a turn ended. Its bytes are kept in the ledger, and are what everyone publishes.
type Final struct {
	Versioned
	Kind    EventKind    `msgpack:"kind" json:"kind"`
	Reason  EndReason    `msgpack:"reason" json:"reason"`
	Finish  Finish       `msgpack:"finish,omitempty" json:"finish,omitempty"` // of completed
	Cause   Cause        `msgpack:"cause,omitempty" json:"cause,omitempty"`   // of failed
	Attempt int          `msgpack:"attempt" json:"attempt"`                   // 0: never claimed
	Node    Node         `msgpack:"node" json:"node"`                         // that ended it
	Kept    bool         `msgpack:"kept" json:"kept"`                         // the session's KV is hot on Node
	Count   int          `msgpack:"count" json:"count"`                       // tokens of the turn, over all attempts
	Usage   Usage        `msgpack:"usage" json:"usage"`
	Timings Timings      `msgpack:"timings" json:"timings"`
	Error   *ErrorDetail `msgpack:"error,omitempty" json:"error,omitempty"`
}

// Usage counts tokens of the attempt that ended the turn.
type Usage struct {
	PromptTokens    int `msgpack:"prompt_tokens" json:"prompt_tokens"`
	CachedTokens    int `msgpack:"cached_tokens" json:"cached_tokens"`       // of the prompt, taken from hot KV
	PrefilledTokens int `msgpack:"prefilled_tokens" json:"prefilled_tokens"` // of the prompt, evaluated
	ReplayedTokens  int `msgpack:"replayed_tokens" json:"replayed_tokens"`   // of earlier attempts
	NewTokens       int `msgpack:"new_tokens" json:"new_tokens"`
}

// Timings are milliseconds from the claim by the attempt that ended the turn; 0 where it did not come to that.
type Timings struct {
	QueuedMS     float64 `msgpack:"queued_ms" json:"queued_ms"`           // until it got a slot
	FirstTokenMS float64 `msgpack:"first_token_ms" json:"first_token_ms"` // until its first new token
	TotalMS      float64 `msgpack:"total_ms" json:"total_ms"`
}

// Milliseconds is d for a field in milliseconds, to the microsecond.
func Milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }

// ErrorDetail says for machines and people why something did not go as asked. Encode shortens a Message
// that is too long.
type ErrorDetail struct {
	Reason       Reason `msgpack:"reason,omitempty" json:"reason,omitempty"` // of rejected
	Miss         Miss   `msgpack:"miss,omitempty" json:"miss,omitempty"`     // of cache-miss
	Field        string `msgpack:"field,omitempty" json:"field,omitempty"`   // the request's field or the node's budget
	Needed       int64  `msgpack:"needed,omitempty" json:"needed,omitempty"` // in the field's unit
	Available    int64  `msgpack:"available,omitempty" json:"available,omitempty"`
	Message      string `msgpack:"message" json:"message"`
	RetryAfterMS int64  `msgpack:"retry_after_ms,omitempty" json:"retry_after_ms,omitempty"` // 0: waiting does not help
}

func (d *ErrorDetail) Error() string {
	text := d.Message
	if d.Reason != "" {
		text = fmt.Sprintf("%s: %s", d.Reason, text)
	}
	if d.Needed != 0 || d.Available != 0 {
		text += fmt.Sprintf(" (%s: %d needed, %d available)", d.Field, d.Needed, d.Available)
	}
	return text
}

// EventKind is KindStarted.
func (*Started) EventKind() EventKind { return KindStarted }

// EventKind is KindToken.
func (*Tokens) EventKind() EventKind { return KindToken }

// EventKind is KindKeepalive.
func (*Keepalive) EventKind() EventKind { return KindKeepalive }

// EventKind is KindFinal.
func (*Final) EventKind() EventKind { return KindFinal }

// EventAttempt is Attempt.
func (e *Started) EventAttempt() int { return e.Attempt }

// EventAttempt is Attempt.
func (e *Tokens) EventAttempt() int { return e.Attempt }

// EventAttempt is Attempt.
func (e *Keepalive) EventAttempt() int { return e.Attempt }

// EventAttempt is Attempt.
func (e *Final) EventAttempt() int { return e.Attempt }

func (*Started) event()   {}
func (*Tokens) event()    {}
func (*Keepalive) event() {}
func (*Final) event()     {}

func (e *Started) stamp()   { e.Versioned.stamp(); e.Kind = KindStarted }
func (e *Tokens) stamp()    { e.Versioned.stamp(); e.Kind = KindToken }
func (e *Keepalive) stamp() { e.Versioned.stamp(); e.Kind = KindKeepalive }
func (e *Final) stamp() {
	e.Versioned.stamp()
	e.Kind = KindFinal
	e.Error = e.Error.clipped()
}

// ProbsOf is the wire's form of a token's log-probabilities.
func ProbsOf(p *sampling.Probs) TokenProbs {
	// Rounding can leave a certain token a little above certainty.
	clamp := func(logProb float64) float64 { return min(0, max(LeastLogProb, logProb)) }
	w := TokenProbs{LogProb: clamp(p.Chosen), TopIDs: make([]int64, len(p.Top)), TopProbs: make([]float64, len(p.Top))}
	for i, top := range p.Top {
		w.TopIDs[i], w.TopProbs[i] = int64(top.Token), clamp(top.LogProb)
	}
	return w
}

// Validate says which field is not valid. The error is a *FieldError.
func (e *Started) Validate() error {
	return first(
		checkKind(e.Kind, KindStarted),
		checkAttempt(e.Attempt, 1),
		e.Node.require(),
		checkCount("resume_index", e.ResumeIndex),
		checkCount("prompt_tokens", e.PromptTokens),
		checkInt("cached_tokens", int64(e.CachedTokens), 0, int64(e.PromptTokens)),
		checkOptional("miss", e.Miss, Misses()),
		checkText("model_fingerprint", e.ModelFingerprint, 0, maxAdTextBytes),
		checkText("exact_fingerprint", e.ExactFingerprint, 0, maxAdTextBytes),
	)
}

// Validate says which field is not valid. The error is a *FieldError.
func (e *Tokens) Validate() error {
	return first(
		checkKind(e.Kind, KindToken),
		checkAttempt(e.Attempt, 1),
		checkCount("index", e.Index),
		checkTokenIDs(e.TokenIDs, MaxEventTokens),
		checkText("text", e.Text, 0, MaxEventBytes),
		e.validateProbs(),
	)
}

func (e *Tokens) validateProbs() error {
	if e.Probs != nil && len(e.Probs) != len(e.TokenIDs) {
		return fieldError("logprobs", fmt.Sprintf("of %d tokens", len(e.Probs)), "of the event's %d tokens", len(e.TokenIDs))
	}
	for i := range e.Probs {
		p := &e.Probs[i]
		if len(p.TopIDs) != len(p.TopProbs) {
			return fieldError(fmt.Sprintf("logprobs[%d]", i), fmt.Sprintf("%d tokens with %d numbers", len(p.TopIDs), len(p.TopProbs)), "a number a token")
		}
		for _, v := range append(p.TopProbs[:len(p.TopProbs):len(p.TopProbs)], p.LogProb) {
			if !(v >= LeastLogProb && v <= 0) {
				return fieldError(fmt.Sprintf("logprobs[%d]", i), v, "numbers in [%d, 0]", LeastLogProb)
			}
		}
	}
	return nil
}

// Validate says which field is not valid. The error is a *FieldError.
func (e *Keepalive) Validate() error {
	return first(
		checkKind(e.Kind, KindKeepalive),
		checkAttempt(e.Attempt, 1),
		checkInt("last_index", int64(e.LastIndex), -1, maxCount),
	)
}

// Validate says which field is not valid. The error is a *FieldError.
func (e *Final) Validate() error {
	return first(
		checkKind(e.Kind, KindFinal),
		checkEnd(e.Reason, e.Finish, e.Cause),
		checkAttempt(e.Attempt, 0),
		e.Node.require(),
		checkCount("count", e.Count),
		e.Usage.validate(),
		e.Timings.validate(),
		e.validateError(),
	)
}

func (e *Final) validateError() error {
	if e.Error == nil {
		if e.Reason == Rejected {
			return fieldError("error", "missing", "there for reason %s", Rejected)
		}
		return nil
	}
	if e.Reason == Rejected && !e.Error.Reason.Rejected() {
		return fieldError("error.reason", shown(string(e.Error.Reason)), "a rejection, where reason is %s", Rejected)
	}
	return e.Error.validate("error.")
}

func (u *Usage) validate() error {
	return first(
		checkCount("usage.prompt_tokens", u.PromptTokens),
		checkCount("usage.cached_tokens", u.CachedTokens),
		checkCount("usage.prefilled_tokens", u.PrefilledTokens),
		checkCount("usage.replayed_tokens", u.ReplayedTokens),
		checkCount("usage.new_tokens", u.NewTokens),
	)
}

func (t *Timings) validate() error {
	return first(
		checkNumber("timings.queued_ms", t.QueuedMS),
		checkNumber("timings.first_token_ms", t.FirstTokenMS),
		checkNumber("timings.total_ms", t.TotalMS),
	)
}

const (
	maxFieldBytes   = 128
	maxMessageBytes = 4096
)

// clipped is the detail with a message that may be sent: that an engine's words are too long or no UTF-8
// must not keep an outcome from being told.
func (d *ErrorDetail) clipped() *ErrorDetail {
	if d == nil || len(d.Message) <= maxMessageBytes && utf8.ValidString(d.Message) {
		return d
	}
	c := *d
	c.Message = strings.ToValidUTF8(c.Message, "\uFFFD")
	if len(c.Message) > maxMessageBytes {
		c.Message = strings.ToValidUTF8(c.Message[:maxMessageBytes], "")
	}
	return &c
}

func (d *ErrorDetail) validate(path string) error {
	return first(
		checkOptional(path+"reason", d.Reason, Reasons()),
		checkOptional(path+"miss", d.Miss, Misses()),
		checkText(path+"field", d.Field, 0, maxFieldBytes),
		checkText(path+"message", d.Message, 0, maxMessageBytes),
		checkInt(path+"retry_after_ms", d.RetryAfterMS, 0, MaxDeadline.Milliseconds()),
	)
}

// checkEnd holds for whatever says how a turn ended: completed has a finish, failed a cause, and no other has either.
func checkEnd(reason EndReason, finish Finish, cause Cause) error {
	if err := checkWord("reason", reason, EndReasons()); err != nil {
		return err
	}
	if reason == Completed {
		if err := checkWord("finish", finish, Finishes()); err != nil {
			return err
		}
	} else if finish != "" {
		return fieldError("finish", shown(string(finish)), "absent where reason is %s", reason)
	}
	if reason == Failed {
		return checkWord("cause", cause, Causes())
	} else if cause != "" {
		return fieldError("cause", shown(string(cause)), "absent where reason is %s", reason)
	}
	return nil
}

func checkKind(kind, want EventKind) error {
	if kind != want {
		return fieldError("kind", shown(string(kind)), "%s", want)
	}
	return nil
}

// checkOptional is checkWord for a field that may be absent.
func checkOptional[W word](field string, w W, all []W) error {
	if w == "" {
		return nil
	}
	return checkWord(field, w, all)
}

const (
	maxAttempt = 1 << 20
	maxCount   = math.MaxInt32
)

func checkAttempt(n, least int) error { return checkInt("attempt", int64(n), int64(least), maxAttempt) }

func checkCount(field string, n int) error { return checkInt(field, int64(n), 0, maxCount) }

// checkNumber bounds a float to [0, 2^53]; NaN is out of it.
func checkNumber(field string, f float64) error {
	if !(f >= 0 && f <= 1<<53) {
		return fieldError(field, f, "in [0, 2^53]")
	}
	return nil
}
