package llama_test

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/meshnet/node/llama"
	"github.com/meshnet/node/scheduler"
)

func TestGreedyTokensOfAKnownPrompt(t *testing.T) {
	r := newRig(t, story(t), llama.Options{Slots: 1, ContextTokens: 256})
	s := r.generate(0, greedy(), r.prompt(tale, 20), 16)
	equal(t, "tokens", s.out, []int32{741, 473, 988, 405, 287, 692, 459, 261, 551, 793, 305, 427, 511, 456, 512, 988})
}

// vllm#16445: the context's end, to the token.
func TestPromptsUpToTheContextsEnd(t *testing.T) {
	const context = 256
	r := newRig(t, story(t), llama.Options{Slots: 2, ContextTokens: context})
	for _, length := range []int{context - 1, context} {
		s := r.begin(0, greedy(), r.prompt(tale, length))
		if held, first, last := r.Held(0); held != length || first != 0 || last != length-1 {
			t.Errorf("prompt of %d: %d tokens at positions %d to %d", length, held, first, last)
		}
		if len(s.out) != 1 {
			t.Errorf("prompt of %d: no token", length)
		}
		r.Release(0)
	}
	mustPanic(t, func() { r.Prefill(scheduler.Chunk{Tokens: make([]int32, context+1), Forced: noToken}) })
}

func TestDecodeAtTheContextsLastPosition(t *testing.T) {
	const context = 256
	r := newRig(t, story(t), llama.Options{Slots: 2, ContextTokens: context, Audit: true})
	prompt := r.prompt(tale, context)
	want := r.begin(0, greedy(), prompt)
	r.Release(0)
	// The same KV with its last position from a decode step, given the token that the prompt has there.
	s := r.begin(1, greedy(), prompt[:context-1])
	s.newest = prompt[context-1]
	r.steps(1, s)
	if s.out[1] != want.out[0] {
		t.Errorf("got token %d, want %d", s.out[1], want.out[0])
	}
	mustPanic(t, func() { r.Decode([]scheduler.Row{s.row()}) })
}

func TestPaddingBesideAFullSlotLeavesItAsItWas(t *testing.T) {
	const context = 256
	r := newRig(t, story(t), llama.Options{Slots: 2, ContextTokens: context, Exact: true})
	r.begin(0, greedy(), r.prompt(tale, context))
	before := r.save(0)
	defer before.Free()
	alone := r.begin(1, greedy(), r.prompt(tale, 40)) // pads the row of slot 1 with one of slot 0, one past its end
	r.steps(8, alone)
	if held, first, last := r.Held(0); held != context || first != 0 || last != context-1 {
		t.Errorf("the full slot holds %d tokens at positions %d to %d", held, first, last)
	}
	after := r.save(0)
	defer after.Free()
	if !slices.Equal(llama.StateBytes(before), llama.StateBytes(after)) {
		t.Error("the full slot's state changed")
	}
	r.Release(1)
	empty := newRig(t, story(t), llama.Options{Slots: 2, ContextTokens: context, Exact: true})
	equal(t, "tokens beside a full slot", alone.out, empty.generate(1, greedy(), r.prompt(tale, 40), 9).out)
}

// llama.cpp#9667: prompts around a small batch.
func TestPromptsAroundTheBatchSizeGiveTheSameTokens(t *testing.T) {
	small := newRig(t, story(t), llama.Options{Slots: 1, ContextTokens: 256, BatchTokens: 64})
	large := newRig(t, story(t), llama.Options{Slots: 1, ContextTokens: 256, BatchTokens: 512})
	for _, n := range []int{1, 63, 64, 65, 128, 129} {
		prompt := small.prompt(tale, n)
		equal(t, fmt.Sprintf("prompt of %d", n), small.generate(0, greedy(), prompt, 12).out, large.generate(0, greedy(), prompt, 12).out)
	}
}

func TestChunksOnOneGridGiveTheBitsOfOneCall(t *testing.T) {
	options := llama.Options{Slots: 1, ContextTokens: 512, BatchTokens: 64, Audit: true}
	options.PrefillChunk = 64
	chunks := newRig(t, story(t), options)
	options.PrefillChunk = 256 // one call, which llama.cpp gets in pieces of 64
	whole := newRig(t, story(t), options)
	for _, n := range []int{65, 200, 256, 300} {
		prompt := chunks.prompt(tale, n)
		a, b := chunks.generate(0, greedy(), prompt, 4), whole.generate(0, greedy(), prompt, 4)
		equal(t, fmt.Sprintf("tokens, prompt of %d", n), a.out, b.out)
		equal(t, fmt.Sprintf("logit hashes, prompt of %d", n), a.hashes, b.hashes)
	}
}

// crowd begins a session in each slot named and decodes them together; alone gives what each says by itself.
func crowd(r *rig, slots []int, sampling scheduler.Sampling, n int) []*session {
	r.t.Helper()
	var sessions []*session
	for _, slot := range slots {
		sessions = append(sessions, r.begin(slot, sampling, crowdPrompt(r, slot)))
	}
	r.steps(n-1, sessions...)
	for _, s := range sessions {
		r.Release(s.slot)
	}
	return sessions
}

// crowdPrompt is a prompt of its own for each slot, of its own length.
func crowdPrompt(r *rig, slot int) []scheduler.Token {
	r.t.Helper()
	return r.prompt(fmt.Sprintf("Story %d. ", slot)+tale, 20+7*slot)
}

func TestCrowdGivesTheTokensOfAlone(t *testing.T) {
	for _, exact := range []bool{false, true} {
		for _, slots := range [][]int{{0, 1, 2, 3}, {0, 1, 3, 4}, {0, 2, 5, 7}} {
			t.Run(fmt.Sprint("exact ", exact, " slots ", slots), func(t *testing.T) {
				r := newRig(t, story(t), llama.Options{ContextTokens: 256, Exact: exact, Audit: true})
				for _, s := range crowd(r, slots, greedy(), 24) {
					alone := r.generate(0, greedy(), crowdPrompt(r, s.slot), 24)
					equal(t, fmt.Sprintf("tokens of slot %d", s.slot), s.out, alone.out)
					if exact {
						equal(t, fmt.Sprintf("logit hashes of slot %d", s.slot), s.hashes, alone.hashes)
					}
				}
			})
		}
	}
}

// The matrix kernels of these weights take rows by fours and the rest another way: exact pads to a multiple of four.
func TestExactCrowdOfKQuantsGivesTheBitsOfAlone(t *testing.T) {
	r := newRig(t, shared.get(t, "30layers-tiny", "q4_k_m"), llama.Options{Slots: 5, ContextTokens: 128, Exact: true, Audit: true})
	for _, s := range crowd(r, []int{0, 1, 2, 3, 4}, greedy(), 6) {
		alone := r.generate(2, greedy(), crowdPrompt(r, s.slot), 6)
		equal(t, fmt.Sprintf("logit hashes of slot %d", s.slot), s.hashes, alone.hashes)
	}
}

// llama.cpp#9667, its other half: many sessions at once, with a small batch.
func TestHundredSessionsAtOnceGiveTheTokensOfAlone(t *testing.T) {
	const sessions, distinct = 100, 5
	r := newRig(t, story(t), llama.Options{Slots: sessions, ContextTokens: 128, BatchTokens: 64})
	want := make([]*session, distinct)
	for i := range want {
		want[i] = r.generate(0, greedy(), crowdPrompt(r, i), 8)
	}
	all := make([]*session, sessions)
	for slot := range all {
		all[slot] = r.begin(slot, greedy(), crowdPrompt(r, slot%distinct))
	}
	r.steps(7, all...)
	for slot, s := range all {
		equal(t, fmt.Sprintf("tokens of slot %d", slot), s.out, want[slot%distinct].out)
	}
}

func TestForcedRowsGiveTheirTokenAndTheSameLogits(t *testing.T) {
	r := newRig(t, story(t), llama.Options{Slots: 2, ContextTokens: 256, Audit: true})
	prompt := r.prompt(tale, 30)
	sampled := r.generate(0, penalised(7), prompt, 12)

	if err := r.Open(0, penalised(7), prompt); err != nil {
		t.Fatal(err)
	}
	replay := &session{slot: 0, kept: len(prompt)}
	replay.take(t, r.prefill(0, 0, prompt, true, sampled.out[0]))
	for len(replay.out) < 8 {
		row := replay.row()
		row.Forced = sampled.out[replay.index]
		replay.take(t, r.Decode([]scheduler.Row{row})[0])
		replay.kept++
	}
	r.steps(4, replay) // goes on with draws of its own
	equal(t, "tokens", replay.out, sampled.out)
	equal(t, "logit hashes", replay.hashes, sampled.hashes)

	row := replay.row()
	row.Forced = 3
	if res := r.Decode([]scheduler.Row{row})[0]; res.Token != 3 || res.EOG {
		t.Errorf("forced token 3: got %+v", res)
	}
	replay.kept++
	row = replay.row()
	row.Forced = r.model.Facts().EOS
	if res := r.Decode([]scheduler.Row{row})[0]; res.Token != 2 || !res.EOG {
		t.Errorf("forced end of sequence: got %+v", res)
	}
}

func TestGapIsBetweenTheTwoBestLogits(t *testing.T) {
	r := newRig(t, story(t), llama.Options{Slots: 1, ContextTokens: 256, Audit: true})
	prompt := r.prompt(tale, 30)
	if err := r.Open(0, greedy(), prompt); err != nil {
		t.Fatal(err)
	}
	res := r.prefill(0, 0, prompt, true, noToken)
	if !(res.Gap > 0) || res.LogitHash == 0 {
		t.Errorf("got gap %g, hash %x", res.Gap, res.LogitHash)
	}
}

func TestMissedChunkEvaluatesNothing(t *testing.T) {
	r := newRig(t, story(t), llama.Options{Slots: 2, ContextTokens: 256})
	s := r.begin(0, greedy(), r.prompt(tale, 30))
	for _, pos := range []int{0, 29, 31} {
		res := r.Prefill(scheduler.Chunk{Slot: 0, Pos: pos, Tokens: []int32{5}, Last: true, Forced: noToken})
		if res.Outcome != scheduler.OutcomeMiss {
			t.Errorf("chunk at %d of a slot with 30: outcome %d", pos, res.Outcome)
		}
	}
	if res := r.Prefill(scheduler.Chunk{Slot: 1, Pos: 1, Tokens: []int32{5}, Forced: noToken}); res.Outcome != scheduler.OutcomeMiss {
		t.Errorf("chunk at 1 of an empty slot: outcome %d", res.Outcome)
	}
	r.steps(5, s)
	r.Release(0)
	equal(t, "tokens after the misses", s.out, r.generate(0, greedy(), r.prompt(tale, 30), 6).out)
}

func TestMissedRowsLeaveTheOthersUndisturbed(t *testing.T) {
	r := newRig(t, story(t), llama.Options{Slots: 4, ContextTokens: 256})
	want := crowd(r, []int{0, 1, 2}, greedy(), 4)
	var sessions []*session
	for slot := range 3 {
		sessions = append(sessions, r.begin(slot, greedy(), crowdPrompt(r, slot)))
	}
	for range 3 {
		rows := []scheduler.Row{sessions[0].row(), sessions[1].row(), sessions[2].row(), {Slot: 3, Token: 5, Pos: 9, Forced: noToken}}
		rows[1].Pos--
		got := slices.Clone(r.Decode(rows))
		if got[1].Outcome != scheduler.OutcomeMiss || got[3].Outcome != scheduler.OutcomeMiss {
			t.Fatalf("outcomes %d and %d; want misses", got[1].Outcome, got[3].Outcome)
		}
		rows[1].Pos++
		sessions[1].take(t, r.Decode(rows[1:2])[0])
		for _, i := range []int{0, 2} {
			sessions[i].take(t, got[i])
		}
		for _, s := range sessions {
			s.kept++
		}
	}
	for i, s := range sessions {
		equal(t, fmt.Sprintf("tokens of slot %d", i), s.out, want[i].out)
	}
	if held, _, last := r.Held(3); held != 0 || last != -1 {
		t.Errorf("the empty slot holds %d tokens, to position %d", held, last)
	}
}

func TestMisusePanics(t *testing.T) {
	r := newRig(t, story(t), llama.Options{Slots: 2, ContextTokens: 256})
	s := r.begin(0, greedy(), r.prompt(tale, 20))
	st := r.save(0)
	defer st.Free()
	row := s.row()
	at := func(slot int) scheduler.Row { return scheduler.Row{Slot: slot, Pos: 0, Forced: noToken} }
	for name, c := range map[string]struct {
		call func()
		says string
	}{
		"slot below 0":              {func() { r.Release(-1) }, "slot -1 of an engine with 2"},
		"slot beyond":               {func() { r.Close(2) }, "slot 2 of an engine with 2"},
		"open a slot beyond":        {func() { _ = r.Open(2, greedy(), nil) }, "slot 2 of an engine with 2"},
		"chunk of a slot beyond":    {func() { r.Prefill(scheduler.Chunk{Slot: 9, Tokens: []int32{1}}) }, "slot 9 of an engine with 2"},
		"row of a slot beyond":      {func() { r.Decode([]scheduler.Row{at(2)}) }, "slot 2 of an engine with 2"},
		"chunk without tokens":      {func() { r.Prefill(scheduler.Chunk{Pos: 20}) }, "positions [20, 20)"},
		"chunk beyond the context":  {func() { r.Prefill(scheduler.Chunk{Pos: 255, Tokens: []int32{1, 1}}) }, "positions [255, 257) of a context of 256"},
		"negative position":         {func() { r.Decode([]scheduler.Row{{Pos: -1}}) }, "positions [-1, 0)"},
		"rows out of order":         {func() { r.Decode([]scheduler.Row{at(1), row}) }, "rows not in slot order: 0 after 1"},
		"one slot twice":            {func() { r.Decode([]scheduler.Row{row, row}) }, "rows not in slot order: 0 after 0"},
		"restore into a full slot":  {func() { _ = r.Restore(0, st) }, "restore into slot 0, which holds 20 tokens"},
		"move into a full slot":     {func() { _ = r.Move(0, 0) }, "move slot 0 (20 tokens) to 0 (20 tokens)"},
		"move of an empty slot":     {func() { _ = r.Move(1, 1) }, "move slot 1 (0 tokens)"},
		"trim beyond the end":       {func() { _ = r.Trim(0, 21) }, "trim slot 0 of 20 tokens to 21"},
		"trim to less than nothing": {func() { _ = r.Trim(0, -1) }, "trim slot 0 of 20 tokens to -1"},
		"exact beyond the end":      {func() { _, _ = r.Save(0, 21) }, "slot 0 of 20 tokens saved as exact to 21"},
	} {
		if got := mustPanic(t, c.call); !strings.Contains(got, c.says) {
			t.Errorf("%s: panicked with %q, want %q", name, got, c.says)
		}
	}
	r.steps(1, s) // none of it did harm, and none of it kept the engine marked as busy
}

func TestConcurrentUsePanics(t *testing.T) {
	r := newRig(t, story(t), llama.Options{Slots: 1, ContextTokens: 256})
	r.Enter()
	for name, call := range map[string]func(){
		"decode": func() { r.Decode(nil) }, "prefill": func() { r.Prefill(scheduler.Chunk{Tokens: []int32{1}}) },
		"open": func() { _ = r.Open(0, greedy(), nil) }, "close": func() { r.Close(0) }, "release": func() { r.Release(0) },
		"save": func() { _, _ = r.Save(0, 0) }, "restore": func() { _ = r.Restore(0, nil) },
		"trim": func() { _ = r.Trim(0, 0) }, "move": func() { _ = r.Move(0, 0) }, "free": r.Free,
	} {
		if got := mustPanic(t, call); !strings.Contains(got, "driven by one goroutine") {
			t.Errorf("%s: panicked with %q", name, got)
		}
	}
	r.Leave()
}

func TestInterruptedPrefillLeavesTheSlotAsItWas(t *testing.T) {
	const first, context = 64, 2048
	r := newRig(t, story(t), llama.Options{Slots: 1, ContextTokens: context, PrefillChunk: context, BatchTokens: 8})
	prompt := r.prompt(tale, context)
	if err := r.Open(0, greedy(), prompt); err != nil {
		t.Fatal(err)
	}
	if res := r.Prefill(scheduler.Chunk{Tokens: prompt[:first], Forced: noToken}); res.Outcome != scheduler.OutcomeNone {
		t.Fatalf("outcome %d", res.Outcome)
	}
	res := interruptedPrefill(r, first, prompt)
	for tries := 0; res.Err == nil && tries < 100; tries++ { // it was done before the interrupt came
		r.Resume()
		if err := r.Trim(0, first); err != nil {
			t.Fatal(err)
		}
		res = interruptedPrefill(r, first, prompt)
	}
	if res.Err == nil || res.Err.Cause != scheduler.CauseAborted {
		t.Fatalf("outcome %d, error %v; want an interrupted call", res.Outcome, res.Err)
	}
	if held, from, to := r.Held(0); held != first || from != 0 || to != first-1 {
		t.Errorf("the slot holds %d tokens at positions %d to %d", held, from, to)
	}
	again := r.Prefill(scheduler.Chunk{Pos: first, Tokens: prompt[first : first+8], Forced: noToken})
	if again.Err == nil || again.Err.Cause != scheduler.CauseAborted {
		t.Errorf("before Resume: outcome %d, error %v", again.Outcome, again.Err)
	}
	r.Resume()
	s := &session{slot: 0, kept: 200}
	s.take(t, r.prefill(0, first, prompt[first:200], true, noToken))
	r.steps(4, s)
	r.Release(0)
	equal(t, "tokens after it", s.out, r.generate(0, greedy(), prompt[:200], 5).out)
}

// interruptedPrefill prefills the rest of a prompt and interrupts that as soon as it runs.
func interruptedPrefill(r *rig, from int, prompt []scheduler.Token) scheduler.Result {
	done := make(chan scheduler.Result)
	go func() {
		done <- r.Prefill(scheduler.Chunk{Pos: from, Tokens: prompt[from:], Last: true, Forced: noToken})
	}()
	for {
		select {
		case res := <-done:
			return res
		default:
		}
		if r.Busy() {
			r.Interrupt()
			return <-done
		}
		runtime.Gosched()
	}
}

func TestInterruptedDecodeKeepsEverySlot(t *testing.T) {
	r := newRig(t, story(t), llama.Options{Slots: 3, ContextTokens: 256})
	want := crowd(r, []int{0, 1, 2}, greedy(), 6)
	var sessions []*session
	for slot := range 3 {
		sessions = append(sessions, r.begin(slot, greedy(), crowdPrompt(r, slot)))
	}
	r.Interrupt()
	for i, res := range r.decode(sessions...) {
		if res.Err == nil || res.Err.Cause != scheduler.CauseAborted {
			t.Errorf("slot %d: outcome %d, error %v", i, res.Outcome, res.Err)
		}
	}
	r.Resume()
	r.steps(5, sessions...)
	for i, s := range sessions {
		equal(t, fmt.Sprintf("tokens of slot %d", i), s.out, want[i].out)
	}
}

func TestInterruptAfterFreeIsHarmless(t *testing.T) {
	r := newRig(t, story(t), llama.Options{Slots: 1, ContextTokens: 256})
	r.Free()
	r.Interrupt()
	r.Resume()
}

func TestReleaseAndCloseAreIdempotent(t *testing.T) {
	r := newRig(t, story(t), llama.Options{Slots: 1, ContextTokens: 256})
	r.Close(0)
	r.Release(0)
	s := r.begin(0, greedy(), r.prompt(tale, 20))
	r.Close(0)
	r.Close(0)
	if held, _, last := r.Held(0); held != 20 || last != 19 {
		t.Errorf("a closed slot holds %d tokens, to position %d; want its 20", held, last)
	}
	if res := r.decode(s)[0]; res.Err == nil || res.Err.Cause != scheduler.CauseSampler {
		t.Errorf("a row without a sampler: outcome %d, error %v", res.Outcome, res.Err)
	}
	r.Release(0)
	r.Release(0)
	if held, _, last := r.Held(0); held != 0 || last != -1 {
		t.Errorf("a released slot holds %d tokens, to position %d", held, last)
	}
}

func TestMoreThreadsThanProcessorsAreRefused(t *testing.T) {
	_, err := llama.NewEngine(story(t), llama.Options{Slots: 1, Threads: runtime.NumCPU() + 1})
	var wrong *llama.OptionError
	if !errors.As(err, &wrong) || wrong.Field != "threads" {
		t.Errorf("error %v", err)
	}
}
