package goengine_test

import (
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/scheduler"
)

func TestConfigErrorsNameTheField(t *testing.T) {
	for field, cfg := range map[string]goengine.Config{
		"Slots":         {Slots: -1},
		"ContextTokens": {ContextTokens: 1 << 30},
		"PrefillChunk":  {PrefillChunk: -5},
		"Vocab":         {Vocab: 1<<24 + 1},
		"Mode":          {Mode: 9},
		"Window":        {Window: -1},
		"Dim":           {Dim: 12},
		"KVHeads":       {KVHeads: 3},
		"EOG":           {EOG: 512},
		"EOGBias":       {EOGBias: float32(math.NaN())},
	} {
		if _, err := goengine.New(cfg); err == nil || !strings.Contains(err.Error(), "goengine: "+field+" is") {
			t.Errorf("%s: error is %v", field, err)
		}
	}
}

func TestFactsDescribeTheEngine(t *testing.T) {
	cfg := goengine.Config{Audit: true, Exact: true}
	want := scheduler.Facts{
		Slots: 4, ContextTokens: 512, VocabTokens: 512, PrefillChunk: 32, LastLayer: 1, Head: true, Tail: true,
		BytesPerToken: 2 * 2 * 16 * 4, Exact: true, Trim: scheduler.TrimAny, CanPad: true, Audit: true, Threads: 1,
		WeightBytes: 4 * (2*512*32 + 32 + 2*(2*32*32+2*16*32+3*64*32+2*32)),
	}
	if got := newEngine(t, cfg).Facts(); !reflect.DeepEqual(got, want) {
		t.Errorf("facts are %+v\nwant      %+v", got, want)
	}
	cfg.Mode = goengine.Recurrent
	want.Trim, want.CanPad, want.BytesPerToken, want.FixedBytes = scheduler.TrimNone, false, 0, 2*2*8*8*4
	if got := newEngine(t, cfg).Facts(); !reflect.DeepEqual(got, want) {
		t.Errorf("recurrent facts are %+v\nwant                %+v", got, want)
	}
}

// TestMisusePanics: what the contract says an engine never sees. Token ids as in llama.cpp#12178.
func TestMisusePanics(t *testing.T) {
	none := scheduler.NoToken
	for name, misuse := range map[string]func(e *goengine.Engine){
		"slot below":    func(e *goengine.Engine) { e.Release(-1) },
		"slot above":    func(e *goengine.Engine) { e.Close(4) },
		"token −1":      func(e *goengine.Engine) { e.Prefill(scheduler.Chunk{Slot: 1, Tokens: tokens{-1}, Forced: none}) },
		"token n_vocab": func(e *goengine.Engine) { e.Prefill(scheduler.Chunk{Slot: 1, Tokens: tokens{512}, Forced: none}) },
		"token in history": func(e *goengine.Engine) {
			_ = e.Open(1, greedy, tokens{math.MaxInt32})
		},
		"empty chunk": func(e *goengine.Engine) { e.Prefill(scheduler.Chunk{Slot: 1, Forced: none}) },
		"chunk over the grid": func(e *goengine.Engine) {
			e.Prefill(scheduler.Chunk{Slot: 1, Pos: 31, Tokens: tokens{5, 6}, Forced: none})
		},
		"chunk over the context": func(e *goengine.Engine) {
			e.Prefill(scheduler.Chunk{Slot: 1, Pos: 512, Tokens: tokens{5}, Forced: none})
		},
		"last chunk without sampler": func(e *goengine.Engine) {
			e.Prefill(scheduler.Chunk{Slot: 1, Tokens: tokens{5}, Last: true, Forced: none})
		},
		"forced token before the last chunk": func(e *goengine.Engine) {
			e.Prefill(scheduler.Chunk{Slot: 1, Tokens: tokens{5}})
		},
		"row over the context": func(e *goengine.Engine) { e.Decode([]scheduler.Row{{Pos: 512, Token: 5, Forced: none}}) },
		"row without sampler":  func(e *goengine.Engine) { e.Decode([]scheduler.Row{{Slot: 1, Token: 5, Forced: none}}) },
		"row with a forced token outside": func(e *goengine.Engine) {
			e.Decode([]scheduler.Row{{Pos: 5, Token: 5, Forced: 512}})
		},
		"rows out of order": func(e *goengine.Engine) {
			e.Decode([]scheduler.Row{{Slot: 2, Pos: 5, Token: 5, Forced: none}, {Slot: 0, Pos: 5, Token: 5, Forced: none}})
		},
		"slot twice": func(e *goengine.Engine) {
			e.Decode([]scheduler.Row{{Pos: 5, Token: 5, Forced: none}, {Pos: 6, Token: 5, Forced: none}})
		},
		"second sampler":    func(e *goengine.Engine) { _ = e.Open(0, greedy, nil) },
		"trim below":        func(e *goengine.Engine) { _ = e.Trim(0, -1) },
		"exactLen above":    func(e *goengine.Engine) { _, _ = e.Save(0, 513) },
		"move onto another": func(e *goengine.Engine) { _ = e.Move(0, 2) },
		"restore onto another": func(e *goengine.Engine) {
			state, _ := e.Save(0, 0)
			_ = e.Restore(2, state)
		},
	} {
		e := newEngine(t, goengine.Config{})
		start(t, e, 0, prompt(1, 5), greedy)
		start(t, e, 2, prompt(2, 5), greedy)
		mustPanic(t, name, func() { misuse(e) })
	}
}

func TestConcurrentUsePanics(t *testing.T) {
	gate := goengine.NewGate()
	e := newEngine(t, goengine.Config{OnCall: gate.Hold})
	done := make(chan struct{})
	go func() {
		defer close(done)
		e.Release(0)
	}()
	<-gate.Arrived()
	mustPanic(t, "a second call", func() { e.Fingerprints() })
	if e.Facts().Slots != 4 || e.KVBytes() != 0 || e.LiveStates() != 0 { // these are safe
		t.Error("wrong facts")
	}
	gate.Open()
	<-done
	e.Fingerprints() // the first call has ended
}
