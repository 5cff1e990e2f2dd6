// Package goengine is a deterministic scheduler.Engine in pure Go: a tiny dense Llama with random
// weights and real attention over its own KV. It is for tests that must be fast and exact, and it can be
// told to fail in scripted ways. It never loads a model and its text means nothing.
//
// A position's bits depend on the tokens before it alone: not on the crowd, the slot, the chunking, or
// whether it was prefilled, decoded or restored, unless Config.LeastChunk says otherwise. What the contract forbids its callers panics.
package goengine

import (
	"fmt"
	"sync/atomic"

	"github.com/meshnet/node/scheduler"
)

// spareCells are the cells that a slot can hold beyond its context, for FaultStaleSlot.
const spareCells = 16

// slot is one KV stream and its sampler.
type slot struct {
	kv      []float32 // cells, see Config.cellFloats
	n       int       // positions held; changed by Engine.setTokens only
	base    int       // cells of an earlier session below the slot's own; 0 but for FaultStaleSlot
	floor   int       // Mode Window: positions below are forgotten
	adapter int       // index in model.shifts
	open    bool      // a sampler is attached
	spoilt  bool      // Mode Recurrent: evaluated by a batch that failed, and cannot go back
	sampler sampler
}

// next is the cell of the slot's next position.
func (s *slot) next() int { return s.base + s.n }

// Engine implements scheduler.Engine. Its methods panic when two run at once, save those whose comment
// says otherwise. Make one with New.
type Engine struct {
	cfg    Config
	facts  scheduler.Facts
	prints scheduler.Fingerprints

	busy   atomic.Bool  // a call is running
	kv     atomic.Int64 // bytes of live tokens; owned by setTokens
	states atomic.Int64 // saved states not yet freed
	faults faults

	// What follows belongs to the call that runs.
	model   *model
	adapter map[string]int // by name, the index in model.shifts; 0 is none
	slots   []slot
	logits  [][]float32 // one row for each member of a batch
	results []scheduler.Result
	seen    []int32 // tokens counted by penalties; all zero between draws
	ranked  []candidate
}

var _ scheduler.Engine = (*Engine)(nil)

// New makes an engine, whose memory is all allocated here. The error names the field that is wrong.
func New(cfg Config) (*Engine, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	m := newModel(cfg)
	e := &Engine{
		cfg: cfg, facts: cfg.facts(m.weightBytes()), prints: cfg.fingerprints(), model: m,
		slots: make([]slot, cfg.Slots), logits: make([][]float32, cfg.Slots),
		results: make([]scheduler.Result, cfg.Slots+1), // one more for FaultTooMany
		adapter: map[string]int{"": 0},
		seen:    make([]int32, cfg.Vocab), ranked: make([]candidate, 0, cfg.Vocab),
	}
	for i, name := range cfg.Adapters {
		e.adapter[name] = i + 1
	}
	cells := cfg.ContextTokens + spareCells
	if cfg.Mode == Recurrent {
		cells = 1
	}
	for i := range e.slots {
		e.slots[i].kv = make([]float32, cells*cfg.cellFloats())
		e.logits[i] = make([]float32, cfg.Vocab)
	}
	return e, nil
}

// Facts describes the engine. Safe for concurrent use.
func (e *Engine) Facts() scheduler.Facts { return e.facts }

// EOG is the token that ends a generation. Safe for concurrent use.
func (e *Engine) EOG() scheduler.Token { return e.cfg.EOG }

// KVBytes is the size of the live tokens in all slots: the sum of Facts().KVBytes over them. Safe for concurrent use.
func (e *Engine) KVBytes() int64 { return e.kv.Load() }

// LiveStates is how many saved states have not been freed. Safe for concurrent use.
func (e *Engine) LiveStates() int { return int(e.states.Load()) }

// Fingerprints implements scheduler.Engine.
func (e *Engine) Fingerprints() scheduler.Fingerprints {
	e.enter(Call{Op: OpFingerprints, Slot: AnySlot})
	defer e.leave()
	prints := e.prints
	if e.faults.strike(FaultFingerprint, OpFingerprints, nil, AnySlot) != nil {
		prints.Restore += " changed"
		prints.Exact += " changed"
	}
	return prints
}

// Bind implements scheduler.Engine. An adapter that Config does not name panics.
func (e *Engine) Bind(slot int, adapter string) {
	s := e.slot(slot)
	e.enter(Call{Op: OpBind, Slot: slot})
	defer e.leave()
	i, known := e.adapter[adapter]
	if !known {
		panic(fmt.Sprintf("goengine: Bind of slot %d to adapter %q, which Config does not name", slot, adapter))
	}
	if s.adapter != i {
		e.empty(s)
	}
	s.adapter = i
}

// Open is Reopen for a turn that begins.
func (e *Engine) Open(slot int, sampling scheduler.Sampling, history []scheduler.Token) error {
	return e.Reopen(slot, sampling, history, nil)
}

// Reopen implements scheduler.Engine. The error names the sampling parameter that is out of its range.
// Opening a slot that has a sampler panics.
func (e *Engine) Reopen(slot int, sampling scheduler.Sampling, history, yielded []scheduler.Token) error {
	s := e.slot(slot)
	e.enter(Call{Op: OpOpen, Slot: slot, Tokens: len(history) + len(yielded)})
	defer e.leave()
	if s.open {
		panic(fmt.Sprintf("goengine: Open of slot %d, which has a sampler; Close it first", slot))
	}
	for _, token := range history {
		e.checkToken("history", token)
	}
	for _, token := range yielded {
		e.checkToken("yielded", token)
	}
	if f := e.faults.strike(FaultOpen, OpOpen, nil, slot); f != nil {
		return f.error("opening slot %d failed", slot)
	}
	if err := sampling.Validate(); err != nil {
		return fmt.Errorf("goengine: sampling: %w", err)
	}
	for _, b := range sampling.LogitBias {
		e.checkToken("biased", b.Token)
	}
	s.sampler.reset(sampling, history)
	for _, token := range yielded {
		s.sampler.accept(token)
	}
	s.open = true
	return nil
}

// Trim implements scheduler.Engine. Keeping more than the slot holds drops nothing; keeping nothing is
// possible in every mode.
func (e *Engine) Trim(slot, keep int) error {
	s := e.slot(slot)
	e.enter(Call{Op: OpTrim, Slot: slot, Pos: keep})
	defer e.leave()
	e.checkCount("Trim", keep)
	if f := e.faults.strike(FaultTrimRefused, OpTrim, nil, slot); f != nil {
		e.empty(s)
		return fmt.Errorf("goengine: slot %d: %w", slot, scheduler.ErrTrimRefused)
	}
	switch {
	case keep >= s.n:
	case keep == 0:
		e.empty(s)
	case !e.trims(s, keep):
		held := s.n
		e.empty(s)
		return fmt.Errorf("goengine: slot %d cannot go from %d back to %d positions: %w", slot, held, keep, scheduler.ErrTrimRefused)
	default:
		e.setTokens(s, keep)
	}
	return nil
}

// trims says whether the mode can go back to keep positions, some but not all of those held.
func (e *Engine) trims(s *slot, keep int) bool {
	switch e.cfg.Mode {
	case Recurrent:
		return false
	case Window:
		return max(0, keep+1-e.cfg.Window) >= s.floor
	default:
		return true
	}
}

// Move implements scheduler.Engine. It panics where to is not empty.
func (e *Engine) Move(from, to int) error {
	source, target := e.slot(from), e.slot(to)
	e.enter(Call{Op: OpMove, Slot: from, To: to})
	defer e.leave()
	if target.n > 0 || target.open {
		panic(fmt.Sprintf("goengine: Move from slot %d into slot %d, which is not empty", from, to))
	}
	if f := e.faults.strike(FaultMove, OpMove, nil, from); f != nil {
		return f.error("moving slot %d to %d failed", from, to)
	}
	*source, *target = *target, *source
	return nil
}

// Close implements scheduler.Engine.
func (e *Engine) Close(slot int) {
	s := e.slot(slot)
	e.enter(Call{Op: OpClose, Slot: slot})
	defer e.leave()
	s.open = false
}

// Release implements scheduler.Engine.
func (e *Engine) Release(slot int) {
	s := e.slot(slot)
	e.enter(Call{Op: OpRelease, Slot: slot})
	defer e.leave()
	s.open = false
	if s.n > 0 && e.faults.strike(FaultStaleSlot, OpRelease, nil, slot) != nil {
		stale := min(s.n, spareCells)
		e.setTokens(s, 0)
		s.base, s.floor = stale, 0
		return
	}
	e.empty(s)
}

// empty drops a slot's KV, stale cells included.
func (e *Engine) empty(s *slot) {
	e.setTokens(s, 0)
	s.base, s.floor = 0, 0
	if e.cfg.Mode == Recurrent {
		clear(s.kv)
	}
}

func (e *Engine) setTokens(s *slot, n int) {
	e.kv.Add(e.facts.KVBytes(n) - e.facts.KVBytes(s.n))
	s.n = n
	if e.cfg.Mode == Window {
		// As in a window cache that can hold one more chunk.
		s.floor = max(s.floor, n-e.cfg.Window-e.cfg.PrefillChunk)
	}
}

func (e *Engine) slot(i int) *slot {
	if i < 0 || i >= len(e.slots) {
		panic(fmt.Sprintf("goengine: slot %d, must be in [0, %d)", i, len(e.slots)))
	}
	return &e.slots[i]
}

func (e *Engine) checkToken(what string, token scheduler.Token) {
	if token < 0 || int(token) >= e.cfg.Vocab {
		panic(fmt.Sprintf("goengine: %s token %d, must be in [0, %d)", what, token, e.cfg.Vocab))
	}
}

func (e *Engine) checkCount(what string, n int) {
	if n < 0 || n > e.cfg.ContextTokens {
		panic(fmt.Sprintf("goengine: %s with %d positions, must be in [0, %d]", what, n, e.cfg.ContextTokens))
	}
}
