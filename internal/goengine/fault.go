package goengine

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/meshnet/node/scheduler"
)

// AnySlot stands for every slot in a Fault, and for none in particular in a Call.
const AnySlot = -1

// FaultKind is a way to fail. Where nothing else is said, each call of the op that concerns Fault.Slot is one occasion.
type FaultKind uint8

// The faults.
const (
	// FaultNoKV: a decode row of the slot is not evaluated and reports CauseNoKV; the other rows are exact.
	FaultNoKV FaultKind = iota + 1
	// FaultFatal: the backend fails with half of a decode batch done. The rows done are trimmed back. Then, with
	// AnySlot, all rows report CauseFatal; else only the slot's does and the others are evaluated again. In
	// Mode Recurrent the rows that were done end too.
	FaultFatal
	// FaultHang: a call that concerns the slot, closes Begun and waits until Until is closed.
	FaultHang
	// FaultMiss: a chunk or row of the slot finds that its KV is gone.
	FaultMiss
	// FaultTooFew and FaultTooMany: Decode returns one result less or more than there are rows.
	FaultTooFew
	FaultTooMany
	// FaultNaN: one logit of the slot's row, or of its prompt's last chunk, is not a number.
	FaultNaN
	// FaultSampler: all logits of such a row are −∞, so that no token can be chosen (CauseSampler).
	FaultSampler
	// FaultPrefill: a chunk of the slot fails (CauseFatal) with half of its tokens in the KV.
	FaultPrefill
	// FaultOpen, FaultTrimRefused, FaultSave, FaultRestore and FaultMove: the call returns an error, with
	// the effects that the contract gives it.
	FaultOpen
	FaultTrimRefused
	FaultSave
	FaultRestore
	FaultMove
	// FaultFingerprint: Fingerprints returns others.
	FaultFingerprint

	// The corruptions, which no result tells of.

	// FaultSwapRows: the logits of the decode rows of Slot and Other are swapped, in batches that hold both.
	FaultSwapRows
	// FaultCopyCell: before a chunk or decode batch with the slot, its KV cell at Pos in Layer becomes that
	// of slot Other. Every call with a row or chunk of the slot is an occasion.
	FaultCopyCell
	// FaultStaleSlot: Release does not drop the KV, and the slot's next session begins on top of its first cells.
	FaultStaleSlot
)

// Fault is one scripted failure. It lets After occasions pass and strikes at the next Times.
type Fault struct {
	Kind  FaultKind
	Slot  int // AnySlot for all; one occasion a row where rows fail one by one
	After int // occasions that pass unharmed first
	Times int // how often it strikes; 0 is for ever

	In         Op                    // only calls of this op are occasions; empty is any
	Cause      scheduler.EngineCause // FaultNoKV and FaultPrefill: another cause than the usual one
	Other      int                   // FaultSwapRows: the other slot; FaultCopyCell: the donor
	Pos, Layer int                   // FaultCopyCell
	Begun      chan<- struct{}       // FaultHang: closed when the call hangs; may be nil
	Until      <-chan struct{}       // FaultHang: the call goes on when this is closed
}

func (f *Fault) cause(usual scheduler.EngineCause) scheduler.EngineCause {
	if f.Cause != "" {
		return f.Cause
	}
	return usual
}

func (f *Fault) error(format string, args ...any) error {
	return fmt.Errorf("goengine: injected fault: "+format, args...)
}

// Injected is a fault that an engine carries. Safe for concurrent use.
type Injected struct {
	owner  *faults
	fault  Fault
	passed int // under owner.mu
	struck int // under owner.mu
}

// Struck is how often the fault has struck.
func (i *Injected) Struck() int {
	i.owner.mu.Lock()
	defer i.owner.mu.Unlock()
	return i.struck
}

// Remove ends the fault. Idempotent.
func (i *Injected) Remove() {
	i.owner.mu.Lock()
	defer i.owner.mu.Unlock()
	i.owner.list = slices.DeleteFunc(i.owner.list, func(other *Injected) bool { return other == i })
	i.owner.count.Store(int32(len(i.owner.list)))
}

// Inject adds a fault. Safe for concurrent use, also while a call runs. A fault that could never strike as described panics.
func (e *Engine) Inject(fault Fault) *Injected {
	e.checkFault(fault)
	injected := &Injected{owner: &e.faults, fault: fault}
	e.faults.mu.Lock()
	defer e.faults.mu.Unlock()
	e.faults.list = append(e.faults.list, injected)
	e.faults.count.Store(int32(len(e.faults.list)))
	return injected
}

func (e *Engine) checkFault(f Fault) {
	if f.Slot != AnySlot {
		e.slot(f.Slot)
	}
	switch {
	case f.Kind < FaultNoKV || f.Kind > FaultStaleSlot:
		panic(fmt.Sprintf("goengine: Inject of fault kind %d", f.Kind))
	case f.After < 0 || f.Times < 0:
		panic(fmt.Sprintf("goengine: Inject with After %d and Times %d, must be at least 0", f.After, f.Times))
	case f.Kind == FaultHang && f.Until == nil:
		panic("goengine: Inject of FaultHang without Until")
	case f.Kind == FaultHang && f.Begun != nil && f.Times != 1:
		panic("goengine: Inject of FaultHang with Begun, which closes once, must have Times 1")
	}
	if f.Kind != FaultSwapRows && f.Kind != FaultCopyCell {
		return
	}
	e.slot(f.Slot)
	e.slot(f.Other)
	if f.Kind == FaultSwapRows {
		return
	}
	switch {
	case f.Pos < 0 || f.Pos >= e.cfg.ContextTokens || f.Layer < 0 || f.Layer >= e.cfg.Layers:
		panic(fmt.Sprintf("goengine: Inject of FaultCopyCell at position %d in layer %d", f.Pos, f.Layer))
	case e.cfg.Mode == Recurrent:
		panic("goengine: Inject of FaultCopyCell in Mode Recurrent, which has no cells")
	}
}

// faults are those injected into one engine.
type faults struct {
	count atomic.Int32 // len(list), so that an engine without faults takes no lock
	mu    sync.Mutex
	list  []*Injected // under mu
}

// strike counts an occasion and returns the fault that strikes at it, or nil. The occasion concerns slot, or
// the slots of rows.
func (f *faults) strike(kind FaultKind, op Op, rows []scheduler.Row, slot int) *Fault {
	if f.count.Load() == 0 {
		return nil
	}
	return f.strikeCall(kind, Call{Op: op, Slot: slot, Rows: rows})
}

func (f *faults) strikeCall(kind FaultKind, call Call) *Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, i := range f.list {
		switch {
		case i.fault.Kind != kind || !call.touches(i.fault.Slot) || i.fault.In != "" && i.fault.In != call.Op:
		case kind == FaultSwapRows && !call.touches(i.fault.Other):
		case i.passed < i.fault.After:
			i.passed++
		case i.fault.Times == 0 || i.struck < i.fault.Times:
			i.struck++
			return &i.fault
		}
	}
	return nil
}

func (f *faults) hang(call Call) {
	if f.count.Load() == 0 {
		return
	}
	fault := f.strikeCall(FaultHang, call)
	if fault == nil {
		return
	}
	if fault.Begun != nil {
		close(fault.Begun)
	}
	<-fault.Until
}

// spoil ruins a logit row where a fault says so.
func (e *Engine) spoil(slot int, op Op, row []float32) {
	if e.faults.strike(FaultNaN, op, nil, slot) != nil {
		row[len(row)/2] = float32(math.NaN())
	}
	if e.faults.strike(FaultSampler, op, nil, slot) != nil {
		for i := range row {
			row[i] = float32(math.Inf(-1))
		}
	}
}

func (e *Engine) swapRows(rows []scheduler.Row) {
	f := e.faults.strike(FaultSwapRows, OpDecode, rows, AnySlot)
	if f == nil {
		return
	}
	at := func(slot int) int {
		return slices.IndexFunc(rows, func(row scheduler.Row) bool { return row.Slot == slot })
	}
	i, j := at(f.Slot), at(f.Other)
	e.logits[i], e.logits[j] = e.logits[j], e.logits[i]
}

func (e *Engine) copyCells(rows []scheduler.Row, slot int) {
	op := OpDecode
	if rows == nil {
		op = OpPrefill
	}
	f := e.faults.strike(FaultCopyCell, op, rows, slot)
	if f == nil {
		return
	}
	size := 2 * e.cfg.kvDim()
	at := f.Pos*e.cfg.cellFloats() + f.Layer*size
	copy(e.slots[f.Slot].kv[at:at+size], e.slots[f.Other].kv[at:at+size])
}

func (e *Engine) miscount(rows []scheduler.Row, results []scheduler.Result) []scheduler.Result {
	if len(rows) > 0 && e.faults.strike(FaultTooFew, OpDecode, rows, AnySlot) != nil {
		return results[:len(results)-1]
	}
	if e.faults.strike(FaultTooMany, OpDecode, rows, AnySlot) != nil {
		results = e.results[:len(rows)+1]
		results[len(rows)] = scheduler.Result{Outcome: scheduler.OutcomeToken}
	}
	return results
}
