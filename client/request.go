package client

import (
	"crypto/rand"
	"fmt"
	"time"

	"github.com/meshnet/node/schemas"
)

// Request is one turn of a session. Names are 1 to 64 of the characters A-Z a-z 0-9 _ -.
type Request struct {
	Tenant  string
	Session string // a conversation; its turns are numbered by their caller, rising
	Turn    uint64
	Epoch   uint64 // the session's route epoch; a higher one ends older turns
	Model   string
	Adapter string // a LoRA adapter that nodes have loaded beside the model; empty is none

	// Exactly one of the three: the whole conversation as text, as tokens, or as messages for the model's chat template.
	Prompt   string
	TokenIDs []int64
	Messages []schemas.ChatMessage
	Tools    string // what the assistant may call, with Messages: a JSON list, as OpenAI's API has it
	Special  bool   // spellings of control tokens in Prompt are control tokens, not text

	// At most one of the two, for nodes that advertise json-schema or grammar: what the text of the turn must be.
	JSONSchema string // the text is JSON that fulfils it
	Grammar    string // in llama.cpp's GBNF: the text is one of its texts

	MaxNewTokens int               // at least 1
	MinNewTokens int               // neither the model nor a stop string ends the turn before; at most MaxNewTokens
	Sampling     *schemas.Sampling // nil is schemas.DefaultSampling
	Stop         []string          // at most 16 texts of 1 to 256 bytes: the first to come ends the turn, and is no part of its text
	Raw          bool              // Text events and the Result have Bytes, too

	Keep       bool   // keep the session's KV hot after this turn
	RequireHot bool   // end cache-miss rather than prefill it all
	HotNode    string // the node that keeps the session's KV, where this Client cannot know: Final.Node of a turn that was Kept

	Deadline  time.Duration // for the whole turn; 0 is 10 minutes, at most an hour
	Heartbeat time.Duration // the turn ends if this client is silent for so long; 0: it goes on without

	Priority int // among the tenant's own turns that wait at a node: higher first, in [-8, 8]

	RetryQuota bool // where the tenant has too many requests, try again until the deadline
}

// wire checks a request and draws its nonce.
func (r *Request) wire() (*schemas.Request, error) {
	w := &schemas.Request{
		Turn: schemas.Turn(r.Turn), Epoch: r.Epoch, TokenIDs: r.TokenIDs, Messages: r.Messages, Tools: r.Tools, JSONSchema: r.JSONSchema, Grammar: r.Grammar, Special: r.Special,
		MaxNewTokens: r.MaxNewTokens, MinNewTokens: r.MinNewTokens, Sampling: r.Sampling, Stop: r.Stop, Raw: r.Raw,
		Keep: r.Keep, RequireHot: r.RequireHot, Priority: r.Priority,
		Nonce: schemas.Must(schemas.ParseNonce(rand.Text())),
	}
	id, err := turnID(r.Tenant, r.Session, r.Turn)
	if err != nil {
		return nil, err
	}
	w.Tenant, w.Session = id.Tenant, id.Session
	if w.Model, err = schemas.ParseModel(r.Model); err != nil {
		return nil, err
	}
	if r.Adapter != "" {
		if w.Adapter, err = schemas.ParseAdapter(r.Adapter); err != nil {
			return nil, err
		}
	}
	if r.Prompt != "" || r.TokenIDs == nil && r.Messages == nil {
		w.Prompt = &r.Prompt
	}
	if len(r.Prompt) > schemas.MaxPromptBytes {
		return nil, &schemas.TooLargeError{Message: "prompt", Bytes: len(r.Prompt), Limit: schemas.MaxPromptBytes}
	}
	if w.DeadlineMS, err = milliseconds("deadline_ms", r.Deadline); err != nil {
		return nil, err
	}
	if w.HeartbeatMS, err = milliseconds("heartbeat_ms", r.Heartbeat); err != nil {
		return nil, err
	}
	return w, w.Validate()
}

// milliseconds does not let a duration become 0, which has a meaning of its own.
func milliseconds(field string, d time.Duration) (int64, error) {
	if d != 0 && d < time.Millisecond {
		return 0, &schemas.FieldError{Field: field, Value: d.String(), Limit: "0, or at least a millisecond"}
	}
	return d.Milliseconds(), nil
}

func turnID(tenant, session string, turn uint64) (id schemas.TurnID, err error) {
	if id.Tenant, err = schemas.ParseTenant(tenant); err != nil {
		return schemas.TurnID{}, err
	}
	if id.Session, err = schemas.ParseSession(session); err != nil {
		return schemas.TurnID{}, err
	}
	id.Turn = schemas.Turn(turn)
	return id, nil
}

// hint is the HotNode.
func (r *Request) hint() (schemas.Node, error) {
	if r.HotNode == "" {
		return schemas.Node{}, nil
	}
	node, err := schemas.ParseNode(r.HotNode)
	if err != nil {
		return schemas.Node{}, fmt.Errorf("HotNode: %w", err)
	}
	return node, nil
}
