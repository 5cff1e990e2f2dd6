package llama_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/meshnet/node/llama"
	"github.com/meshnet/node/scheduler"
)

// checkEmpty fails unless a slot is empty, for the engine and for llama.cpp.
func (r *rig) checkEmpty(slot int) {
	r.t.Helper()
	if held, first, last := r.Held(slot); held != 0 || first != -1 || last != -1 {
		r.t.Errorf("slot %d holds %d tokens at positions %d to %d; want none", slot, held, first, last)
	}
}

func TestRestoredSlotGivesTheSameBits(t *testing.T) {
	r := newRig(t, story(t), llama.Options{Slots: 3, ContextTokens: 512, Audit: true})
	prompt := r.prompt(tale, 300)
	want := r.generate(0, greedy(), prompt, 20)

	s := r.begin(1, greedy(), prompt)
	r.steps(9, s)
	st, err := r.Save(1, 256)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Free()
	const tokens, perToken = 309, 1024
	if st.Tokens() != tokens || st.ExactLen() != 256 || st.Bytes() < tokens*perToken || st.Bytes() > tokens*(perToken+64)+4096 {
		t.Errorf("state of %d tokens, exact to %d, %d bytes", st.Tokens(), st.ExactLen(), st.Bytes())
	}
	r.steps(10, s) // saving leaves the slot as it is
	equal(t, "logit hashes of the saved slot", s.hashes, want.hashes)
	r.Release(1)

	for _, slot := range []int{1, 0, 2} { // the state can be used again and again, in any slot
		r.restore(slot, st)
		if err := r.Open(slot, greedy(), prompt); err != nil {
			t.Fatal(err)
		}
		again := &session{slot: slot, kept: tokens, newest: want.out[9], index: 10}
		r.steps(10, again)
		equal(t, fmt.Sprintf("logit hashes in slot %d", slot), again.hashes, want.hashes[10:])
	}
}

func TestMovedSlotGivesTheSameBits(t *testing.T) {
	r := newRig(t, story(t), llama.Options{Slots: 4, ContextTokens: 512, Audit: true})
	prompt := r.prompt(tale, 300)
	want := r.generate(0, greedy(), prompt, 20)
	s := r.begin(0, greedy(), prompt)
	for _, to := range []int{3, 1, 2} {
		r.steps(5, s)
		if err := r.Move(s.slot, to); err != nil {
			t.Fatal(err)
		}
		r.checkEmpty(s.slot)
		s.slot = to
	}
	r.steps(4, s)
	equal(t, "logit hashes", s.hashes, want.hashes)
}

func TestTrimmedSlotGoesOnAsIfTheRestHadNeverBeen(t *testing.T) {
	r := newRig(t, story(t), llama.Options{Slots: 2, ContextTokens: 512, PrefillChunk: 64, Audit: true})
	prompt := r.prompt(tale, 200)
	want := r.generate(0, greedy(), prompt, 8)
	s := r.begin(1, greedy(), slices.Concat(prompt[:128], r.prompt("Another end. ", 60)))
	r.steps(10, s)
	if err := r.Trim(1, 128); err != nil { // on the grid: the rest is cut as it was the first time
		t.Fatal(err)
	}
	if held, first, last := r.Held(1); held != 128 || first != 0 || last != 127 {
		t.Errorf("%d tokens at positions %d to %d", held, first, last)
	}
	again := &session{slot: 1, kept: len(prompt)}
	again.take(t, r.prefill(1, 128, prompt[128:], true, noToken))
	r.steps(7, again)
	equal(t, "logit hashes", again.hashes, want.hashes)

	if err := r.Trim(1, 207); err != nil {
		t.Errorf("a trim to the length it has: %v", err)
	}
	if err := r.Trim(1, 0); err != nil {
		t.Errorf("a trim to nothing: %v", err)
	}
	r.checkEmpty(1)
}

// A prompt that is in the slot already: its last token is evaluated again.
func TestFullyCachedPromptGivesTheSameTokens(t *testing.T) {
	r := newRig(t, story(t), llama.Options{Slots: 1, ContextTokens: 512})
	for _, length := range []int{1, 2, 64, 256, 257, 300} {
		prompt := r.prompt(tale, length)
		s := r.begin(0, greedy(), prompt)
		r.steps(7, s)
		if err := r.Trim(0, length-1); err != nil {
			t.Fatal(err)
		}
		if err := r.Open(0, greedy(), prompt); err != nil {
			t.Fatal(err)
		}
		again := &session{slot: 0, kept: length}
		again.take(t, r.prefill(0, length-1, prompt[length-1:], true, noToken))
		r.steps(7, again)
		r.Release(0)
		equal(t, fmt.Sprintf("prompt of %d", length), again.out, s.out)
	}
}

func TestEmptySlotIsNotSaved(t *testing.T) {
	r := newRig(t, story(t), llama.Options{Slots: 1, ContextTokens: 256})
	if st, err := r.Save(0, 0); st != nil || err == nil || err.Error() != "slot 0 is empty" {
		t.Errorf("got %v, %v", st, err)
	}
}

func TestDamagedStatesAreRefusedAndTheSlotStaysUsable(t *testing.T) {
	r := newRig(t, story(t), llama.Options{Slots: 2, ContextTokens: 256})
	prompt := r.prompt(tale, 100)
	want := r.generate(0, greedy(), prompt, 6)
	r.begin(0, greedy(), prompt)
	for name, damage := range map[string]func(st scheduler.State) (mend func()){
		"bit in the header": func(st scheduler.State) func() { llama.StateBytes(st)[41] ^= 4; return nil },
		"bit in the payload": func(st scheduler.State) func() {
			llama.StateBytes(st)[len(llama.StateBytes(st))/2] ^= 1
			return nil
		},
		"cut":             func(st scheduler.State) func() { return llama.CutState(st, 1) },
		"cut to a header": func(st scheduler.State) func() { return llama.CutState(st, int(st.Bytes())-72) },
		"cut to nothing":  func(st scheduler.State) func() { return llama.CutState(st, int(st.Bytes())-3) },
		"cut, but sealed": func(st scheduler.State) func() { m := llama.CutState(st, 5000); llama.SealState(st); return m },
		"half, but sealed": func(st scheduler.State) func() {
			m := llama.CutState(st, int(st.Bytes()/2))
			llama.SealState(st)
			return m
		},
		"payload of ones, but sealed": func(st scheduler.State) func() {
			for i := range llama.StateBytes(st)[72:] {
				llama.StateBytes(st)[72+i] = 0xff
			}
			llama.SealState(st)
			return nil
		},
		"other positions, but sealed": func(st scheduler.State) func() {
			llama.StateBytes(st)[72+8] ^= 64 // the first cell's
			llama.SealState(st)
			return nil
		},
	} {
		st := r.save(0)
		mend := damage(st)
		err := r.Restore(1, st)
		if !errors.Is(err, scheduler.ErrStateInvalid) {
			t.Errorf("%s: %v; want an invalid state", name, err)
		}
		r.checkEmpty(1)
		if mend != nil {
			mend()
		}
		st.Free()
		equal(t, name+": tokens of the next session", r.generate(1, greedy(), prompt, 6).out, want.out)
	}
}

// foreignState is a state that another kind of engine made.
type foreignState struct{ scheduler.State }

func TestStatesOfOtherRecipesAreRefused(t *testing.T) {
	options := llama.Options{Slots: 2, ContextTokens: 256}
	r := newRig(t, story(t), options)
	r.begin(0, greedy(), r.prompt(tale, 100))
	st := r.save(0)
	defer st.Free()

	options.Slots = 3
	more := newRig(t, story(t), options)
	if err := more.Restore(0, st); !errors.Is(err, scheduler.ErrStateRecipe) {
		t.Errorf("another number of slots: %v", err)
	}
	more.checkEmpty(0)
	options.Slots = 2
	tiny := newRig(t, random(t, "tiny"), options)
	if err := tiny.Restore(0, st); !errors.Is(err, scheduler.ErrStateRecipe) {
		t.Errorf("another model: %v", err)
	}
	tiny.checkEmpty(0)
	if err := r.Restore(1, foreignState{}); !errors.Is(err, scheduler.ErrStateRecipe) {
		t.Errorf("another engine: %v", err)
	}
	r.checkEmpty(1)
}

func TestStateGoesIntoAnEngineWithRoomForIt(t *testing.T) {
	long := newRig(t, story(t), llama.Options{Slots: 2, ContextTokens: 512})
	prompt := long.prompt(tale, 300)
	want := long.generate(0, greedy(), prompt, 6)
	long.begin(0, greedy(), prompt)
	st := long.save(0)
	defer st.Free()

	same := newRig(t, story(t), llama.Options{Slots: 2, ContextTokens: 400, PrefillChunk: 64})
	same.restore(1, st)
	if err := same.Open(1, greedy(), prompt); err != nil {
		t.Fatal(err)
	}
	s := &session{slot: 1, kept: 300, newest: want.out[0], index: 1}
	same.steps(5, s)
	equal(t, "tokens in another engine", s.out, want.out[1:])

	short := newRig(t, story(t), llama.Options{Slots: 2, ContextTokens: 299})
	if err := short.Restore(0, st); !errors.Is(err, scheduler.ErrStateInvalid) {
		t.Errorf("a context one token too short: %v", err)
	}
	short.checkEmpty(0)
}

func TestStatesOutliveTheirEngineAndAreFreedOnce(t *testing.T) {
	r := newRig(t, story(t), llama.Options{Slots: 2, ContextTokens: 256})
	r.begin(0, greedy(), r.prompt(tale, 50))
	a, b := r.save(0), r.save(0)
	if n := r.LiveStates(); n != 2 {
		t.Errorf("%d live states, want 2", n)
	}
	a.Free()
	if n := r.LiveStates(); n != 1 {
		t.Errorf("%d live states, want 1", n)
	}
	if got := mustPanic(t, a.Free); !strings.Contains(got, "freed twice") {
		t.Errorf("panicked with %q", got)
	}
	if err := r.Restore(1, a); !errors.Is(err, scheduler.ErrStateInvalid) {
		t.Errorf("a freed state: %v", err)
	}
	r.Free()
	if b.Tokens() != 50 {
		t.Errorf("%d tokens, want 50", b.Tokens())
	}
	b.Free()
	if n := r.LiveStates(); n != 0 {
		t.Errorf("%d live states, want 0", n)
	}
}

func TestLoadedStateIsTheSavedOneOrNone(t *testing.T) {
	r := newRig(t, story(t), llama.Options{Slots: 2, ContextTokens: 256, Audit: true})
	prompt := r.prompt(tale, 100)
	want := r.generate(0, greedy(), prompt, 8)
	r.begin(0, greedy(), prompt)
	st, err := r.Save(0, 64)
	if err != nil {
		t.Fatal(err)
	}
	blob := slices.Clone(st.Blob())
	st.Free()

	loaded, err := r.LoadState(int64(len(blob)), bytes.NewReader(blob))
	if err != nil {
		t.Fatal(err)
	}
	if loaded.Tokens() != 100 || loaded.ExactLen() != 64 || loaded.Bytes() != int64(len(blob)) {
		t.Errorf("%d tokens, exact to %d, %d bytes", loaded.Tokens(), loaded.ExactLen(), loaded.Bytes())
	}
	r.restore(1, loaded)
	loaded.Free()
	if err := r.Open(1, greedy(), prompt); err != nil {
		t.Fatal(err)
	}
	again := &session{slot: 1, kept: 100, newest: want.out[0], index: 1}
	r.steps(7, again)
	equal(t, "logit hashes", again.hashes, want.hashes[1:])

	blob[len(blob)/2] ^= 1
	for _, test := range []struct {
		size int64
		want error
	}{{int64(len(blob)), scheduler.ErrStateInvalid}, {10, scheduler.ErrStateInvalid}, {int64(len(blob)) + 1, io.ErrUnexpectedEOF}} {
		if _, err := r.LoadState(test.size, bytes.NewReader(blob)); !errors.Is(err, test.want) {
			t.Errorf("%d bytes: %v, want %v", test.size, err, test.want)
		}
	}
}
