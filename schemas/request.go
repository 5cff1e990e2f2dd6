package schemas

import (
	"fmt"
	"math"
	"time"
	"unicode/utf8"

	"github.com/meshnet/node/sampling"
)

// Limits of a Request.
const (
	// MaxRequestBytes bounds an encoded Request; it is also what a NATS server takes by default.
	MaxRequestBytes = 1 << 20
	// MaxPromptBytes bounds a text prompt, so that the rest of the request has room.
	MaxPromptBytes = MaxRequestBytes - 16<<10
	// MaxTokenID is the largest token id on the wire. Whether the model has it the worker checks.
	MaxTokenID = math.MaxInt32
	// MaxPromptTokens bounds a prompt of token ids, so that the guard lets the request pass.
	MaxPromptTokens = MaxNodes - 256
	// MaxNewTokens is beyond any context; what fits is the node's decision.
	MaxNewTokens = 1 << 24

	DefaultDeadline = 10 * time.Minute // of a request that has none
	MaxDeadline     = time.Hour
	MinHeartbeat    = 100 * time.Millisecond
	MaxHeartbeat    = MaxDeadline

	MinPriority = -8
	MaxPriority = 8
)

// Versioned is the protocol version, the first field of every message. Encode sets it.
type Versioned struct {
	V int `msgpack:"v" json:"v"`
}

// ProtocolVersion is the version this package speaks.
const ProtocolVersion = 1

func (v *Versioned) stamp() { v.V = ProtocolVersion }

// Request asks for one turn of a session.
type Request struct {
	Versioned
	Tenant  Tenant  `msgpack:"tenant" json:"tenant"`
	Session Session `msgpack:"session" json:"session"`
	Turn    Turn    `msgpack:"turn" json:"turn"`
	Epoch   uint64  `msgpack:"epoch,omitempty" json:"epoch,omitempty"` // the session's route epoch
	Model   Model   `msgpack:"model" json:"model"`
	Adapter Adapter `msgpack:"adapter,omitempty" json:"adapter,omitzero"` // of the model; none without it
	Nonce   Nonce   `msgpack:"nonce" json:"nonce"`                        // one a submit call, the same for its own retries

	// Exactly one of the three is set: the whole conversation as text, as token ids, or as chat messages, which the model's
	// own template turns into a prompt.
	Prompt   *string       `msgpack:"prompt,omitempty" json:"prompt,omitempty"`
	TokenIDs []int64       `msgpack:"token_ids,omitempty" json:"token_ids,omitempty"`
	Messages []ChatMessage `msgpack:"messages,omitempty" json:"messages,omitempty"`

	// Tools are what the assistant may call, for templates that tell the model of them: a JSON list, as OpenAI's API has it.
	Tools string `msgpack:"tools,omitempty" json:"tools,omitempty"`

	// At most one of the two, for nodes that advertise the feature: the turn's text is JSON that fulfils a JSON Schema, or a text
	// of a grammar in llama.cpp's GBNF.
	JSONSchema string `msgpack:"json_schema,omitempty" json:"json_schema,omitempty"`
	Grammar    string `msgpack:"grammar,omitempty" json:"grammar,omitempty"`

	// Special: spellings of control tokens in Prompt are control tokens, not text.
	Special bool `msgpack:"special,omitempty" json:"special,omitempty"`

	MaxNewTokens int       `msgpack:"max_new_tokens" json:"max_new_tokens"`                     // [1, MaxNewTokens]
	MinNewTokens int       `msgpack:"min_new_tokens,omitempty" json:"min_new_tokens,omitempty"` // neither model nor Stop end the turn before
	Sampling     *Sampling `msgpack:"sampling,omitempty" json:"sampling,omitempty"`             // nil is DefaultSampling
	Stop         []string  `msgpack:"stop,omitempty" json:"stop,omitempty"`                     // texts that end the turn, and are no part of its text
	Raw          bool      `msgpack:"raw,omitempty" json:"raw,omitempty"`                       // Tokens have Bytes, too

	Keep       bool `msgpack:"keep,omitempty" json:"keep,omitempty"`               // keep the session's KV hot after this turn
	RequireHot bool `msgpack:"require_hot,omitempty" json:"require_hot,omitempty"` // end cache-miss rather than prefill it all

	// DeadlineMS is how long the turn may take from its first copy's stream timestamp on; 0 is DefaultDeadline.
	DeadlineMS int64 `msgpack:"deadline_ms,omitempty" json:"deadline_ms,omitempty"`
	// Priority is among the tenant's own turns that wait at a node: higher first, then the earlier deadline.
	Priority int `msgpack:"priority,omitempty" json:"priority,omitempty"`
	// HeartbeatMS: the turn ends where no heartbeat of its client comes for so long; 0 asks for none.
	HeartbeatMS int64 `msgpack:"heartbeat_ms,omitempty" json:"heartbeat_ms,omitempty"`
}

// ID is the turn the request asks for.
func (r *Request) ID() TurnID { return TurnID{r.Tenant, r.Session, r.Turn} }

// MsgID is the request's Nats-Msg-Id, by which the server drops a repeated publish of one submit call.
func (r *Request) MsgID() string { return r.ID().String() + "/" + r.Nonce.String() }

// Deadline is how long the turn may take from its first copy's stream timestamp on.
func (r *Request) Deadline() time.Duration {
	if r.DeadlineMS == 0 {
		return DefaultDeadline
	}
	return time.Duration(r.DeadlineMS) * time.Millisecond
}

// Heartbeat is how long the client may be silent; 0 is for ever.
func (r *Request) Heartbeat() time.Duration { return time.Duration(r.HeartbeatMS) * time.Millisecond }

// EffectiveSampling is Sampling, or the default.
func (r *Request) EffectiveSampling() Sampling {
	if r.Sampling == nil {
		return DefaultSampling()
	}
	return *r.Sampling
}

// Agrees says whether the request was published where it belongs. The error is a *FieldError.
func (r *Request) Agrees(s RequestSubject) error {
	if r.Tenant != s.Tenant {
		return fieldError("tenant", shown(r.Tenant.String()), "that of the subject, %s", s.Tenant)
	}
	if r.Model != s.Model {
		return fieldError("model", shown(r.Model.String()), "that of the subject, %s", s.Model)
	}
	return nil
}

// Validate says which field is not valid. The error is a *FieldError.
func (r *Request) Validate() error {
	return first(
		r.Tenant.require(), r.Session.require(), r.Model.require(), r.Nonce.require(),
		r.validatePrompt(),
		r.validateTools(),
		r.validateAnswer(),
		checkInt("max_new_tokens", int64(r.MaxNewTokens), 1, MaxNewTokens),
		r.validateSampling(),
		r.validateEnding(),
		checkInt("deadline_ms", r.DeadlineMS, 0, MaxDeadline.Milliseconds()),
		checkInt("priority", int64(r.Priority), MinPriority, MaxPriority),
		r.validateHeartbeat(),
	)
}

func (r *Request) validatePrompt() error {
	given := 0
	for _, set := range []bool{r.Prompt != nil, r.TokenIDs != nil, r.Messages != nil} {
		if set {
			given++
		}
	}
	switch {
	case given != 1:
		return fieldError("prompt", fmt.Sprintf("one of %d given", given), "the only one given of prompt, token_ids and messages")
	case r.Messages != nil:
		return r.validateChat()
	case r.Prompt != nil:
		return checkText("prompt", *r.Prompt, 1, MaxPromptBytes)
	}
	return checkTokenIDs(r.TokenIDs, MaxPromptTokens)
}

func (r *Request) validateEnding() error {
	if stop := sampling.CheckStops(r.Stop); stop != nil {
		return outOfRange("", stop)
	}
	return checkInt("min_new_tokens", int64(r.MinNewTokens), 0, int64(r.MaxNewTokens))
}

func (r *Request) validateSampling() error {
	if r.Sampling == nil {
		return nil
	}
	return r.Sampling.Validate()
}

func (r *Request) validateHeartbeat() error {
	if r.HeartbeatMS == 0 {
		return nil
	}
	return checkInt("heartbeat_ms", r.HeartbeatMS, MinHeartbeat.Milliseconds(), MaxHeartbeat.Milliseconds())
}

// checkTokenIDs bounds the length of the list, and each id to an int32 that is not negative.
func checkTokenIDs(ids []int64, most int) error {
	if !(len(ids) >= 1 && len(ids) <= most) {
		return fieldError("token_ids", fmt.Sprintf("%d token ids", len(ids)), "1 to %d token ids", most)
	}
	for i, id := range ids {
		if !(id >= 0 && id <= MaxTokenID) {
			return fieldError(fmt.Sprintf("token_ids[%d]", i), id, "a token id in [0, %d]", int64(MaxTokenID))
		}
	}
	return nil
}

// checkText bounds a string in bytes, and refuses what is not UTF-8.
func checkText(field, s string, least, most int) error {
	switch {
	case !(len(s) >= least && len(s) <= most):
		return fieldError(field, fmt.Sprintf("%d bytes long", len(s)), "%d to %d bytes long", least, most)
	case !utf8.ValidString(s):
		return fieldError(field, "not UTF-8", "UTF-8 text")
	}
	return nil
}

func checkInt(field string, n, least, most int64) error {
	if !(n >= least && n <= most) {
		return fieldError(field, n, "in [%d, %d]", least, most)
	}
	return nil
}

// first is the first error of several checks. They are all made: checks are cheap beside decoding.
func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
