package goengine

import (
	"sync"

	"github.com/meshnet/node/scheduler"
)

// Op is an engine method.
type Op string

// The ops. Facts is none: it is not a call into the model.
const (
	OpFingerprints Op = "fingerprints"
	OpBind         Op = "bind"
	OpOpen         Op = "open"
	OpPrefill      Op = "prefill"
	OpDecode       Op = "decode"
	OpSave         Op = "save"
	OpRestore      Op = "restore"
	OpTrim         Op = "trim"
	OpMove         Op = "move"
	OpClose        Op = "close"
	OpRelease      Op = "release"
)

// Call describes an engine call to Config.OnCall.
type Call struct {
	Op     Op
	Slot   int             // AnySlot for OpDecode and OpFingerprints
	To     int             // OpMove: the target
	Pos    int             // OpPrefill: position of the first token; OpTrim: positions kept; OpSave: exactLen
	Tokens int             // tokens evaluated; OpOpen: of the history; OpRestore: of the state
	Last   bool            // OpPrefill: the prompt's last chunk
	Rows   []scheduler.Row // OpDecode; the caller's slice, valid until the hook returns
}

// touches says whether the call concerns a slot.
func (c Call) touches(slot int) bool {
	if slot == AnySlot || c.Slot == slot || c.Op == OpMove && c.To == slot {
		return true
	}
	for _, row := range c.Rows {
		if row.Slot == slot {
			return true
		}
	}
	return false
}

// enter begins a call: it claims the engine, tells the hook and hangs where a fault says so.
func (e *Engine) enter(call Call) {
	if !e.busy.CompareAndSwap(false, true) {
		panic("goengine: " + string(call.Op) + " while another call runs; an engine belongs to one goroutine at a time")
	}
	if e.cfg.OnCall != nil {
		e.cfg.OnCall(call)
	}
	e.faults.hang(call)
}

func (e *Engine) leave() { e.busy.Store(false) }

// Gate holds engine calls until a test lets them go; give its Hold as Config.OnCall. Safe for concurrent use.
type Gate struct {
	ops     map[Op]bool // constant
	arrived chan Call
	pass    chan struct{}
	opened  chan struct{}
	open    sync.Once
}

// NewGate makes a gate for some ops, or, where none is named, for all.
func NewGate(ops ...Op) *Gate {
	g := &Gate{ops: map[Op]bool{}, arrived: make(chan Call), pass: make(chan struct{}), opened: make(chan struct{})}
	for _, op := range ops {
		g.ops[op] = true
	}
	return g
}

// Hold blocks until the call has been received from Arrived and let through by Pass, or the gate is open.
func (g *Gate) Hold(call Call) {
	if len(g.ops) > 0 && !g.ops[call.Op] {
		return
	}
	select {
	case g.arrived <- call:
	case <-g.opened:
		return
	}
	select {
	case <-g.pass:
	case <-g.opened:
	}
}

// Arrived yields each call that has come to the gate, once. Its Rows are valid until it is let through.
func (g *Gate) Arrived() <-chan Call { return g.arrived }

// Pass lets the call through that was received from Arrived. It blocks while there is none, unless the gate is open.
func (g *Gate) Pass() {
	select {
	case g.pass <- struct{}{}:
	case <-g.opened:
	}
}

// Open lets the held call and all later ones through. Idempotent.
func (g *Gate) Open() { g.open.Do(func() { close(g.opened) }) }
