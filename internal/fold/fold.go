// Package fold turns a turn's events into its tokens and text. Clients read by it, and a worker that takes a
// turn over finds out by it what the turn's readers have: both must come to the same.
//
// The rules, for events in stream order: a started with a higher attempt cuts to its resume index; lower attempts,
// known indexes and whatever comes after a gap do not count; a final counts whatever its attempt. Who listens may miss
// events, a cut among them: there, a start that skips attempts counts only if it goes back to the beginning.
// Reading the stored events from any earlier point on, in stream order, closes every gap and changes nothing else.
package fold

import (
	"bytes"
	"slices"
	"strings"

	"github.com/meshnet/node/schemas"
)

// Status is what is known of a turn's tokens. The set is closed.
type Status string

// The statuses.
const (
	Open  Status = "open"  // no final yet, and nothing known to be missing
	Gap   Status = "gap"   // events were lost: apply the stored ones
	Doubt Status = "doubt" // the number of tokens is that of the final, but the start of its attempt was not seen
	Whole Status = "whole" // final, and every token is there
)

// Fold is the state of one turn's reader. The zero value has seen nothing. It is not safe for concurrent use.
type Fold struct {
	attempt int // that counts now; 0 before the first
	started *schemas.Started
	tokens  []int64
	text    strings.Builder
	raw     []byte               // the text's bytes, where the events have them
	probs   []schemas.TokenProbs // of the tokens, where the events have them: as many, or none
	ends    []end                // of the events that make up tokens and text, rising
	final   *schemas.Final

	// The furthest that any event spoke of: there is a gap while this is beyond attempt and tokens.
	seenAttempt, seenTokens int

	delivered int // tokens that Take has handed out, or that its caller had before
	low       int // lowest cut since, at most delivered
}

// end is where an event ended. Only there text and tokens can be parted: an event has one text for all its tokens.
type end struct{ tokens, bytes, raw int }

// From is a Fold for a reader that has the first tokens of the turn already: Take goes on from there.
func From(index int) *Fold {
	index = max(0, index)
	return &Fold{delivered: index, low: index}
}

// ApplyLive takes an event that was heard. Others before it may have been lost.
func (f *Fold) ApplyLive(event schemas.Event) { f.apply(event, false) }

// ApplyStored takes an event that was read from the stream, where the one before it on the turn's subject was read
// just before, or in an earlier reading. What was heard meanwhile does not matter.
func (f *Fold) ApplyStored(event schemas.Event) { f.apply(event, true) }

func (f *Fold) apply(event schemas.Event, stored bool) {
	switch e := event.(type) {
	case *schemas.Started:
		f.start(e, stored)
	case *schemas.Tokens:
		f.see(e.Attempt, e.Index+len(e.TokenIDs))
		f.append(e)
	case *schemas.Keepalive:
		if e.Attempt == f.attempt { // a later attempt is kept alive before it starts, and has lost nothing by then
			f.see(e.Attempt, e.LastIndex+1)
		}
	case *schemas.Final:
		if f.final == nil {
			f.final = e
		}
	}
}

// see remembers the furthest point.
func (f *Fold) see(attempt, tokens int) {
	if attempt > f.seenAttempt {
		f.seenAttempt, f.seenTokens = attempt, 0
	}
	if attempt == f.seenAttempt {
		f.seenTokens = max(f.seenTokens, tokens)
	}
}

func (f *Fold) start(e *schemas.Started, stored bool) {
	f.see(e.Attempt, e.ResumeIndex)
	if e.Attempt <= f.attempt || e.ResumeIndex > len(f.tokens) {
		return // an older one, or it goes on after tokens that were lost: those have to come first
	}
	if !stored && e.Attempt > f.attempt+1 && e.ResumeIndex > 0 {
		return // the attempts between may have cut further, and what it goes on after may be theirs
	}
	if e.Attempt > 1 { // nothing was before the first
		f.cut(e.ResumeIndex)
	}
	if e.ResumeIndex > len(f.tokens) {
		return // it goes on within an event that was heard, and stored otherwise: the tokens before have to come first
	}
	f.attempt, f.started = e.Attempt, e
}

// cut drops all from a token on, and what cannot be parted from it.
func (f *Fold) cut(index int) {
	f.low = min(f.low, index)
	if index >= len(f.tokens) {
		return
	}
	at := f.endAt(index)
	kept := f.text.String()[:at.bytes]
	f.text.Reset()
	f.text.WriteString(kept)
	f.tokens = slices.Clone(f.tokens[:at.tokens]) // readers may hold the old ones
	f.raw = slices.Clone(f.raw[:at.raw])
	f.probs = slices.Clone(f.probs[:min(at.tokens, len(f.probs))])
	for len(f.ends) > 0 && f.ends[len(f.ends)-1].tokens > at.tokens {
		f.ends = f.ends[:len(f.ends)-1]
	}
	f.low = min(f.low, at.tokens)
}

// endAt is the last end that is not after a token.
func (f *Fold) endAt(index int) end {
	n, found := slices.BinarySearchFunc(f.ends, index, func(e end, index int) int { return e.tokens - index })
	switch {
	case found:
		return f.ends[n]
	case n == 0:
		return end{}
	}
	return f.ends[n-1]
}

func (f *Fold) append(e *schemas.Tokens) {
	known := len(f.tokens) - e.Index // of its tokens
	if e.Attempt != f.attempt || known < 0 || known >= len(e.TokenIDs) {
		return
	}
	text, raw := e.Text, e.Bytes
	if known > 0 {
		at := f.endAt(e.Index)
		rest, agrees := strings.CutPrefix(text, f.text.String()[at.bytes:])
		if at.tokens != e.Index || !agrees || !slices.Equal(f.tokens[e.Index:], e.TokenIDs[:known]) {
			return // the text of its new tokens cannot be told from that of the known ones
		}
		if raw, agrees = bytes.CutPrefix(raw, f.raw[at.raw:]); !agrees {
			return
		}
		text = rest
	}
	if len(e.Probs) > 0 && len(f.probs) == len(f.tokens) {
		f.probs = append(f.probs, e.Probs[known:]...)
	} else {
		f.probs = nil
	}
	f.tokens = append(f.tokens, e.TokenIDs[known:]...)
	f.text.WriteString(text)
	f.raw = append(f.raw, raw...)
	f.ends = append(f.ends, end{len(f.tokens), f.text.Len(), len(f.raw)})
}

// Status says whether the turn is over, and whether tokens are missing.
func (f *Fold) Status() Status {
	behind := f.seenAttempt > f.attempt || f.seenTokens > len(f.tokens)
	switch {
	case f.final == nil && behind:
		return Gap
	case f.final == nil:
		return Open
	case f.final.Attempt <= f.attempt && f.final.Count == len(f.tokens):
		return Whole
	case behind || f.final.Count > len(f.tokens):
		return Gap
	case f.final.Count < len(f.tokens) && f.final.Reason == schemas.Completed:
		return Gap
	case f.final.Attempt > f.attempt:
		return Doubt
	}
	return Whole // fewer than there are, where whoever ended it did not know of the last ones
}

// Attempt is the one that counts now; 0 before the first.
func (f *Fold) Attempt() int { return f.attempt }

// Started is the start of the attempt that counts now; nil before the first.
func (f *Fold) Started() *schemas.Started { return f.started }

// Final is how the turn ended; nil while it has not.
func (f *Fold) Final() *schemas.Final { return f.final }

// Len is the number of tokens.
func (f *Fold) Len() int { return len(f.tokens) }

// Tokens are the turn's tokens so far. The slice must not be changed.
func (f *Fold) Tokens() []int64 { return slices.Clip(f.tokens) }

// Text is the turn's text so far. It may lag behind the tokens by part of a character.
func (f *Fold) Text() string { return f.text.String() }

// Bytes are the text's so far, where the events have them. The slice must not be changed.
func (f *Fold) Bytes() []byte { return slices.Clip(f.raw) }

// Probs are those of the turn's tokens so far; none where they are not known of every token. The slice must not be changed.
func (f *Fold) Probs() []schemas.TokenProbs { return slices.Clip(f.probs) }

// Delta is what a reader has not had yet.
type Delta struct {
	// Reset: what the reader has had from Index on is void.
	Reset     bool
	Index     int     // of the first token
	TextBytes int     // of the turn's text before Index; not known, and 0, while Index is beyond the tokens
	RawBytes  int     // likewise of its bytes
	TokenIDs  []int64 // none where there is nothing new
	Text      string
	Bytes     []byte
	Probs     []schemas.TokenProbs
}

// Empty says that there is nothing for the reader.
func (d Delta) Empty() bool { return !d.Reset && len(d.TokenIDs) == 0 }

// Take hands out what came since the last Take. Several cuts between two calls are one.
func (f *Fold) Take() Delta {
	var d Delta
	if f.low < f.delivered {
		d.Reset, f.delivered = true, f.low
	}
	switch {
	case f.delivered > len(f.tokens) && f.final != nil && f.Status() != Gap:
		d.Reset, f.delivered = true, len(f.tokens) // a reader that had more than there is
	case f.delivered < len(f.tokens):
		at := f.endAt(f.delivered)
		d.Reset = d.Reset || at.tokens < f.delivered
		d.TokenIDs = slices.Clip(f.tokens[at.tokens:])
		d.Text = f.text.String()[at.bytes:]
		d.Bytes = slices.Clip(f.raw[at.raw:])
		if len(f.probs) > 0 {
			d.Probs = slices.Clip(f.probs[at.tokens:])
		}
		f.delivered = at.tokens
	}
	d.Index = f.delivered
	if d.Index <= len(f.tokens) {
		at := f.endAt(d.Index)
		d.TextBytes, d.RawBytes = at.bytes, at.raw
	}
	f.delivered += len(d.TokenIDs)
	f.low = f.delivered
	return d
}
