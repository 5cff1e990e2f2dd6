package goengine_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/scheduler"
)

// drawn has every sampler on.
var drawn = scheduler.Sampling{
	Temperature: 0.9, TopK: 50, TypicalP: 0.97, TopP: 0.95, MinP: 0.01,
	RepeatPenalty: 1.2, PresencePenalty: 0.1, FrequencyPenalty: 0.1, PenaltyLastN: 24,
	DRYMultiplier: 0.8, DRYBase: 1.75, DRYAllowedLength: 1, DRYPenaltyLastN: 64,
	XTCProbability: 0.5, XTCThreshold: 0.05, LogitBias: []scheduler.Bias{{Token: 5, Bias: 1}, {Token: 6, Bias: -1}}, Seed: 42,
}

var memoryModes = map[string]goengine.Mode{
	"attention": goengine.Attention, "window": goengine.Window, "recurrent": goengine.Recurrent,
}

// forEachMode runs a test for each mode that computes with its memory, under a small grid and window.
func forEachMode(t *testing.T, test func(t *testing.T, cfg goengine.Config)) {
	for name, mode := range memoryModes {
		t.Run(name, func(t *testing.T) {
			test(t, goengine.Config{Mode: mode, Slots: 4, ContextTokens: 128, PrefillChunk: 16, Window: 24, Seed: 7})
		})
	}
}

func TestDecodedPositionsHaveThePrefilledBits(t *testing.T) {
	forEachMode(t, func(t *testing.T, cfg goengine.Config) {
		p := prompt(1, 37)
		decoded := alone(t, cfg, p, 40, scheduler.DefaultSampling())
		for k := range decoded {
			whole := append(slices.Clone(p), text(decoded[:k])...)
			sameResults(t, fmt.Sprintf("prefill of %d", len(whole)), alone(t, cfg, whole, 1, scheduler.DefaultSampling()), decoded[k:k+1])
		}
	})
}

func TestChunkSizeDoesNotChangeBits(t *testing.T) {
	forEachMode(t, func(t *testing.T, cfg goengine.Config) {
		want := alone(t, cfg, prompt(2, 65), 20, drawn)
		for _, chunk := range []int{1, 7, 64, 128} {
			cfg.PrefillChunk = chunk
			sameResults(t, fmt.Sprintf("chunk %d", chunk), alone(t, cfg, prompt(2, 65), 20, drawn), want)
		}
	})
}

func TestCrowdHasTheBitsOfEachAlone(t *testing.T) {
	forEachMode(t, func(t *testing.T, cfg goengine.Config) {
		cfg.Slots = 8
		const n = 24
		e := newEngine(t, cfg)
		var crowd []*session
		for slot := range cfg.Slots { // they join one at a time, beside others that decode
			sampling := drawn
			if slot%2 == 0 {
				sampling = scheduler.DefaultSampling()
			}
			crowd = append(crowd, start(t, e, slot, prompt(uint64(slot), 5+9*slot), sampling))
			step(t, e, crowd...)
		}
		for range n {
			step(t, e, crowd...)
		}
		for slot, s := range crowd {
			want := alone(t, cfg, prompt(uint64(slot), 5+9*slot), s.made, s.sampling())
			sameResults(t, fmt.Sprintf("slot %d", slot), s.all, want)
		}
	})
}

func (s *session) sampling() scheduler.Sampling {
	if s.slot%2 == 0 {
		return scheduler.DefaultSampling()
	}
	return drawn
}

func TestGreedyOutputDependsOnThePrompt(t *testing.T) {
	seen := map[string]bool{}
	for seed := range uint64(20) {
		out := text(alone(t, goengine.Config{}, prompt(seed, 30), 20, scheduler.DefaultSampling()))
		seen[fmt.Sprint(out)] = true
		slices.Sort(out)
		if distinct := len(slices.Compact(out)); distinct < 8 {
			t.Errorf("prompt %d: %d distinct tokens of 20, want at least 8", seed, distinct)
		}
	}
	if len(seen) != 20 {
		t.Errorf("%d different outputs of 20 prompts", len(seen))
	}
}

func TestSavedStateContinuesExactlyInAnotherSlot(t *testing.T) {
	forEachMode(t, func(t *testing.T, cfg goengine.Config) {
		p := prompt(3, 40)
		want := alone(t, cfg, p, 60, scheduler.DefaultSampling())
		e := newEngine(t, cfg)
		s := start(t, e, 0, p, scheduler.DefaultSampling())
		for s.made < 30 {
			step(t, e, s)
		}
		state, err := e.Save(0, 40)
		if err != nil {
			t.Fatal(err)
		}
		if state.Tokens() != 69 || state.ExactLen() != 40 || state.Bytes() != int64(len(goengine.Blob(state))) {
			t.Errorf("state of %d tokens, exact %d, %d bytes; want 69, 40, %d",
				state.Tokens(), state.ExactLen(), state.Bytes(), len(goengine.Blob(state)))
		}
		e.Release(0)
		for slot := range 4 { // the same state into each
			if err := e.Restore(slot, state); err != nil {
				t.Fatal(err)
			}
			if err := e.Open(slot, scheduler.DefaultSampling(), p); err != nil {
				t.Fatal(err)
			}
			copied := *s
			copied.slot = slot
			copied.all = slices.Clone(s.all)
			for copied.made < 60 {
				step(t, e, &copied)
			}
			sameResults(t, fmt.Sprintf("slot %d", slot), copied.all, want)
		}
		state.Free()
	})
}

func TestMoveKeepsKVAndSampler(t *testing.T) {
	forEachMode(t, func(t *testing.T, cfg goengine.Config) {
		p := prompt(4, 21)
		want := alone(t, cfg, p, 40, drawn)
		e := newEngine(t, cfg)
		s := start(t, e, 3, p, drawn)
		for slot := range 3 {
			for range 10 {
				step(t, e, s)
			}
			if err := e.Move(s.slot, slot); err != nil {
				t.Fatal(err)
			}
			// A newcomer in the slot that was left must not matter.
			start(t, e, s.slot, prompt(9, 30), drawn)
			e.Release(s.slot)
			s.slot = slot
			if got, want := e.KVBytes(), e.Facts().KVBytes(s.pos); got != want {
				t.Errorf("%d KV bytes after the move, want %d", got, want)
			}
		}
		for s.made < 40 {
			step(t, e, s)
		}
		sameResults(t, "moved", s.all, want)
	})
}

func TestTrimmedSlotContinuesExactly(t *testing.T) {
	cfg := goengine.Config{Seed: 3}
	p := prompt(5, 50)
	want := alone(t, cfg, p, 30, scheduler.DefaultSampling())
	e := newEngine(t, cfg)
	start(t, e, 0, append(slices.Clone(p[:33]), prompt(6, 40)...), scheduler.DefaultSampling())
	e.Close(0)
	if err := e.Trim(0, 33); err != nil {
		t.Fatal(err)
	}
	if err := e.Open(0, scheduler.DefaultSampling(), p); err != nil {
		t.Fatal(err)
	}
	s := &session{t: t, e: e}
	s.prefill(p, 33)
	for s.made < 30 {
		step(t, e, s)
	}
	sameResults(t, "trimmed", s.all, want)
}

func TestOddShapesAreExactToo(t *testing.T) {
	cfg := goengine.Config{Vocab: 509, Layers: 1, Dim: 18, Heads: 3, KVHeads: 1, FFN: 37, PrefillChunk: 5}
	p := prompt(8, 23)
	for i := range p {
		p[i] %= 509
	}
	decoded := alone(t, cfg, p, 10, drawn)
	whole := append(slices.Clone(p), text(decoded[:9])...)
	if got := alone(t, cfg, whole, 1, drawn)[0]; got.LogitHash != decoded[9].LogitHash {
		t.Errorf("prefilled hash %x, decoded %x", got.LogitHash, decoded[9].LogitHash)
	}
}

func TestWindowForgetsWhatItCannotSee(t *testing.T) {
	cfg := goengine.Config{Mode: goengine.Window, Layers: 1, Window: 8}
	a, b := prompt(1, 40), prompt(1, 40)
	b[31]++ // 9 positions back: not seen from the last position
	greedy := scheduler.DefaultSampling()
	sameResults(t, "outside the window", alone(t, cfg, b, 1, greedy), alone(t, cfg, a, 1, greedy))
	b[32]++
	if alone(t, cfg, b, 1, greedy)[0] == alone(t, cfg, a, 1, greedy)[0] {
		t.Error("the oldest position of the window does not matter")
	}
}

// A window that was trimmed lacks positions that one which just reached its length still has.
func TestTrimmedWindowIsSavedExactly(t *testing.T) {
	cfg := goengine.Config{Mode: goengine.Window, ContextTokens: 128, PrefillChunk: 16, Window: 24}
	p := prompt(1, 100)
	e := newEngine(t, cfg)
	start(t, e, 0, p, greedy)
	if err := e.Trim(0, 85); err != nil {
		t.Fatal(err)
	}
	state, err := e.Save(0, 85)
	if err != nil {
		t.Fatal(err)
	}
	defer state.Free()
	if err := errors.Join(e.Restore(1, state), e.Open(1, greedy, p)); err != nil {
		t.Fatal(err)
	}
	s := &session{t: t, e: e, slot: 1}
	s.prefill(p, 85)
	for s.made < 20 {
		step(t, e, s)
	}
	sameResults(t, "restored", s.all, alone(t, cfg, p, 20, greedy))
	e.Release(1)
	if err := e.Restore(1, state); err != nil {
		t.Fatal(err)
	}
	mustBe(t, e.Trim(1, 82), scheduler.ErrTrimRefused) // what was forgotten stays forgotten
}

func TestTrimFollowsTheMode(t *testing.T) {
	cfg := goengine.Config{ContextTokens: 128, PrefillChunk: 16, Window: 24}
	for _, c := range []struct {
		name    string
		mode    goengine.Mode
		keep    int
		refused bool
	}{
		{"attention trims to any position", goengine.Attention, 1, false},
		{"window trims where the window is still there", goengine.Window, 83, false},
		{"window refuses one position further back", goengine.Window, 82, true},
		{"recurrent refuses one position", goengine.Recurrent, 99, true},
		{"recurrent can be emptied", goengine.Recurrent, 0, false},
		{"keeping all is never refused", goengine.Recurrent, 100, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg.Mode = c.mode
			e := newEngine(t, cfg)
			start(t, e, 0, prompt(1, 100), scheduler.DefaultSampling())
			err := e.Trim(0, c.keep)
			want := c.keep
			if c.refused {
				want = 0
				mustBe(t, err, scheduler.ErrTrimRefused)
			} else if err != nil {
				t.Error(err)
			}
			if got := e.KVBytes(); got != e.Facts().KVBytes(want) {
				t.Errorf("%d KV bytes, want %d", got, e.Facts().KVBytes(want))
			}
		})
	}
}

func TestEchoRepeatsItsOwnPrompt(t *testing.T) {
	cfg := goengine.Config{Mode: goengine.Echo, Slots: 3}
	e := newEngine(t, cfg)
	var crowd []*session
	for slot := range 3 {
		crowd = append(crowd, start(t, e, slot, prompt(uint64(slot), 10+slot), scheduler.DefaultSampling()))
	}
	for range 30 {
		step(t, e, crowd...)
	}
	for slot, s := range crowd {
		p := prompt(uint64(slot), 10+slot)
		for i, got := range text(s.all) {
			if want := p[i%len(p)]; got != want {
				t.Fatalf("slot %d: token %d is %d, want %d", slot, i, got, want)
			}
		}
	}
}

func TestKVBytesAndStatesReturnToZero(t *testing.T) {
	forEachMode(t, func(t *testing.T, cfg goengine.Config) {
		e := newEngine(t, cfg)
		start(t, e, 0, prompt(1, 20), drawn)
		start(t, e, 2, prompt(2, 33), drawn)
		facts := e.Facts()
		if got, want := e.KVBytes(), facts.KVBytes(20)+facts.KVBytes(33); got != want {
			t.Errorf("%d KV bytes, want %d", got, want)
		}
		state, err := e.Save(2, 0)
		if err != nil {
			t.Fatal(err)
		}
		if e.LiveStates() != 1 {
			t.Errorf("%d live states, want 1", e.LiveStates())
		}
		state.Free()
		e.Close(0)
		if got, want := e.KVBytes(), facts.KVBytes(20)+facts.KVBytes(33); got != want {
			t.Errorf("%d KV bytes after Close, want %d", got, want)
		}
		for range 2 { // idempotent
			e.Close(0)
			e.Release(0)
			e.Release(2)
		}
		if e.KVBytes() != 0 || e.LiveStates() != 0 {
			t.Errorf("%d KV bytes and %d states are left", e.KVBytes(), e.LiveStates())
		}
	})
}

func TestWrongPositionIsAMissThatEvaluatesNothing(t *testing.T) {
	e := newEngine(t, goengine.Config{})
	s := start(t, e, 0, prompt(1, 20), scheduler.DefaultSampling())
	for _, pos := range []int{0, 19, 21} {
		row := s.row()
		row.Pos = pos
		if r := e.Decode([]scheduler.Row{row})[0]; r.Outcome != scheduler.OutcomeMiss {
			t.Errorf("row at position %d of 20 came to %+v, want a miss", pos, r)
		}
		r := e.Prefill(scheduler.Chunk{Slot: 0, Pos: pos, Tokens: tokens{5}, Last: true, Forced: scheduler.NoToken})
		if r.Outcome != scheduler.OutcomeMiss {
			t.Errorf("chunk at position %d of 20 came to %+v, want a miss", pos, r)
		}
	}
	for s.made < 10 {
		step(t, e, s)
	}
	sameResults(t, "after misses", s.all, alone(t, goengine.Config{}, prompt(1, 20), 10, scheduler.DefaultSampling()))
}

func TestForcedTokensReplayATurnExactly(t *testing.T) {
	cfg := goengine.Config{Seed: 11}
	p := prompt(7, 30)
	want := alone(t, cfg, p, 30, drawn)
	e := newEngine(t, cfg)
	if err := e.Open(0, drawn, p); err != nil {
		t.Fatal(err)
	}
	s := &session{t: t, e: e, pos: len(p)}
	s.took(e.Prefill(scheduler.Chunk{Tokens: p, Last: true, Forced: want[0].Token}))
	for s.made < 30 {
		row := s.row()
		if s.made < 17 {
			row.Forced = want[s.made].Token
		}
		s.took(e.Decode([]scheduler.Row{row})[0])
		s.pos++
	}
	sameResults(t, "replayed", s.all, want)
}
