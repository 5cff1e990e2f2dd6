package client

import "github.com/meshnet/node/schemas"

// Event is one of Started, Text, Reset and Final: what a Stream yields. Switch on its type.
type Event interface{ event() }

// Started tells that an attempt began to yield tokens. A later one means that another worker took the turn over.
type Started struct{ schemas.Started }

// Text is what follows the text so far.
type Text struct {
	Index    int // of the first token, within the turn
	TokenIDs []int64
	Text     string // whole characters; may lag behind the tokens
	Bytes    []byte // of a Raw request: those of the text as the tokens have them, which may end within a character
	// Probs are those of each token, where the request's Sampling asks for them. After a Reset within an event's tokens,
	// and for an attempt that did not tell them, there are none.
	Probs []schemas.TokenProbs
}

// Reset tells that the tokens from Index on, and their text, are void: the turn goes on from there.
type Reset struct {
	Index     int
	TextBytes int // what still stands of the text of the whole turn
	RawBytes  int // and of its Bytes
}

// Final is how the turn ended. It is the last event.
type Final struct{ schemas.Final }

func (Started) event() {}
func (Text) event()    {}
func (Reset) event()   {}
func (Final) event()   {}

// Result is a turn that was read to its end.
type Result struct {
	Text     string // of the whole turn, also where the stream began later
	TokenIDs []int64
	Bytes    []byte               // of a Raw request
	Probs    []schemas.TokenProbs // one a token, where the request's Sampling asks for them; else none
	Final    schemas.Final
}
