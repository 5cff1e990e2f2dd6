package goengine

import (
	"fmt"
	"math"
	"slices"

	"github.com/meshnet/node/scheduler"
)

// Prefill implements scheduler.Engine. A chunk that crosses the grid (with LeastChunk: is longer than it), leaves the context, or
// is the prompt's last in a slot without a sampler panics.
func (e *Engine) Prefill(chunk scheduler.Chunk) scheduler.Result {
	s := e.slot(chunk.Slot)
	e.enter(Call{Op: OpPrefill, Slot: chunk.Slot, Pos: chunk.Pos, Tokens: len(chunk.Tokens), Last: chunk.Last})
	defer e.leave()
	e.checkChunk(s, chunk)
	e.copyCells(nil, chunk.Slot)
	if e.missed(s, chunk.Slot, chunk.Pos, OpPrefill) {
		return scheduler.Result{Outcome: scheduler.OutcomeMiss}
	}
	if f := e.faults.strike(FaultPrefill, OpPrefill, nil, chunk.Slot); f != nil {
		for _, token := range chunk.Tokens[:len(chunk.Tokens)/2] {
			e.advance(s, token, len(chunk.Tokens))
		}
		return failed(f.cause(scheduler.CauseFatal), "the backend failed in the chunk at position %d", chunk.Pos)
	}
	for _, token := range chunk.Tokens {
		e.advance(s, token, len(chunk.Tokens))
	}
	if !chunk.Last {
		return scheduler.Result{Outcome: scheduler.OutcomeNone}
	}
	e.model.logits(s, e.logits[0])
	e.spoil(chunk.Slot, OpPrefill, e.logits[0])
	return e.choose(s, e.logits[0], 0, chunk.Forced)
}

// Decode implements scheduler.Engine. Rows that are not in ascending slot order, leave the context, or
// belong to a slot without a sampler panic.
func (e *Engine) Decode(rows []scheduler.Row) []scheduler.Result {
	e.enter(Call{Op: OpDecode, Slot: AnySlot, Tokens: len(rows), Rows: rows})
	defer e.leave()
	e.checkRows(rows)
	e.copyCells(rows, AnySlot)

	results := e.results[:len(rows)]
	fatal := e.failHalfway(rows)
	for i, row := range rows {
		results[i] = e.evaluate(row, e.logits[i], fatal)
	}
	e.swapRows(rows)
	for i, row := range rows {
		if results[i].Outcome == scheduler.OutcomeToken {
			e.spoil(row.Slot, OpDecode, e.logits[i])
			results[i] = e.choose(&e.slots[row.Slot], e.logits[i], row.Index, row.Forced)
		}
	}
	return e.miscount(rows, results)
}

// evaluate runs one row; OutcomeToken says that its logits wait for the choice.
func (e *Engine) evaluate(row scheduler.Row, logits []float32, fatal *Fault) scheduler.Result {
	s := &e.slots[row.Slot]
	if fatal != nil && (fatal.Slot == AnySlot || fatal.Slot == row.Slot || s.spoilt) {
		s.spoilt = false
		return failed(scheduler.CauseFatal, "the backend failed in a batch")
	}
	if e.missed(s, row.Slot, row.Pos, OpDecode) {
		return scheduler.Result{Outcome: scheduler.OutcomeMiss}
	}
	if f := e.faults.strike(FaultNoKV, OpDecode, nil, row.Slot); f != nil {
		return failed(f.cause(scheduler.CauseNoKV), "no KV cell for position %d", row.Pos)
	}
	e.advance(s, row.Token, 1)
	e.model.logits(s, logits)
	return scheduler.Result{Outcome: scheduler.OutcomeToken}
}

// failHalfway plays a backend that fails with half of the rows done: those are evaluated and trimmed back,
// which leaves no trace, save in Mode Recurrent, whose rows are spoilt for good.
func (e *Engine) failHalfway(rows []scheduler.Row) *Fault {
	fatal := e.faults.strike(FaultFatal, OpDecode, rows, AnySlot)
	if fatal == nil {
		return nil
	}
	for _, row := range rows[:(len(rows)+1)/2] {
		s := &e.slots[row.Slot]
		if row.Pos != s.n {
			continue
		}
		held := s.n
		e.advance(s, row.Token, 1)
		e.setTokens(s, held)
		s.spoilt = e.cfg.Mode == Recurrent
	}
	return fatal
}

// advance evaluates one of a slot's tokens in a call that has so many of them.
func (e *Engine) advance(s *slot, token scheduler.Token, tokens int) {
	e.model.forward(s, int(token), tokens < e.cfg.LeastChunk)
	e.setTokens(s, s.n+1)
}

// missed says whether the slot holds other positions than the scheduler thinks.
func (e *Engine) missed(s *slot, slot, pos int, op Op) bool {
	if e.faults.strike(FaultMiss, op, nil, slot) != nil {
		e.empty(s)
		return true
	}
	return s.n != pos
}

// choose takes the next token from a logit row, which it may change.
func (e *Engine) choose(s *slot, row []float32, index int, forced scheduler.Token) scheduler.Result {
	result := scheduler.Result{Outcome: scheduler.OutcomeToken, Token: forced}
	for _, v := range row {
		if math.IsNaN(float64(v)) {
			return failed(scheduler.CauseNaN, "the logits at position %d are not numbers", s.n-1)
		}
	}
	if e.cfg.Audit {
		result.LogitHash, result.Gap = audit(row)
	}
	if forced == scheduler.NoToken {
		find := e.findProbs(s, row)
		token, ok := e.sample(s, row, s.sampler.FirstIndex+index)
		if !ok {
			return failed(scheduler.CauseSampler, "no token can be chosen at position %d", s.n-1)
		}
		result.Token, result.Probs = token, find(token)
	}
	s.sampler.accept(result.Token)
	result.EOG = result.Token == e.cfg.EOG
	return result
}

// findProbs reads a row before sample changes it, where its session wants to know log-probabilities.
func (e *Engine) findProbs(s *slot, row []float32) func(chosen scheduler.Token) *scheduler.Probs {
	if s.sampler.Probs == 0 {
		return func(scheduler.Token) *scheduler.Probs { return nil }
	}
	untouched := slices.Clone(row)
	return func(chosen scheduler.Token) *scheduler.Probs {
		p, whole := e.probs(untouched, s.sampler.Probs)
		p.Chosen = float64(untouched[chosen]) - whole
		return p
	}
}

// audit returns a hash over all bits of a logit row and the distance between its two largest logits.
//
//go:norace
func audit(row []float32) (hash uint64, gap float32) {
	const offset, prime = 14695981039346656037, 1099511628211 // FNV-1a, a float at a time
	hash = offset
	first, second := float32(math.Inf(-1)), float32(math.Inf(-1))
	for _, v := range row {
		hash = (hash ^ uint64(math.Float32bits(v))) * prime
		if v > first {
			first, second = v, first
		} else if v > second {
			second = v
		}
	}
	return hash, first - second
}

func failed(cause scheduler.EngineCause, format string, args ...any) scheduler.Result {
	return scheduler.Result{
		Outcome: scheduler.OutcomeError,
		Err:     &scheduler.EngineError{Cause: cause, Detail: fmt.Sprintf(format, args...)},
	}
}

func (e *Engine) checkChunk(s *slot, chunk scheduler.Chunk) {
	n, grid := len(chunk.Tokens), e.cfg.PrefillChunk
	switch {
	case n == 0:
		panic("goengine: Prefill with no tokens")
	case chunk.Pos < 0 || chunk.Pos+n > e.cfg.ContextTokens:
		panic(fmt.Sprintf("goengine: Prefill of %d tokens at position %d, the context has %d", n, chunk.Pos, e.cfg.ContextTokens))
	case n > grid || e.cfg.LeastChunk == 0 && chunk.Pos/grid != (chunk.Pos+n-1)/grid:
		panic(fmt.Sprintf("goengine: Prefill of %d tokens at position %d crosses the grid of %d", n, chunk.Pos, grid))
	case chunk.Last && !s.open:
		panic(fmt.Sprintf("goengine: Prefill to the prompt's end in slot %d, which has no sampler", chunk.Slot))
	case !chunk.Last && chunk.Forced != scheduler.NoToken:
		panic(fmt.Sprintf("goengine: Prefill with forced token %d in a chunk that is not the last", chunk.Forced))
	}
	for _, token := range chunk.Tokens {
		e.checkToken("prompt", token)
	}
	if chunk.Forced != scheduler.NoToken {
		e.checkToken("forced", chunk.Forced)
	}
}

func (e *Engine) checkRows(rows []scheduler.Row) {
	for i, row := range rows {
		s := e.slot(row.Slot)
		switch {
		case i > 0 && row.Slot <= rows[i-1].Slot:
			panic(fmt.Sprintf("goengine: Decode of slot %d after slot %d; rows go in ascending slot order", row.Slot, rows[i-1].Slot))
		case row.Pos < 0 || row.Pos >= e.cfg.ContextTokens:
			panic(fmt.Sprintf("goengine: Decode of slot %d at position %d, the context has %d", row.Slot, row.Pos, e.cfg.ContextTokens))
		case !s.open:
			panic(fmt.Sprintf("goengine: Decode of slot %d, which has no sampler", row.Slot))
		case s.adapter != e.slot(rows[0].Slot).adapter:
			panic(fmt.Sprintf("goengine: Decode of slots %d and %d, which are bound to different adapters", rows[0].Slot, row.Slot))
		case row.Index < 0:
			panic(fmt.Sprintf("goengine: Decode of slot %d with token index %d", row.Slot, row.Index))
		}
		e.checkToken("input", row.Token)
		if row.Forced != scheduler.NoToken {
			e.checkToken("forced", row.Forced)
		}
	}
}
