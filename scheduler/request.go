package scheduler

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/meshnet/node/hotkv"
)

const (
	// MaxNameBytes bounds the names of tenants and sessions.
	MaxNameBytes = 64
	// MaxNewTokensLimit is the largest valid Request.MaxNewTokens. It is beyond any context.
	MaxNewTokensLimit = 1 << 24

	// MinPriority is the lowest valid Request.Priority; 0 is the ordinary one.
	MinPriority = -8
	// MaxPriority is the highest.
	MaxPriority = 8
)

// SessionKey names a conversation.
type SessionKey = hotkv.Key

// TurnKey identifies one generation request of a session.
type TurnKey struct {
	Tenant, Session string
	Turn            uint64
}

// SessionKey is the session the turn belongs to.
func (k TurnKey) SessionKey() SessionKey { return SessionKey{Tenant: k.Tenant, Session: k.Session} }

func (k TurnKey) String() string {
	return k.Tenant + "/" + k.Session + "/" + strconv.FormatUint(k.Turn, 10)
}

// Request is one turn of a session.
type Request struct {
	Tenant, Session string // not empty, at most MaxNameBytes
	Turn            uint64
	Epoch           uint64 // the session's route epoch

	// Prompt is the whole conversation as tokens. Tokenize yields it instead: it is called by Submit once
	// the turn has a place, on Submit's goroutine and without a lock, so that refused requests are never
	// tokenised. Exactly one of the two is set. The scheduler keeps the slice; it must not change any more.
	Prompt   []Token
	Tokenize func() ([]Token, error)

	Adapter      string // of Facts.Adapters; "" is the model without one
	MaxNewTokens int    // [1, MaxNewTokensLimit]; the replayed ones count
	Sampling     Sampling
	Grammar      Grammar // what its text may be; needs a GrammarEngine

	Keep       bool // keep the session's KV hot after this turn
	RequireHot bool // end cache-miss rather than prefill a prompt of which nothing is hot

	// Replay holds the first tokens of this turn where an earlier attempt already yielded them: they are
	// evaluated by forced rows of the decode batch, and are not reported as new.
	Replay []Token

	// Continued: an earlier attempt began the turn. It is not refused for a deadline that is out of reach, as one with Replay is not.
	Continued bool

	Deadline time.Time // of the scheduler's clock; zero is none
	Priority int       // among its tenant's turns, higher first; [MinPriority, MaxPriority]

	// Stop, if set, is told of each token of the turn, replayed ones first, that does not end the generation by itself: on
	// the goroutine that calls Tick, after the token's turn accepted it and before the tick reports it. With true the
	// turn ends with FinishStopString. It must not call the scheduler's Tick.
	Stop func(Token) bool
}

// Key identifies the turn.
func (r *Request) Key() TurnKey {
	return TurnKey{Tenant: r.Tenant, Session: r.Session, Turn: r.Turn}
}

// FieldError says which field of a request or a budget is out of its range.
type FieldError struct {
	Field string // where it is: an element of a list as "prompt[3]", an option of the sampling as "sampling.top_k"
	Value string // as it was given
	Limit string // what holds for a valid value
}

func (e *FieldError) Error() string {
	return fmt.Sprintf("%s is %s; it must be %s", e.Field, e.Value, e.Limit)
}

func fieldError(field string, value any, limit string, args ...any) *FieldError {
	return &FieldError{Field: field, Value: fmt.Sprint(value), Limit: fmt.Sprintf(limit, args...)}
}

// ParseTokens checks token ids as they come from outside, before they are narrowed to Token. The error is a *FieldError.
func ParseTokens(field string, ids []int64, vocab int) ([]Token, error) {
	tokens := make([]Token, len(ids))
	for i, id := range ids {
		if !(id >= 0 && id < int64(vocab) && id <= math.MaxInt32) {
			return nil, tokenError(field, i, id, vocab)
		}
		tokens[i] = Token(id)
	}
	return tokens, nil
}

func tokenError(field string, index int, id int64, vocab int) *FieldError {
	return fieldError(fmt.Sprintf("%s[%d]", field, index), id, "a token id in [0, %d)", vocab)
}

func checkTokens(field string, tokens []Token, vocab int) error {
	for i, token := range tokens {
		if !(token >= 0 && int64(token) < int64(vocab)) {
			return tokenError(field, i, int64(token), vocab)
		}
	}
	return nil
}

// Validate says which field is out of its range, given the size of the model's vocabulary. The error is
// a *FieldError. A prompt that Tokenize is to yield is checked when it has.
func (r *Request) Validate(vocab int) error {
	if err := r.validateNames(); err != nil {
		return err
	}
	switch {
	case r.Tokenize == nil:
		if err := validatePrompt(r.Prompt, vocab); err != nil {
			return err
		}
	case r.Prompt != nil:
		return fieldError("prompt", fmt.Sprintf("%d tokens with Tokenize", len(r.Prompt)), "absent where Tokenize yields it")
	}
	if !(r.MaxNewTokens >= 1 && r.MaxNewTokens <= MaxNewTokensLimit) {
		return fieldError("max_new_tokens", r.MaxNewTokens, "in [1, %d]", MaxNewTokensLimit)
	}
	if !(r.Priority >= MinPriority && r.Priority <= MaxPriority) {
		return fieldError("priority", r.Priority, "in [%d, %d]", MinPriority, MaxPriority)
	}
	if len(r.Replay) > r.MaxNewTokens {
		return fieldError("replay", fmt.Sprintf("%d tokens", len(r.Replay)), "at most max_new_tokens (%d)", r.MaxNewTokens)
	}
	if err := checkTokens("replay", r.Replay, vocab); err != nil {
		return err
	}
	return r.validateSampling(vocab)
}

func (r *Request) validateNames() error {
	if n := len(r.Tenant); n < 1 || n > MaxNameBytes {
		return fieldError("tenant", fmt.Sprintf("%d bytes long", n), "1 to %d bytes long", MaxNameBytes)
	}
	if n := len(r.Session); n < 1 || n > MaxNameBytes {
		return fieldError("session", fmt.Sprintf("%d bytes long", n), "1 to %d bytes long", MaxNameBytes)
	}
	return nil
}

func validatePrompt(prompt []Token, vocab int) error {
	if len(prompt) == 0 {
		return fieldError("prompt", "empty", "at least one token")
	}
	return checkTokens("prompt", prompt, vocab)
}

// fieldOf is the field an error of validation is about.
func fieldOf(err error) string {
	var fe *FieldError
	if errors.As(err, &fe) {
		return fe.Field
	}
	return ""
}
