package goengine

import (
	"fmt"
	"math"

	"github.com/meshnet/node/scheduler"
)

// Mode is the kind of memory the model has.
type Mode uint8

// The modes.
const (
	// Attention keeps a KV cell for each position; it trims to any position.
	Attention Mode = iota
	// Window attends to the newest Config.Window positions only and forgets older ones, so that it
	// trims only where the window before the position is still there.
	Window
	// Recurrent keeps one decaying state of a fixed size: nothing can be trimmed, and no padding removed.
	Recurrent
	// Echo yields the tokens of the session's own prompt, in order and over again, read back from its
	// KV cells: a foreign token in the output is a leak. Temperature is best left at 0.
	Echo
)

// Config describes an engine. Zero values mean the defaults given here.
type Config struct {
	Slots         int // KV streams; 4
	ContextTokens int // positions of each slot; 512
	PrefillChunk  int // the grid, in tokens; 32
	LeastChunk    int // what Facts reports: positions in shorter chunks, and decoded ones, come out otherwise; 0: all come out alike
	Vocab         int // tokens of the vocabulary; 512
	Mode          Mode
	Window        int // positions that Mode Window attends to; 64

	Layers  int // 2
	Dim     int // size of the residual stream; 32
	Heads   int // query heads; 4
	KVHeads int // key and value heads, each shared by Heads/KVHeads query heads; 2
	FFN     int // size of the hidden layer; 64
	Seed    uint64

	// EOG is the token that ends a generation (2), and EOGBias is added to its logit: −1000 makes it
	// never likely, +1000 always. It must be finite.
	EOG     scheduler.Token
	EOGBias float32

	// Adapters are names of adapters. Each shifts what the model makes of every token, by its name and Seed; in Mode Echo none does.
	Adapters []string

	Audit bool // results carry LogitHash and Gap
	Exact bool // what Facts reports; the engine's bits never depend on the crowd, whatever this says

	// OnCall, if set, is told of each engine call before it does anything, on the caller's goroutine;
	// it may block, which holds the call (see Gate). It must not call the engine.
	OnCall func(Call)
}

const (
	defaultEOG scheduler.Token = 2
	// maxVocab keeps every token id exact as a float32, in which Echo stores it.
	maxVocab = 1 << 24
	maxDim   = 1 << 16
	// maxContext bounds the positions of a slot, and with them the lengths a saved state may claim.
	maxContext = 1 << 24
)

func (c Config) withDefaults() Config {
	for _, field := range []struct {
		value    *int
		standard int
	}{
		{&c.Slots, 4}, {&c.ContextTokens, 512}, {&c.PrefillChunk, 32}, {&c.Vocab, 512}, {&c.Window, 64},
		{&c.Layers, 2}, {&c.Dim, 32}, {&c.Heads, 4}, {&c.KVHeads, 2}, {&c.FFN, 64},
	} {
		if *field.value == 0 {
			*field.value = field.standard
		}
	}
	if c.EOG == 0 {
		c.EOG = defaultEOG
	}
	return c
}

func (c Config) validate() error {
	for _, field := range []struct {
		name       string
		value, max int
	}{
		{"Slots", c.Slots, 1 << 16}, {"ContextTokens", c.ContextTokens, maxContext},
		{"PrefillChunk", c.PrefillChunk, maxContext}, {"Vocab", c.Vocab, maxVocab}, {"Window", c.Window, maxContext},
		{"Layers", c.Layers, 1 << 10}, {"Dim", c.Dim, maxDim}, {"Heads", c.Heads, maxDim},
		{"KVHeads", c.KVHeads, maxDim}, {"FFN", c.FFN, maxDim},
	} {
		if field.value < 1 || field.value > field.max {
			return fmt.Errorf("goengine: %s is %d, must be in [1, %d]", field.name, field.value, field.max)
		}
	}
	switch {
	case c.LeastChunk < 0 || c.LeastChunk > (c.PrefillChunk+1)/2:
		return fmt.Errorf("goengine: LeastChunk is %d, must be in [0, %d]", c.LeastChunk, (c.PrefillChunk+1)/2)
	case c.Mode > Echo:
		return fmt.Errorf("goengine: Mode is %d, the largest is %d", c.Mode, Echo)
	case c.Dim%c.Heads != 0 || c.Dim/c.Heads%2 != 0:
		return fmt.Errorf("goengine: Dim is %d, must be an even multiple of Heads (%d)", c.Dim, c.Heads)
	case c.Heads%c.KVHeads != 0:
		return fmt.Errorf("goengine: KVHeads is %d, must divide Heads (%d)", c.KVHeads, c.Heads)
	case c.EOG < 0 || int(c.EOG) >= c.Vocab:
		return fmt.Errorf("goengine: EOG is %d, must be in [0, %d)", c.EOG, c.Vocab)
	case math.IsNaN(float64(c.EOGBias)) || math.IsInf(float64(c.EOGBias), 0):
		return fmt.Errorf("goengine: EOGBias is %v, must be finite", c.EOGBias)
	}
	return nil
}

func (c Config) headDim() int { return c.Dim / c.Heads }
func (c Config) kvDim() int   { return c.KVHeads * c.headDim() }

// cellFloats is the size of one position's KV: [layer][key, value][kvDim]. In Mode Recurrent it is the
// size of the one state: [layer][kvHead][headDim][headDim].
func (c Config) cellFloats() int {
	if c.Mode == Recurrent {
		return c.Layers * c.kvDim() * c.headDim()
	}
	return c.Layers * 2 * c.kvDim()
}

func (c Config) facts(weightBytes int64) scheduler.Facts {
	facts := scheduler.Facts{
		Slots: c.Slots, ContextTokens: c.ContextTokens, VocabTokens: c.Vocab, PrefillChunk: c.PrefillChunk, LeastChunk: c.LeastChunk,
		BytesPerToken: int64(c.cellFloats()) * floatBytes, WeightBytes: weightBytes,
		LastLayer: c.Layers - 1, Head: true, Tail: true,
		Adapters: c.adapters(), Exact: c.Exact, Trim: scheduler.TrimAny, CanPad: true, Audit: c.Audit, Threads: 1,
	}
	switch c.Mode {
	case Window:
		facts.Trim = scheduler.TrimWindow
	case Recurrent:
		facts.Trim, facts.CanPad = scheduler.TrimNone, false
		facts.FixedBytes, facts.BytesPerToken = facts.BytesPerToken, 0
	}
	return facts
}

func (c Config) adapters() []scheduler.Adapter {
	var adapters []scheduler.Adapter
	for _, name := range c.Adapters {
		adapters = append(adapters, scheduler.Adapter{Name: name, Recipe: "shift-" + name})
	}
	return adapters
}

func (c Config) fingerprints() scheduler.Fingerprints {
	restore := fmt.Sprintf("goengine/1 mode=%d window=%d layers=%d dim=%d heads=%d/%d ffn=%d vocab=%d seed=%d",
		c.Mode, c.Window, c.Layers, c.Dim, c.Heads, c.KVHeads, c.FFN, c.Vocab, c.Seed)
	return scheduler.Fingerprints{
		Restore: restore,
		Exact:   fmt.Sprintf("%s chunk=%d/%d exact=%t", restore, c.PrefillChunk, c.LeastChunk, c.Exact),
	}
}
