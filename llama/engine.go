package llama

/*
#include "shim.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/meshnet/node/scheduler"
)

// Options shape an engine. Zero values take the defaults named at each field.
type Options struct {
	Slots         int   // sessions at once; default 8
	ContextTokens int   // positions a slot; default the model's context, at most 4096
	PrefillChunk  int   // the grid, tokens of a chunk at most; default 256
	BatchTokens   int   // largest llama.cpp call; default the chunk or one row a slot, whichever is more
	Threads       int   // compute threads; default 0: calibrated at start
	Exact         bool  // pad decode rows so that bits do not depend on the crowd
	Audit         bool  // hash every logit row and measure its gap
	MemoryBytes   int64 // memory the node may fill; default 0: what the machine has free
	Logger        *slog.Logger
}

// The defaults of Options.
const (
	DefaultSlots         = 8
	DefaultContextTokens = 4096
	DefaultPrefillChunk  = 256
)

// MaxSlots is the largest number of slots: LLAMA_MAX_SEQ in llama.cpp.
const MaxSlots = 256

// OptionError names an option of Options that cannot be used.
type OptionError struct {
	Field  string
	Value  int64
	Reason string
}

func (e *OptionError) Error() string {
	return fmt.Sprintf("%s is %d: %s", e.Field, e.Value, e.Reason)
}

// Engine is one llama.cpp context, split into slots. It implements scheduler.Engine.
//
// One goroutine drives it: the scheduler's. Concurrent use of any method but Facts, Threads, Probes and
// Interrupt panics. The engine owns the slots' positions; llama.cpp holds their KV.
type Engine struct {
	c     *C.mn_engine
	model *Model
	opts  Options
	log   *slog.Logger
	busy  atomic.Bool // set while a method of the driving goroutine runs
	life  sync.Mutex  // held by Free and Interrupt: the one ends what the other reaches into

	facts      scheduler.Facts
	prints     scheduler.Fingerprints
	restoreSum [32]byte
	probes     Probes
	leastChunk int // Facts.LeastChunk
	shape      rowShape
	// adaptedShape is the shape of calls with an adapter: its matrices are of floats, whatever the model's are.
	adaptedShape rowShape
	ctxSeq       int // positions a stream has room for, padding included

	lengths []int // positions each stream holds; the streams beyond facts.Slots are for padding only

	bound []*adapter // that of each slot; nil is none
	used  *adapter   // that of llama.cpp's last call

	rows    []C.mn_row // reused by every decode call
	cres    []C.mn_result
	members []int // for each row of the call, its index among the members, or -1 for padding
	results []scheduler.Result
	watch   threadWatch
	threads atomic.Int32
	states  atomic.Int64 // saved states not freed yet
}

// NewEngine makes a context for the model, checks that it fits the machine, probes what the model can do and
// calibrates the thread count. An adapter that cannot be computed with is an *AdapterError. The model must outlive the engine.
func NewEngine(m *Model, o Options) (*Engine, error) {
	o, err := o.withDefaults(m)
	if err != nil {
		return nil, err
	}
	e := &Engine{model: m, opts: o, log: o.Logger}
	e.shape, e.adaptedShape = newRowShapes(m, o)
	e.ctxSeq = padContext(o.ContextTokens)
	if err := checkMemory(m, o, e.shape.streams, e.ctxSeq); err != nil {
		return nil, err
	}
	if err := e.create(); err != nil {
		return nil, err
	}
	if err := e.start(); err != nil {
		e.Free()
		return nil, err
	}
	return e, nil
}

// start probes, calibrates and fixes the facts. It leaves every slot empty.
func (e *Engine) start() error {
	probes, err := e.probe()
	if err != nil {
		return fmt.Errorf("probing model %s: %w", e.model.facts.Name, err)
	}
	e.probes = probes
	if err := e.probeAdapters(); err != nil {
		return err
	}
	if e.opts.Threads == 0 {
		if err := e.calibrate(); err != nil {
			return err
		}
	}
	if e.leastChunk, err = e.probeCuts(); err != nil {
		return fmt.Errorf("probing where prompts of model %s may be cut: %w", e.model.facts.Name, err)
	}
	e.facts = e.makeFacts()
	return e.makeFingerprints()
}

func (o Options) withDefaults(m *Model) (Options, error) {
	setDefault(&o.Slots, DefaultSlots)
	setDefault(&o.ContextTokens, min(m.facts.ContextTokens, DefaultContextTokens))
	setDefault(&o.PrefillChunk, min(DefaultPrefillChunk, o.ContextTokens))
	setDefault(&o.BatchTokens, max(o.PrefillChunk, o.Slots))
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	checks := []struct {
		field     string
		value     int
		low, high int
	}{
		{"slots", o.Slots, 1, MaxSlots},
		{"context", o.ContextTokens, 16, 1 << 24},
		{"prefill chunk", o.PrefillChunk, 1, o.ContextTokens},
		{"batch tokens", o.BatchTokens, 1, 1 << 20},
		{"threads", o.Threads, 0, runtime.NumCPU()}, // more would spin for processors that others hold, for ever
	}
	for _, c := range checks {
		if c.value < c.low || c.value > c.high {
			return o, &OptionError{c.field, int64(c.value), fmt.Sprintf("use %d to %d", c.low, c.high)}
		}
	}
	if o.ContextTokens > m.facts.ContextTokens {
		return o, &OptionError{"context", int64(o.ContextTokens),
			fmt.Sprintf("model %s was made for %d tokens", m.facts.Name, m.facts.ContextTokens)}
	}
	return o, nil
}

func setDefault(v *int, to int) {
	if *v == 0 {
		*v = to
	}
}

// padContext is the room of a stream: llama.cpp rounds to 256, and a padding row on a full slot needs one more.
func padContext(tokens int) int {
	const block = 256
	return (tokens + 1 + block - 1) / block * block
}

func (e *Engine) create() error {
	threads := e.opts.Threads
	if threads == 0 {
		threads = 1
	}
	params := C.mn_engine_params{
		n_seq_max: C.int32_t(e.shape.streams),
		n_ctx_seq: C.int32_t(e.ctxSeq),
		n_batch:   C.int32_t(max(e.opts.BatchTokens, e.shape.streams)),
		n_threads: C.int32_t(threads),
		audit:     C.bool(e.opts.Audit),

		full_windows: C.bool(e.fullWindows()),
	}
	var cerr C.mn_error
	if e.c = C.mn_engine_new(e.model.c, &params, &cerr); e.c == nil {
		return errors.New(errText(&cerr))
	}
	e.model.engines.Add(1)
	e.threads.Store(int32(threads))
	var facts C.mn_engine_facts
	C.mn_engine_facts_get(e.c, &facts)
	if int(facts.n_ctx_seq) < e.ctxSeq || int(facts.n_seq_max) < e.shape.streams {
		err := fmt.Errorf("llama.cpp made %d streams of %d positions; %d of %d were asked for",
			facts.n_seq_max, facts.n_ctx_seq, e.shape.streams, e.ctxSeq)
		e.Free()
		return err
	}
	e.ctxSeq = int(facts.n_ctx_seq)
	e.lengths = make([]int, e.shape.streams)
	e.bound = make([]*adapter, e.opts.Slots)
	e.rows = make([]C.mn_row, 0, e.shape.streams)
	e.cres = make([]C.mn_result, e.shape.streams)
	e.members = make([]int, 0, e.shape.streams)
	e.results = make([]scheduler.Result, e.shape.streams)
	return nil
}

// fullWindows says that layers with an attention window keep every position. In the ring that they keep otherwise, the window
// of a session may lie wrapped around its end; a state is restored from the ring's start on, so that after a move or a restore
// attention adds up the same positions in another order, and rounds differently.
func (e *Engine) fullWindows() bool { return e.opts.Exact && e.model.facts.Window > 0 }

// windowCells is how many positions of a slot a layer with an attention window has room for, at most.
func (e *Engine) windowCells() int {
	if e.fullWindows() {
		return e.ctxSeq
	}
	return min(e.ctxSeq, padContext(e.model.facts.Window+max(e.opts.BatchTokens, e.shape.streams)))
}

func (e *Engine) makeFacts() scheduler.Facts {
	m := e.model.facts
	return scheduler.Facts{
		Slots:         e.opts.Slots,
		ContextTokens: e.opts.ContextTokens,
		BytesPerToken: e.probes.BytesPerToken,
		FixedBytes:    e.probes.FixedBytes,
		VocabTokens:   m.VocabTokens,
		PrefillChunk:  e.opts.PrefillChunk,
		LeastChunk:    e.leastChunk,
		WeightBytes:   m.Bytes + adapterBytes(e.model.adapters),
		FirstLayer:    0,
		LastLayer:     m.Layers - 1,
		Head:          true,
		Tail:          true,
		Exact:         e.opts.Exact,
		Trim:          e.probes.Trim,
		CanPad:        e.probes.CanPad,
		Audit:         e.opts.Audit,
		Threads:       int(e.threads.Load()),
		Adapters:      e.model.adapterFacts(),
	}
}

// Facts implements scheduler.Engine.
func (e *Engine) Facts() scheduler.Facts { return e.facts }

// Fingerprints implements scheduler.Engine.
func (e *Engine) Fingerprints() scheduler.Fingerprints { return e.prints }

// Probes are what the engine found out about its model at start; constant.
func (e *Engine) Probes() Probes { return e.probes }

// Threads is the number of compute threads in use now. It is below Facts().Threads while the engine has fallen
// back because other work on the machine slowed its steps. Safe for concurrent use.
func (e *Engine) Threads() int { return int(e.threads.Load()) }

// LiveStates is the number of saved states that were not freed yet. Safe for concurrent use.
func (e *Engine) LiveStates() int { return int(e.states.Load()) }

// Interrupt makes the running call and, until Resume, every later one end with scheduler.CauseAborted; slots are left as
// they were before the call. Safe for concurrent use.
func (e *Engine) Interrupt() { e.interrupt(true) }

// Resume ends an Interrupt. Safe for concurrent use.
func (e *Engine) Resume() { e.interrupt(false) }

func (e *Engine) interrupt(on bool) {
	e.life.Lock()
	defer e.life.Unlock()
	if e.c != nil {
		C.mn_interrupt(e.c, C.bool(on))
	}
}

// Free destroys the context. Saved states stay valid.
func (e *Engine) Free() {
	e.enter()
	defer e.leave()
	e.life.Lock()
	defer e.life.Unlock()
	if e.c == nil {
		return
	}
	C.mn_engine_free(e.c)
	e.c = nil
	e.model.engines.Add(-1)
}

// enter guards against a second goroutine: llama.cpp would corrupt its state silently.
func (e *Engine) enter() {
	if !e.busy.CompareAndSwap(false, true) {
		panic("llama: an engine is driven by one goroutine; it was called by two at once")
	}
}

func (e *Engine) leave() { e.busy.Store(false) }

func (e *Engine) checkSlot(slot int) {
	if slot < 0 || slot >= e.opts.Slots {
		panic(fmt.Sprintf("llama: slot %d of an engine with %d", slot, e.opts.Slots))
	}
}
