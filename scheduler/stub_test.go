package scheduler_test

import (
	"errors"

	"github.com/meshnet/node/scheduler"
)

// stubEngine yields tokens that cost nothing, so that what is measured is the scheduler.
type stubEngine struct {
	facts   scheduler.Facts
	held    []int // positions of each slot
	results []scheduler.Result
	onStep  func(prefillTokens int) // called in Prefill and, with 0, in Decode; may be nil
	saves   bool                    // it saves, at no cost
}

func newStub(slots, context, chunk int) *stubEngine {
	return &stubEngine{
		facts: scheduler.Facts{Slots: slots, ContextTokens: context, BytesPerToken: 64, VocabTokens: 1000, PrefillChunk: chunk,
			Head: true, Tail: true, Trim: scheduler.TrimAny, CanPad: true, Threads: 1},
		held:    make([]int, slots),
		results: make([]scheduler.Result, slots),
	}
}

func (e *stubEngine) Facts() scheduler.Facts { return e.facts }
func (e *stubEngine) Fingerprints() scheduler.Fingerprints {
	return scheduler.Fingerprints{Restore: "stub", Exact: "stub"}
}

func (e *stubEngine) Bind(int, string) {}
func (e *stubEngine) Reopen(int, scheduler.Sampling, []scheduler.Token, []scheduler.Token) error {
	return nil
}
func (e *stubEngine) Close(int)        {}
func (e *stubEngine) Release(slot int) { e.held[slot] = 0 }

func (e *stubEngine) Prefill(chunk scheduler.Chunk) scheduler.Result {
	if e.onStep != nil {
		e.onStep(len(chunk.Tokens))
	}
	e.held[chunk.Slot] += len(chunk.Tokens)
	if !chunk.Last {
		return scheduler.Result{}
	}
	return e.token(chunk.Slot)
}

func (e *stubEngine) Decode(rows []scheduler.Row) []scheduler.Result {
	if e.onStep != nil {
		e.onStep(0)
	}
	for i, row := range rows {
		e.held[row.Slot]++
		e.results[i] = e.token(row.Slot)
	}
	return e.results[:len(rows)]
}

func (e *stubEngine) token(slot int) scheduler.Result {
	return scheduler.Result{Outcome: scheduler.OutcomeToken, Token: scheduler.Token(e.held[slot] % e.facts.VocabTokens)}
}

func (e *stubEngine) Trim(slot, keep int) error {
	e.held[slot] = keep
	return nil
}

func (e *stubEngine) Move(from, to int) error {
	e.held[to], e.held[from] = e.held[from], 0
	return nil
}

var errNoStates = errors.New("the stub saves nothing")

// stubState is how many positions were saved.
type stubState int

func (s stubState) Bytes() int64  { return 64 * int64(s) }
func (s stubState) Free()         {}
func (s stubState) Blob() []byte  { return nil }
func (s stubState) Tokens() int   { return int(s) }
func (s stubState) ExactLen() int { return int(s) }

func (e *stubEngine) Save(slot, _ int) (scheduler.State, error) {
	if !e.saves {
		return nil, errNoStates
	}
	return stubState(e.held[slot]), nil
}

func (e *stubEngine) Restore(slot int, state scheduler.State) error {
	saved, ok := state.(stubState)
	if !ok {
		return errNoStates
	}
	e.held[slot] = int(saved)
	return nil
}
