package llama_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/meshnet/node/llama"
	"github.com/meshnet/node/scheduler"
)

// Models whose state is not, or not only, KV of every position.
const (
	recurrent = "mamba"
	hybrid    = "hybrid"
	windowed  = "swa"
)

func TestProbesOfOtherKindsOfModels(t *testing.T) {
	// K and V of two heads of 16 in half precision, in one layer.
	const layer = 2 * 16 * 2 * 2
	for name, want := range map[string]llama.Probes{
		recurrent: {Trim: scheduler.TrimNone},
		hybrid:    {Trim: scheduler.TrimNone, BytesPerToken: 2 * layer, WindowBytes: 2 * layer},
		windowed:  {Trim: scheduler.TrimWindow, CanPad: true, BytesPerToken: 4 * layer, WindowBytes: 2 * layer},
	} {
		got := newRig(t, random(t, name), llama.Options{Slots: 2}).Probes()
		want.FlashAttention = got.FlashAttention
		// A layer's recurrent state: 128 inner channels of 16, and 3 of the convolution, in single precision.
		if fixed := map[string]int64{recurrent: 4, hybrid: 2}[name] * 128 * (16 + 3) * 4; got.FixedBytes < fixed || got.FixedBytes > fixed+256 {
			t.Errorf("%s: %d fixed bytes; want %d and a small header", name, got.FixedBytes, fixed)
		}
		want.FixedBytes = got.FixedBytes
		if got != want {
			t.Errorf("%s: got %+v\nwant %+v", name, got, want)
		}
	}
}

func TestOtherKindsOfModelsGiveTheTokensOfAloneInACrowd(t *testing.T) {
	for _, name := range []string{recurrent, hybrid, windowed} {
		for _, exact := range []bool{false, true} {
			for _, slots := range [][]int{{0, 1, 2, 3}, {0, 2, 3}} {
				t.Run(fmt.Sprint(name, " exact ", exact, " slots ", slots), func(t *testing.T) {
					r := newRig(t, random(t, name), llama.Options{Slots: 4, ContextTokens: 512, Exact: exact})
					for _, s := range crowd(r, slots, greedy(), 16) {
						alone := r.generate(0, greedy(), crowdPrompt(r, s.slot), 16)
						equal(t, fmt.Sprintf("tokens of slot %d", s.slot), s.out, alone.out)
					}
				})
			}
		}
	}
}

func TestOtherKindsOfModelsRestoreAndMove(t *testing.T) {
	for _, name := range []string{recurrent, hybrid, windowed} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, random(t, name), llama.Options{Slots: 4, ContextTokens: 1024, Audit: true})
			for _, length := range []int{20, 200, 900} {
				prompt := r.prompt(tale, length)
				want := r.generate(0, greedy(), prompt, 12)
				s := r.begin(0, greedy(), prompt)
				r.steps(3, s)
				st := r.save(0)
				if err := r.Move(0, 2); err != nil {
					t.Fatal(err)
				}
				s.slot = 2
				r.restore(3, st)
				st.Free()
				if err := r.Open(3, greedy(), prompt); err != nil {
					t.Fatal(err)
				}
				restored := &session{slot: 3, kept: s.kept, newest: s.newest, index: s.index}
				r.steps(8, s)
				r.steps(8, restored)
				equal(t, fmt.Sprintf("hashes after a move, prompt of %d", length), s.hashes, want.hashes)
				equal(t, fmt.Sprintf("hashes after a restore, prompt of %d", length), restored.hashes, want.hashes[4:])
				r.Release(2)
				r.Release(3)
			}
		})
	}
}

// Prompts whose window lies wrapped around the end of a ring of 256 cells, as chunks of 16 tokens fill it.
func TestExactWindowedSessionsGiveTheSameBitsAfterAMoveAndARestore(t *testing.T) {
	r := newRig(t, random(t, windowed), llama.Options{Slots: 4, ContextTokens: 512, PrefillChunk: 16, Exact: true, Audit: true})
	for _, length := range []int{100, 250, 256, 280, 300, 499} {
		prompt := r.prompt(tale, length)
		want := r.generate(0, greedy(), prompt, 12)
		s := r.begin(0, greedy(), prompt)
		r.steps(3, s)
		st := r.save(0)
		if err := r.Move(0, 2); err != nil {
			t.Fatal(err)
		}
		s.slot = 2
		r.restore(3, st)
		st.Free()
		if err := r.Open(3, greedy(), prompt); err != nil {
			t.Fatal(err)
		}
		restored := &session{slot: 3, kept: s.kept, newest: s.newest, index: s.index}
		r.steps(8, s)
		r.steps(8, restored)
		equal(t, fmt.Sprintf("hashes after a move, prompt of %d", length), s.hashes, want.hashes)
		equal(t, fmt.Sprintf("hashes after a restore, prompt of %d", length), restored.hashes, want.hashes[4:])
		r.Release(2)
		r.Release(3)
	}
}

func TestRecurrentStateIsNotTrimmed(t *testing.T) {
	for _, name := range []string{recurrent, hybrid} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, random(t, name), llama.Options{Slots: 2, ContextTokens: 512})
			prompt := r.prompt(tale, 60)
			want := r.generate(1, greedy(), prompt, 8)
			r.begin(0, greedy(), prompt)
			if err := r.Trim(0, 59); !errors.Is(err, scheduler.ErrTrimRefused) {
				t.Errorf("got %v; want a refusal", err)
			}
			r.checkEmpty(0)
			r.Release(0)
			equal(t, "tokens of the next session", r.generate(0, greedy(), prompt, 8).out, want.out)
		})
	}
}

// A state that cannot be rolled back is lost with the call that fails; a decode call that is interrupted before it
// touched anything keeps it.
func TestInterruptedRecurrentSessionsGoOnOrAreLost(t *testing.T) {
	r := newRig(t, random(t, recurrent), llama.Options{Slots: 2, ContextTokens: 512})
	prompt := r.prompt(tale, 60)
	want := r.generate(0, greedy(), prompt, 8)
	s := r.begin(0, greedy(), prompt)
	r.Interrupt()
	if res := r.decode(s)[0]; res.Err == nil || res.Err.Cause != scheduler.CauseAborted {
		t.Fatalf("outcome %d, error %v", res.Outcome, res.Err)
	}
	r.Resume()
	if held, _, last := r.Held(0); last != held-1 {
		t.Errorf("the engine counts %d tokens, llama.cpp ends at position %d", held, last)
	}
	r.Release(0)
	equal(t, "tokens of the next session", r.generate(0, greedy(), prompt, 8).out, want.out)
}

func TestWindowedStateIsTrimmedOnlyWhereTheWindowIsStillThere(t *testing.T) {
	const window = 64
	r := newRig(t, random(t, windowed), llama.Options{Slots: 2, ContextTokens: 1024})
	prompt := r.prompt(tale, 900)
	r.begin(0, greedy(), prompt)
	_, oldest, _ := r.Held(0)
	if oldest == 0 {
		t.Fatal("no position has left the window's cache; the test shows nothing")
	}
	keep := oldest + window // the lowest that the window still reaches from
	if err := r.Trim(0, keep); err != nil {
		t.Fatalf("trim to %d with positions from %d on: %v", keep, oldest, err)
	}
	rest := r.prompt("Another end of it. ", 40)
	if err := r.Open(0, greedy(), prompt); err != nil {
		t.Fatal(err)
	}
	s := &session{slot: 0, kept: keep + len(rest)}
	s.take(t, r.prefill(0, keep, rest, true, noToken))
	r.steps(7, s)
	want := r.generate(1, greedy(), slices.Concat(prompt[:keep], rest), 8)
	equal(t, "tokens after a trim within the window", s.out, want.out)
	r.Release(0)

	r.begin(0, greedy(), prompt)
	if err := r.Trim(0, keep-1); !errors.Is(err, scheduler.ErrTrimRefused) {
		t.Errorf("trim to %d: %v; want a refusal", keep-1, err)
	}
	r.checkEmpty(0)
}
