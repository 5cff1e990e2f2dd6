package sim

import (
	"time"

	"github.com/meshnet/node/scheduler"
)

// The engine of every node.
const (
	contextTokens = 2048
	prefillChunk  = 256
	stateHeader   = 4096 // bytes of a saved state beside its KV
)

// someToken is the only one there is: nobody reads the text.
const someToken scheduler.Token = 1

// engine is a scheduler.Engine whose calls take virtual time and evaluate nothing.
type engine struct {
	facts     scheduler.Facts
	speeds    *Speeds
	factor    float64        // how many times longer than speeds everything takes
	now       *time.Duration // the node's clock
	held      []int          // positions of each slot
	results   []scheduler.Result
	evaluated int64         // tokens, of prompts and of steps
	busy      time.Duration // in calls
	steps     int64         // decode steps
	rows      int64         // of all steps
}

func newEngine(speeds *Speeds, factor float64, slots int, now *time.Duration) *engine {
	e := &engine{speeds: speeds, factor: factor, now: now, held: make([]int, slots), results: make([]scheduler.Result, slots)}
	e.facts = scheduler.Facts{
		Slots: slots, ContextTokens: contextTokens, BytesPerToken: speeds.BytesPerToken, VocabTokens: int(someToken) + 1,
		PrefillChunk: prefillChunk, Head: true, Tail: true, Trim: scheduler.TrimAny, CanPad: true, Threads: 1,
	}
	for i := range e.results {
		e.results[i] = scheduler.Result{Outcome: scheduler.OutcomeToken, Token: someToken}
	}
	return e
}

// takes lets a call last.
func (e *engine) takes(d time.Duration) {
	d = time.Duration(float64(d) * e.factor)
	*e.now += d
	e.busy += d
}

// Facts implements scheduler.Engine, as do the methods below.
func (e *engine) Facts() scheduler.Facts { return e.facts }

// Fingerprints are those of every node.
func (e *engine) Fingerprints() scheduler.Fingerprints {
	return scheduler.Fingerprints{Restore: "sim", Exact: "sim"}
}

// Bind does nothing: there are no adapters.
func (e *engine) Bind(int, string) {}

// Reopen does nothing: there is no sampler.
func (e *engine) Reopen(int, scheduler.Sampling, []scheduler.Token, []scheduler.Token) error {
	return nil
}

// Prefill takes as long as its tokens.
func (e *engine) Prefill(chunk scheduler.Chunk) scheduler.Result {
	e.takes(e.speeds.prefill(len(chunk.Tokens)))
	e.evaluated += int64(len(chunk.Tokens))
	e.held[chunk.Slot] += len(chunk.Tokens)
	if !chunk.Last {
		return scheduler.Result{}
	}
	return e.results[0]
}

// Decode takes as long as a step of so many rows.
func (e *engine) Decode(rows []scheduler.Row) []scheduler.Result {
	e.takes(e.speeds.step(len(rows)))
	e.evaluated += int64(len(rows))
	e.steps++
	e.rows += int64(len(rows))
	for _, row := range rows {
		e.held[row.Slot]++
	}
	return e.results[:len(rows)]
}

// Save takes as long as copying the slot's positions.
func (e *engine) Save(slot, exactLen int) (scheduler.State, error) {
	n := e.held[slot]
	e.takes(e.speeds.copied(n))
	return &state{tokens: n, exactLen: exactLen, bytes: stateHeader + e.facts.KVBytes(n)}, nil
}

// Restore likewise.
func (e *engine) Restore(slot int, st scheduler.State) error {
	e.takes(e.speeds.copied(st.Tokens()))
	e.held[slot] = st.Tokens()
	return nil
}

// Trim takes no time.
func (e *engine) Trim(slot, keep int) error {
	e.held[slot] = keep
	return nil
}

// Move takes as long as copying the slot's positions twice.
func (e *engine) Move(from, to int) error {
	e.takes(2 * e.speeds.copied(e.held[from]))
	e.held[to], e.held[from] = e.held[from], 0
	return nil
}

// Close does nothing.
func (e *engine) Close(int) {}

// Release empties a slot.
func (e *engine) Release(slot int) { e.held[slot] = 0 }

// state is saved KV, of which only the size is real.
type state struct {
	tokens, exactLen int
	bytes            int64
}

// Bytes implements scheduler.State, as do the methods below.
func (s *state) Bytes() int64 { return s.bytes }

// Tokens are its positions.
func (s *state) Tokens() int { return s.tokens }

// ExactLen is as it was saved.
func (s *state) ExactLen() int { return s.exactLen }

// Blob is empty: nobody writes it to disk here.
func (s *state) Blob() []byte { return nil }

// Free does nothing.
func (s *state) Free() {}
